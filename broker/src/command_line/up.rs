//! `comity-broker up`: sets a broker up at its first start, then runs it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use comity_policy::{BundleSource, ReadError};
use comity_runtime::join_token::{JoinToken, JoinTokenError, TokenArgumentError};
use comity_runtime::spiffe::{SpiffeError, SpiffeId, TrustDomain, UserName};
use comity_runtime::tls::{BrokerEndpoints, EndpointError};
use comity_types::{InstitutionId, InvalidId};

use crate::app::{Broker, ListenAddresses, Listeners, StartError};
use crate::config::{ADMIN_PORT, ConfigError, Settings};
use crate::group::MemberAddress;
use crate::provision::admin_context::{self, AdminContextError};
use crate::provision::first_policy::{first_policy_dir, read_first_policy};
use crate::provision::join_group::{JoinGroupError, join_group};
use crate::provision::up_defaults::{HostFacts, default_institution};
use crate::provision::{self, AuthoritySource, Init, ProvisionError};

/// Ports of a broker whose listen addresses name none.
const CLIENT_PORT: u16 = 7443;
const RAFT_PORT: u16 = 7444;
/// Interval at which a new member asks whether it votes.
const VOTE_POLL_INTERVAL: Duration = Duration::from_millis(200);

pub(super) const UP_EXAMPLES: &str = "\
Examples:
  comity-broker up                       # a federation with this broker alone
  comity-broker up --join broker.token   # one more broker
  comity-broker up --dry-run             # what would be chosen";

const UP_DETAILS: &str = "\
A new federation gets a minimal policy in DATA/policy: one institution, one tenant, one GPU class, and you as maintainer.
Your identity becomes a context of `comity`. `comity raft invite` makes a token for another broker.
Use three brokers, so that the group survives the loss of one. If the first start is interrupted,
repeat the command: it continues, also with the same token.

Exit codes: 0 stopped as asked, 64 bad configuration (one sentence says what), 1 anything else.";

/// The end of the full help.
pub(super) fn up_help() -> String {
    format!("{UP_EXAMPLES}\n\n{UP_DETAILS}")
}

/// `comity-broker up`.
#[derive(Debug, Args)]
pub(super) struct UpArgs {
    /// Data directory.
    ///
    /// Default: /var/lib/comity-broker for root, ~/.local/state/comity-broker for others.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: Option<PathBuf>,
    /// Join the group of this token.
    ///
    /// The token, a file with it, or - for standard input. Not read once set up.
    #[arg(long, value_name = "TOKEN")]
    join: Option<String>,
    /// Name or address at which others reach it.
    ///
    /// It cannot change later. Default: the full host name if it resolves, otherwise the first address.
    #[arg(long, env = "COMITY_BROKER_ADDRESS", value_name = "HOST")]
    address: Option<String>,
    /// Trust domain of a new federation.
    ///
    /// Default: the host's domain, or comity.internal.
    #[arg(long, env = "COMITY_BROKER_TRUST_DOMAIN", value_name = "DOMAIN", conflicts_with = "join")]
    trust_domain: Option<TrustDomain>,
    /// Your institution in a new federation.
    ///
    /// Default: the first part of the trust domain.
    #[arg(long, value_name = "NAME", conflicts_with = "join")]
    institution: Option<String>,
    /// Maintainer of a new federation.
    ///
    /// Default: your login name.
    #[arg(long, value_name = "NAME", conflicts_with = "join")]
    admin: Option<UserName>,
    /// Directory of the root of a new federation: keep it offline.
    ///
    /// A root that is there already is used. Default: DATA-root.
    #[arg(long, hide_short_help = true, value_name = "DIR", conflicts_with = "join")]
    root_out: Option<PathBuf>,
    /// Print what a first start would choose.
    #[arg(long)]
    dry_run: bool,
}

/// Listen addresses from flags; others reach the ports of the first two.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ports {
    pub(super) client: Option<SocketAddr>,
    pub(super) raft: Option<SocketAddr>,
    pub(super) admin: Option<SocketAddr>,
}

impl Ports {
    /// With the defaults of a new broker.
    fn listen(self) -> ListenAddresses {
        let everywhere = |port: u16| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        ListenAddresses {
            client: self.client.unwrap_or_else(|| everywhere(CLIENT_PORT)),
            raft: self.raft.unwrap_or_else(|| everywhere(RAFT_PORT)),
            admin: self.admin.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT))),
        }
    }
}

