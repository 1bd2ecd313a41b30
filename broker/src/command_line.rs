//! Command line of `comity-broker`: flags, environment, exit codes.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use comity_runtime::ca::MAX_VALIDITY;
use comity_runtime::help::{self, TokenPlace};
use comity_runtime::private_files::NotPrivate;
use comity_runtime::shutdown::Shutdown;
use comity_runtime::spiffe::{SpiffeError, UserName};
use comity_runtime::telemetry::{self, LogFormat, TelemetryConfig, TelemetryError};
use comity_types::{printable, redact_secrets};

use crate::app::{Broker, StartError};
use crate::audit_collector::{AuditCollector, InvalidEndpoint};
use crate::config::{Config, ConfigError, Settings};
use crate::disaster_recovery::rebuild::{self, RebuildError};
use crate::disaster_recovery::recover::{LiveGroup, RecoverError, Recovery};
use crate::group::{Halt, date_and_time};
use crate::provision::revoked_user::is_revoked;
use crate::provision::{self, NewBroker, ProvisionError};

/// Prints lines, without secrets that somebody pasted in the place of a path; ignores a closed pipe.
macro_rules! say {
    ($($text:tt)*) => { $crate::command_line::print_line(&format!($($text)*)) };
}

mod authority_actions;
mod examples;
mod init_federation;
mod run_options;
mod up;

use authority_actions::CaArgs;
use init_federation::{InitArgs, init};
use run_options::{HostArgs, RunOptions};
use up::{Greeting, Ports, UpArgs, UpError};

/// `EX_USAGE` of `sysexits.h`.
const USAGE: u8 = 64;
const SECONDS_PER_DAY: u64 = 24 * 3600;

/// The Raft-replicated broker of a Comity federation.
#[derive(Debug, Parser)]
#[command(name = "comity-broker", version, about)]
#[command(
    after_long_help = format!("{}\n\nExit codes: 0 stopped as asked, 64 bad configuration (one sentence says what), 1 \
    anything else.", examples::BROKER_EXAMPLES)
)]
pub struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Creates a federation: authority, first broker, first admin's certificate.
    #[command(after_long_help = examples::INIT_EXAMPLES)]
    Init(InitArgs),
    /// Sets up this host's broker, alone or as a member of a group, and runs it.
    #[command(after_help = up::UP_EXAMPLES, after_long_help = up::up_help())]
    Up(Box<UpCommand>),
    /// Runs a broker that is set up.
    #[command(after_long_help = examples::RUN_EXAMPLES)]
    Run(Box<RunArgs>),
    /// Creates the data directory of another broker, to copy to its machine.
    #[command(after_long_help = examples::ADD_IDENTITY_EXAMPLES)]
    AddIdentity(AddIdentityArgs),
    /// Issues a user's key and certificate; policy decides what the user may do.
    #[command(after_long_help = examples::ISSUE_USER_EXAMPLES)]
    IssueUser(IssueUserArgs),
    /// Makes, installs and shows roots and intermediates.
    #[command(after_long_help = authority_actions::CA_EXAMPLES)]
    Ca(CaArgs),
    /// Sets a damaged log aside; the other brokers send it again.
    #[command(after_help = REBUILD_HELP)]
    Rebuild(RebuildArgs),
    /// Founds a new group on a copy, after a majority of the brokers was lost for good.
    #[command(after_help = RECOVER_HELP)]
    Recover(RecoverArgs),
}

const REBUILD_HELP: &str = "\
Stop the broker first. The command asks the other brokers for the members, and refuses if no leader with a majority
answers: this disk may then hold entries that no other disk has. The old log is kept beside the new one. After a restart
the broker gets everything from the others, and then votes.

Examples:
  comity-broker rebuild --data /var/lib/comity-broker";

const RECOVER_HELP: &str = "\
Only if a majority of the brokers is lost for good. Choose the copy with the longest log: without --yes the command
describes the copy and changes nothing. Of the log in use and what earlier losses left in DIR/group/lost-N, it takes the
copy that reaches farthest. The new group has another name and refuses brokers of the old one until
`comity-broker rebuild` was run on them. Whatever was acknowledged after the copy's last entry is lost.

Examples:
  comity-broker recover --from /var/lib/comity-broker          # describes it
  comity-broker recover --from /var/lib/comity-broker --yes";

#[derive(Debug, Args)]
struct RebuildArgs {
    /// Data directory of this broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
}

