//! Reads one lease.

use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;

use crate::failure::Failure;
use crate::session::{Session, call};
use crate::views::Lease;

/// Gets one lease from the brokers.
///
/// # Errors
/// [`Failure`] of the call.
pub(crate) async fn get_lease(session: &Session, lease: &str) -> Result<Lease, Failure> {
    let mut client = LeaseServiceClient::new(session.channel()?);
    let request = v1::GetLeaseRequest { lease: lease.to_owned(), consistency: session.consistency() };
    Ok(call(client.get_lease(request)).await?.lease.unwrap_or_default().into())
}