/// A broker that is set up.
pub(super) struct Ready {
    pub(super) data: PathBuf,
    pub(super) greeting: Greeting,
}

/// Why a broker was not set up.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpError {
    #[error("no data directory is given, and neither XDG_STATE_HOME nor HOME is set; give --data DIR")]
    NoData,
    #[error("--address is refused: {0}")]
    Address(#[source] EndpointError),
    #[error(
        "--address \"{given}\" has a port: write --address {host} without it, and choose ports with --client-listen and \
         --raft-listen"
    )]
    AddressWithPort { given: String, host: String },
    #[error(transparent)]
    Institution(#[from] InvalidId),
    #[error("--join is refused: {0}")]
    Argument(#[from] TokenArgumentError),
    #[error("--join is refused: {0}")]
    Token(#[from] JoinTokenError),
    #[error("{0}; nothing was set up")]
    Listen(#[from] StartError),
    #[error(transparent)]
    Join(#[from] JoinGroupError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Provision(#[from] ProvisionError),
    #[error("the broker's first admin has no valid id: {0}")]
    Admin(#[from] SpiffeError),
    #[error(transparent)]
    Policy(#[from] ReadError),
    #[error(transparent)]
    Context(#[from] AdminContextError),
}

impl UpError {
    pub(super) const fn is_usage(&self) -> bool {
        match self {
            Self::NoData
            | Self::Address(_)
            | Self::AddressWithPort { .. }
            | Self::Institution(_)
            | Self::Argument(_)
            | Self::Token(_)
            | Self::Config(_)
            | Self::Provision(ProvisionError::Config(_) | ProvisionError::Name(_) | ProvisionError::Exists { .. }) => {
                true
            }
            Self::Listen(_)
            | Self::Join(_)
            | Self::Provision(_)
            | Self::Admin(_)
            | Self::Policy(_)
            | Self::Context(_) => false,
        }
    }
}

/// How a data directory is to be filled.
enum Plan {
    Found { trust_domain: TrustDomain, institution: String, admin: UserName, address: MemberAddress, root: PathBuf },
    Join { token: JoinToken, address: MemberAddress },
}

/// Sets the broker up unless it is; `None` after a dry run.
pub(super) async fn set_up(args: &UpArgs, ports: Ports) -> Result<Option<Ready>, UpError> {
    let facts = HostFacts::read();
    let data = args.data.clone().or_else(|| facts.data()).ok_or(UpError::NoData)?;
    if !args.dry_run {
        provision::complete_setup(&data)?;
    }
    match Settings::load(&data) {
        Ok(settings) if args.dry_run => {
            say!("broker {} is set up in {}; it would start", settings.id, data.display());
            return Ok(None);
        }
        Ok(settings) if args.join.is_some() => {
            say!("broker {} is set up in {} already; the token is not used", settings.id, data.display());
        }
        Ok(_) => {}
        Err(ConfigError::NotInitialised { .. }) => {
            let plan = args.plan(&facts, ports, &data)?;
            let listen = ports.listen();
            plan.describe(&data);
            if args.dry_run {
                say!("nothing was changed: this was a dry run");
                return Ok(None);
            }
            // Before anything is made: a broker that cannot listen leaves nothing behind.
            Listeners::check(&listen).await?;
            plan.carry_out(&data).await?;
        }
        Err(error) => return Err(error.into()),
    }
    let settings = Settings::load(&data)?;
    if let Some(context) = admin_context::hand_out(&data, &settings)? {
        say!("your identity is the context {} in {}", context.name, context.identity.path().display());
    }
    let greeting = Greeting::new(&data, &settings)?;
    Ok(Some(Ready { data, greeting }))
}

impl UpArgs {
    fn member_address(&self, facts: &HostFacts, ports: Ports) -> Result<MemberAddress, UpError> {
        let host = self.address.clone().unwrap_or_else(|| facts.host());
        // A bare IPv6 address has colons, too, and is refused below.
        if let Some((name, port)) = host.rsplit_once(':')
            && port.parse::<u16>().is_ok()
            && (!name.contains(':') || name.ends_with(']'))
        {
            let name = name.to_owned();
            return Err(UpError::AddressWithPort { given: host, host: name });
        }
        let at = |listen: Option<SocketAddr>, port: u16| format!("{host}:{}", listen.map_or(port, |it| it.port()));
        let address = MemberAddress { raft: at(ports.raft, RAFT_PORT), client: at(ports.client, CLIENT_PORT) };
        BrokerEndpoints::new([&address.raft, &address.client]).map_err(UpError::Address)?;
        Ok(address)
    }

    fn plan(&self, facts: &HostFacts, ports: Ports, data: &Path) -> Result<Plan, UpError> {
        let address = self.member_address(facts, ports)?;
        if let Some(argument) = &self.join {
            let token = JoinToken::from_argument(argument)?;
            token.broker()?;
            return Ok(Plan::Join { token, address });
        }
        let trust_domain = self.trust_domain.clone().unwrap_or_else(|| facts.trust_domain());
        let institution = self.institution.clone().unwrap_or_else(|| default_institution(&trust_domain));
        InstitutionId::parse(&institution, "--institution")?;
        let admin = self.admin.clone().unwrap_or_else(|| facts.admin());
        let root = self.root_out.clone().unwrap_or_else(|| AuthoritySource::root_beside(data));
        Ok(Plan::Found { trust_domain, institution, admin, address, root })
    }
}

impl Plan {
    /// Prints what was chosen, and the flags that change it.
    fn describe(&self, data: &Path) {
        let (Self::Found { address, .. } | Self::Join { address, .. }) = self;
        say!("data directory  {}  (--data)", data.display());
        say!("address         {}  (--address, --client-listen)", address.client);
        say!("for brokers     {}  (--address, --raft-listen)", address.raft);
        match self {
            Self::Found { trust_domain, institution, admin, root, .. } => {
                say!("trust domain    {trust_domain}  (--trust-domain)");
                say!("institution     {institution}  (--institution)");
                say!("maintainer      {admin}  (--admin)");
                say!("root            {}  (--root-out)", root.display());
            }
            Self::Join { token, .. } => say!("becomes         {} at {}", token.id, token.brokers),
        }
    }

    async fn carry_out(&self, data: &Path) -> Result<(), UpError> {
        match self {
            Self::Found { trust_domain, institution, admin, address, root } => {
                let init = Init {
                    data: data.to_owned(),
                    trust_domain: trust_domain.clone(),
                    settings: Settings {
                        id: 1,
                        members: BTreeMap::from([(1, address.clone())]),
                        bootstrap_admins: BTreeSet::new(),
                        hosts: BTreeSet::new(),
                    },
                    admin: admin.clone(),
                    admin_out: admin_context::admin_dir(data),
                };
                provision::found(&init, &AuthoritySource::Root(root.clone()), institution)?;
                say!("{}", root_advice(root));
                Ok(())
            }
            Self::Join { token, address } => {
                comity_runtime::install_crypto_provider();
                let settings = join_group(token, data, address).await?;
                say!("broker {} joined; the group has {} brokers", settings.id, settings.members.len());
                Ok(())
            }
        }
    }
}

/// What to do with a new root.
pub(super) fn root_advice(root: &Path) -> String {
    format!(
        "the root's key is in {}: carry the directory to an offline disk and delete it here; it is needed again for the \
         next intermediate, in two months (comity-broker ca --help)",
        root.display()
    )
}

/// Messages and first policy after the start of a broker.
pub(super) struct Greeting {
    data: PathBuf,
    settings: Settings,
    /// The bundle to apply if none is in force, and who applies it.
    first_policy: Option<(BundleSource, SpiffeId)>,
}

impl Greeting {
    fn new(data: &Path, settings: &Settings) -> Result<Self, UpError> {
        let admin = settings.bootstrap_admins.first().map(|admin| admin.parse::<SpiffeId>());
        let first_policy = read_first_policy(data)?.zip(admin.transpose()?);
        Ok(Self { data: data.to_owned(), settings: settings.clone(), first_policy })
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct UpLine {
        #[command(flatten)]
        up: UpArgs,
    }

    fn address(given: &str) -> Result<String, String> {
        let line = UpLine::try_parse_from(["up", "--address", given]).expect("parsed");
        let ports = Ports { client: None, raft: None, admin: None };
        let address = line.up.member_address(&HostFacts::read(), ports);
        address.map(|address| address.client).map_err(|error| error.to_string())
    }

    #[test]
    fn an_address_has_no_port() {
        for (given, host) in
            [("127.0.0.1:17443", "127.0.0.1"), ("b1.example:7443", "b1.example"), ("[::1]:7443", "[::1]")]
        {
            let refused = address(given).expect_err(given);
            assert!(refused.contains(&format!("write --address {host} without it")), "{refused}");
            assert_eq!(address(host), Ok(format!("{host}:7443")));
        }
    }
}
