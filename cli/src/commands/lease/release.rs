//! `comity lease release`: names what ends, asks, and releases the lease.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;

use super::get_lease::get_lease;
use crate::commands::completions::known_ids;
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::views::Lease;

const RELEASE_EXAMPLES: &str = "\
Examples:
  comity lease release lease-7
  comity lease release lease-7 --yes            in a script: do not ask

The donor stops everything that runs there, deletes the lease's namespace and gets its GPUs back. The
command asks before that.
";

/// `comity lease release`.
#[derive(Debug, Args)]
#[command(after_help = RELEASE_EXAMPLES)]
pub struct LeaseReleaseArgs {
    /// Lease, as in lease-7
    #[arg(add = known_ids::leases())]
    lease: String,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl LeaseReleaseArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<Lease, Failure> {
        if self.confirm.asks() {
            let lease = get_lease(session, &self.lease).await?;
            if let Some(consequence) = consequence(&lease) {
                self.confirm.ask_about(&consequence)?;
            }
        }
        let request = v1::ReleaseLeaseRequest {
            lease: self.lease.clone(),
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let mut client = LeaseServiceClient::new(session.channel()?);
        Ok(call(client.release_lease(request)).await?.lease.unwrap_or_default().into())
    }
}

/// What the release ends; `None` if the lease is over.
fn consequence(lease: &Lease) -> Option<String> {
    (!lease.is_over()).then(|| format!("{} ends, and everything that runs there stops", lease.with_place()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::lease_at_centre;

    #[test]
    fn only_a_lease_that_ends_is_asked_about() {
        let of = |state| consequence(&lease_at_centre("lease-7", state));
        let asked = "lease-7 (3 frontier on centre) ends, and everything that runs there stops";
        for state in [v1::LeaseState::Placed, v1::LeaseState::Active, v1::LeaseState::Reclaiming] {
            assert_eq!(of(state).as_deref(), Some(asked));
        }
        assert_eq!(of(v1::LeaseState::Ended), None);
    }
}
