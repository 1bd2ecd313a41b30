//! Imports point one way, a name stands for one thing, and folders stay small enough to be read.

use std::fs;
use std::path::{Path, PathBuf};

use comity_architecture::{Duplicate, Graph, duplicates};

/// Source files that one folder may hold.
const MAX_FILES: usize = 20;

/// Layers of the core: each may import from those before it.
const CORE: &[&str] = &["collections", "model", "state", "feasibility", "apply", "scheduler", "explain"];

/// Layers of the broker, likewise. Modules that are not listed put the parts together.
const BROKER: &[&str] = &["replication", "storage", "eligibility", "transport", "group", "api"];

/// The crates that each crate may depend on, besides those of others. Tests may use more.
const CRATES: [(&str, &[&str]); 26] = [
    ("proto/types", &[]),
    ("proto/audit", &["types"]),
    ("proto", &["types"]),
    ("policy", &["types"]),
    ("policy/provenance", &["policy"]),
    ("broker/core", &["types", "audit", "policy"]),
    ("broker/policy-test", &["types", "policy", "core"]),
    ("runtime", &["types"]),
    ("broker", &["types", "audit", "policy", "provenance", "core", "proto", "runtime"]),
    ("agent/model", &["types", "proto", "runtime"]),
    ("agent/fabric", &["agent-model"]),
    ("agent/kubernetes", &["policy", "runtime", "agent-model"]),
    ("agent/liqo", &["types", "policy", "runtime", "agent-model", "agent-kubernetes"]),
    ("agent/delivery", &["types", "proto", "runtime", "agent-model", "agent-kubernetes", "agent-liqo"]),
    ("agent/site", &["types", "runtime", "agent-model", "agent-kubernetes", "agent-delivery"]),
    ("agent/state", &["types", "proto", "runtime", "agent-model", "agent-liqo"]),
    (
        "agent/workload",
        &["types", "policy", "proto", "runtime", "agent-model", "agent-kubernetes", "agent-liqo", "agent-state"],
    ),
    (
        "agent",
        &[
            "types",
            "audit",
            "proto",
            "policy",
            "provenance",
            "runtime",
            "agent-model",
            "agent-fabric",
            "agent-kubernetes",
            "agent-liqo",
            "agent-delivery",
            "agent-site",
            "agent-state",
            "agent-workload",
        ],
    ),
    ("integration-tests/testkit", &[]),
    (
        "cli",
        &[
            "types",
            "audit",
            "proto",
            "policy",
            "provenance",
            "policy-test",
            "runtime",
            "agent-model",
            "agent",
            "broker",
            "testkit",
        ],
    ),
    ("integration-tests/architecture", &[]),
    ("integration-tests/docs", &[]),
    ("integration-tests/fuzz", &[]),
    ("integration-tests/simulation", &["types", "policy", "core"]),
    ("integration-tests/policy-bench", &["types", "policy", "simulation"]),
    (
        "integration-tests",
        &[
            "types",
            "audit",
            "proto",
            "provenance",
            "runtime",
            "agent-model",
            "agent-fabric",
            "agent-liqo",
            "agent-delivery",
            "agent-state",
            "agent",
            "policy-bench",
            "simulation",
            "testkit",
        ],
    ),
];

/// Crates without clocks, randomness and I/O, and the libraries that would bring them in.
const PURE: [&str; 6] =
    ["proto/types", "proto/audit", "policy", "policy/provenance", "broker/core", "broker/policy-test"];
const IMPURE: [&str; 10] =
    ["tokio", "futures", "tonic", "prost", "kube", "openraft", "rand", "getrandom", "time", "tracing"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Folders of all crates, as the workspace's manifest lists them.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).expect("the workspace's manifest");
    let members = manifest.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("members");
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Root files of a crate: its library, and each program that consists of several files.
fn roots(folder: &str) -> Vec<PathBuf> {
    let src = workspace().join(folder).join("src");
    let programs = fs::read_dir(src.join("bin")).into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = programs.map(|program| program.path().join("main.rs")).collect();
    roots.extend([src.join("lib.rs"), src.join("main.rs")]);
    roots.retain(|root| root.exists());
    roots
}

/// Dependencies of a crate's library, without those of its tests.
fn dependencies(folder: &str) -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join(folder).join("Cargo.toml")).expect("a crate's manifest");
    let section = manifest.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', ' ', '=']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

