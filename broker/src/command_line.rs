//! `comity-broker`: flags, environment, exit codes.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use comity_runtime::private_files::NotPrivate;
use comity_runtime::shutdown::Shutdown;
use comity_runtime::spiffe::{SpiffeError, TrustDomain, UserName};
use comity_runtime::telemetry::{self, LogFormat, TelemetryConfig, TelemetryError};

use crate::app::{Broker, StartError};
use crate::config::{Config, ConfigError, Settings, parse_members};
use crate::disaster_recovery::rebuild::{self, RebuildError};
use crate::disaster_recovery::recover::{RecoverError, Recovery};
use crate::group::Halt;
use crate::provision::{self, Init, ProvisionError};

/// Prints a line for the caller; a reader that went away is no failure.
macro_rules! say {
    ($($text:tt)*) => { _ = writeln!(std::io::stdout(), $($text)*) };
}

/// `sysexits.h`: the command was used wrongly.
const USAGE: u8 = 64;

/// The Raft-replicated broker of a Comity federation.
#[derive(Debug, Parser)]
#[command(name = "comity-broker", version, about)]
#[command(
    after_help = "Exit codes: 0 stopped as asked, 64 bad configuration (one sentence says what), 1 anything else."
)]
pub struct CommandLine {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a new federation: its authority, its first broker, its first admin's certificate.
    Init(InitArgs),
    /// Runs a broker.
    Run(RunArgs),
    /// Makes the data directory of another broker of the group, to be carried to its machine.
    AddIdentity(AddIdentityArgs),
    /// Makes a user's key and certificate; what the user may do is for policy to say.
    IssueUser(IssueUserArgs),
    /// Has the other brokers send this one its log again, after its disk was damaged.
    #[command(after_help = REBUILD_HELP)]
    Rebuild(RebuildArgs),
    /// Makes a new group of one broker out of a copy, after a majority of the brokers was lost for good.
    #[command(after_help = RECOVER_HELP)]
    Recover(RecoverArgs),
}

const REBUILD_HELP: &str = "\
Stop the broker first. It asks the other brokers who belongs to the group, and refuses where no leader with a majority
answers: this disk may then hold what no other one has. The old log is kept beside the new one. Started again, the broker
gets everything from the others, and votes once it has it.";

const RECOVER_HELP: &str = "\
Only where a majority of the brokers is lost for good. Choose the copy whose log goes furthest: without --yes it says what
each one holds, and changes nothing. The new group has another name, and brokers of the old one are refused until
`comity-broker rebuild` was run on them. What was acknowledged after the copy's last entry is lost.";

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
    /// Does it; without, only says what would be.
    #[arg(long)]
    yes: bool,
    /// Also where the old group still has a leader with a majority.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
