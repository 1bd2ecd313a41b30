//! `comity` as a person runs it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::CommandFactory as _;

#[path = "cli/audit_log.rs"]
mod audit_log;
#[path = "cli/contexts.rs"]
mod contexts;
#[path = "cli/ctrl_c.rs"]
mod ctrl_c;
#[path = "cli/diagnosis.rs"]
mod diagnosis;
#[path = "cli/kept.rs"]
mod kept;
#[path = "cli/policy_changes.rs"]
mod policy_changes;
#[path = "cli/policy_check.rs"]
mod policy_check;
#[path = "cli/policy_git.rs"]
mod policy_git;
#[path = "cli/policy_push.rs"]
mod policy_push;
#[path = "cli/policy_test.rs"]
mod policy_test;
#[path = "cli/templates.rs"]
mod templates;
#[path = "cli/terminal.rs"]
mod terminal;

/// `comity`, with nothing of the caller's environment that it reads.
fn comity() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity"));
    for variable in [
        "COMITY_BROKER",
        "COMITY_IDENTITY",
        "COMITY_CONTEXT",
        "COMITY_AGENT",
        "RUST_LOG",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ] {
        command.env_remove(variable);
    }
    // The contexts of the caller.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
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
    for name in [
        "dev",
        "cluster invite",
        "request explain",
        "lease kubeconfig",
        "policy check",
        "raft status",
        "quote",
        "login",
    ] {
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
        (
            submit(&["--gpus", "-1"]),
            2,
            "'-1' for '--gpus <AMOUNT>': \"-1\" is not an amount of GPUs; give whole GPUs (3)",
        ),
        (submit(&["--gpus", "-250m"]), 2, "'-250m' for '--gpus <AMOUNT>'"),
        (submit(&["--cpu-per-gpu", "-1"]), 2, "'--cpu-per-gpu <CPU>': \"-1\" is not an amount of CPU; write CPU as 8"),
        (submit(&["--memory-per-gpu", "-1Gi"]), 2, "'--memory-per-gpu <MEMORY>': \"-1Gi\" is not an amount of memory"),
        (submit(&["--gpu-memory", "-1Gi"]), 2, "'--gpu-memory <MEMORY>': \"-1Gi\""),
        (submit(&["--duration", "-2h"]), 2, "'--duration <DURATION>': \"-2h\" is not a duration; write a duration as"),
        (submit(&["--wait", "--timeout", "-5m"]), 2, "'--timeout <DURATION>': \"-5m\""),
        (run(&["lease", "renew", "lease-1", "--duration", "-1"]), 2, "\"-1\" is not a duration"),
        (run(&["lease", "renew", "lease-1", "--duration", "10s", "--shorten"]), 2, "remedy: add --yes to confirm"),
        (run(&["cluster", "invite", "x", "--ttl", "-1h"]), 2, "\"-1h\" is not a duration"),
        (run(&["raft", "add-learner", "0", "--raft-address", "a:1", "--client-address", "a:2"]), 2, "'<NUMBER>'"),
        (run(&["raft", "add-learner", "-1", "--raft-address", "a:1", "--client-address", "a:2"]), 2, "'<NUMBER>'"),
        (run(&["raft", "add-learner", "4"]), 2, "--raft-address"),
        (submit(&["--delivery", "node"]), 2, "[possible values: namespace, virtual-node]"),
        (submit(&["--delivery", "virtual-node"]), 2, "remedy: give a namespace on the origin"),
        (submit(&["--gpu-memory", "10"]), 2, "64Gi"),
        (submit(&["--duration", "2"]), 2, "1h30m"),
        (submit(&["--duration", "9s"]), 2, "'--duration <DURATION>': \"9s\" is too short; use 10s to 90d"),
        (submit(&["--preemptible", "--grace", "2d"]), 2, "\"2d\" is too long; use 1s to 1d"),
        (run(&["cluster", "invite", "x", "--ttl", "8d"]), 2, "'--ttl <DURATION>': \"8d\" is too long; use 1m to 7d"),
        (run(&["lease", "renew", "lease-1", "--duration", "91d"]), 2, "\"91d\" is too long; use 10s to 90d"),
        (run(&["laese", "list"]), 2, "'lease'"),
        (run(&["lease", "list", "--tenat", "t"]), 2, "a similar argument exists: '--tenant'"),
        (submit(&["--delivery", "virtual-node"]), 2, "field: --namespace"),
        (submit(&["--file", "request.yaml"]), 2, "--file"),
        (submit(&["--mig", "1g.10gb", "--gpus", "0.5"]), 2, "remedy: give a whole number"),
        (run(&["request", "submit", "--tenant", "t"]), 2, "--origin"),
        (run(&["request", "submit", "-f", "/nonexistent.yaml"]), 2, "/nonexistent.yaml"),
        (run(&["lease", "list"]), 64, "COMITY_BROKER"),
        (run(&["--broker", "nowhere", "lease", "list"]), 64, "it has no port"),
        (run(&["--broker", "127.0.0.1:1", "--identity", &nowhere, "lease", "list"]), 64, "COMITY_IDENTITY"),
        (run(&["lease", "kubeconfig", "lease-1", "--agent", "/nonexistent.sock"]), 5, "remedy: give the socket"),
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
fn usage_errors_are_one_object_too() {
    let spec = ["request", "submit", "--tenant", "t", "--origin", "o", "--class", "c"];
    for (args, field, value, word) in [
        ([&spec[..], &["--gpus", "-1", "-o", "json"]].concat(), "--gpus <AMOUNT>", "-1", "4x0.25"),
        (["-o", "json", "lease", "shwo"].to_vec(), "", "", "shwo"),
        (["--output=json", "lease", "show"].to_vec(), "<LEASE>", "", "LEASE"),
        (["-o", "yaml", "lease", "show", "lease-1", "--bogus"].to_vec(), "--bogus", "", "--bogus"),
        (["-o", "json"].to_vec(), "", "", "requires a subcommand"),
    ] {
        let output = run(&args);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{args:?}");
        let error: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
        let error = &error["error"];
        assert_eq!((error["code"].as_str(), error["exitCode"].as_u64()), (Some("usage"), Some(2)), "{error}");
        assert_eq!((error["field"].as_str(), error["value"].as_str()), (Some(field), Some(value)), "{error}");
        assert!(error["reason"].as_str().unwrap().contains(word), "{error}");
        assert!(error["remedy"].as_str().unwrap().contains("help"), "{error}");
    }
    // Help and version are answers, whatever the format.
    let help = run(&["-o", "json", "lease", "--help"]);
    assert!(help.status.success() && stdout(&help).contains("Examples:"));
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
fn completions_and_version_need_nothing() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert!(output.status.success() && stdout(&output).contains("COMPLETE"), "{shell}");
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
fn dev_once_demonstrates_a_lease_and_leaves_nothing() {
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
    assert!(stderr(&huge).contains("field: --gpus = \"5000\""), "{}", stderr(&huge));
    assert_eq!(as_alice(&["lease", "show", "lease-99"]).status.code(), Some(3));
    assert_eq!(as_alice(&["cluster", "invite", "hospital-research"]).status.code(), Some(4));

    templates::requests_are_made_from_the_catalogue(&as_alice, &json);
    // Hosts without Kubernetes deliver by namespace only, and say so.
    let by_node = [&["quote"][..], &spec, &["frontier", "--delivery", "virtual-node", "--namespace", "lab"]].concat();
    let quote = json(&by_node);
    assert!(quote["placement"].is_null(), "{quote}");
    let centre = quote["donors"].as_array().unwrap().iter().find(|donor| donor["donor"] == "ncc-main").unwrap();
    assert_eq!(centre["code"], "delivery-not-offered");
    assert_eq!(json(&["offers"])["items"][0]["deliveries"], serde_json::json!(["namespace"]));
    let submitted = json(&[&["request", "submit"][..], &by_node[1..]].concat());
    assert_eq!(submitted["spec"]["delivery"], "virtual-node");
    let id = submitted["id"].as_str().unwrap();
    let shown = stdout(&as_alice(&["request", "show", id]));
    assert!(shown.contains("virtual-node (pods of the namespace below"), "{shown}");
    let cancelled = as_alice(&["request", "cancel", id]);
    assert!(cancelled.status.success() && stderr(&cancelled).is_empty(), "{}", stderr(&cancelled));
    ctrl_c::ctrl_c_ends_the_wait_and_not_the_request(&as_alice, &text, &by_node[1..]);
    // Nobody can answer, so the lease stays.
    let asked = as_alice(&["request", "cancel", "req-2"]);
    assert_eq!(asked.status.code(), Some(2), "{}", stderr(&asked));
    let said = stderr(&asked);
    let ends = "lease-2 (2 frontier on ncc-main) ends with req-2, and everything that runs there stops";
    assert!(said.contains(ends) && said.contains("remedy: add --yes to confirm"), "{said}");
    assert_eq!(json(&["lease", "show", "lease-2"])["state"], "active");
    // By the time it is looked up, the lease may be over.
    let said = stderr(&as_alice(&["request", "cancel", "req-2", "--yes"]));
    let ends = said.starts_with("lease-2 ends with it: ");
    assert!(ends || said.starts_with("lease-2 has ended with it"), "{said}");

    let shown = stdout(&as_alice(&["lease", "show", "lease-1"]));
    let kubeconfig = "file kubeconfigs/lease-1.kubeconfig in the state directory of the agent of polytech-campus";
    assert!(shown.contains("Kubeconfig:") && shown.contains(kubeconfig), "{shown}");
    let foreign = contexts::foreign_identity(temp.path());
    let output = comity()
        .env("COMITY_BROKER", exported(&text, "COMITY_BROKER"))
        .args(["--identity", &foreign.path().join("admin").display().to_string(), "lease", "list", "-o", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let error: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(error["error"]["code"], "certificate-refused", "{error}");
    assert!(error["error"]["remedy"].as_str().unwrap().contains("COMITY_IDENTITY"), "{error}");
    drop(foreign);

    let maintainer = text.lines().find(|line| line.ends_with("raft status")).unwrap();
    let maintainer = maintainer.split_whitespace().nth(2).unwrap().trim_matches('"').to_owned();
    audit_log::explains_decisions(&as_alice, &maintainer);
    audit_log::shows_every_edit_gap_and_swap(&as_alice, &maintainer, temp.path());
    policy_changes::are_named_before_they_happen(&as_alice, &maintainer, temp.path());
    policy_changes::have_exit_codes(&as_alice, &maintainer, temp.path());
    policy_changes::are_not_lost(&as_alice, &maintainer, temp.path());
    policy_git::is_rolled_back(&as_alice, &maintainer, temp.path());
    let members = json(&["--identity", &maintainer, "raft", "status"])["members"].clone();
    let address = |index: usize, which: &str| members[index][which].as_str().unwrap().to_owned();
    let add = |client: &str| {
        let raft = address(1, "raftAddress");
        let args = [
            "--identity",
            &maintainer,
            "raft",
            "add-learner",
            "2",
            "--raft-address",
            &raft,
            "--client-address",
            client,
        ];
        as_alice(&args)
    };
    // A member that is one already is left as it is; its number is not given to another broker.
    let same = add(&address(1, "clientAddress"));
    assert!(same.status.success() && stdout(&same).lines().count() == 4, "{}{}", stdout(&same), stderr(&same));
    let other = add("127.0.0.1:9");
    assert_eq!(other.status.code(), Some(1), "{}", stderr(&other));
    assert!(
        stderr(&other).contains("broker 2 is at") && stderr(&other).contains("field: <NUMBER> = \"2\""),
        "{}",
        stderr(&other)
    );

    let sooner = as_alice(&["lease", "renew", "lease-1", "--duration", "10s"]);
    assert_eq!(sooner.status.code(), Some(1), "{}", stderr(&sooner));
    assert!(
        stderr(&sooner).contains("lease-1 would end at ") && stderr(&sooner).contains("add --shorten"),
        "{sooner:?}"
    );

    let kubeconfig = as_alice(&["lease", "kubeconfig", "lease-1"]);
    assert!(stdout(&kubeconfig).contains("tls-server-name"), "{}", stderr(&kubeconfig));
    let asked = as_alice(&["lease", "release", "lease-1"]);
    assert_eq!(asked.status.code(), Some(2), "{}", stderr(&asked));
    assert!(stderr(&asked).contains("lease-1 (") && stderr(&asked).contains("add --yes"), "{}", stderr(&asked));
    assert_eq!(json(&["lease", "release", "--yes", "lease-1"])["endReason"], "released");
    assert_eq!(as_alice(&["lease", "renew", "lease-1"]).status.code(), Some(1));
    let as_maintainer = |args: &[&str]| as_alice(&[&["--identity", &maintainer], args].concat());
    contexts::a_user_is_invited_logs_in_and_renews(&as_maintainer, temp.path());

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