/// Imports of a crate from a layer to a later one.
fn upward(folder: &str, layers: &[&str]) -> Vec<String> {
    let layer = |module: &[String]| {
        let first = module.first().map(String::as_str);
        layers.iter().position(|layer| Some(*layer) == first)
    };
    let graph = Graph::of_crate(&workspace().join(folder).join("src/lib.rs")).expect("a crate that parses");
    assert!(graph.imports().count() > 100, "the graph of {folder} is nearly empty");
    // Modules in no layer put the layers together, so they are above all but the last one.
    let is_upward = |from: usize, to: Option<usize>| to.map_or(from + 1 < layers.len(), |to| to > from);
    let upward = graph.imports().filter(|(from, to)| layer(from).is_some_and(|from| is_upward(from, layer(to))));
    upward.map(|(from, to)| format!("{} imports {}", from.join("/"), to.join("/"))).collect()
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    let mut found = Vec::new();
    for root in crates().iter().flat_map(|folder| roots(folder)) {
        for cycle in Graph::of_crate(&root).expect("a crate that parses").cycles() {
            let files: Vec<String> = cycle.iter().map(|module| module.join("/")).collect();
            found.push(format!("{}: {}", root.display(), files.join(", ")));
        }
    }
    assert!(found.is_empty(), "files import one another in a circle; move what they share below them:\n{found:#?}");
}

#[test]
fn layers_import_only_from_those_below() {
    for (folder, layers) in [("broker/core", CORE), ("broker", BROKER)] {
        let upward = upward(folder, layers);
        assert!(upward.is_empty(), "the order of layers of {folder} is {layers:?}:\n{upward:#?}");
    }
    let modules = fs::read_to_string(workspace().join("broker/core/src/lib.rs")).expect("the core's root");
    let modules = modules.lines().filter_map(|line| line.split_once("mod ")?.1.strip_suffix(';'));
    let unlisted: Vec<&str> = modules.filter(|module| !CORE.contains(module)).collect();
    assert!(unlisted.is_empty(), "in no layer of the core: {unlisted:?}");
}

#[test]
fn crates_depend_only_on_those_below() {
    let mut members = crates();
    members.sort();
    let mut listed: Vec<&str> = CRATES.iter().map(|(folder, _)| *folder).collect();
    listed.sort_unstable();
    assert_eq!(members, listed, "the workspace's manifest and this test list the same crates");
    for (folder, allowed) in CRATES {
        let found = dependencies(folder);
        let own = found.iter().filter_map(|name| name.strip_prefix("comity-"));
        let upward: Vec<&str> = own.filter(|name| !allowed.contains(name)).collect();
        assert!(upward.is_empty(), "{folder} may depend on {allowed:?}, not on {upward:?}");
        let impure = found.iter().filter(|name| IMPURE.iter().any(|impure| name.starts_with(impure)));
        let impure: Vec<&String> = impure.filter(|_| PURE.contains(&folder)).collect();
        assert!(impure.is_empty(), "{folder} has no clock, randomness or I/O: it cannot depend on {impure:?}");
    }
    // The order above is one in which each crate comes after those that it depends on.
    for (at, (folder, allowed)) in CRATES.iter().enumerate() {
        let before = |name: &&str| CRATES[..at].iter().any(|(folder, _)| crate_name(folder) == **name);
        assert!(allowed.iter().all(before), "{folder} comes before a crate that it depends on");
    }
}

/// A crate's name without `comity-`.
fn crate_name(folder: &str) -> String {
    let last = folder.rsplit('/').next().unwrap_or_default();
    if folder.starts_with("agent/") { format!("agent-{last}") } else { last.to_owned() }
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
