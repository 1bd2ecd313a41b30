//! `comity context`, `comity login`, and the order in which settings are looked up.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::{comity, stderr, stdout};

/// `comity` with the contexts below `config`.
fn comity_of(config: &Path) -> Command {
    let mut command = comity();
    command.env("XDG_CONFIG_HOME", config);
    command
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_str(&stdout(output)).unwrap()
}

/// A user's certificate of another federation.
pub(crate) fn foreign_identity(temp: &Path) -> tempfile::TempDir {
    use comity_broker::provision::{Init, init};
    let dir = tempfile::tempdir_in(temp).unwrap();
    let address = |port| format!("127.0.0.1:{port}");
    let member = comity_broker::group::MemberAddress { raft: address(1), client: address(2) };
    let settings = comity_broker::config::Settings {
        id: 1,
        members: std::collections::BTreeMap::from([(1, member)]),
        bootstrap_admins: std::collections::BTreeSet::new(),
        hosts: std::collections::BTreeSet::new(),
    };
    init(&Init {
        data: dir.path().join("broker"),
        trust_domain: comity_runtime::spiffe::TrustDomain::new("elsewhere.example").unwrap(),
        settings,
        admin: comity_runtime::spiffe::UserName::new("admin").unwrap(),
        admin_out: dir.path().join("admin"),
    })
    .unwrap();
    dir
}

#[test]
fn flags_win_against_the_environment_and_both_against_contexts() {
    let home = tempfile::tempdir().unwrap();
    let identity = foreign_identity(home.path());
    let identity = identity.path().join("admin").display().to_string();
    let config = home.path().join("config");
    let run = |args: &[&str]| comity_of(&config).args(args).output().unwrap();
    let add = |name: &str, broker: &str| {
        json(&run(&["-o", "json", "context", "add", name, "--broker", broker, "--identity", &identity]))
    };
    let first = add("first", "127.0.0.1:1");
    assert_eq!((first["current"].as_bool(), first["brokers"][0].as_str()), (Some(true), Some("127.0.0.1:1")));
    assert_eq!(add("second", "127.0.0.1:2")["current"], false);
    let mode = |path: &str| std::fs::metadata(config.join("comity").join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode("contexts/first"), mode("contexts/first/key.pem")], [0o700, 0o600]);

    // No broker runs: the error names the address that was tried.
    let tried = |variables: &[(&str, &str)], args: &[&str]| {
        let output =
            comity_of(&config).envs(variables.iter().copied()).args(args).args(["lease", "list"]).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
        let text = stderr(&output);
        let port = text.split("127.0.0.1:").nth(1).unwrap().chars().next().unwrap();
        port.to_digit(10).unwrap()
    };
    assert_eq!(tried(&[], &[]), 1);
    assert_eq!(tried(&[("COMITY_CONTEXT", "second")], &[]), 2);
    assert_eq!(tried(&[("COMITY_CONTEXT", "second"), ("COMITY_BROKER", "127.0.0.1:3")], &[]), 3);
    assert_eq!(tried(&[("COMITY_BROKER", "127.0.0.1:3")], &["--context", "second"]), 2);
    assert_eq!(tried(&[], &["--context", "second", "--broker", "127.0.0.1:4"]), 4);

    // A renewal is of the identity in force, at its brokers.
    let variables = [("COMITY_IDENTITY", identity.as_str()), ("COMITY_BROKER", "127.0.0.1:3")];
    let renewal = comity_of(&config).envs(variables).args(["login", "--renew"]).output().unwrap();
    assert!(renewal.status.code() == Some(5) && stderr(&renewal).contains("127.0.0.1:3"), "{}", stderr(&renewal));
    let lock = "renewal.lock";
    assert!(Path::new(&identity).join(lock).exists() && !config.join("comity/contexts/first").join(lock).exists());

    assert!(run(&["context", "use", "second"]).status.success());
    assert_eq!(tried(&[], &[]), 2);
    let list = json(&run(&["context", "list", "-o", "json"]));
    assert_eq!((&list["items"][1]["name"], &list["items"][1]["current"]), (&"second".into(), &true.into()));
    assert_eq!(list["items"][0]["user"], "spiffe://elsewhere.example/user/admin");

    let unconfirmed = run(&["context", "remove", "second"]);
    assert!(unconfirmed.status.code() == Some(2) && stderr(&unconfirmed).contains("--yes"), "{}", stderr(&unconfirmed));
    assert!(run(&["context", "remove", "second", "--yes"]).status.success());
    assert!(!config.join("comity/contexts/second").exists());
    let nothing = run(&["lease", "list"]);
    assert_eq!(nothing.status.code(), Some(64));
    assert!(stderr(&nothing).contains("'comity login'") && stderr(&nothing).contains("'comity context use"));
    assert_eq!(run(&["context", "use", "second"]).status.code(), Some(3));
    assert_eq!(run(&["--context", "second", "lease", "list"]).status.code(), Some(64));
}

