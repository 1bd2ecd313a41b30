//! Imports point one way, a name stands for one thing, and folders stay small enough to be read.

use std::fs;
use std::path::{Path, PathBuf};

use comity_architecture::{Duplicate, Graph, duplicates};

/// Source files that one folder may hold.
const MAX_FILES: usize = 20;

/// Layers of the core: each may import from those before it.
const CORE: [&str; 7] = ["collections", "model", "state", "feasibility", "apply", "scheduler", "explain"];

/// Crates of the agent: each may depend on those before it.
const AGENT: [&str; 7] = ["model", "fabric", "kubernetes", "liqo", "delivery", "state", "workload"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folders of all crates, as the workspace's manifest lists them.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).expect("the workspace's manifest");
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn root_of(folder: &str) -> PathBuf {
    workspace().join(folder).join("src/lib.rs")
}

fn graph(folder: &str) -> Graph {
    Graph::of_crate(&root_of(folder)).expect("a crate that parses")
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    let mut found = Vec::new();
    for folder in crates().iter().filter(|folder| root_of(folder).exists()) {
        for cycle in graph(folder).cycles() {
            let files: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            found.push(format!("{folder}/src: {}", files.join(", ")));
        }
    }
    assert!(found.is_empty(), "files import one another in a circle; move what they share below them:\n{found:#?}");
}

#[test]
fn layers_of_the_core_import_only_from_those_below() {
    let layer = |module: &[String]| CORE.iter().position(|layer| Some(*layer) == module.first().map(String::as_str));
    let graph = graph("broker/core");
    assert!(graph.imports().count() > 500, "the graph of the core is nearly empty");
    let upward: Vec<String> = graph
        .imports()
        .filter(|(from, to)| !from.is_empty() && layer(from) < layer(to) || layer(from).is_none() && !from.is_empty())
        .map(|(from, to)| format!("{} imports {}", from.join("/"), to.join("/")))
        .collect();
    assert!(upward.is_empty(), "the order of layers is {CORE:?}:\n{upward:#?}");
}

#[test]
fn crates_of_the_agent_depend_only_on_those_before_them() {
    let mut found = Vec::new();
    for (at, name) in AGENT.iter().enumerate() {
        let path = workspace().join("agent").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(&path).expect("a crate of the agent");
        let dependencies = manifest.lines().filter_map(|line| line.strip_suffix(".workspace = true"));
        let of_agent = dependencies.filter_map(|line| line.strip_prefix("comity-agent"));
        let upward = of_agent.filter(|other| !AGENT[..at].iter().any(|before| *other == format!("-{before}")));
        found.extend(upward.map(|other| format!("comity-agent-{name} depends on comity-agent{other}")));
    }
    assert!(found.is_empty(), "the order of crates is {AGENT:?}, then comity-agent:\n{found:#?}");
    let members = crates();
    let listed: Vec<&str> = members.iter().filter_map(|member| member.strip_prefix("agent/")).collect();
    assert_eq!(listed, AGENT, "the workspace's manifest lists the agent's crates in this order");
}

#[test]
fn no_name_stands_for_two_things_in_a_crate() {
    let mut found = Vec::new();
    for folder in crates() {
        let twice = duplicates(&workspace().join(&folder).join("src")).expect("a crate that parses");
        found.extend(twice.iter().map(|twice: &Duplicate| format!("{folder}: {twice}")));
    }
    assert!(found.is_empty(), "share what is the same, and rename what differs:\n{found:#?}");
}

#[test]
fn no_folder_has_more_than_twenty_source_files() {
    let mut found = Vec::new();
    for folder in crates() {
        let mut open = vec![workspace().join(folder).join("src")];
        while let Some(next) = open.pop() {
            let entries = fs::read_dir(&next).into_iter().flatten().flatten().map(|entry| entry.path());
            let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries.partition(|path| path.is_dir());
            let sources = files.iter().filter(|file| file.extension().is_some_and(|kind| kind == "rs")).count();
            if sources > MAX_FILES {
                found.push(format!("{}: {sources} files", next.display()));
            }
            open.extend(folders);
        }
    }
    assert!(found.is_empty(), "group what belongs together in a folder:\n{found:#?}");
}
