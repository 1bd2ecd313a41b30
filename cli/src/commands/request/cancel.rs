//! `comity request cancel`: names the leases that end with the request, asks, and cancels it.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_types::LeaseState;

use crate::commands::completions::known_ids;
use crate::commands::lease::get_lease;
use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::note;
use crate::session::{Session, call, idempotency_key};
use crate::views::{Lease, Request};

const CANCEL_EXAMPLES: &str = "\
Examples:
  comity request cancel req-42
  comity request cancel req-42 --yes            in a script: do not ask

Its lease, if any, ends too: the donor stops everything that runs there and gets its GPUs back. The
command asks before it ends a lease.
";

/// `comity request cancel`.
#[derive(Debug, Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub struct RequestCancelArgs {
    /// Request, as in req-42
    #[arg(add = known_ids::requests())]
    request: String,
    #[command(flatten)]
    confirm: ConfirmArgs,
    /// Key that makes a repeated call safe: the same key has no second effect [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl RequestCancelArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = RequestServiceClient::new(session.channel()?);
        if self.confirm.asks() {
            let request = v1::GetRequestRequest { request: self.request.clone(), consistency: session.consistency() };
            let request = Request::from(call(client.get_request(request)).await?.request.unwrap_or_default());
            let mut leases = Vec::new();
            for lease in &request.leases {
                leases.push(get_lease(session, lease).await?);
            }
            if let Some(consequence) = consequence(&self.request, &leases) {
                self.confirm.ask_about(&consequence)?;
            }
        }
        let request = v1::CancelRequestRequest {
            request: self.request.clone(),
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let response = call(client.cancel_request(request)).await?;
        let request = Request::from(response.request.unwrap_or_default());
        session.print(&request)?;
        let Some(lease) = request.lease.as_ref().filter(|_| !session.format.is_for_scripts()) else { return Ok(()) };
        // A failed look-up must not fail the cancellation, which succeeded.
        if let Ok(lease) = get_lease(session, lease).await
            && lease.end_reason == Some("cancelled")
        {
            let donor = lease.donor.as_deref().unwrap_or("the donor");
            if lease.state.is(LeaseState::Ended) {
                note(&format!("{} has ended with it: {donor} has its GPUs back", lease.id));
            } else {
                note(&format!("{} ends with it: {donor} stops what runs there and gets its GPUs back", lease.id));
            }
        }
        Ok(())
    }
}

/// The leases that end with the request; `None` if none does.
fn consequence(request: &str, leases: &[Lease]) -> Option<String> {
    let named: Vec<String> = leases.iter().filter(|lease| !lease.is_over()).map(Lease::with_place).collect();
    let ends = match named.as_slice() {
        [] => return None,
        [_] => "ends",
        _ => "end",
    };
    Some(format!("{} {ends} with {request}, and everything that runs there stops", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::lease_at_centre as lease;

    #[test]
    fn only_leases_that_end_are_asked_about() {
        use v1::LeaseState::{Active, Ended, Ending, Placed};
        assert_eq!(consequence("req-1", &[]), None);
        assert_eq!(consequence("req-1", &[lease("lease-1", Ended), lease("lease-2", Ending)]), None);
        assert_eq!(
            consequence("req-1", &[lease("lease-1", Ended), lease("lease-2", Active)]).as_deref(),
            Some("lease-2 (3 frontier on centre) ends with req-1, and everything that runs there stops")
        );
        let both = consequence("req-1", &[lease("lease-1", Active), lease("lease-2", Placed)]).expect("asked");
        assert!(
            both.contains("lease-1 (") && both.contains(", lease-2 (") && both.contains("end with req-1"),
            "{both}"
        );
    }
}
