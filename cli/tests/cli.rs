//! `comity` as a person runs it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::CommandFactory as _;

/// `comity`, with nothing of the caller's environment that it reads.
fn comity() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    for variable in ["COMITY_BROKER", "COMITY_IDENTITY", "COMITY_AGENT", "RUST_LOG", "OTEL_EXPORTER_OTLP_ENDPOINT"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    comity().args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn each_command(command: &clap::Command, path: &[String], visit: &mut impl FnMut(&[String])) {
    visit(path);
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        each_command(sub, &[path, &[sub.get_name().to_owned()]].concat(), visit);
    }
}

#[test]
fn the_help_of_every_command_shows_an_example() {
    let mut seen = Vec::new();
    each_command(&comity_cli::Args::command(), &[], &mut |path| {
        let args: Vec<&str> = path.iter().map(String::as_str).chain(["--help"]).collect();
        let output = run(&args);
        let (help, name) = (stdout(&output), path.join(" "));
        assert!(output.status.success(), "{name}");
        let example = format!("\n  comity {name}");
        assert!(help.contains("Examples:") && help.contains(example.trim_end()), "{name}:\n{help}");
        seen.push(name);
    });
    for name in ["dev", "cluster invite", "request explain", "lease kubeconfig", "policy check", "raft status", "quote"]
    {
        assert!(seen.iter().any(|seen| seen == name), "{name} is missing of {seen:?}");
    }
    let help = stdout(&run(&["--help"]));
    for exit in comity_cli::Exit::ALL {
        assert!(help.contains(&format!("{:>3}  ", exit.number())), "{help}");
    }
}

#[test]
fn bad_input_has_its_exit_code_and_a_remedy() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("identity").display().to_string();
    let spec = ["--tenant", "t", "--origin", "o", "--class", "c"];
    let submit = |more: &[&str]| run(&[&["request", "submit"][..], &spec, more].concat());
    for (output, code, word) in [
        (run(&["no-such-command"]), 2, "no-such-command"),
        (run(&["lease", "show"]), 2, "LEASE"),
        (submit(&["--gpus", "2.5"]), 2, "4x0.25"),
        (submit(&["--gpu-memory", "10"]), 2, "64Gi"),
        (submit(&["--duration", "2"]), 2, "1h30m"),
        (submit(&["--file", "request.yaml"]), 2, "--file"),
        (submit(&["--mig", "1g.10gb", "--gpus", "0.5"]), 2, "remedy: give a whole number"),
        (run(&["request", "submit", "--tenant", "t"]), 2, "--origin"),
        (run(&["request", "submit", "-f", "/nonexistent.yaml"]), 2, "/nonexistent.yaml"),
        (run(&["lease", "list"]), 64, "COMITY_BROKER"),
        (run(&["--broker", "nowhere", "lease", "list"]), 64, "it has no port"),
        (run(&["--broker", "127.0.0.1:1", "--identity", &nowhere, "lease", "list"]), 64, "COMITY_IDENTITY"),
        (run(&["lease", "kubeconfig", "lease-1", "--agent", "/nonexistent.sock"]), 5, "remedy: name the socket"),
        (run(&["lease", "kubeconfig", "../x", "--agent", "/nonexistent.sock"]), 2, "lease-7"),
        (run(&["policy", "check", "/nonexistent"]), 2, "/nonexistent"),
        (run(&["dev", "--kubeconfig", "a"]), 2, "--kubernetes"),
        (run(&["dev", "--kubernetes", "--kubeconfig", "a"]), 2, "origin's first"),
    ] {
        assert_eq!(output.status.code(), Some(code), "{word}: {}", stderr(&output));
        assert!(stderr(&output).contains(word), "{word}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{word}");
    }
}

#[test]
fn errors_are_one_object_for_scripts() {
    let output = run(&["-o", "json", "lease", "list"]);
    let error: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(error["error"]["exitCode"], 64);
    assert_eq!(error["error"]["code"], "bad-configuration");
    assert!(error["error"]["remedy"].as_str().unwrap().contains("--broker"));
}

#[test]
fn a_request_file_is_read_strictly() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("request.yaml");
    std::fs::write(&file, "tenant: t\norigin: o\ngpus:\n  class: c\n  amuont: 3\n").unwrap();
    let output = run(&["quote", "-f", &file.display().to_string()]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("request.yaml:5:3") && stderr(&output).contains("amuont"), "{}", stderr(&output));
}

#[test]
fn policy_is_checked_without_a_broker() {
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy");
    let good = run(&["policy", "check", &policy.join("examples").display().to_string()]);
    assert!(good.status.success() && stdout(&good).starts_with("ok: 30 documents in 16 files"), "{}", stdout(&good));

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
fn completions_and_version_need_nothing() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && stdout(&output).contains("kubeconfig"), "{shell}");
    }
    let output = run(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(version["client"], env!("CARGO_PKG_VERSION"));
    assert!(version["broker"].is_null());
}

/// A temporary directory for one run: what is in it afterwards was left behind.
fn dev(temp: &Path) -> Command {
    let mut command = comity();
    command.arg("dev").env("TMPDIR", temp);
    command
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

#[test]
fn dev_once_tells_the_whole_story_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let output = dev(temp.path()).args(["--once", "-o", "json"]).output().unwrap();
    let text = stdout(&output);
    assert!(output.status.success(), "{text}\n{}", stderr(&output));
    assert_eq!(text.lines().count(), 1, "{text}");
    let story: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(story["ok"], true);
    let steps = story["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["brokers-ready", "clusters-joined", "request-submitted", "placed", "connected", "used", "released"]
    );
    let sum: u64 = steps.iter().map(|step| step["ms"].as_u64().unwrap()).sum();
    assert!(story["total_ms"].as_u64().unwrap() >= sum, "{text}");
    assert!(is_empty(temp.path()), "something was left in the temporary directory");
}