#[test]
fn a_secret_in_the_wrong_place_is_not_shown() {
    let home = tempfile::tempdir().unwrap();
    let secret = "eyJzZWNyZXQiOiJhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5eiJ9";
    let kubeconfig = "apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    token: s3cret\n";
    let key = "iVBq9Yg3Zk0pWm7xT5uR2sE8nL4cJ6hD1fGbAoQvXyM=";
    for (given, secret) in [(format!("comity-join-v1.{secret}").as_str(), secret), (kubeconfig, "s3cret"), (key, key)] {
        for args in [
            &["login", given][..],
            &["login", given, "more"],
            &[given],
            &["--identity", given, "--broker", "127.0.0.1:1", "lease", "list"],
            &["--context", given, "lease", "list"],
            &["--broker", given, "lease", "list"],
            &["context", "use", given],
            &["policy", "apply", given],
            &["request", "submit", "-f", given],
            &["lease", "kubeconfig", given, "--agent", "/nonexistent"],
            &["lease", "kubeconfig", "lease-1", "--agent", given],
        ] {
            for format in ["table", "json"] {
                let output = comity_of(home.path()).args(args).args(["-o", format]).output().unwrap();
                let shown = format!("{}{}", stdout(&output), stderr(&output));
                assert!(!output.status.success() && !shown.contains(secret), "{args:?}: {shown}");
            }
        }
    }
}

#[test]
fn a_private_key_in_an_argument_is_refused_and_hides_no_rest_of_the_error() {
    let home = tempfile::tempdir().unwrap();
    let line = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2\n";
    let key = format!("-----BEGIN PRIVATE KEY-----\n{}-----END PRIVATE KEY-----", line.repeat(3));
    let [note, namespace] = ["--note", "--namespace"].map(|flag| format!("{flag}={key}"));
    let submit = ["request", "submit", "--tenant", "t", "--origin", "o", "--class", "c", "--gpus", "1"];
    let submit = |more| [&submit[..], &[more]].concat();
    for args in [
        vec!["lease", "show", "--", &key],
        vec!["request", "show", "--", &key],
        vec!["cluster", "show", "--", &key],
        vec!["user", "revoke", "--dry-run", "--", &key],
        submit(&note),
        submit(&namespace),
    ] {
        for format in ["table", "json"] {
            // With brokers at this address, only an answer before any call has exit code 2.
            let mut command = comity_of(home.path());
            let output = command.args(["--broker", "127.0.0.1:1", "-o", format]).args(&args).output().unwrap();
            let shown = stderr(&output);
            assert!(output.status.code() == Some(2) && !shown.contains("MIGH"), "{args:?}: {shown}");
            if format == "json" {
                let error: serde_json::Value = serde_json::from_str(&shown).unwrap();
                assert_eq!((&error["error"]["code"], &error["error"]["exitCode"]), (&"usage".into(), &2.into()));
            } else {
                assert!(shown.contains("is a private key") || shown.contains("--help"), "{args:?}: {shown}");
            }
        }
    }
}