#[derive(Debug, Args)]
struct RecoverArgs {
    /// Data directory of a broker, or a copy of one. The new group begins in it; the old log is kept beside it.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Recover; without this flag, only describe the copy.
    #[arg(long)]
    yes: bool,
    /// Recover even if the old group still has a leader with a majority.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Data directory of this broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    options: RunOptions,
}

#[derive(Debug, Args)]
struct UpCommand {
    #[command(flatten)]
    up: UpArgs,
    #[command(flatten)]
    options: RunOptions,
}

#[derive(Debug, Args)]
struct AddIdentityArgs {
    /// Data directory of a broker of the group; its broker.json and its folder ca are read.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Number of the other broker.
    #[arg(long, env = "COMITY_BROKER_ID", value_name = "N")]
    id: u64,
    /// Data directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    hosts: HostArgs,
    /// Leave an existing broker unchanged; for init containers.
    #[arg(long)]
    once: bool,
}

#[derive(Debug, Args)]
struct IssueUserArgs {
    /// Data directory of a broker of the group.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Name of the user: spiffe://DOMAIN/user/NAME.
    #[arg(long, value_name = "NAME")]
    name: String,
    /// Validity of the certificate, in days: 1 to 90.
    #[arg(long, default_value_t = 30, value_name = "DAYS", value_parser = parse_days)]
    days: u64,
    /// Output directory of key and certificate.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

/// Days within the limit of the certificate authority.
fn parse_days(text: &str) -> Result<u64, String> {
    let most = MAX_VALIDITY.as_secs() / SECONDS_PER_DAY;
    let days = text.parse().ok().filter(|days| (1..=most).contains(days));
    days.ok_or_else(|| format!("use 1 to {most} days"))
}

/// Why the command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error(transparent)]
    Name(#[from] SpiffeError),
    #[error(transparent)]
    Up(#[from] UpError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error(transparent)]
    Rebuild(#[from] RebuildError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
    #[error("consensus ended: {0}")]
    Consensus(String),
    #[error(
        "user {0} was revoked, and every certificate of issue-user for that name is void: let a maintainer make a token \
        with `comity user add {0}`, or give the roles to another name in the policy, and issue the certificate for that"
    )]
    UserRevoked(UserName),
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Name(_) | Self::Telemetry(_) | Self::NotPrivate(_) => ExitCode::from(USAGE),
            Self::Provision(ProvisionError::Config(_) | ProvisionError::Name(_) | ProvisionError::Exists { .. }) => {
                ExitCode::from(USAGE)
            }
            Self::Rebuild(RebuildError::Config(_)) => ExitCode::from(USAGE),
            Self::Up(error) if error.is_usage() => ExitCode::from(USAGE),
            Self::Rebuild(_) | Self::Recover(_) | Self::UserRevoked(_) => ExitCode::FAILURE,
            Self::Provision(_) | Self::Up(_) | Self::Start(_) | Self::Signals(_) | Self::Consensus(_) => {
                ExitCode::FAILURE
            }
        }
    }
}

impl CommandLine {
    fn parse_words(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        help::parse(words, TokenPlace { args: &["join"], instead: "echo TOKEN | comity-broker up --join -" })
    }
}

fn print_line(text: &str) {
    _ = writeln!(std::io::stdout(), "{}", printable(&redact_secrets(text)));
}

/// Runs the command line; a failure prints one sentence and sets the exit code.
pub async fn main() -> ExitCode {
    let command = match CommandLine::parse_words(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let text = error.render().to_string();
            let redacted = redact_secrets(&text);
            let shown = printable(&redacted);
            if shown == text || !error.use_stderr() {
                let _ = error.print();
            } else {
                eprint!("{shown}");
            }
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match carry_out(command.action).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("comity-broker: {}", printable(&redact_secrets(&failure.to_string())));
            failure.exit_code()
        }
    }
}

