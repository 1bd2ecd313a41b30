//! `comity-broker ca`: roots, which stay offline, and the intermediates that brokers hold.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use comity_runtime::ca::{DEFAULT_INTERMEDIATE_VALIDITY, MAX_INTERMEDIATE_VALIDITY, PreviousRoot};
use comity_runtime::spiffe::TrustDomain;

use super::examples::{CA_INSTALL_EXAMPLES, CA_INTERMEDIATE_EXAMPLES, CA_ROOT_EXAMPLES, CA_STATUS_EXAMPLES};
use super::{Failure, SECONDS_PER_DAY};
use crate::group::date_and_time;
use crate::provision::authority_commands::{self, AuthorityStatus, OldRoots};

const DEFAULT_DAYS: u64 = DEFAULT_INTERMEDIATE_VALIDITY.as_secs() / SECONDS_PER_DAY;

pub(super) const CA_EXAMPLES: &str = "\
The next intermediate, when brokers say that it is due:
  comity-broker ca intermediate --root ROOT --out next          # where the root is, offline
  comity-broker ca install --from next --data DATA              # on each broker, while it runs

The next root:
  comity-broker ca root --succeeds ROOT --out ROOT2
  comity-broker ca intermediate --root ROOT2 --out next         # install it on each broker
  comity login --renew                                          # as the first admin, who is not counted below
  comity-broker ca intermediate --root ROOT2 --drop-previous --out last
  comity-broker ca install --from last --data DATA --yes        # when 'comity raft status' shows no old root";

/// `comity-broker ca`.
#[derive(Debug, Args)]
pub(super) struct CaArgs {
    #[command(subcommand)]
    action: CaAction,
}

#[derive(Debug, Subcommand)]
enum CaAction {
    /// Makes a root, or the successor of one. Works offline.
    #[command(after_long_help = CA_ROOT_EXAMPLES)]
    Root(RootArgs),
    /// Makes an intermediate with the key of a root. Works offline.
    #[command(after_long_help = CA_INTERMEDIATE_EXAMPLES)]
    Intermediate(IntermediateArgs),
    /// Installs an intermediate on a broker, which takes it up while it runs.
    #[command(after_long_help = CA_INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Shows when a broker's intermediate ends, and which roots members trust.
    #[command(after_long_help = CA_STATUS_EXAMPLES)]
    Status(StatusArgs),
}

#[derive(Debug, Args)]
struct RootArgs {
    /// Trust domain of the federation, as in comity.example.org.
    #[arg(long, value_name = "DOMAIN", required_unless_present = "succeeds")]
    trust_domain: Option<TrustDomain>,
    /// Directory of the root that this one takes over from.
    #[arg(long, value_name = "DIR", conflicts_with = "trust_domain")]
    succeeds: Option<PathBuf>,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct IntermediateArgs {
    /// Directory of the root.
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
    /// Validity, in days: 1 to 365.
    #[arg(long, default_value_t = DEFAULT_DAYS, value_name = "DAYS", value_parser = parse_days)]
    days: u64,
    /// Stop trusting the root that this one took over from.
    #[arg(long)]
    drop_previous: bool,
    /// Directory to create.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
struct InstallArgs {
    /// Directory with tls.crt, tls.key and ca.crt.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// Data directory of the broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
    /// End the trust in roots that it does not have: members without a certificate of the new root are cut off. Or
    /// begin it again in a root that was dropped: whoever has an intermediate of it is let in.
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// Data directory of the broker.
    #[arg(long, env = "COMITY_BROKER_DATA", value_name = "DIR")]
    data: PathBuf,
}

const SECONDS_PER_HOUR: u64 = 3600;

fn parse_days(text: &str) -> Result<u64, String> {
    let most = MAX_INTERMEDIATE_VALIDITY.as_secs() / SECONDS_PER_DAY;
    let days = text.parse().ok().filter(|days| (1..=most).contains(days));
    days.ok_or_else(|| format!("use 1 to {most} days"))
}

impl CaArgs {
    pub(super) fn carry_out(self) -> Result<(), Failure> {
        match self.action {
            CaAction::Root(args) => {
                let sha256 =
                    authority_commands::make_root(args.trust_domain.as_ref(), args.succeeds.as_deref(), &args.out)?;
                say!("root {sha256} is in {}; keep it offline", args.out.display());
                say!("next: comity-broker ca intermediate --root {} --out DIR", args.out.display());
            }
            CaAction::Intermediate(args) => {
                let previous = if args.drop_previous { PreviousRoot::Dropped } else { PreviousRoot::Trusted };
                let validity = Duration::from_secs(args.days.saturating_mul(SECONDS_PER_DAY));
                let made = authority_commands::make_intermediate(&args.root, validity, previous, &args.out)?;
                let out = args.out.display();
                describe(&made);
                say!("next: carry {out} to each broker, and there: comity-broker ca install --from {out} --data DATA");
            }
            CaAction::Install(args) => {
                let old_roots = if args.yes { OldRoots::MayChange } else { OldRoots::Unchanged };
                describe(&authority_commands::install(&args.from, &args.data, old_roots)?);
                say!("installed; the broker takes it up within seconds. Delete {}", args.from.display());
            }
            CaAction::Status(args) => {
                let status = authority_commands::status(&args.data)?;
                describe(&status);
                if status.is_due {
                    say!("next: comity-broker ca intermediate --root ROOT --out DIR, and install it on every broker");
                }
            }
        }
        Ok(())
    }
}

fn describe(status: &AuthorityStatus) {
    let since = status.not_after.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let ends = date_and_time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
    let left = status.not_after.duration_since(SystemTime::now()).unwrap_or_default();
    let days = left.as_secs() / SECONDS_PER_DAY;
    let left = match left.as_secs() / SECONDS_PER_HOUR {
        0 => format!("{} minutes", left.as_secs() / 60),
        hours if days < 2 => format!("{hours} hours"),
        _ => format!("{days} days"),
    };
    say!("intermediate  ends {ends}, in {left}");
    say!("signed by     root {}", status.root);
    for root in &status.roots {
        say!("trusted       root {root}");
    }
}