struct InitArgs {
    /// Data directory of this broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Trust domain of the federation, as in comity.example.org.
    #[arg(long, env = "COMITY_BROKER_TRUST_DOMAIN", value_name = "DOMAIN")]
    trust_domain: String,
    /// Number of this broker.
    #[arg(long, env = "COMITY_BROKER_ID", default_value_t = 1, value_name = "N")]
    id: u64,
    /// Founding members: 1=HOST:RAFTPORT/HOST:CLIENTPORT,2=… (one or three).
    #[arg(long, env = "COMITY_BROKER_MEMBERS", default_value = "1=127.0.0.1:7444/127.0.0.1:7443", value_name = "LIST")]
    members: String,
    /// Name of the first admin.
    #[arg(long, default_value = "admin", value_name = "NAME")]
    admin: String,
    /// Where the admin's key and certificate go.
    #[arg(long, value_name = "DIR")]
    admin_out: PathBuf,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Data directory of this broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Where agents and users reach it; default: all addresses, the port that the members' list names.
    #[arg(long, env = "COMITY_BROKER_CLIENT_LISTEN", value_name = "ADDRESS:PORT")]
    client_listen: Option<SocketAddr>,
    /// Where other brokers reach it; default as above.
    #[arg(long, env = "COMITY_BROKER_RAFT_LISTEN", value_name = "ADDRESS:PORT")]
    raft_listen: Option<SocketAddr>,
    /// Where metrics and probes are served, without authentication; default 127.0.0.1:7480.
    #[arg(long, env = "COMITY_BROKER_ADMIN_LISTEN", value_name = "ADDRESS:PORT")]
    admin_listen: Option<SocketAddr>,
    /// How long certificates of clusters live, in seconds; default a day.
    #[arg(long, env = "COMITY_BROKER_CLUSTER_CERTIFICATES_S", value_name = "SECONDS")]
    cluster_certificates_s: Option<u64>,
    /// How long certificates of users live that renew theirs, in seconds; default 30 days.
    #[arg(long, env = "COMITY_BROKER_USER_CERTIFICATES_S", value_name = "SECONDS")]
    user_certificates_s: Option<u64>,
    /// Log entries between two snapshots, or more where one takes long; default 10000.
    #[arg(long, env = "COMITY_BROKER_SNAPSHOT_EVERY", value_name = "N")]
    snapshot_every: Option<u64>,
    /// What is logged, as in info,comity_broker=debug.
    #[arg(long, env = "COMITY_BROKER_LOG", default_value = telemetry::DEFAULT_FILTER, value_name = "FILTER")]
    log: String,
    /// How log lines look: text or json.
    #[arg(long, env = "COMITY_BROKER_LOG_FORMAT", default_value = "text", value_name = "FORMAT")]
    log_format: String,
    /// Collector for traces, OTLP over gRPC, as in http://collector:4317.
    #[arg(long, env = "COMITY_BROKER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Prints what is in force as JSON and exits.
    #[arg(long)]
    dump_config: bool,
}

#[derive(Debug, Args)]
struct AddIdentityArgs {
    /// Data directory of a broker of the group; its broker.json and its folder ca are read.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// Number of the other broker.
    #[arg(long, env = "COMITY_BROKER_ID", value_name = "N")]
    id: u64,
    /// Data directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Leaves that broker as it is where it is there already: for init containers, which run before every start.
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
    /// How many days the certificate lives.
    #[arg(long, default_value_t = 30, value_name = "DAYS")]
    days: u64,
    /// Where key and certificate go.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
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
}

impl Failure {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Config(_) | Self::Name(_) | Self::Telemetry(_) | Self::NotPrivate(_) => ExitCode::from(USAGE),
            Self::Provision(ProvisionError::Config(_) | ProvisionError::Name(_) | ProvisionError::Exists { .. }) => {
                ExitCode::from(USAGE)
            }
            Self::Rebuild(RebuildError::Config(_)) => ExitCode::from(USAGE),
            Self::Rebuild(_) | Self::Recover(_) => ExitCode::FAILURE,
            Self::Provision(_) | Self::Start(_) | Self::Signals(_) | Self::Consensus(_) => ExitCode::FAILURE,
        }
    }
}

/// Parses the command line and carries it out; everything that can go wrong ends in one sentence and an exit code.
pub async fn main() -> ExitCode {
    let command = match CommandLine::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // Help and version go to standard output and are no failure.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match carry_out(command.action).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("comity-broker: {failure}");
            failure.exit_code()
        }
    }
}

