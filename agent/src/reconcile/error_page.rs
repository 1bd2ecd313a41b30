//! Checks that the page of errors explains every code in the agent's crates.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::signed_policy::lease_permit::{POLICY_UNVERIFIED, SIGNED_POLICY};

/// Text before a code in the source, without white space.
const BEFORE_A_CODE: [&str; 7] = [
    "CutRefusal::new(\"",
    "permanent(\"",
    "refuse(lease,\"",
    "self.fail(\"",
    "Impossible(\"",
    "fail(store,peering,epoch,\"",
    "report::fail(store,lease.id,token,\"",
];

/// All Rust below a folder, without white space.
fn sources(folder: &Path, all: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.extend(fs::read_to_string(path).unwrap().split_whitespace());
        }
    }
}

#[test]
fn the_page_of_errors_has_every_code_of_agents_and_no_other() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut source = String::new();
    sources(&root.join("src"), &mut source);
    let crates =
        fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.join("Cargo.toml").exists());
    crates.for_each(|folder| sources(&folder.join("src"), &mut source));
    let behind = |before: &'static str| {
        let rest = source.match_indices(before).map(move |(at, _)| at + before.len());
        rest.filter_map(|at| source[at..].split('"').next())
    };
    // The codes that other places know are constants.
    let shared = [comity_types::DONOR_REFUSED, comity_types::LOCAL_POLICY, POLICY_UNVERIFIED, SIGNED_POLICY];
    let made: BTreeSet<&str> = BEFORE_A_CODE.into_iter().flat_map(behind).chain(shared).collect();
    assert!(made.len() > 40, "the source is written otherwise now: {made:?}");

    let page = fs::read_to_string(root.join("../docs/errors.md")).unwrap();
    let section = page.split("\n## ").find(|section| section.starts_with("Codes of agents\n")).unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let explained: BTreeSet<&str> = rows.filter_map(|row| row.split('`').next()).collect();
    assert_eq!(made.difference(&explained).collect::<Vec<_>>(), [&""; 0], "docs/errors.md does not explain them");
    assert_eq!(explained.difference(&made).collect::<Vec<_>>(), [&""; 0], "docs/errors.md has codes that are none");
}