async fn carry_out(action: Action) -> Result<(), Failure> {
    match action {
        Action::Init(args) => init(args),
        Action::Up(command) => {
            let RunOptions { client_listen: client, raft_listen: raft, admin_listen: admin, .. } = command.options;
            let ports = Ports { client, raft, admin };
            match up::set_up(&command.up, ports).await? {
                Some(ready) => run(&ready.data, command.options, Some(ready.greeting)).await,
                None => Ok(()),
            }
        }
        Action::Run(args) => run(&args.data, args.options, None).await,
        Action::AddIdentity(args) => {
            let out = args.out.display();
            let new = NewBroker { id: args.id, hosts: args.hosts.names() };
            if args.once && !provision::add_identity_once(&args.data, &new, &args.out)? {
                say!("broker {} was in {out} already", args.id);
                return Ok(());
            }
            if !args.once {
                provision::add_identity(&args.data, &new, &args.out)?;
            }
            say!("broker {} is in {out}", args.id);
            for step in provision::next_steps(&Settings::load(&args.out)?, &args.out) {
                say!("next: {step}");
            }
            Ok(())
        }
        Action::IssueUser(args) => {
            let validity = Duration::from_secs(args.days.saturating_mul(SECONDS_PER_DAY));
            let name = UserName::new(args.name)?;
            let (data, user) = (args.data.clone(), name.clone());
            let read = tokio::task::spawn_blocking(move || is_revoked(&data, &user)).await;
            match read.ok().flatten() {
                Some(true) => return Err(Failure::UserRevoked(name)),
                None if args.data.join("group").exists() => {
                    say!(
                        "note: the state in {} cannot be read; if {name} was revoked, this certificate is void",
                        args.data.display()
                    );
                }
                Some(false) | None => {}
            }
            let id = provision::issue_user(&args.data, &name, validity, &args.out)?;
            say!("{id} is in {}", args.out.display());
            Ok(())
        }
        Action::Ca(args) => args.carry_out(),
        Action::Rebuild(args) => rebuild(&args.data).await,
        Action::Recover(args) => recover(args).await,
    }
}

async fn rebuild(data: &Path) -> Result<(), Failure> {
    comity_runtime::install_crypto_provider();
    let rebuilt = rebuild::rebuild(data).await?;
    if let Some(aside) = &rebuilt.aside {
        say!("the old log of broker {} is kept in {}", rebuilt.id, aside.display());
    }
    if let Some((own, leader)) = rebuilt.further {
        say!(
            "WARNING: the old log is committed up to entry {own}, and the leader's ends at {leader}: the old one holds what the \
             group lacks; do not delete it; `comity-broker recover` can make a group of it"
        );
    }
    let members: Vec<String> = rebuilt.members.keys().map(ToString::to_string).collect();
    say!("broker {} leads; members are {}", rebuilt.leader, members.join(", "));
    say!("next: comity-broker run --data {}", data.display());
    Ok(())
}

async fn recover(args: RecoverArgs) -> Result<(), Failure> {
    comity_runtime::install_crypto_provider();
    let live_group = if args.force { LiveGroup::Abandon } else { LiveGroup::Refuse };
    let recovery = Recovery::read(&args.from, live_group).await?;
    let summary = recovery.summary();
    if !summary.others_found.is_empty() {
        say!("{} reaches farthest in this data directory", summary.dir.display());
    }
    for (dir, why) in &summary.others_found {
        say!("left alone: {}: {why}", dir.display());
    }
    say!(
        "copy of broker {}: the log ends at entry {} of term {}, made at {}; {} leases in force, {} requests waiting",
        summary.id,
        summary.last_index,
        summary.last_term,
        date_and_time(summary.log_time.0),
        summary.leases,
        summary.queued
    );
    say!("of two copies, the one with the higher term goes further; of one term, the one with the higher entry");
    if summary.uncertain > 0 {
        say!("its last {} entries may not have been acknowledged to anybody; they are kept", summary.uncertain);
    }
    say!("lost: whatever was acknowledged after that last entry; compare the other copies first");
    if summary.is_recovered && !args.force {
        say!(
            "nothing was changed: this group was itself recovered from a copy; to abandon it for another, give --force"
        );
        return Ok(());
    }
    if !args.yes {
        say!("nothing was changed; to make a new group of this copy, give --yes");
        return Ok(());
    }
    let recovered = recovery.carry_out().await?;
    if let Some(aside) = &recovered.aside {
        say!("the old log is kept in {}", aside.display());
    }
    say!("group {} begins in {}, with broker {} alone", recovered.group, args.from.display(), summary.id);
    say!("next: comity-broker run --data {}", args.from.display());
    for id in summary.others {
        say!("then, on broker {id}: comity-broker rebuild --data DIR && comity-broker run --data DIR");
    }
    Ok(())
}

