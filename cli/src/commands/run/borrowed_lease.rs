//! The lease of a run: borrowed, renewed while the command runs, given back.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;
use comity_types::LeaseState;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::signals::Signals;
use crate::clock::now_ms;
use crate::commands::request::{Change, ChangeLines, Follower};
use crate::failure::Failure;
use crate::output::{Page, note, write_stderr};
use crate::session::{Session, call, idempotency_key};
use crate::views::Lease;

/// Renewals in a term, so that two may fail.
const RENEWALS_IN_TERM: u32 = 3;
/// Pause between attempts to give a lease back, and their number.
const GIVE_BACK_PAUSE: Duration = Duration::from_secs(1);
const GIVE_BACK_ATTEMPTS: u32 = 5;

/// An active lease that is renewed as long as this value lives. If this process dies, the lease ends with its term.
pub(super) struct BorrowedLease {
    channel: BrokerChannel,
    request: String,
    pub(super) lease: Lease,
    renewals: JoinHandle<()>,
    lost: watch::Receiver<Option<Failure>>,
}

impl BorrowedLease {
    /// Submits the request and waits for its lease. A signal or a failure cancels the request.
    pub(super) async fn borrow(
        session: &Session,
        spec: v1::RequestSpec,
        limit: Duration,
        signals: &mut Signals,
    ) -> Result<Self, Failure> {
        let channel = session.channel()?;
        let submit = v1::SubmitRequestRequest {
            spec: Some(spec),
            idempotency_key: idempotency_key(None),
            dry_run: false,
            queue_anyway: false,
        };
        // A signal waits for the answer: without the request's id nothing could be cancelled.
        let submitted = call(RequestServiceClient::new(channel.clone()).submit_request(submit)).await?;
        for warning in &submitted.warnings {
            note(&format!("warning: {warning}"));
        }
        let request = submitted.request.unwrap_or_default().id;
        note(&format!("{request} submitted"));
        match signals.run_until(active_lease(channel.clone(), &request, limit)).await {
            Ok(lease) => Ok(Self::keep(channel, request, lease)),
            Err(failure) => {
                give_back(&channel, &request, None).await;
                Err(failure)
            }
        }
    }

    fn keep(channel: BrokerChannel, request: String, lease: Lease) -> Self {
        let (tell, lost) = watch::channel(None);
        let renewals = tokio::spawn(renew(channel.clone(), lease.id.clone(), lease.term_ms, tell));
        Self { channel, request, lease, renewals, lost }
    }

    /// Waits until the broker refuses to renew the lease; returns why.
    pub(super) async fn lost(&self) -> Failure {
        let mut lost = self.lost.clone();
        let failure = lost.wait_for(Option::is_some).await.ok().and_then(|failure| failure.clone());
        match failure {
            Some(failure) => failure,
            // The renewals end with this value alone.
            None => std::future::pending().await,
        }
    }

    /// Releases the lease, and ends its request.
    pub(super) async fn give_back(self) {
        self.renewals.abort();
        give_back(&self.channel, &self.request, Some(&self.lease)).await;
    }
}

impl Drop for BorrowedLease {
    fn drop(&mut self) {
        self.renewals.abort();
    }
}

async fn active_lease(channel: BrokerChannel, request: &str, limit: Duration) -> Result<Lease, Failure> {
    let mut lines = ChangeLines::default();
    let report = |change: &Change| {
        write_stderr(lines.next(change, now_ms(), Page::stderr())?);
        Ok(())
    };
    let mut followed = Follower::new(channel, request).until_active(Some(limit), report).await?;
    match followed.lease.take() {
        Some(lease) if lease.state.is(LeaseState::Active) && !followed.request.state.is_final() => Ok(lease),
        lease => {
            followed.lease = lease;
            followed.into_result()?;
            Err(Failure::refused("request-ended", format!("{request} has no lease")))
        }
    }
}

/// Renews the lease until the broker refuses.
async fn renew(channel: BrokerChannel, lease: String, term_ms: u64, tell: watch::Sender<Option<Failure>>) {
    let pause = Duration::from_millis(term_ms) / RENEWALS_IN_TERM;
    loop {
        tokio::time::sleep(pause).await;
        let request = v1::RenewLeaseRequest {
            lease: lease.clone(),
            duration_ms: 0,
            idempotency_key: idempotency_key(None),
            may_shorten: false,
        };
        match call(LeaseServiceClient::new(channel.clone()).renew_lease(request)).await {
            Ok(_) => {}
            Err(failure) if failure.is_passing() => {}
            Err(failure) => {
                tell.send_replace(Some(failure));
                return;
            }
        }
    }
}

/// Releases `lease`, if there is one, and cancels what is left of the request. Says so if that fails.
async fn give_back(channel: &BrokerChannel, request: &str, lease: Option<&Lease>) {
    let mut failure = None;
    for attempt in 0..GIVE_BACK_ATTEMPTS {
        if attempt > 0 {
            tokio::time::sleep(GIVE_BACK_PAUSE).await;
        }
        match try_to_give_back(channel, request, lease).await {
            Ok(()) => return,
            Err(error) => failure = Some(error),
        }
    }
    if let Some(failure) = failure {
        let what = lease.map_or(request, |lease| lease.id.as_str());
        note(&format!("warning: {what} was not given back: {failure}; 'comity request cancel {request}' does it"));
    }
}

async fn try_to_give_back(channel: &BrokerChannel, request: &str, lease: Option<&Lease>) -> Result<(), Failure> {
    if let Some(lease) = lease {
        let release = v1::ReleaseLeaseRequest { lease: lease.id.clone(), idempotency_key: idempotency_key(None) };
        match call(LeaseServiceClient::new(channel.clone()).release_lease(release)).await {
            Ok(_) => {}
            Err(failure) if failure.is_passing() => return Err(failure),
            // It is over already.
            Err(_) => {}
        }
    }
    // A lease that ended by itself may have left the request in the queue.
    let mut requests = RequestServiceClient::new(channel.clone());
    let get = v1::GetRequestRequest { request: request.to_owned(), consistency: v1::Consistency::Linearizable.into() };
    let present = crate::views::Request::from(call(requests.get_request(get)).await?.request.unwrap_or_default());
    if present.state.is_final() {
        return Ok(());
    }
    let cancel = v1::CancelRequestRequest { request: request.to_owned(), idempotency_key: idempotency_key(None) };
    call(requests.cancel_request(cancel)).await.map(drop)
}
