//! `comity policy apply` against a federation with a lease on `ncc-main`.

use std::path::Path;
use std::process::Output;

use super::{stderr, stdout};

/// Writes the bundle in force to a directory, with `from` replaced in all files.
fn changed_bundle(shown: &serde_json::Value, temp: &Path, from: &str, to: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in(temp).unwrap();
    let mut replaced = 0;
    for file in shown["files"].as_array().unwrap() {
        let path = dir.path().join(file["path"].as_str().unwrap());
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let text = file["text"].as_str().unwrap();
        replaced += text.matches(from).count();
        std::fs::write(path, text.replace(from, to)).unwrap();
    }
    assert!(replaced > 0, "no file has {from:?}");
    dir
}

/// Runs `comity` with these arguments.
type RunComity<'r> = &'r (dyn Fn(&[&str]) -> Output + Sync);

pub(crate) fn are_named_before_they_happen(run: RunComity<'_>, maintainer: &str, temp: &Path) {
    let run = |args: &[&str]| run(&[&["--identity", maintainer], args].concat());
    let json = |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
    let in_force = json(&run(&["policy", "show", "-o", "json"]));

    let fewer = changed_bundle(&in_force, temp, "classes: [frontier, midrange]", "classes: [midrange]");
    let dir = fewer.path().display().to_string();
    let dry = run(&["policy", "apply", "--dry-run", "-o", "json", &dir]);
    assert!(dry.status.success(), "{}", stderr(&dry));
    let effects = json(&dry)["effects"].clone();
    assert_eq!((effects["leases"][0]["lease"].as_str(), effects["leaseCount"].as_u64()), (Some("lease-1"), Some(1)));
    assert_eq!(json(&dry)["inForceHash"], in_force["hash"]);
    assert_eq!(effects["leases"][0]["code"], "borrower-not-served", "{effects}");
    assert!(effects["capacities"].as_array().unwrap().iter().any(|it| it["cluster"] == "ncc-main"), "{effects}");
    let shown = stdout(&run(&["policy", "apply", "--dry-run", &dir]));
    assert!(
        shown.starts_with("leases would be reclaimed: 1\n") && shown.contains("\nnot applied (dry run): "),
        "{shown}"
    );

    // Nobody can answer, so it is not applied.
    let asked = run(&["policy", "apply", &dir]);
    assert_eq!(asked.status.code(), Some(2), "{}", stderr(&asked));
    let said = stderr(&asked);
    assert!(said.contains("lease-1") && said.contains("remedy: add --yes to confirm"), "{said}");
    assert_eq!(json(&run(&["policy", "show", "-o", "json"]))["hash"], in_force["hash"]);

    let locked_out = changed_bundle(&in_force, temp, "    - spiffe://comity.example/user/ingrid\n", "");
    let refused = run(&["policy", "apply", "--yes", &locked_out.path().display().to_string()]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let said = stderr(&refused);
    assert!(said.contains("does not name spiffe://comity.example/user/ingrid") && said.contains("--force"), "{said}");

    let same = changed_bundle(&in_force, temp, "frontier", "frontier");
    let applied = run(&["policy", "apply", &same.path().display().to_string()]);
    assert!(applied.status.success() && stdout(&applied).starts_with("already in force: "), "{}", stderr(&applied));
}

pub(crate) fn are_not_lost(run: RunComity<'_>, maintainer: &str, temp: &Path) {
    let run = |args: &[&str]| run(&[&["--identity", maintainer], args].concat());
    let json = |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
    let before = json(&run(&["policy", "show", "-o", "json"]));
    let hash = before["hash"].as_str().unwrap();

    let described = changed_bundle(&before, temp, "description: ", "description: Tier. ");
    let dir = described.path().display().to_string();
    let other = run(&["policy", "apply", "--yes", "--expected-hash", "5e", &dir]);
    assert_eq!(other.status.code(), Some(1), "{}", stderr(&other));
    let said = stderr(&other);
    assert!(said.contains(hash) && said.contains("field: --expected-hash = \"5e\""), "{said}");
    let applied = run(&["policy", "apply", "--yes", "--expected-hash", hash, &dir]);
    assert!(applied.status.success(), "{}", stderr(&applied));
    // Its call is repeated: the bundle is in force already.
    let again = run(&["policy", "apply", "--yes", "--expected-hash", hash, &dir]);
    assert!(again.status.success() && stdout(&again).starts_with("already in force: "), "{}", stderr(&again));

    let names = ["dora", "emil", "fritz"];
    let add = |name: &str| run(&["user", "add", name, "--tenant", "poly-ml", "--yes"]);
    let added = std::thread::scope(|scope| {
        let added = names.map(|name| scope.spawn(move || add(name)));
        added.map(|thread| thread.join().unwrap())
    });
    for output in &added {
        assert!(output.status.success(), "{}", stderr(output));
    }
    let text = stdout(&run(&["policy", "show", "--text"]));
    for part in names.map(|name| format!("/user/{name}, role: submitter")).iter().chain([&"Tier. ".to_owned()]) {
        assert!(text.contains(part), "{part}: {text}");
    }
}
