//! Odd inputs: each gets a message that names the input as typed and a remedy, and the exit code of its kind; nothing
//! panics.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use comity_docs::federation::Federation;

use crate::programs;

/// Arguments after `comity`, the exit code, and parts of what it prints on standard error.
type Odd = (&'static [&'static str], i32, &'static [&'static str]);

const SUBMIT: &[&str] = &["request", "submit", "--tenant", "poly-ml", "--origin", "polytech-campus"];

/// Appended to `request submit --tenant poly-ml --origin polytech-campus`.
const REQUESTS: &[Odd] = &[
    (&["--class", "frontier", "--gpus", "-1"], 2, &["--gpus", "-1"]),
    (&["--class", "frontier", "--gpus", "0"], 2, &["--gpus", "0"]),
    (&["--class", "frontier", "--gpus", "99999999999999999999"], 2, &["--gpus", "99999999999999999999"]),
    (&["--class", "frontier", "--gpus", "many"], 2, &["--gpus", "many"]),
    (&["--class", "frontier", "--gpus", ""], 2, &["--gpus"]),
    (&["--class", "frontier", "--gpus", "0.001"], 2, &["--gpus", "0.05"]),
    (&["--class", "frontier", "--gpus", "٣"], 2, &["--gpus", "٣"]),
    (&["--class", "frontier", "--gpus", "1e3"], 2, &["--gpus", "1e3"]),
    (&["--class", "frontier", "--gpus", "30"], 6, &["no donor could ever"]),
    (&["--class", "fronteir", "--gpus", "1"], 3, &["fronteir", "frontier"]),
    (&["--class", "", "--gpus", "1"], 2, &["--class"]),
    (&["--class", "🐛", "--gpus", "1"], 2, &["--class", "🐛"]),
    (&["--class", "frontier", "--gpus", "1", "--duration", "0"], 2, &["--duration", "0"]),
    (&["--class", "frontier", "--gpus", "1", "--duration", "-5m"], 2, &["--duration", "-5m"]),
    (&["--class", "frontier", "--gpus", "1", "--duration", "1s"], 2, &["--duration", "1s"]),
    (&["--class", "frontier", "--gpus", "1", "--duration", "9999999d"], 2, &["--duration", "9999999d"]),
    (&["--class", "frontier", "--gpus", "1", "--duration", "soon"], 2, &["--duration", "soon"]),
    (&["--class", "frontier", "--gpus", "1", "--memory-per-gpu", "9999Ti"], 6, &["no donor could ever"]),
    (&["--class", "frontier", "--gpus", "1", "--memory-per-gpu", "12 bananas"], 2, &["--memory-per-gpu", "12 bananas"]),
    (&["--class", "frontier", "--gpus", "1", "--donor", "nosuch"], 3, &["nosuch"]),
    (&["--class", "frontier", "--gpus", "1", "--priority", "nosuch"], 3, &["nosuch"]),
    (&["--selector", "device.memory >", "--gpus", "1"], 2, &["--selector"]),
    (&["--class", "frontier", "--gpus", "1", "--start-by", "yesterday"], 2, &["--start-by", "yesterday"]),
    (&["--class", "frontier", "--gpus", "1", "--clas", "x"], 2, &["--clas", "--class"]),
];

/// Other commands.
const COMMANDS: &[Odd] = &[
    (&["request", "submit", "-f", "/nonexistent/request.yaml"], 2, &["/nonexistent/request.yaml"]),
    (&["request", "submit", "-f", "/dev/null"], 2, &["/dev/null"]),
    (&["request", "submit", "-f", "/dev/zero"], 2, &["/dev/zero"]),
    (&["request", "submit", "-f", "Cargo.toml"], 2, &["Cargo.toml"]),
    (&["lease", "show", "lease-99"], 3, &["lease-99", "comity lease list"]),
    (&["lease", "show", "lease"], 2, &["lease"]),
    (&["lease", "show", "lease-18446744073709551616"], 2, &["lease-18446744073709551616"]),
    (&["lease", "show", "../../etc/passwd"], 2, &["../../etc/passwd"]),
    (&["lease", "list", "--tenant", "nosuch"], 3, &["nosuch"]),
    (&["lease", "list", "--tenant", "poly-m"], 3, &["poly-m", "poly-ml"]),
    (&["lease", "renew", "lease-1", "--duration", "10000d"], 2, &["--duration", "10000d"]),
    (&["lease", "release", "lease-1", "lease-2"], 2, &["lease-2"]),
    (&["leese", "list"], 2, &["leese", "lease"]),
    (&["request", "cancel", "req-0"], 3, &["req-0"]),
    (&["request", "list", "--tenant", "Ünïcode"], 2, &["Ünïcode"]),
    (
        &[
            "request",
            "submit",
            "--tenant",
            "nosuch",
            "--origin",
            "polytech-campus",
            "--class",
            "frontier",
            "--gpus",
            "1",
        ],
        3,
        &["nosuch"],
    ),
    (&["cluster", "invite", "ncc-main"], 4, &["alice", "maintainer"]),
    (&["raft", "status"], 4, &["alice"]),
    (&["policy", "check", "/nonexistent"], 2, &["/nonexistent"]),
    (&["policy", "apply", "policy/examples", "--yes"], 4, &["alice"]),
    (&["offers", "nosuch"], 3, &["nosuch"]),
    (&["--broker", "127.0.0.1:1", "offers"], 5, &["127.0.0.1:1"]),
    (&["--broker", "not an address", "offers"], 64, &["--broker", "not an address"]),
    (&["--broker", "127.0.0.1:99999", "offers"], 64, &["--broker", "127.0.0.1:99999"]),
    (&["--identity", "/nonexistent", "offers"], 64, &["/nonexistent"]),
    (&["-o", "xml", "offers"], 2, &["xml", "yaml"]),
];