/// A federation that keeps running; it ends with the test, whatever the test's end.
struct Running(std::process::Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    fn id(&self) -> u32 {
        self.0.id()
    }

    fn wait(&mut self) -> std::process::ExitStatus {
        self.0.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail where it has ended already, as it should.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status().unwrap().success());
}

/// Waits until the program has printed how to go on; its output so far.
fn until_ready(process: &mut Running) -> String {
    use std::io::BufRead as _;
    let mut text = String::new();
    for line in std::io::BufReader::new(process.0.stdout.as_mut().unwrap()).lines() {
        text.push_str(&line.unwrap());
        text.push('\n');
        if text.contains("raft status") {
            return text;
        }
    }
    panic!("it ended: {text}");
}

fn exported(text: &str, variable: &str) -> String {
    let prefix = format!("  export {variable}=");
    text.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap().trim_matches('"').to_owned()
}

#[test]
fn a_running_dev_federation_answers_every_command_and_ends_by_ctrl_c() {
    let temp = tempfile::tempdir().unwrap();
    let mut process = Running::start(&mut dev(temp.path()));
    let text = until_ready(&mut process);
    let as_alice = |args: &[&str]| {
        let mut command = comity();
        for variable in ["COMITY_BROKER", "COMITY_IDENTITY", "COMITY_AGENT"] {
            command.env(variable, exported(&text, variable));
        }
        command.args(args).output().unwrap()
    };
    let json = |args: &[&str]| -> serde_json::Value {
        let output = as_alice(&[args, &["-o", "json"]].concat());
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        serde_json::from_str(&stdout(&output)).unwrap()
    };
    let lease = json(&["lease", "show", "lease-1"]);
    assert_eq!((lease["state"].as_str(), lease["donor"].as_str()), (Some("active"), Some("ncc-main")));
    assert_eq!(lease["gpus"]["share"]["kind"], "whole");
    assert_eq!(json(&["lease", "list"])["items"][0]["id"], "lease-1");
    assert_eq!(json(&["request", "list"])["items"][0]["lease"], "lease-1");
    assert_eq!(json(&["offers"])["items"].as_array().unwrap().len(), 4);
    assert_eq!(json(&["peering", "list"])["items"][0]["state"], "established");

    let spec = ["--tenant", "poly-ml", "--origin", "polytech-campus", "--class"];
    let quote = json(&[&["quote"][..], &spec, &["frontier", "--gpus", "2", "--duration", "1h"]].concat());
    assert_eq!(quote["placement"]["donor"], "ncc-main");
    let submit =
        [&["request", "submit"][..], &spec, &["frontier", "--gpus", "2", "--wait", "--timeout", "30s"]].concat();
    assert_eq!(json(&submit)["state"], "active");
    let other = ["request", "submit", "--tenant", "poly-courses", "--origin", "polytech-campus", "--class", "teaching"];
    let foreign = as_alice(&other);
    assert_eq!(foreign.status.code(), Some(4), "{}", stderr(&foreign));
    assert!(stderr(&foreign).contains("remedy: "), "{}", stderr(&foreign));
    let huge = as_alice(&[&["request", "submit"][..], &spec, &["frontier", "--gpus", "5000"]].concat());
    assert_eq!(huge.status.code(), Some(2), "{}", stderr(&huge));
    assert!(stderr(&huge).contains("field: spec.gpus.count = \"5000\""), "{}", stderr(&huge));
    assert_eq!(as_alice(&["lease", "show", "lease-99"]).status.code(), Some(3));
    assert_eq!(as_alice(&["cluster", "invite", "hospital-research"]).status.code(), Some(4));

    let kubeconfig = as_alice(&["lease", "kubeconfig", "lease-1"]);
    assert!(stdout(&kubeconfig).contains("tls-server-name"), "{}", stderr(&kubeconfig));
    assert_eq!(json(&["lease", "release", "lease-1"])["endReason"], "released");
    assert_eq!(as_alice(&["lease", "renew", "lease-1"]).status.code(), Some(1));

    signal(process.id(), "INT");
    assert!(process.wait().success());
    assert!(is_empty(temp.path()), "something was left in the temporary directory");
}

#[test]
fn dev_ends_at_once_by_a_second_ctrl_c_and_leaves_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let mut process = Running::start(&mut dev(temp.path()));
    until_ready(&mut process);
    signal(process.id(), "INT");
    std::thread::sleep(Duration::from_millis(20));
    // It may have stopped in the meantime.
    let _ = Command::new("kill").args(["-INT", &process.id().to_string()]).status();
    let code = process.wait().code();
    assert!(matches!(code, Some(0 | 130)), "{code:?}");
    assert!(is_empty(temp.path()), "something was left in the temporary directory");
}

#[test]
fn a_kept_federation_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let start = || {
        let mut process = Running::start(dev(dir.path()).arg("--state").arg(&state));
        let text = until_ready(&mut process);
        signal(process.id(), "TERM");
        assert!(process.wait().success());
        text
    };
    let first = start();
    assert!(first.contains("request-submitted"), "{first}");
    let second = start();
    assert!(second.contains("lease-1 of the run before is still active"), "{second}");
    assert_eq!(exported(&first, "COMITY_BROKER"), exported(&second, "COMITY_BROKER"));
}
