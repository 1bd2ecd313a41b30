//! Help, manual pages, completion, and mistakes in request files.

use super::{comity, run, stderr, stdout};

#[test]
fn every_mistake_of_a_request_file_is_reported_in_its_own_words() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.yaml");
    let quote = |text: &str| {
        std::fs::write(&file, text).unwrap();
        stderr(&run(&["quote", "-f", &file.display().to_string()]))
    };
    let both = quote("tenant: t\norigni: o\ngpus:\n  class: c\n  amuont: 3\nduration: 5s\n");
    for part in ["request.yaml:2:1", "did you mean \"origin\"?", "request.yaml:5:3", "\"amount\"?", "use 10s to 90d"] {
        assert!(both.contains(part), "{part}: {both}");
    }
    let donors = quote("tenant: t\norigin: o\ngpus: {class: c}\ndonors: [o]\n");
    assert!(donors.contains("field: donors = \"o\""), "{donors}");
}

#[test]
fn a_request_file_to_start_from_and_manual_pages_are_printed() {
    let example = run(&["request", "example"]);
    assert!(example.status.success() && stdout(&example).starts_with("tenant: "), "{}", stdout(&example));
    let page = run(&["man"]);
    assert!(page.status.success() && stdout(&page).contains(".TH comity"), "{}", stderr(&page));
}

#[test]
fn what_a_refused_command_line_repeats_does_not_steer_the_terminal() {
    for steering in ['\u{202e}', '\u{200b}', '\u{1b}'] {
        let typed = format!("al{steering}ice");
        for args in [&["user", "revoke", &typed, "--dry-run"][..], &["user", &typed], &["lease", "list", &typed]] {
            let shown = stderr(&run(args));
            // The parser of arguments may drop ESC itself, and what it begins.
            let is_escaped = steering == '\u{1b}' || shown.contains(r"al\u{");
            assert!(!shown.contains(steering) && is_escaped, "{args:?}: {shown:?}");
        }
    }
}

#[test]
fn on_a_terminal_a_refused_command_line_has_no_escapes_of_its_arguments() {
    let has_script = std::process::Command::new("script").arg("--version").output().is_ok();
    let missing = if has_script { Vec::new() } else { vec!["`script` of util-linux".to_owned()] };
    if !comity_testkit::requirements::met("a command line on a terminal", &missing) {
        return;
    }
    let typed = "al\u{1b}[31mice\u{1b}]0;title\u{7}";
    let command = format!("{} user revoke '{typed}' --dry-run", env!("CARGO_BIN_EXE_comity"));
    let output = std::process::Command::new("script").args(["-qec", &command, "/dev/null"]).output().unwrap();
    let shown = stdout(&output);
    assert!(shown.contains("error: ") && shown.contains("ice"), "{shown:?}");
    assert!(!shown.contains("al\u{1b}[31m") && !shown.contains("\u{1b}]0;"), "{shown:?}");
}

#[test]
fn short_help_is_shorter_than_full_help() {
    let lines = |flag: &str| stdout(&run(&["request", "submit", flag])).lines().count();
    assert!(lines("-h") < lines("--help"));
    assert_eq!(stdout(&run(&["help", "lease", "list"])), stdout(&run(&["lease", "list", "--help"])));
    let completed = comity()
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "2")
        .args(["--", "comity", "lease", "sh"])
        .output()
        .unwrap();
    assert!(completed.status.success() && stdout(&completed) == "show", "{}", stderr(&completed));
}
