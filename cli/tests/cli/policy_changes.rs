//! `comity policy plan` and `apply` against a federation with a lease on `ncc-main`.

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

    let terms = "classes: [frontier, midrange]\n      maxGpus: 48";
    let fewer = changed_bundle(&in_force, temp, terms, &terms.replace("frontier, ", ""));
    let dir = fewer.path().display().to_string();
    let planned = json(&run(&["policy", "plan", "-o", "json", &dir]));
    assert_eq!(planned["inForceHash"], in_force["hash"]);
    let plan = &planned["plan"];
    let changed = &plan["documents"][0];
    assert_eq!((changed["change"].as_str(), changed["name"].as_str()), (Some("changed"), Some("ncc-main")), "{plan}");
    let field = serde_json::json!({"path": "lends[0].classes", "before": "frontier", "after": null});
    assert_eq!(changed["fields"], serde_json::json!([field]));
    let lease = &plan["leases"][0];
    assert_eq!((lease["lease"].as_str(), plan["leaseCount"].as_u64()), (Some("lease-1"), Some(1)), "{plan}");
    assert_eq!((&lease["treatment"], &lease["code"]), (&"drain".into(), &"borrower-not-served".into()), "{plan}");
    assert!(lease["untilMs"].as_u64().unwrap() > 0);
    let has = |list: &str, key: &str, name: &str| plan[list].as_array().unwrap().iter().any(|it| it[key] == name);
    assert!(
        has("capacities", "cluster", "ncc-main") && has("institutions", "institution", "national-centre"),
        "{plan}"
    );
    assert!(has("borrowing", "tenant", "poly-ml"), "{plan}");
    let shown = stdout(&run(&["policy", "plan", &dir]));
    assert!(
        shown.starts_with("documents: 0 added, 1 changed, 0 removed\n") && shown.contains("\nplanned, not applied: "),
        "{shown}"
    );
    let markdown = stdout(&run(&["policy", "plan", "-o", "markdown", &dir]));
    assert!(markdown.contains("### leases would end or not be renewed: 1\n\n| lease |"), "{markdown}");

    // A lowered quota ends no lease: it is not renewed.
    let quota = changed_bundle(
        &in_force,
        temp,
        "classes: [frontier]\n  maxConcurrentGpus: 8",
        "classes: [frontier]\n  maxConcurrentGpus: 2",
    );
    let planned = json(&run(&["policy", "plan", "-o", "json", &quota.path().display().to_string()]));
    let lease = &planned["plan"]["leases"][0];
    assert_eq!((&lease["lease"], &lease["treatment"]), (&"lease-1".into(), &"finish".into()), "{planned}");

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

pub(crate) fn have_exit_codes(run: RunComity<'_>, maintainer: &str, temp: &Path) {
    let plan = |args: &[&str]| run(&[&["--identity", maintainer, "policy", "plan"], args].concat());
    let in_force = run(&["--identity", maintainer, "policy", "show", "-o", "json"]);
    let in_force: serde_json::Value = serde_json::from_str(&stdout(&in_force)).unwrap();
    let bundle = |from: &str, to: &str| changed_bundle(&in_force, temp, from, to);
    let path = |dir: &tempfile::TempDir| dir.path().display().to_string();
    let changes = bundle("classes: [frontier, midrange]", "classes: [midrange]");
    let same = bundle("frontier", "frontier");
    let commented = bundle("spec:\n", "spec: # nothing else\n");
    let invalid = bundle("classes: [frontier, midrange]", "classes: [frontieer]");
    let (changes, same, commented, invalid) = (path(&changes), path(&same), path(&commented), path(&invalid));
    for (args, code, word) in [
        (vec![changes.as_str()], 0, "planned, not applied"),
        (vec!["--detailed-exitcode", &changes], 2, "planned, not applied"),
        (vec!["--detailed-exitcode", &same], 0, "no changes: this bundle is in force"),
        (vec!["--detailed-exitcode", &commented], 0, "no changes of meaning"),
        (vec!["--detailed-exitcode", &invalid], 1, "did you mean `frontier`?"),
        (vec!["--detailed-exitcode", "/nonexistent"], 1, "/nonexistent"),
        (vec!["/nonexistent"], 2, "/nonexistent"),
        (vec!["--detailed-exitcode", "--no-such-flag", &changes], 1, "--no-such-flag"),
    ] {
        let output = plan(&args);
        let said = stdout(&output) + &stderr(&output);
        assert!(output.status.code() == Some(code) && said.contains(word), "{args:?}: {said}");
    }
    // Alice is no maintainer.
    let refused = run(&["policy", "plan", &changes]);
    assert!(
        refused.status.code() == Some(4) && stderr(&refused).contains("may not plan policy"),
        "{}",
        stderr(&refused)
    );
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
