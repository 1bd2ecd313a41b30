//! `comity-broker up`: sets a broker up at its first start, then runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use comity_policy::{BundleSource, ReadError};
use comity_runtime::join_token::{JoinToken, JoinTokenError, TokenArgumentError};
use comity_runtime::spiffe::{SpiffeError, SpiffeId, TrustDomain, UserName};
use comity_runtime::tls::{BrokerEndpoints, EndpointError};
use comity_types::{InstitutionId, InvalidId};

use super::{Failure, RunOptions, run};
use crate::app::Broker;
use crate::config::{ConfigError, Settings};
use crate::group::MemberAddress;
use crate::provision::admin_context::{self, AdminContextError};
use crate::provision::first_policy::{first_policy_dir, read_first_policy, write_first_policy};
use crate::provision::join_group::{JoinGroupError, join_group};
use crate::provision::up_defaults::{HostFacts, default_institution};
use crate::provision::{self, Init, ProvisionError};

/// Ports of a broker whose listen addresses name none.
const CLIENT_PORT: u16 = 7443;
const RAFT_PORT: u16 = 7444;
/// Interval at which a new member asks whether it votes.
const VOTE_POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) const UP_HELP: &str = "\
Examples:
  comity-broker up                       # a federation with this broker alone
  comity-broker up --join TOKEN          # one more broker; `comity raft invite` makes the token
  comity-broker up --dry-run             # what would be chosen

A new federation gets a minimal policy in DATA/policy: one institution, one tenant, one GPU class, and you as maintainer.
Your identity becomes a context of `comity`. Use three brokers, so that the group survives the loss of one.

Exit codes: 0 stopped as asked, 64 bad configuration (one sentence says what), 1 anything else.";

/// `comity-broker up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Data directory; default: /var/lib/comity-broker for root, ~/.local/state/comity-broker for others.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Join the group of this token: the token, a file with it, or - for standard input. Not read once set up.
    #[arg(long, value_name = "TOKEN")]
    join: Option<String>,
    /// Host name or address at which agents, users and brokers reach this broker. It cannot change later. Default: the
    /// full host name if it resolves, otherwise the first address.
    #[arg(long, env = "COMITY_BROKER_ADDRESS", value_name = "HOST")]
    address: Option<String>,
    /// Trust domain of a new federation; default: the host's domain, or comity.internal.
    #[arg(long, env = "COMITY_BROKER_TRUST_DOMAIN", value_name = "DOMAIN", conflicts_with = "join")]
    trust_domain: Option<TrustDomain>,
    /// Your institution in a new federation; default: the first part of the trust domain.
    #[arg(long, value_name = "NAME", conflicts_with = "join")]
    institution: Option<String>,
    /// Maintainer of a new federation; default: your login name.
    #[arg(long, value_name = "NAME", conflicts_with = "join")]
    admin: Option<UserName>,
    /// Print what a first start would choose, and exit.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    options: RunOptions,
}

