//! docs/threat-model.md names tests that exist, for every threat, and the attacks whose controls are in the tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Heads of the tables with a column of tests.
const HEAD: &str = "| threat | control | tests |";

const ATTACKS_BEGIN: &str = "<!-- attacks: written by integration-tests/architecture/tests/threat_model.rs -->\n\n";
const ATTACKS_END: &str = "\n<!-- end of attacks -->\n";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Source files below a folder, without those of builds.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if path.is_dir() {
            let skipped = name.to_string_lossy().starts_with('.') || path.join("CACHEDIR.TAG").exists();
            if !skipped {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Names of the functions in a file that have a `test` attribute. In a `program` of tests also of the parts of a test:
/// those that the file calls, because they share a cluster.
fn tests_in(text: &str, program: bool) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((before, rest)) = line.split_once("fn ") {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_part = || program && before == "async " && text.contains(&format!("    {name}(&"));
            if is_test || is_part() {
                names.insert(name);
            }
            is_test = false;
        }
    }
    names
}

/// The rows of the tables: the threat, and the names in the column of tests.
fn threats(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut rows = Vec::new();
    let mut inside = false;
    for line in page.lines() {
        if line == HEAD || (inside && line.starts_with("|---")) {
            inside = true;
        } else if let Some(row) = line.strip_prefix("| ").filter(|_| inside) {
            let mut cells = row.trim_end_matches([' ', '|']).split(" | ");
            let (threat, tests) = (cells.next().unwrap_or_default(), cells.nth(1).unwrap_or_default());
            rows.push((threat, tests.split('`').skip(1).step_by(2).collect()));
        } else {
            inside = false;
        }
    }
    rows
}

#[test]
fn every_threat_names_tests_and_they_exist() {
    let page = fs::read_to_string(workspace().join("docs/threat-model.md")).expect("the page");
    let mut files = Vec::new();
    sources(&workspace(), &mut files);
    let is_program = |file: &Path| file.components().any(|part| part.as_os_str() == "tests");
    let tests: BTreeSet<String> = files
        .iter()
        .flat_map(|file| tests_in(&fs::read_to_string(file).unwrap_or_default(), is_program(file)))
        .collect();
    assert!(tests.len() > 1_000, "only {} tests were found", tests.len());
    let threats = threats(&page);
    assert!(threats.len() > 40, "only {} threats were read", threats.len());
    let untested: Vec<_> = threats.iter().filter(|(_, names)| names.is_empty()).map(|(threat, _)| threat).collect();
    assert!(untested.is_empty(), "threats without a test: {untested:#?}");
    let named = threats.iter().flat_map(|(threat, names)| names.iter().map(move |name| (*name, *threat)));
    let missing: Vec<_> = named.filter(|(name, _)| !tests.contains(*name)).collect();
    assert!(missing.is_empty(), "docs/threat-model.md names tests that do not exist: {missing:#?}");
}

/// `scripts/sabotage` takes the controls away and runs the attacks. Here it reads its list, and finds the code of each
/// control in the tree. `COMITY_WRITE_DOCS=1` writes its table into the page.
#[test]
fn the_page_lists_the_attacks_whose_controls_are_in_the_tree() {
    let output = Command::new(workspace().join("scripts/sabotage")).arg("--table").output().expect("Python 3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(table.lines().count() > 42, "40 attacks, and the head:\n{table}");
    let path = workspace().join("docs/threat-model.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(ATTACKS_BEGIN).expect("where the table begins");
    let (_, after) = rest.split_once(ATTACKS_END).expect("where the table ends");
    let written = format!("{before}{ATTACKS_BEGIN}{table}{ATTACKS_END}{after}");
    if std::env::var_os("COMITY_WRITE_DOCS").is_some() {
        fs::write(&path, &written).expect("the page can be written");
        return;
    }
    assert!(
        page == written,
        "docs/threat-model.md lists other attacks than integration-tests/sabotage: COMITY_WRITE_DOCS=1 cargo test -p \
         comity-architecture --test threat_model"
    );
}

#[test]
fn a_name_counts_only_if_it_is_a_test() {
    let text = "#[test]\nfn first() {}\nfn helper() {}\n#[tokio::test(flavor = \"x\")]\n#[ignore]\nasync fn second() {\n\
                \x20   part(&api).await;\n}\nasync fn part(api: &Api) {}\nasync fn unused(api: &Api) {}\n";
    assert_eq!(tests_in(text, false), ["first", "second"].map(str::to_owned).into());
    assert_eq!(tests_in(text, true), ["first", "part", "second"].map(str::to_owned).into());
    let page = "| threat | control | tests |\n|---|---|---|\n| a | b | `one`, `two` |\n\n| x | y | `no` |\n";
    assert_eq!(threats(page), [("a", vec!["one", "two"])]);
}