async fn run(data: &Path, args: RunOptions, greeting: Option<Greeting>) -> Result<(), Failure> {
    let mut config = args.config(data)?;
    if args.dump_config {
        say!("{}", config.dump());
        return Ok(());
    }
    config.check_private()?;
    if !args.hosts.given.is_empty() {
        config.settings.save(&config.data)?;
    }
    let mut telemetry = TelemetryConfig::from_environment("comity-broker");
    telemetry.filter.clone_from(&args.log);
    telemetry.log_format = args.log_format.parse::<LogFormat>()?;
    telemetry.otlp_endpoint = args.otlp_endpoint.or(telemetry.otlp_endpoint);
    let _telemetry = telemetry::init(&telemetry)?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(Failure::Signals)?;
    loop {
        let broker = Broker::start(config.clone()).await?;
        let greet = async {
            if let Some(greeting) = &greeting {
                greeting.greet(&broker).await;
            }
            std::future::pending().await
        };
        let halt = tokio::select! {
            () = shutdown.triggered() => None,
            halt = broker.failed() => Some(halt),
            halt = greet => halt,
        };
        broker.shutdown().await;
        match halt {
            None => return Ok(()),
            Some(Halt::LogLost(reason)) => {
                tracing::warn!(%reason, "starting again without that log; the group sends it again");
                config.settings = Settings::load(&config.data)?;
            }
            Some(Halt::Stopped(reason)) => return Err(Failure::Consensus(reason)),
        }
    }
}

impl RunOptions {
    fn config(&self, data: &Path) -> Result<Config, ConfigError> {
        let mut config = Config::load(data)?;
        let seconds = |field, value: Option<u64>, default: Duration| match value {
            None => Ok(default),
            Some(seconds @ 60..=7_776_000) => Ok(Duration::from_secs(seconds)),
            Some(seconds) => Err(ConfigError::Value {
                field,
                value: seconds.to_string(),
                reason: "want a minute to 90 days".to_owned(),
            }),
        };
        if !self.hosts.given.is_empty() {
            config.settings.hosts = self.hosts.names();
            config.settings.check()?;
        }
        config.ca.clone_from(&self.ca);
        config.client_listen = self.client_listen.unwrap_or(config.client_listen);
        config.raft_listen = self.raft_listen.unwrap_or(config.raft_listen);
        config.admin_listen = self.admin_listen.unwrap_or(config.admin_listen);
        config.cluster_certificates =
            seconds("cluster-certificates-s", self.cluster_certificates_s, config.cluster_certificates)?;
        config.user_certificates = seconds("user-certificates-s", self.user_certificates_s, config.user_certificates)?;
        config.policy_credentials.clone_from(&self.policy_credentials);
        config.policy_ca.clone_from(&self.policy_ca);
        config.policy_ssh_key.clone_from(&self.policy_ssh_key);
        config.policy_known_hosts.clone_from(&self.policy_known_hosts);
        if let Some(endpoint) = &self.audit_otlp {
            let (headers, authorities) = (self.audit_otlp_headers.clone(), self.audit_otlp_ca.clone());
            let collector = AuditCollector::new(endpoint, headers, authorities);
            let refused = |it: InvalidEndpoint| ConfigError::value("--audit-otlp", it.shown, it.reason);
            config.audit_collector = Some(collector.map_err(refused)?);
        }
        config.policy_registry_config.clone_from(&self.policy_registry_config);
        config.policy_oci_key.clone_from(&self.policy_oci_key);
        match self.snapshot_every {
            Some(0) => {
                return Err(ConfigError::Value {
                    field: "snapshot-every",
                    value: "0".to_owned(),
                    reason: "want at least 1 entry".to_owned(),
                });
            }
            Some(entries) => config.snapshot_every = entries,
            None => {}
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_validity_that_the_authority_refuses_is_a_usage_error() {
        let line = |days: &str| {
            CommandLine::try_parse_from([
                "comity-broker",
                "issue-user",
                "--data",
                "d",
                "--name",
                "n",
                "--out",
                "o",
                "--days",
                days,
            ])
        };
        for (days, ok) in [("1", true), ("90", true), ("0", false), ("91", false), ("100000", false), ("x", false)] {
            assert_eq!(line(days).is_ok(), ok, "{days}");
        }
        let error = line("0").expect_err("too few").to_string();
        assert!(error.contains("--days") && error.contains("use 1 to 90 days"), "{error}");
    }
}