/// Runs the way of a new user with a federation of `comity dev`: invitation, login, use, renewal.
pub(crate) fn a_user_is_invited_logs_in_and_renews(as_maintainer: &dyn Fn(&[&str]) -> Output, temp: &Path) {
    let invited = as_maintainer(&["user", "add", "carol", "--tenant", "poly-ml", "--yes"]);
    assert!(invited.status.success(), "{}", stderr(&invited));
    assert!(stderr(&invited).contains("submitter of tenant poly-ml"), "{}", stderr(&invited));
    let token = stdout(&invited);
    let config = tempfile::tempdir_in(temp).unwrap();
    let login = |token: &str| {
        use std::io::Write as _;
        let mut command = comity_of(config.path());
        command.args(["login", "-", "-o", "json"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        process.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
        process.wait_with_output().unwrap()
    };
    // The certificate cannot be kept at first: a directory is in its place.
    let blocked = config.path().join("comity/contexts/comity.example/cert.pem");
    std::fs::create_dir_all(blocked.join("in the way")).unwrap();
    let failed = login(&token);
    assert!(!failed.status.success() && stderr(&failed).contains("within a day"), "{}", stderr(&failed));
    std::fs::remove_dir_all(&blocked).unwrap();
    let context = json(&login(&token));
    assert!(context["current"] == true && context["user"].as_str().unwrap().ends_with("/user/carol"), "{context}");
    let again = login(&token);
    assert_eq!(again.status.code(), Some(4), "the token worked twice: {}", stdout(&again));
    assert!(stderr(&again).contains("comity user add") && !stderr(&again).contains(token.trim()));
    // Nothing but the context says where the brokers are and who calls.
    let run = |args: &[&str]| comity_of(config.path()).args(args).output().unwrap();
    assert!(json(&run(&["offers", "-o", "json"]))["items"].as_array().is_some_and(|items| !items.is_empty()));
    let certificate = Path::new(context["identity"].as_str().unwrap()).join("cert.pem");
    let before = std::fs::read(&certificate).unwrap();
    assert!(run(&["login", "--renew"]).status.success());
    assert_ne!(std::fs::read(&certificate).unwrap(), before);
    assert!(run(&["offers"]).status.success());

    let name = context["name"].as_str().unwrap();
    for (index, words) in [("2", &["comity", "--context", &name[..2]][..]), ("3", &["comity", "context", "use", ""])] {
        let mut completed = comity_of(config.path());
        completed.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", index).arg("--").args(words);
        let completed = completed.output().unwrap();
        assert!(stdout(&completed).lines().any(|line| line == name), "{words:?}: {}", stdout(&completed));
    }

    let cluster = as_maintainer(&[
        "cluster",
        "invite",
        "new-cluster",
        "--enroll",
        "--institution",
        "new",
        "--new-institution",
        "--yes",
    ]);
    assert!(cluster.status.success() && stdout(&cluster).starts_with("comity-join-"), "{}", stderr(&cluster));
    // A broker gets the intermediate's key: that is more than a maintainer may give away.
    let broker = as_maintainer(&["raft", "invite"]);
    assert_eq!(broker.status.code(), Some(4), "{}", stdout(&broker));
    assert!(stderr(&broker).contains("`brokerOperators` of the Federation"), "{}", stderr(&broker));
    let open = json(&as_maintainer(&["invitation", "list", "-o", "json"]));
    let find = |kind: &str| open["items"].as_array().unwrap().iter().find(|it| it["kind"] == kind).cloned().unwrap();
    assert_eq!(find("cluster")["invited"], "new-cluster");
    let revoked = as_maintainer(&["invitation", "revoke", find("cluster")["id"].as_str().unwrap()]);
    assert!(revoked.status.success() && stdout(&revoked).starts_with("revoked "), "{}", stderr(&revoked));
}
