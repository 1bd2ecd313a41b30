//! `comity-broker init`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use comity_runtime::spiffe::{TrustDomain, UserName};

use super::run_options::HostArgs;
use super::{Failure, up};
use crate::config::{Settings, parse_members};
use crate::provision::{self, AuthoritySource, Init};

#[derive(Debug, Args)]
pub(super) struct InitArgs {
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
    #[command(flatten)]
    hosts: HostArgs,
    /// Name of the first admin.
    #[arg(long, default_value = "admin", value_name = "NAME")]
    admin: String,
    /// Output directory of the admin's key and certificate.
    #[arg(long, value_name = "DIR")]
    admin_out: PathBuf,
    /// Directory of the root: keep it offline [default: DATA-root].
    ///
    /// A root that is there already is used.
    #[arg(long, value_name = "DIR")]
    root_out: Option<PathBuf>,
    /// Directory of an intermediate that another authority made: tls.crt, tls.key, ca.crt. Makes no root.
    #[arg(long, hide_short_help = true, value_name = "DIR", conflicts_with = "root_out")]
    ca: Option<PathBuf>,
}

/// Makes the federation and says what to do next.
pub(super) fn init(args: InitArgs) -> Result<(), Failure> {
    let settings = Settings {
        id: args.id,
        members: parse_members(&args.members)?,
        bootstrap_admins: BTreeSet::new(),
        hosts: args.hosts.names(),
    };
    let init = Init {
        data: args.data,
        trust_domain: TrustDomain::new(args.trust_domain)?,
        settings,
        admin: UserName::new(args.admin)?,
        admin_out: args.admin_out,
    };
    let authority = match (args.ca, args.root_out) {
        (Some(dir), _) => AuthoritySource::Intermediate(dir),
        (None, Some(dir)) => AuthoritySource::Root(dir),
        (None, None) => AuthoritySource::Root(AuthoritySource::root_beside(&init.data)),
    };
    provision::init_with(&init, &authority)?;
    say!(
        "federation {} is in {}; its admin is in {}",
        init.trust_domain,
        init.data.display(),
        init.admin_out.display()
    );
    if let AuthoritySource::Root(root) = &authority {
        say!("{}", up::root_advice(root));
    }
    let others = init.settings.members.keys().filter(|id| **id != init.settings.id);
    for id in others {
        say!(
            "next: comity-broker add-identity --data {} --id {id} --out DIR, and carry DIR to the machine of broker {id}",
            init.data.display()
        );
    }
    say!("next: comity-broker run --data {}", init.data.display());
    Ok(())
}
