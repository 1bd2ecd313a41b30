//! `comity-agent`: flags, environment, exit codes.

mod devices_command;
mod doctor_command;
mod examples;
mod failure;
mod first_setup;
mod join_command;
mod node_command;
mod node_logs;
mod output_format;
mod peers_command;
mod podman_command;
mod read_devices_command;
mod run_command;
mod settings;
mod webhook_command;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comity_runtime::help::{self, TokenPlace};
use comity_runtime::join_token::is_token;
use comity_types::{printable, redact_secrets};

use crate::observe::file::SAMPLE_INVENTORY;
use devices_command::DevicesArgs;
use doctor_command::DoctorArgs;
use failure::{Failure, USAGE};
use join_command::JoinArgs;
use node_command::NodeSettings;
use peers_command::PeersAction;
use podman_command::PodmanArgs;
use read_devices_command::ReadDevicesSettings;
use settings::Settings;
use webhook_command::WebhookAction;

/// Hint for a join token that stands where a file is expected.
const TOKEN_HINT: &str = "a join token was given in a place for something else; give it as in comity-agent join TOKEN";

/// Hint for another secret that stands where a file is expected.
const SECRET_HINT: &str = "a secret was given in a place for something else; give the path of the file that holds it";

/// The agent of one cluster of a Comity federation.
#[derive(Debug, Parser)]
#[command(name = "comity-agent", version, about)]
#[command(
    after_long_help = format!("{}\n\nExit codes: 0 stopped as asked, 3 a check failed before joining, 64 bad configuration \
    (one sentence says what), 1 anything else.", examples::AGENT_EXAMPLES)
)]
pub struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the agent
    ///
    /// Joins first if it has a token and no identity.
    #[command(after_long_help = examples::RUN_EXAMPLES)]
    Run(Box<Settings>),
    /// Join a federation
    ///
    /// Checks this host and the token first, and writes a configuration if there is none.
    #[command(after_long_help = examples::JOIN_EXAMPLES)]
    Join(Box<JoinArgs>),
    /// Check configuration, rights and connections
    #[command(after_long_help = examples::DOCTOR_EXAMPLES)]
    Doctor(Box<DoctorArgs>),
    /// Print which pods hold which device
    #[command(after_long_help = examples::DEVICES_EXAMPLES)]
    Devices(Box<DevicesArgs>),
    /// Print an inventory file, for a host without Kubernetes
    #[command(after_long_help = examples::SAMPLE_INVENTORY_EXAMPLES)]
    SampleInventory,
    /// Run podman on the images and containers of guests
    ///
    /// For the owner of a host that lends with the section site: to load images without a registry, or to look at what
    /// runs. Guests' containers have a store of their own.
    #[command(after_long_help = examples::PODMAN_EXAMPLES)]
    Podman(Box<PodmanArgs>),
    /// Print this agent's public identity key
    ///
    /// Its institution vouches for that key. The agent makes a key if it has none.
    #[command(after_long_help = examples::IDENTITY_KEY_EXAMPLES)]
    IdentityKey(Box<Settings>),
    /// Identity keys of other clusters: list, accept, forget
    #[command(subcommand, after_long_help = examples::PEERS_EXAMPLES)]
    Peers(PeersAction),
    /// Accept the next head of the audit log, whatever it is
    ///
    /// After the brokers were recovered from an older copy, their log does not continue what this agent saw. Ask the
    /// maintainers first, and not by way of the broker.
    #[command(after_long_help = examples::FORGET_AUDIT_ANCHOR_EXAMPLES)]
    ForgetAuditAnchor(Box<Settings>),
    /// Trust the next signed policy, whatever it is
    ///
    /// After the maintainers started a new history, the policy does not descend from the commit that this agent verified.
    /// Ask them for the commit, through another channel than the broker. Prefer to set signedPolicy.commit.
    #[command(after_long_help = examples::FORGET_POLICY_EXAMPLES)]
    ForgetPolicy(Box<Settings>),
    /// Route this node's pods to the gateway node
    #[command(after_long_help = examples::NODE_EXAMPLES)]
    Node(NodeSettings),
    /// Tell the agent which pods hold this node's GPUs
    #[command(after_long_help = examples::READ_DEVICES_EXAMPLES)]
    ReadDevices(ReadDevicesSettings),
    /// Print the policies for Liqo, for the cluster's owner
    #[command(after_long_help = examples::LIQO_POLICIES_EXAMPLES)]
    LiqoPolicies(Box<Settings>),
    /// Admission webhooks, for the cluster's owner
    #[command(subcommand, after_long_help = examples::WEBHOOK_EXAMPLES)]
    Webhook(WebhookAction),
}

