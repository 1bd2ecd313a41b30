//! `comity doctor` without a federation.

use super::{run, stderr, stdout};

#[test]
fn doctor_names_what_is_missing_with_remedies() {
    let empty = tempfile::tempdir().unwrap();
    let nowhere = empty.path().join("identity").display().to_string();
    let output = run(&["doctor", "--identity", &nowhere]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["failed   brokers", "COMITY_BROKER", "failed   identity", "remedy: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(stderr(&output).contains("checks failed: 2"));

    let output = run(&["doctor", "--identity", &nowhere, "-o", "json"]);
    let answer: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((answer["checks"][0]["result"].as_str(), answer["agentChecks"].as_null()), (Some("failed"), Some(())));
}

#[test]
fn doctor_checks_this_hosts_agent_too() {
    let dir = tempfile::tempdir().unwrap();
    let (config, state) = (dir.path().join("agent.yaml"), dir.path().join("state"));
    std::fs::write(dir.path().join("nodes.yaml"), "nodes: [{name: a, cpu: 1, gpus: [], colour: green}]\n").unwrap();
    let inventory = dir.path().join("nodes.yaml");
    let text = format!(
        "stateDir: {}\ninventoryFile: {}\nfabric: {{listen: '127.0.0.1:0'}}\n",
        state.display(),
        inventory.display()
    );
    std::fs::write(&config, text).unwrap();
    let text = stdout(&run(&["doctor", "--config", &config.display().to_string()]));
    for part in ["agent:\n", "memory is missing", "unknown field colour", "has not joined", "UDP 127.0.0.1:0 is free"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
