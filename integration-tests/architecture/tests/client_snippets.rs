//! docs/clients.md shows code of the client programs as it is there. `COMITY_WRITE_DOCS=1` writes it into the page.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Line of the page that a snippet follows: `<!-- FILE: SNIPPET -->`.
const MARK: &str = "<!-- ";
const FENCE: &str = "```";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The lines between `docs: NAME` and `docs: end` in a program, without their common indent.
fn snippet(program: &str, name: &str) -> Option<String> {
    let lines = program.lines().skip_while(|line| !line.ends_with(&format!(" docs: {name}"))).skip(1);
    let lines: Vec<&str> = lines.take_while(|line| !line.ends_with(" docs: end")).collect();
    let indent = |line: &&str| line.len() - line.trim_start().len();
    let common = lines.iter().filter(|line| !line.trim().is_empty()).map(indent).min()?;
    let text: Vec<&str> = lines.iter().map(|line| line.get(common..).unwrap_or_default()).collect();
    Some(text.join("\n").trim_end().to_owned())
}

/// Names of all snippets in a program.
fn names(program: &str) -> impl Iterator<Item = &str> {
    program.lines().filter_map(|line| line.split_once(" docs: ")).map(|(_, name)| name).filter(|name| *name != "end")
}

/// The language of a file, as Markdown names it.
fn language(file: &str) -> &str {
    match file.rsplit_once('.').map_or("", |(_, end)| end) {
        "py" => "python",
        "sh" => "bash",
        "cfg" => "haproxy",
        other => other,
    }
}

/// The page with each snippet replaced by the program's code, and the snippets that it shows.
fn with_snippets(page: &str, programs: &Path) -> (String, BTreeSet<(String, String)>) {
    let (mut text, mut shown) = (String::new(), BTreeSet::new());
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let mark =
            line.strip_prefix(MARK).and_then(|mark| mark.strip_suffix(" -->")).and_then(|mark| mark.split_once(": "));
        let Some((file, name)) = mark else { continue };
        let program = fs::read_to_string(programs.join(file)).expect("the page names a program");
        let code = snippet(&program, name).unwrap_or_else(|| panic!("{file} has no snippet {name}"));
        text.push_str(&format!("{FENCE}{}\n{code}\n{FENCE}\n", language(file)));
        shown.insert((file.to_owned(), name.to_owned()));
        if lines.peek().is_some_and(|next| next.starts_with(FENCE)) {
            lines.next();
            lines.by_ref().take_while(|inside| *inside != FENCE).for_each(drop);
        }
    }
    (text, shown)
}

#[test]
fn the_page_shows_the_code_of_the_programs() {
    let (page, programs) = (repository().join("docs/clients.md"), repository().join("integration-tests/clients"));
    let old = fs::read_to_string(&page).expect("docs/clients.md");
    let (new, shown) = with_snippets(&old, &programs);
    if std::env::var_os("COMITY_WRITE_DOCS").is_some() {
        fs::write(&page, &new).expect("docs/clients.md can be written");
    } else {
        assert!(
            old == new,
            "docs/clients.md differs from the programs: COMITY_WRITE_DOCS=1 cargo test -p comity-architecture"
        );
    }
    let files: BTreeSet<&String> = shown.iter().map(|(file, _)| file).collect();
    for file in files {
        let program = fs::read_to_string(programs.join(file)).expect("the page names a program");
        for name in names(&program) {
            assert!(shown.contains(&(file.clone(), name.to_owned())), "the page does not show {name} of {file}");
        }
    }
}

#[test]
fn a_snippet_loses_its_indent_and_its_marks() {
    let program = "x\n  // docs: a\n  if y {\n    z\n  }\n\n  // docs: end\nq";
    assert_eq!(snippet(program, "a").as_deref(), Some("if y {\n  z\n}"));
    assert_eq!(snippet(program, "b"), None);
    assert_eq!(names(program).collect::<Vec<_>>(), ["a"]);
}
