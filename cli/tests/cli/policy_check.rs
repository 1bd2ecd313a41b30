//! `comity policy check`.

use std::path::Path;

use super::{run, stderr, stdout};

#[test]
fn policy_is_checked_without_a_broker() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy");
    let good = run(&["policy", "check", &policy.join("examples").display().to_string()]);
    assert!(good.status.success() && stdout(&good).starts_with("ok: 40 documents in 19 files"), "{}", stdout(&good));

    let broken = policy.join("tests/broken").display().to_string();
    let bad = run(&["policy", "check", &broken]);
    assert_eq!(bad.status.code(), Some(1));
    // The same text as the policy crate's own golden file: one rendering for all.
    let golden = std::fs::read_to_string(policy.join("tests/golden/broken.txt")).unwrap();
    assert_eq!(stdout(&bad), golden);

    let json = run(&["policy", "check", "-o", "json", &broken]);
    let checked: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    let problems = checked["problems"].as_array().unwrap();
    assert!(checked["ok"] == false && problems.len() > 5);
    let files: std::collections::BTreeSet<_> =
        problems.iter().map(|problem| problem["file"].as_str().unwrap()).collect();
    assert!(files.len() >= 5, "{files:?}");
    assert!(problems.iter().all(|problem| problem["line"].is_u64() && problem["code"].is_string()));
}

#[test]
fn warnings_of_a_policy_are_listed_and_fail_where_they_are_denied() {
    let dir = tempfile::tempdir().unwrap();
    let policy = "apiVersion: policy.comity.dev/v1\nkind: Federation\nmetadata: {name: test}\nspec:\n  \
                  trustDomain: test.example\n  maintainers: [\"spiffe://test.example/user/admin\"]\n  \
                  defaults: {reclaimGrace: 9d}\n";
    std::fs::write(dir.path().join("all.yaml"), policy).unwrap();
    let dir = dir.path().display().to_string();
    let found = run(&["policy", "check", &dir]);
    assert!(found.status.success(), "{}", stderr(&found));
    let text = stdout(&found);
    assert!(text.starts_with("warning[notice-too-long]: `defaults.reclaimGrace: 9d`"), "{text}");
    assert!(text.contains("all.yaml:7:") && text.contains("1 warning in 1 file\nok: 1 document in"), "{text}");
    let denied = run(&["policy", "check", "--deny-warnings", &dir]);
    assert_eq!(denied.status.code(), Some(1), "{}", stdout(&denied));
    assert!(stdout(&denied).contains("notice-too-long") && !stdout(&denied).contains("ok:"), "{}", stdout(&denied));
    assert!(stderr(&denied).contains("--deny-warnings"), "{}", stderr(&denied));
    for (more, ok) in [(None, true), (Some("--deny-warnings"), false)] {
        let json = run(&[&["policy", "check", "-o", "json", &dir][..], more.as_slice()].concat());
        let checked: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
        let warning = &checked["warnings"][0];
        assert!(checked["ok"] == ok && checked["problems"].as_array().unwrap().is_empty(), "{checked}");
        assert!(
            warning["code"] == "notice-too-long" && warning["line"] == 7 && warning["file"] == "all.yaml",
            "{warning}"
        );
        assert!(warning["remedy"].as_str().unwrap().contains("7d"), "{warning}");
    }
}

#[test]
fn a_file_that_is_not_text_is_one_problem_among_the_others() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.yaml"), b"kind: \xff\xfe\n").unwrap();
    std::fs::write(dir.path().join("b.yaml"), "kind: Nonsense\n").unwrap();
    let output = run(&["policy", "check", "-o", "json", &dir.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let checked: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    let problems = checked["problems"].as_array().unwrap();
    let found =
        |file: &str, code: &str| problems.iter().any(|problem| problem["file"] == file && problem["code"] == code);
    assert!(found("a.yaml", "not-text") && found("b.yaml", "unknown-kind"), "{problems:?}");
    // `apply` sends the files as text, so it refuses one that is not.
    let apply = run(&["policy", "apply", &dir.path().display().to_string()]);
    assert_eq!(apply.status.code(), Some(2));
    assert!(stderr(&apply).contains("a.yaml is not UTF-8 text"), "{}", stderr(&apply));
}
