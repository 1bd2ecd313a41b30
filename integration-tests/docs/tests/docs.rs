//! Each command of the documentation runs, and prints what the pages show. `COMITY_WRITE_DOCS=1` writes the output of
//! this run into the pages instead; `COMITY_DOCS_PAGE=start.md` runs one page.

#[path = "docs/checkpoint_example.rs"]
mod checkpoint_example;
#[path = "docs/odd_inputs.rs"]
mod odd_inputs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use comity_docs::links::broken;
use comity_docs::run::{Setup, page, pages};

/// Pages that run at once.
const PAGES_AT_ONCE: usize = 2;

/// Programs that the pages use; `cargo test --workspace` builds them beside this test.
const PROGRAMS: [&str; 3] = ["comity", "comity-agent", "comity-broker"];

fn programs() -> PathBuf {
    let running = std::env::current_exe().expect("a running program has a path");
    let folder = running.ancestors().nth(2).expect("tests are in target/PROFILE/deps").to_owned();
    for program in PROGRAMS {
        assert!(
            folder.join(program).is_file(),
            "{program} is not built: run ./test, or `cargo build --workspace --bins`"
        );
    }
    folder
}

/// The folder of kubectl, which `scripts/kubernetes-binaries` gets.
fn kubernetes(repository: &Path) -> PathBuf {
    let output = Command::new(repository.join("scripts/kubernetes-binaries")).output().expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

#[test]
fn links_lead_somewhere() {
    let repository = repository();
    let mut all = pages(&repository.join("docs")).expect("the folder docs");
    all.extend(pages(&repository).expect("pages at the top"));
    all.extend(["agent/README.md", "policy/README.md"].map(|page| repository.join(page)));
    let mut found = Vec::new();
    for page in &all {
        let broken = broken(page).expect("a page");
        found.extend(broken.iter().map(|link| format!("{}: {link}", page.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_table_of_contents_lists_every_page() {
    let docs = repository().join("docs");
    let contents = std::fs::read_to_string(docs.join("README.md")).expect("the table of contents");
    let pages = pages(&docs).expect("the folder docs");
    let names = pages.iter().map(|page| page.file_name().expect("a file").to_string_lossy());
    let missing: Vec<_> =
        names.filter(|name| name != "README.md" && !contents.contains(&format!("]({name})"))).collect();
    assert!(missing.is_empty(), "docs/README.md does not list {missing:?}");
}

#[test]
fn commands_run_and_print_what_the_pages_show() {
    let repository = repository();
    let write = std::env::var_os("COMITY_WRITE_DOCS").is_some();
    let setup =
        Setup { programs: programs(), kubernetes: kubernetes(&repository), write, repository: repository.clone() };
    let only = std::env::var("COMITY_DOCS_PAGE").ok();
    let mut all = pages(&repository.join("docs")).expect("the folder docs");
    all.push(repository.join("README.md"));
    all.retain(|path| only.as_ref().is_none_or(|name| path.ends_with(name)));
    // Pages wait for their federations most of the time.
    let (next, results) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..PAGES_AT_ONCE {
            scope.spawn(|| {
                while let Some(path) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = page(&setup, path);
                    results.lock().expect("no page panics").insert(path.clone(), result);
                }
            });
        }
    });
    let mut problems = Vec::new();
    for (path, result) in results.into_inner().expect("no page panics") {
        let name = path.strip_prefix(&repository).unwrap_or(&path).display();
        match result {
            Ok(outcome) => {
                println!("{name}: {} commands ran, {} blocks did not", outcome.ran, outcome.not_run.len());
                outcome.not_run.iter().for_each(|reason| println!("    not run, {reason}"));
                if outcome.lacks_root && std::env::var("CI").is_ok_and(|ci| ci == "true") {
                    problems
                        .push(format!("{name}: under CI=true nothing may be left out, and hosts need root on Linux"));
                }
                problems.extend(outcome.problems.iter().map(|problem| format!("{name}, {problem}")));
            }
            Err(error) => problems.push(format!("{name}: {error:#}")),
        }
    }
    let text = problems.join("\n\n");
    assert!(
        problems.is_empty() || write,
        "{} differences (COMITY_WRITE_DOCS=1 writes them):\n\n{text}",
        problems.len()
    );
}