/// The whole of `main`.
#[must_use]
pub fn main() -> ExitCode {
    let action = CommandLine::parse_from_environment();
    comity_runtime::install_crypto_provider();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&Failure::System(format!("cannot start the runtime: {error}"))),
    };
    match runtime.block_on(act(action)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> ExitCode {
    eprintln!("comity-agent: {}", without_secrets(&failure.to_string()));
    ExitCode::from(failure.code())
}

/// A printable message, and a hint instead of any secret in it.
fn without_secrets(message: &str) -> String {
    let redacted = redact_secrets(message);
    let shown = printable(&redacted);
    if redacted == message {
        return shown.into_owned();
    }
    let hint = if message.split(['\'', '"', ' ']).any(is_token) { TOKEN_HINT } else { SECRET_HINT };
    format!("{shown}\n{hint}")
}

impl CommandLine {
    fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        help::parse(words, TokenPlace { args: &["token", "join_token"], instead: "echo TOKEN | comity-agent join -" })
    }

    /// Parses the process's arguments; a wrong one ends it with the code for wrong use.
    fn parse_from_environment() -> Action {
        match Self::parse_words(std::env::args_os()) {
            Ok(line) => line.action,
            Err(error) => {
                let text = error.render().to_string();
                let shown = without_secrets(&text);
                if shown == text || !error.use_stderr() {
                    // If even this cannot be printed, there is no other way to report it.
                    let _ = error.print();
                } else {
                    eprintln!("{shown}");
                }
                std::process::exit(if error.use_stderr() { i32::from(USAGE) } else { 0 });
            }
        }
    }
}

async fn act(action: Action) -> Result<(), Failure> {
    match action {
        Action::Run(settings) => run_command::run(*settings).await,
        Action::Join(args) => join_command::join(*args).await,
        Action::Doctor(args) => doctor_command::doctor(*args).await,
        Action::Devices(args) => devices_command::devices(*args).await,
        Action::SampleInventory => {
            print!("{SAMPLE_INVENTORY}");
            Ok(())
        }
        Action::IdentityKey(settings) => run_command::print_identity_key(*settings),
        Action::Podman(args) => podman_command::run(*args),
        Action::Peers(action) => peers_command::act(action).await,
        Action::ForgetAuditAnchor(settings) => peers_command::forget_audit_anchor(*settings).await,
        Action::ForgetPolicy(settings) => peers_command::forget_signed_policy(*settings).await,
        Action::LiqoPolicies(settings) => run_command::print_liqo_policies(*settings),
        Action::Node(settings) => node_command::follow(settings).await,
        Action::ReadDevices(settings) => read_devices_command::read_devices(settings).await,
        Action::Webhook(action) => webhook_command::act(action).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(arguments: &[&str]) -> Option<(u8, String)> {
        let line = CommandLine::try_parse_from(arguments).expect("it is a command line");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        comity_runtime::install_crypto_provider();
        runtime.block_on(act(line.action)).err().map(|failure| (failure.code(), failure.to_string()))
    }

    #[test]
    fn a_configuration_that_run_refuses_is_not_shown_as_being_in_force() {
        let (code, text) = ended(&["comity-agent", "run", "--dump-config"]).expect("it says not what the cluster is");
        assert!(code == USAGE && text.contains("kubernetes"), "{text}");
        assert_eq!(ended(&["comity-agent", "run", "--inventory", "/nodes.yaml", "--dump-config"]), None);
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_used_is_wrong_use() {
        let missing = "/nonexistent/kubeconfig";
        let (code, text) = ended(&["comity-agent", "node", "--kubeconfig", missing]).expect("there is no such file");
        assert!(code == USAGE && text.contains(missing), "{text}");
    }

    #[test]
    fn a_secret_in_the_place_of_a_file_is_not_printed() {
        let kubeconfig = "apiVersion: v1\nkind: Config\nusers:\n- name: a\n  user:\n    token: s3cret\n";
        for secret in [kubeconfig, "iVBq9Yg3Zk0pWm7xT5uR2sE8nL4cJ6hD1fGbAoQvXyM="] {
            let text = without_secrets(&ended(&["comity-agent", "run", "--config", secret]).expect("it is no file").1);
            assert!(!text.contains("s3cret") && !text.contains("Zk0pWm7xT5uR2"), "{text}");
            assert!(text.contains(SECRET_HINT), "{text}");
        }
    }

    #[test]
    fn a_token_in_a_wrong_place_is_not_printed() {
        let token = "comity-join-v1.eyJzZWNyZXQiOiJhYiJ9";
        let printed = [
            without_secrets(&ended(&["comity-agent", "run", "--config", token]).expect("it is no file").1),
            without_secrets(
                &CommandLine::try_parse_from(["comity-agent", "run", token]).expect_err("a stray").to_string(),
            ),
            without_secrets(&CommandLine::try_parse_from(["comity-agent", token]).expect_err("a stray").to_string()),
        ];
        for words in
            [&["join", token, "--kubeconfig", token][..], &["run", "--state", token], &["doctor", "--config", token]]
        {
            let line = ["comity-agent"].iter().chain(words).map(OsString::from);
            let text = CommandLine::parse_words(line).expect_err("misplaced").to_string();
            assert!(!text.contains("eyJzZWNyZXQ") && text.contains("comity-agent join -"), "{text}");
        }
        for text in printed {
            assert!(!text.contains("eyJzZWNyZXQ") && text.contains("comity-agent join TOKEN"), "{text}");
        }
    }
}