async fn carry_out(action: Action) -> Result<(), Failure> {
    match action {
        Action::Init(args) => init(args),
        Action::Run(args) => run(args).await,
        Action::AddIdentity(args) => {
            let out = args.out.display();
            if !args.once {
                provision::add_identity(&args.data, args.id, &args.out)?;
                say!("broker {} is in {out}; carry it to its machine and run it there", args.id);
            } else if provision::add_identity_once(&args.data, args.id, &args.out)? {
                say!("broker {} is in {out}", args.id);
            } else {
                say!("broker {} was in {out} already", args.id);
            }
            Ok(())
        }
        Action::IssueUser(args) => {
            let validity = Duration::from_secs(args.days.saturating_mul(24 * 3600));
            let id = provision::issue_user(&args.data, &UserName::new(args.name)?, validity, &args.out)?;
            say!("{id} is in {}", args.out.display());
            Ok(())
        }
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
    let members: Vec<String> = rebuilt.members.keys().map(ToString::to_string).collect();
    say!("broker {} leads; members are {}", rebuilt.leader, members.join(", "));
    say!("next: comity-broker run --data {}", data.display());
    Ok(())
}

async fn recover(args: RecoverArgs) -> Result<(), Failure> {
    comity_runtime::install_crypto_provider();
    let recovery = Recovery::read(&args.from, args.force).await?;
    let survey = recovery.survey();
    say!(
        "copy of broker {}: {} log entries, the last of {}; {} leases in force, {} requests waiting",
        survey.id,
        survey.last_index.saturating_add(1),
        survey.log_time.to_minute(),
        survey.leases,
        survey.queued
    );
    if survey.uncertain > 0 {
        say!("its last {} entries may not have been acknowledged to anybody; they are kept", survey.uncertain);
    }
    say!("lost: whatever was acknowledged after that last entry; compare the other copies first");
    if !args.yes {
        say!("nothing was changed; to make a new group of this copy, give --yes");
        return Ok(());
    }
    let recovered = recovery.carry_out().await?;
    if let Some(aside) = &recovered.aside {
        say!("the old log is kept in {}", aside.display());
    }
    say!("group {} begins in {}, with broker {} alone", recovered.group, args.from.display(), survey.id);
    say!("next: comity-broker run --data {}", args.from.display());
    for id in survey.others {
        say!("then, on broker {id}: comity-broker rebuild --data DIR && comity-broker run --data DIR");
    }
    Ok(())
}

fn init(args: InitArgs) -> Result<(), Failure> {
    let settings = Settings { id: args.id, members: parse_members(&args.members)?, bootstrap_admins: BTreeSet::new() };
    let init = Init {
        data: args.data,
        trust_domain: TrustDomain::new(args.trust_domain)?,
        settings,
        admin: UserName::new(args.admin)?,
        admin_out: args.admin_out,
    };
    provision::init(&init)?;
    say!(
        "federation {} is in {}; its admin is in {}",
        init.trust_domain,
        init.data.display(),
        init.admin_out.display()
    );
    say!("next: comity-broker run --data {}", init.data.display());
    Ok(())
}

async fn run(args: RunArgs) -> Result<(), Failure> {
    let mut config = args.config()?;
    if args.dump_config {
        say!("{}", config.dump());
        return Ok(());
    }
    config.check_private()?;
    let mut telemetry = TelemetryConfig::from_environment("comity-broker");
    telemetry.filter.clone_from(&args.log);
    telemetry.log_format = args.log_format.parse::<LogFormat>()?;
    telemetry.otlp_endpoint = args.otlp_endpoint.or(telemetry.otlp_endpoint);
    let _telemetry = telemetry::init(&telemetry)?;
    let shutdown = Shutdown::new();
    shutdown.listen_for_signals().map_err(Failure::Signals)?;
    loop {
        let broker = Broker::start(config.clone()).await?;
        let halt = tokio::select! {
            () = shutdown.triggered() => None,
            halt = broker.failed() => Some(halt),
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

impl RunArgs {
    fn config(&self) -> Result<Config, ConfigError> {
        let mut config = Config::load(&self.data)?;
        let seconds = |field, value: Option<u64>, default: Duration| match value {
            None => Ok(default),
            Some(seconds @ 60..=7_776_000) => Ok(Duration::from_secs(seconds)),
            Some(seconds) => Err(ConfigError::Value {
                field,
                value: seconds.to_string(),
                reason: "want a minute to 90 days".to_owned(),
            }),
        };
        config.client_listen = self.client_listen.unwrap_or(config.client_listen);
        config.raft_listen = self.raft_listen.unwrap_or(config.raft_listen);
        config.admin_listen = self.admin_listen.unwrap_or(config.admin_listen);
        config.cluster_certificates =
            seconds("cluster-certificates-s", self.cluster_certificates_s, config.cluster_certificates)?;
        config.user_certificates = seconds("user-certificates-s", self.user_certificates_s, config.user_certificates)?;
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
