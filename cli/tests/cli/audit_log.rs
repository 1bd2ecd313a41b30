//! `comity audit` and `comity policy why` against a federation with a lease.

use std::path::Path;
use std::process::Output;

use super::{stderr, stdout};

/// Runs `comity` with these arguments.
type RunComity<'r> = &'r (dyn Fn(&[&str]) -> Output + Sync);

pub(crate) fn shows_every_edit_gap_and_swap(run: RunComity<'_>, maintainer: &str, temp: &Path) {
    let run = |args: &[&str]| run(&[&["--identity", maintainer], args].concat());
    let json = |output: &Output| -> serde_json::Value { serde_json::from_str(&stdout(output)).unwrap() };
    let exported = stdout(&run(&["audit", "list", "-o", "json", "--withheld"]));
    let lines: Vec<&str> = exported.lines().collect();
    for (index, line) in lines.iter().enumerate() {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["index"], index, "{line}");
    }
    let verified = run(&["audit", "verify", "-o", "json"]);
    assert!(verified.status.success(), "{}", stderr(&verified));
    let verified = json(&verified);
    assert!(verified["head"]["size"].as_u64() >= Some(lines.len() as u64), "{verified}");
    let brokers = verified["brokers"].as_array().unwrap();
    assert!(brokers.len() == 3 && brokers.iter().all(|broker| broker["agrees"] == true), "{verified}");
    assert!(stdout(&run(&["audit", "verify"])).starts_with("ok: "));

    let exports = tempfile::tempdir_in(temp).unwrap();
    let file = exports.path().join("audit.jsonl");
    let path = file.display().to_string();
    let verify = |lines: &[&str]| {
        std::fs::write(&file, lines.join("\n") + "\n").unwrap();
        run(&["audit", "verify", "--file", &path])
    };
    let whole = verify(&lines);
    assert!(whole.status.success(), "{}", stderr(&whole));
    let refused = |lines: &[&str], wanted: &str| {
        let output = verify(lines);
        let text = stderr(&output);
        assert!(output.status.code() == Some(1) && text.contains(wanted), "{wanted}: {text}");
    };
    let with = |index: usize, line: &str| {
        let mut edited: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        line.clone_into(&mut edited[index]);
        edited
    };
    let edited = with(2, &lines[2].replacen("\"outcome\":\"done\"", "\"outcome\":\"dine\"", 1));
    refused(&edited.iter().map(String::as_str).collect::<Vec<_>>(), "record 2 was edited");
    let mut gap = lines.clone();
    gap.remove(3);
    refused(&gap, "record 3 is missing");
    let mut swapped = lines.clone();
    swapped.swap(4, 5);
    refused(&swapped, "record 4 is missing");
    // Nothing follows the last record: the brokers know its hash.
    let last = lines.len() - 1;
    let edited = with(last, &lines[last].replacen("\"command\":\"", "\"command\":\"x", 1));
    refused(&edited.iter().map(String::as_str).collect::<Vec<_>>(), &format!("has another record {last}"));

    let root = |size: u64| format!("{size}:{}", verified["head"]["root"].as_str().unwrap());
    let size = verified["head"]["size"].as_u64().unwrap();
    let anchored = run(&["audit", "verify", "--anchor", &root(size)]);
    assert!(stdout(&anchored).contains("continues anchor"), "{}", stderr(&anchored));
    let wrong = run(&["audit", "verify", "--anchor", &root(size - 1)]);
    assert!(wrong.status.code() == Some(1) && stderr(&wrong).contains("not those of the anchor"), "{}", stderr(&wrong));
    let later = run(&["audit", "verify", "--anchor", &root(1_000_000)]);
    assert!(stderr(&later).contains("the anchor has 1000000"), "{}", stderr(&later));
    let malformed = run(&["audit", "verify", "--anchor", "7"]);
    assert_eq!(malformed.status.code(), Some(2), "{}", stderr(&malformed));
}

pub(crate) fn explains_decisions(run: RunComity<'_>, maintainer: &str) {
    let run = |args: &[&str]| run(&[&["--identity", maintainer], args].concat());
    let why = run(&["policy", "why", "req-1"]);
    let text = stdout(&why);
    for wanted in ["request-submitted req-1", "lease-placed lease-1", "Tenant poly-ml (", "Agreement "] {
        assert!(text.contains(wanted), "{wanted}: {text}{}", stderr(&why));
    }
    let json: serde_json::Value =
        serde_json::from_str(&stdout(&run(&["policy", "why", "req-1", "-o", "json"]))).unwrap();
    let steps = json["steps"].as_array().unwrap();
    assert!(steps[0]["act"] == "request-submitted" && steps[1]["act"] == "lease-placed", "{json}");
    assert!(steps[1]["reasons"].as_array().unwrap().len() > 2, "{json}");
    let listed = stdout(&run(&["audit", "list", "--request", "req-1", "--act", "lease-placed"]));
    assert!(listed.lines().count() == 2 && listed.contains("lease-1"), "{listed}");
    let unknown = run(&["policy", "why", "req-99999"]);
    assert!(unknown.status.code() == Some(3) && stderr(&unknown).contains("req-99999"), "{}", stderr(&unknown));
}
