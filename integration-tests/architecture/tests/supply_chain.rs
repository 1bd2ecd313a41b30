//! What is shipped is known: the bill of materials is complete, and images of others cannot change.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use comity_architecture::{bill_of_materials, checksums};
use serde_json::{Value, json};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn lock() -> String {
    fs::read_to_string(workspace().join("Cargo.lock")).expect("Cargo.lock")
}

#[test]
fn the_bill_of_materials_lists_every_package() {
    let cargo = std::env::var_os("CARGO").expect("cargo runs the tests");
    let mut command = Command::new(cargo);
    // Only the packages of this platform are on the disk.
    let arguments = ["--format-version=1", "--locked", "--offline", "--filter-platform=x86_64-unknown-linux-gnu"];
    let command = command.arg("metadata").args(arguments);
    let command = command.current_dir(workspace());
    let output = command.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let bill = bill_of_materials(&metadata, &lock()).expect("a bill of materials");
    let components = bill["components"].as_array().expect("components");
    let listed: BTreeSet<(String, String)> = components
        .iter()
        .map(|it| {
            (it["name"].as_str().expect("a name").to_owned(), it["version"].as_str().expect("a version").to_owned())
        })
        .collect();
    let locked = checksums(&lock());
    assert!(locked.len() > 300, "only {} packages are locked", locked.len());
    let missing: Vec<_> = locked.keys().filter(|package| !listed.contains(package)).collect();
    assert!(missing.is_empty(), "not in the bill of materials: {missing:?}");
    let unhashed = components.iter().filter(|it| it.get("hashes").is_none()).map(|it| it["name"].as_str());
    let unhashed: Vec<_> = unhashed.filter(|name| !name.is_some_and(|name| name.starts_with("comity"))).collect();
    assert!(unhashed.is_empty(), "without a checksum: {unhashed:?}");
    let scope = |name: &str| components.iter().find(|it| it["name"] == name).map(|it| it["scope"].clone());
    for (name, expected) in [("rustls", "required"), ("comity-core", "required"), ("proptest", "excluded")] {
        assert_eq!(scope(name), Some(expected.into()), "{name}");
    }
    let refs: BTreeSet<&str> = components.iter().filter_map(|it| it["bom-ref"].as_str()).collect();
    let dependencies = bill["dependencies"].as_array().expect("dependencies");
    for dependency in dependencies {
        let needs = dependency["dependsOn"].as_array().into_iter().flatten().chain([&dependency["ref"]]);
        needs.for_each(|it| assert!(it.as_str().is_some_and(|it| refs.contains(it)), "{it} is not listed"));
    }
}

#[test]
fn metadata_without_packages_is_refused() {
    let error = bill_of_materials(&json!({}), "").expect_err("nothing is listed");
    assert!(error.contains("packages"), "{error}");
}

/// Images of others in a manifest or recipe that another image could take the place of.
fn unpinned(text: &str) -> Vec<&str> {
    let mut stages = BTreeSet::from(["scratch"]);
    let mut found = Vec::new();
    for line in text.lines().map(|line| line.trim().trim_start_matches("- ")) {
        let image = if let Some(rest) = line.strip_prefix("FROM ") {
            let mut words = rest.split_whitespace();
            let image = words.next().unwrap_or_default();
            stages.extend(words.nth(1));
            image
        } else if let Some(image) = line.strip_prefix("image:") {
            image.split('#').next().unwrap_or_default().trim().trim_matches('"')
        } else {
            continue;
        };
        // Whoever uses the file names them: no such host exists (RFC 2606, section 2).
        let is_own = image.starts_with("registry.example/") || stages.contains(image);
        let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
        if !is_own && !digest.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())) {
            found.push(image);
        }
    }
    found
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn images_of_others_are_pinned_by_digest() {
    let mut all = Vec::new();
    files(&workspace().join("deploy"), &mut all);
    let mut images = 0;
    for file in &all {
        let text = fs::read_to_string(file).expect("text");
        images += text.matches("@sha256:").count();
        assert!(unpinned(&text).is_empty(), "{} names by tag alone: {:?}", file.display(), unpinned(&text));
    }
    assert!(images >= 3, "the recipes name base images");
    // The image that the agent's default names.
    let policy = fs::read_to_string(workspace().join("agent/model/src/local_policy.rs")).expect("the agent's defaults");
    let named: Vec<&str> = policy.lines().filter(|line| line.contains("registry.k8s.io/")).collect();
    assert!(!named.is_empty() && named.iter().all(|line| line.contains("@sha256:")), "{named:#?}");
}

#[test]
fn a_tag_is_no_pin() {
    let digest = "ab".repeat(32);
    let text = format!(
        "FROM a:1@sha256:{digest} AS build\nFROM build\nFROM scratch\nFROM b:1\n  image: registry.example/comity-agent:1\n\
         - image: \"c:latest\" # the newest\n  image: d@sha256:abc\n"
    );
    assert_eq!(unpinned(&text), ["b:1", "c:latest", "d@sha256:abc"]);
}
