//! Requests from the catalogue, in a running federation.

use std::process::Output;

use super::{stderr, stdout};

/// Lists, quotes and submits as alice; submits what the template does not allow.
pub(super) fn requests_are_made_from_the_catalogue(
    as_alice: &dyn Fn(&[&str]) -> Output,
    json: &dyn Fn(&[&str]) -> serde_json::Value,
) {
    let listed = json(&["request", "templates"]);
    let names: Vec<&str> = listed["items"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["fine-tuning", "notebook-small"]);
    assert_eq!(listed["items"][0]["mayOverride"], serde_json::json!(["gpus.amount", "duration"]));
    let table = stdout(&as_alice(&["request", "templates", "--tenant", "poly-ml"]));
    assert!(table.contains("Notebook, small") && table.contains("0.25 teaching"), "{table}");

    let spec = ["--tenant", "poly-ml", "--origin", "polytech-campus", "--template"];
    let with = |command: &[&'static str], more: &[&'static str]| [command, &spec, more].concat();
    let quote = json(&with(&["quote"], &["fine-tuning", "--gpus", "1"]));
    assert_eq!(quote["placement"]["donor"], "ncc-main", "{quote}");
    let submitted = json(&with(&["request", "submit"], &["fine-tuning", "--duration", "1h", "--dry-run"]));
    assert_eq!(
        (&submitted["spec"]["template"], &submitted["spec"]["gpus"]["count"]),
        (&"fine-tuning".into(), &4.into())
    );
    assert_eq!(submitted["spec"]["durationMs"], 3_600_000);
    let id = json(&with(&["request", "submit"], &["notebook-small", "--queue-anyway"]))["id"].clone();
    let id = id.as_str().unwrap();
    let shown = stdout(&as_alice(&["request", "show", id]));
    let is_named = |line: &str| line.starts_with("Template:") && line.ends_with("notebook-small");
    assert!(shown.lines().any(is_named), "{shown}");
    assert!(as_alice(&["request", "cancel", id]).status.success());

    let fixed = as_alice(&with(&["request", "submit"], &["notebook-small", "--release-idle", "1h"]));
    assert_eq!(fixed.status.code(), Some(2), "{}", stderr(&fixed));
    let said = stderr(&fixed);
    assert!(said.contains("--release-idle \"1h\" is set by request template `notebook-small`, to 30m"), "{said}");
    assert!(said.contains("or submit without --template"), "{said}");
    let unknown = as_alice(&with(&["quote"], &["notebok-small"]));
    assert_eq!(unknown.status.code(), Some(3), "{}", stderr(&unknown));
    assert!(stderr(&unknown).contains("remedy: did you mean notebook-small?"), "{}", stderr(&unknown));
}
