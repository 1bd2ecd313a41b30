//! `comity lease`.

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;

mod kubeconfig;
mod local_api;
mod secret;

pub use kubeconfig::KubeconfigArgs;
pub(crate) use local_api::fetch_kubeconfig;
pub(crate) use secret::kube_client;

use crate::failure::Failure;
use crate::session::{Session, all_pages, call, idempotency_key};
use crate::units::parse_duration_ms;
use crate::views::{Lease, List};

const LIST_EXAMPLES: &str = "\
Examples:
  comity lease list
  comity lease list --cluster ncc-main --all
  comity lease list -o json | jq -r '.items[] | select(.state == \"active\") | .id'
";
const SHOW_EXAMPLES: &str = "\
Examples:
  comity lease show lease-7
";
const RELEASE_EXAMPLES: &str = "\
Examples:
  comity lease release lease-7         everything in its namespace on the donor goes
";
const RENEW_EXAMPLES: &str = "\
Examples:
  comity lease renew lease-7                    a fresh term of the same length, from now
  comity lease renew lease-7 --duration 8h
";

const CHECKPOINTED_EXAMPLES: &str = "\
Examples:
  comity lease show lease-7            says whether it is being reclaimed, and until when
  comity lease checkpointed lease-7    nothing would be lost now: it may end, and moves if there is a place
";

/// `comity lease`.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Examples:\n  comity lease list\n  comity lease kubeconfig lease-7 --output-file gpus.kubeconfig\n"
)]
pub enum LeaseCommand {
    /// Lists leases
    #[command(after_help = LIST_EXAMPLES)]
    List(ListArgs),
    /// Shows one lease
    #[command(after_help = SHOW_EXAMPLES)]
    Show(ShowArgs),
    /// Gives a lease back
    #[command(after_help = RELEASE_EXAMPLES)]
    Release(ReleaseArgs),
    /// Starts a fresh term from now
    #[command(after_help = RENEW_EXAMPLES)]
    Renew(RenewArgs),
    /// Says that the work of a lease is saved; one that is being reclaimed ends with that
    #[command(after_help = CHECKPOINTED_EXAMPLES)]
    Checkpointed(CheckpointedArgs),
    /// Gets the kubeconfig that opens the lease's namespace on the donor
    Kubeconfig(KubeconfigArgs),
}

/// `comity lease list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long)]
    tenant: Option<String>,
    /// Only those with this origin or donor
    #[arg(long)]
    cluster: Option<String>,
    /// Also those that ended
    #[arg(long)]
    all: bool,
}

/// `comity lease show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Lease, as in lease-7
    lease: String,
}

/// `comity lease release`.
#[derive(Debug, Args)]
pub struct ReleaseArgs {
    /// Lease, as in lease-7
    lease: String,
    /// Repeats an earlier call without a second effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// `comity lease checkpointed`.
#[derive(Debug, Args)]
pub struct CheckpointedArgs {
    /// Lease, as in lease-7
    lease: String,
    /// Repeats an earlier call without a second effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// `comity lease renew`.
#[derive(Debug, Args)]
pub struct RenewArgs {
    /// Lease, as in lease-7
    lease: String,
    /// Length of the new term [default: as before]
    #[arg(long, value_parser = parse_duration_ms, allow_hyphen_values = true)]
    duration: Option<u64>,
    /// Repeats an earlier call without a second effect
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl LeaseCommand {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`].
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let lease = match self {
            Self::List(args) => return args.run(session).await,
            Self::Kubeconfig(args) => return args.run(session).await,
            Self::Show(args) => get(session, &args.lease).await?,
            Self::Release(args) => {
                let request = v1::ReleaseLeaseRequest {
                    lease: args.lease.clone(),
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                let mut client = LeaseServiceClient::new(session.channel()?);
                call(client.release_lease(request)).await?.lease.unwrap_or_default().into()
            }
            Self::Checkpointed(args) => {
                let request = v1::CheckpointLeaseRequest {
                    lease: args.lease.clone(),
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                let mut client = LeaseServiceClient::new(session.channel()?);
                call(client.checkpoint_lease(request)).await?.lease.unwrap_or_default().into()
            }
            Self::Renew(args) => {
                let request = v1::RenewLeaseRequest {
                    lease: args.lease.clone(),
                    duration_ms: args.duration.unwrap_or(0),
                    idempotency_key: idempotency_key(args.idempotency_key.as_deref()),
                };
                let mut client = LeaseServiceClient::new(session.channel()?);
                call(client.renew_lease(request)).await?.lease.unwrap_or_default().into()
            }
        };
        session.print(&lease)
    }
}

impl ListArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let client = LeaseServiceClient::new(session.channel()?);
        let (items, revision) = all_pages(|page| {
            let mut client = client.clone();
            let request = v1::ListLeasesRequest {
                page: Some(page),
                consistency: session.consistency(),
                tenant: self.tenant.clone().unwrap_or_default(),
                cluster: self.cluster.clone().unwrap_or_default(),
                include_ended: self.all,
            };
            async move {
                let response = call(client.list_leases(request)).await?;
                Ok((response.leases, response.page))
            }
        })
        .await?;
        session.print(&List { items: items.into_iter().map(Lease::from).collect(), revision })
    }
}

/// One lease.
///
/// # Errors
/// [`Failure`].
pub(crate) async fn get(session: &Session, lease: &str) -> Result<Lease, Failure> {
    let mut client = LeaseServiceClient::new(session.channel()?);
    let request = v1::GetLeaseRequest { lease: lease.to_owned(), consistency: session.consistency() };
    Ok(call(client.get_lease(request)).await?.lease.unwrap_or_default().into())
}