struct Alice {
    comity: std::path::PathBuf,
    exports: Vec<(String, String)>,
}

impl Alice {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.comity);
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        command.args(args).envs(self.exports.iter().cloned()).current_dir(repository).stdin(Stdio::null());
        command
    }
}

#[test]
fn odd_inputs_get_a_message_and_never_a_panic() {
    let home = tempfile::tempdir().expect("a folder");
    let comity = programs().join("comity");
    let federation = Federation::start(&comity, &home.path().join("federation")).expect("a federation");
    let exports = federation.exports();
    let exports = exports.lines().filter_map(|line| line.strip_prefix("export ")?.split_once('='));
    let exports = exports.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
    let alice = Alice { comity, exports };
    let mut problems = Vec::new();
    let requests = REQUESTS.iter().map(|(args, code, parts)| ([SUBMIT, args].concat(), code, parts));
    let commands = COMMANDS.iter().map(|(args, code, parts)| (args.to_vec(), code, parts));
    for (args, code, parts) in requests.chain(commands) {
        let output = alice.command(&args).output().expect("comity runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        println!(
            "comity {}\n    exit {:?}: {}",
            args.join(" "),
            output.status.code(),
            text.trim().replace('\n', "\n    ")
        );
        let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
        if output.status.code() != Some(*code) || !missing.is_empty() || text.contains("panicked") {
            problems.push(format!(
                "comity {}: exit {code} wanted, missing {missing:?}, got {:?}:\n{text}",
                args.join(" "),
                output.status.code()
            ));
        }
    }
    problems.extend(odd_outputs(&alice, home.path()));
    assert!(problems.is_empty(), "{} of the inputs:\n\n{}", problems.len(), problems.join("\n"));
}

/// A reader that went away, a full disk, an identity of another federation.
fn odd_outputs(alice: &Alice, home: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |what: &str, ok: bool, text: &str| {
        if !ok || text.contains("panicked") {
            problems.push(format!("{what}: {text}"));
        }
    };
    let full =
        alice.command(&["offers"]).stdout(File::create("/dev/full").expect("/dev/full")).output().expect("comity runs");
    let text = String::from_utf8_lossy(&full.stderr);
    check("a full disk", !full.status.success() && text.contains("standard output"), &text);

    let mut child =
        alice.command(&["-o", "json", "offers"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("comity");
    drop(child.stdout.take());
    let broken = child.wait_with_output().expect("it ends");
    check("a broken pipe", broken.stderr.is_empty(), &String::from_utf8_lossy(&broken.stderr));

    let yaml = alice.command(&["-o", "yaml", "lease", "show", "lease-1"]).output().expect("comity runs");
    let parsed = serde_saphyr::from_slice::<serde_json::Value>(&yaml.stdout);
    let is_lease = parsed.as_ref().is_ok_and(|value| value.to_string().contains("\"lease-1\""));
    check("yaml for a parser", is_lease, &String::from_utf8_lossy(&yaml.stdout));

    let other = home.join("other");
    std::fs::create_dir(&other).expect("a folder");
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::default();
    let id = "spiffe://elsewhere.example/user/alice".try_into().expect("an id");
    params.subject_alt_names = vec![rcgen::SanType::URI(id)];
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    for (file, text) in [("key.pem", key.serialize_pem()), ("cert.pem", certificate.clone()), ("ca.pem", certificate)] {
        std::fs::write(other.join(file), text).expect("a file");
    }
    let identity = other.display().to_string();
    let wrong = alice.command(&["--identity", &identity, "offers"]).output().expect("comity runs");
    let text = String::from_utf8_lossy(&wrong.stderr);
    check("an identity of another federation", !wrong.status.success() && text.contains("remedy"), &text);
    problems
}