/// Why a broker was not set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpError {
    #[error("no data directory is given, and neither XDG_STATE_HOME nor HOME is set; give --data DIR")]
    NoData,
    #[error("--address is refused: {0}")]
    Address(#[source] EndpointError),
    #[error(transparent)]
    Institution(#[from] InvalidId),
    #[error("--join is refused: {0}")]
    Argument(#[from] TokenArgumentError),
    #[error("--join is refused: {0}")]
    Token(#[from] JoinTokenError),
    #[error(transparent)]
    Join(#[from] JoinGroupError),
    #[error(transparent)]
    Policy(#[from] ReadError),
    #[error(transparent)]
    Context(#[from] AdminContextError),
}

impl UpError {
    pub(super) const fn is_usage(&self) -> bool {
        matches!(self, Self::NoData | Self::Address(_) | Self::Institution(_) | Self::Argument(_) | Self::Token(_))
    }
}

/// A federation to found.
struct Founding {
    trust_domain: TrustDomain,
    institution: String,
    admin: UserName,
    address: MemberAddress,
}

/// Sets the broker up unless it is, and runs it.
pub(super) async fn up(args: UpArgs) -> Result<(), Failure> {
    let facts = HostFacts::read();
    let data = args.data.clone().or_else(|| facts.data()).ok_or(UpError::NoData)?;
    match Settings::load(&data) {
        Ok(settings) if args.dry_run => {
            say!("broker {} is set up in {}; it would start", settings.id, data.display());
            return Ok(());
        }
        Ok(settings) if args.join.is_some() => {
            say!("broker {} is set up in {} already; the token is not used", settings.id, data.display());
        }
        Ok(_) => {}
        Err(ConfigError::NotInitialised { .. }) => {
            let address = args.member_address(&facts)?;
            let set_up = match &args.join {
                Some(argument) => {
                    let token = JoinToken::from_argument(argument).map_err(UpError::from)?;
                    join(&token, &data, &address, args.dry_run).await?
                }
                None => found(&args.founding(&facts, address)?, &data, args.dry_run)?,
            };
            if set_up == SetUp::Planned {
                return Ok(());
            }
        }
        Err(error) => return Err(error.into()),
    }
    let settings = Settings::load(&data)?;
    if let Some(context) = admin_context::hand_out(&data, &settings).map_err(UpError::from)? {
        say!("your identity is the context {} in {}", context.name, context.identity.path().display());
    }
    let greeting = Greeting::new(&data, &settings)?;
    run(&data, args.options, Some(greeting)).await
}

/// Whether the data directory was filled.
#[derive(PartialEq, Eq)]
enum SetUp {
    /// `--dry-run`.
    Planned,
    Done,
}

impl UpArgs {
    fn member_address(&self, facts: &HostFacts) -> Result<MemberAddress, UpError> {
        let host = self.address.clone().unwrap_or_else(|| facts.host());
        let at = |listen: Option<SocketAddr>, port: u16| format!("{host}:{}", listen.map_or(port, |it| it.port()));
        let address = MemberAddress {
            raft: at(self.options.raft_listen, RAFT_PORT),
            client: at(self.options.client_listen, CLIENT_PORT),
        };
        BrokerEndpoints::new([&address.raft, &address.client]).map_err(UpError::Address)?;
        Ok(address)
    }

    fn founding(&self, facts: &HostFacts, address: MemberAddress) -> Result<Founding, UpError> {
        let trust_domain = self.trust_domain.clone().unwrap_or_else(|| facts.trust_domain());
        let institution = self.institution.clone().unwrap_or_else(|| default_institution(&trust_domain));
        InstitutionId::parse(&institution, "--institution")?;
        let admin = self.admin.clone().unwrap_or_else(|| facts.admin());
        Ok(Founding { trust_domain, institution, admin, address })
    }
}

fn found(founding: &Founding, data: &Path, dry_run: bool) -> Result<SetUp, Failure> {
    let Founding { trust_domain, institution, admin, address } = founding;
    say!("data directory  {}  (--data)", data.display());
    say!("address         {}, brokers: {}  (--address, --client-listen, --raft-listen)", address.client, address.raft);
    say!("trust domain    {trust_domain}  (--trust-domain)");
    say!("institution     {institution}  (--institution)");
    say!("maintainer      {admin}  (--admin)");
    if dry_run {
        say!("nothing was changed; without --dry-run a new federation begins here");
        return Ok(SetUp::Planned);
    }
    let init = Init {
        data: data.to_owned(),
        trust_domain: trust_domain.clone(),
        settings: Settings {
            id: 1,
            members: BTreeMap::from([(1, address.clone())]),
            bootstrap_admins: BTreeSet::new(),
        },
        admin: admin.clone(),
        admin_out: admin_context::admin_dir(data),
    };
    provision::init(&init)?;
    let admin = SpiffeId::user(trust_domain.clone(), admin.clone());
    write_first_policy(data, institution, &admin)?;
    Ok(SetUp::Done)
}

async fn join(token: &JoinToken, data: &Path, address: &MemberAddress, dry_run: bool) -> Result<SetUp, Failure> {
    let broker = token.broker().map_err(UpError::from)?;
    say!("data directory  {}  (--data)", data.display());
    say!("address         {}, brokers: {}  (--address, --client-listen, --raft-listen)", address.client, address.raft);
    say!("federation      {} at {}", token.id.trust_domain(), token.brokers);
    if dry_run {
        say!("nothing was changed; without --dry-run this host becomes broker {broker}");
        return Ok(SetUp::Planned);
    }
    comity_runtime::install_crypto_provider();
    let settings = join_group(token, data, address).await.map_err(UpError::from)?;
    say!("broker {broker} joined; the group has {} brokers", settings.members.len());
    Ok(SetUp::Done)
}

/// Messages and first policy after the start of a broker.
pub(super) struct Greeting {
    data: PathBuf,
    settings: Settings,
    /// The bundle to apply if none is in force, and who applies it.
    first_policy: Option<(BundleSource, SpiffeId)>,
}

impl Greeting {
    fn new(data: &Path, settings: &Settings) -> Result<Self, Failure> {
        let admin = settings.bootstrap_admins.first().map(|admin| admin.parse::<SpiffeId>());
        let admin = admin.transpose().map_err(|error: SpiffeError| ProvisionError::from(error))?;
        let source = read_first_policy(data).map_err(UpError::from)?;
        Ok(Self { data: data.to_owned(), settings: settings.clone(), first_policy: source.zip(admin) })
    }

    /// Applies the first policy if it is due, and says what to do next.
    pub(super) async fn greet(&self, broker: &Broker) {
        if let Some((source, admin)) = &self.first_policy {
            let dir = first_policy_dir(&self.data);
            match broker.apply_first_policy(source, admin).await {
                Ok(true) => say!("applied the minimal policy in {}", dir.display()),
                Ok(false) => {}
                Err(reason) => {
                    say!("the policy in {} was not applied: {reason}", dir.display());
                    return;
                }
            }
        }
        let votes = || broker.group().members().iter().any(|member| member.id == self.settings.id && member.voter);
        while !votes() {
            tokio::time::sleep(VOTE_POLL_INTERVAL).await;
        }
        say!("broker {} is ready", self.settings.id);
        if broker.group().members().len() == 2 {
            say!("two brokers stop when either of them does: add a third one");
        }
        say!("next: comity status");
        say!("next: comity user add NAME");
        say!("next: comity cluster invite NAME --enroll");
        say!("next: comity raft invite");
    }
}
