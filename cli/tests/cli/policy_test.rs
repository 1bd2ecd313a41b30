//! `comity policy test` and `comity policy schema`.

use std::fs;
use std::path::{Path, PathBuf};

use super::{run, stderr, stdout};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples")
}

/// A copy of the examples with one scenario, which expects a donor.
fn with_one_test(donor: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let files = comity_policy::read_directory(&examples()).unwrap();
    for file in files {
        let path = dir.path().join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file.text).unwrap();
    }
    let scenario = format!(
        "apiVersion: policy.comity.dev/v1\nkind: PolicyTest\ngiven:\n  now: 2026-11-23\n  clusters:\n  - name: \
         ncc-main\n    nodes: [{{gpus: 8, product: NVIDIA-H100-80GB-HBM3}}]\nscenarios:\n- name: it <borrows>\n  \
         request: {{tenant: poly-ml, origin: polytech-campus, class: frontier, gpus: 2}}\n  expect: {{decision: placed, \
         donor: {donor}}}\n"
    );
    fs::write(dir.path().join("one.test.yaml"), scenario).unwrap();
    dir
}

#[test]
fn the_book_shows_the_hash_of_the_examples() {
    let checked = stdout(&run(&["policy", "check", &examples().display().to_string()]));
    let hash = checked.trim_end().rsplit_once(", hash ").unwrap().1;
    for page in ["policy.md", "join.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page)).unwrap();
        let shown: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once(", hash ")?.1)).collect();
        assert!(!shown.is_empty() && shown.iter().all(|shown| *shown == hash), "{page}: {shown:?}, not {hash}");
    }
}

#[test]
fn the_examples_pass_and_a_pattern_chooses() {
    let dir = examples().display().to_string();
    let passed = run(&["policy", "test", &dir]);
    assert!(passed.status.success(), "{}{}", stdout(&passed), stderr(&passed));
    assert!(stdout(&passed).starts_with("ok: ") && stdout(&passed).contains(" in 5 files"), "{}", stdout(&passed));
    let some = run(&["policy", "test", &dir, "--run", "URGENT", "-o", "json"]);
    let tested: serde_json::Value = serde_json::from_str(&stdout(&some)).unwrap();
    let scenarios = tested["scenarios"].as_array().unwrap();
    assert!(tested["ok"] == true && scenarios.len() > 1 && tested["leftOut"].as_u64() > Some(10), "{tested}");
    assert!(scenarios.iter().all(|it| it["name"].as_str().unwrap().contains("urgent") && it["result"] == "passed"));
    let none = run(&["policy", "test", &dir, "--run", "no such scenario"]);
    assert_eq!(none.status.code(), Some(2), "{}", stderr(&none));
}

#[test]
fn a_test_file_without_scenarios_is_named_as_such() {
    let dir = with_one_test("ncc-main");
    fs::write(dir.path().join("one.test.yaml"), "").unwrap();
    let none = run(&["policy", "test", &dir.path().display().to_string()]);
    assert_eq!(none.status.code(), Some(2), "{}", stderr(&none));
    let said = stderr(&none);
    assert!(
        said.contains("hold no scenario") && said.contains("kind: PolicyTest") && !said.contains("--run"),
        "{said}"
    );
}

#[test]
fn a_failed_scenario_shows_what_differs() {
    let dir = with_one_test("physics-farm");
    let path = dir.path().display().to_string();
    let failed = run(&["policy", "test", &path]);
    assert_eq!(failed.status.code(), Some(1), "{}", stderr(&failed));
    let text = stdout(&failed);
    for part in
        ["failed one.test.yaml:9: it <borrows>", "  - donor: physics-farm", "  + donor: ncc-main", "0 passed, 1 failed"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let report = dir.path().join("report.xml");
    let junit = run(&["policy", "test", &path, "--junit", &report.display().to_string()]);
    assert_eq!(junit.status.code(), Some(1));
    let xml = fs::read_to_string(&report).unwrap();
    assert!(xml.contains("failures=\"1\"") && xml.contains("it &lt;borrows&gt;"), "{xml}");
    assert_eq!(stdout(&run(&["policy", "test", &path, "--junit", "-"])), xml);
    let right = with_one_test("ncc-main");
    assert!(run(&["policy", "test", &right.path().display().to_string()]).status.success());
}

#[test]
fn a_directory_without_tests_says_what_to_write_and_problems_have_a_place() {
    let dir = with_one_test("ncc-main");
    let (path, test) = (dir.path().display().to_string(), dir.path().join("one.test.yaml"));
    let good = fs::read_to_string(&test).unwrap();
    fs::write(&test, good.replace("expect:", "expcet:")).unwrap();
    let typing_error = run(&["policy", "test", &path]);
    assert_eq!(typing_error.status.code(), Some(1));
    let text = stdout(&typing_error);
    assert!(text.contains("one.test.yaml:11:") && text.contains("did you mean `expect`?"), "{text}");
    // Tests are no part of the bundle, whatever they say.
    let checked = run(&["policy", "check", &path]);
    assert!(checked.status.success() && stdout(&checked).contains("40 documents in 19 files"), "{}", stdout(&checked));
    fs::remove_file(&test).unwrap();
    let none = run(&["policy", "test", &path]);
    assert_eq!(none.status.code(), Some(2));
    let said = stderr(&none);
    let (_, example) = said.split_once("such as first.test.yaml:\n").unwrap();
    let mut example: String = example.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap())).collect();
    for (word, name) in
        [("DONOR", "ncc-main"), ("TENANT", "poly-ml"), ("CLUSTER", "polytech-campus"), ("CLASS", "frontier")]
    {
        example = example.replace(word, name);
    }
    fs::write(dir.path().join("first.test.yaml"), example).unwrap();
    let first = run(&["policy", "test", &path]);
    assert!(first.status.success(), "the example in the remedy passes: {}{}", stdout(&first), stderr(&first));
}

#[test]
fn schemas_are_those_of_the_repository() {
    let committed = examples().join("../schemas");
    for (args, name) in [
        (&["policy", "schema"][..], "policy.json"),
        (&["policy", "schema", "tenant"], "tenant.json"),
        (&["policy", "schema", "PolicyTest"], "policytest.json"),
    ] {
        let printed: serde_json::Value = serde_json::from_str(&stdout(&run(args))).unwrap();
        let file = fs::read_to_string(committed.join(name)).unwrap();
        let file: serde_json::Value = serde_json::from_str(&file).unwrap();
        assert!(printed == file, "policy/schemas/{name} is not current");
    }
    let unknown = run(&["policy", "schema", "Team"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("Tenant"), "{}", stderr(&unknown));
}
