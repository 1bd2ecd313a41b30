//! The lease of a run: borrowed, renewed while the command runs, given back.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::BrokerChannel;
use comity_types::LeaseState;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::remote::RETRY_PAUSE;
use super::signals::Signals;
use crate::clock::now_ms;
use crate::commands::request::follow::{Change, ChangeLines, Follower};
use crate::failure::Failure;
use crate::output::{Page, note, write_stderr};
use crate::session::{Session, call, idempotency_key};
use crate::views::Lease;

/// Renewals in a term. One that fails is repeated every second.
const RENEWALS_IN_TERM: u32 = 3;
const RENEWAL_LIMIT: Duration = Duration::from_secs(5);
/// Attempts to submit the request: one whose answer is lost is repeated with its key.
const SUBMIT_ATTEMPTS: u32 = 3;
/// Attempts to give a lease back.
const GIVE_BACK_ATTEMPTS: u32 = 5;

/// An active lease that is renewed as long as this value lives. If this process dies, the lease ends with its term.
pub(super) struct BorrowedLease {
    channel: BrokerChannel,
    request: String,
    pub(super) lease: Lease,
    renewals: JoinHandle<()>,
    lost: watch::Receiver<Option<Failure>>,
    reclaimed: watch::Receiver<Option<String>>,
}

impl BorrowedLease {
    /// Submits the request and waits for its lease. A signal or a failure cancels the request.
    pub(super) async fn borrow(
        session: &Session,
        submission: v1::SubmitRequestRequest,
        limit: Duration,
        signals: &mut Signals,
    ) -> Result<Self, Failure> {
        let channel = session.channel()?;
        // A signal waits for the answer: without the request's id nothing could be cancelled.
        let mut attempts = 0;
        let submitted = loop {
            attempts += 1;
            match call(RequestServiceClient::new(channel.clone()).submit_request(submission.clone())).await {
                Ok(submitted) => break submitted,
                Err(failure) if failure.is_passing() && attempts < SUBMIT_ATTEMPTS => {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Err(failure) => return Err(failure),
            }
        };
        for warning in &submitted.warnings {
            note(&format!("warning: {warning}"));
        }
        let request = submitted.request.unwrap_or_default().id;
        note(&format!("{request} submitted"));
        match signals.run_until(active_lease(channel.clone(), &request, limit)).await {
            Ok(lease) => Ok(Self::keep(channel, request, lease)),
            Err(failure) => {
                give_back(&channel, &request, None, signals).await;
                // It says that the request continues.
                if failure.code == "timeout" {
                    return Err(failure.remedy(format!("{request} was cancelled; raise --timeout to wait longer")));
                }
                Err(failure)
            }
        }
    }

    fn keep(channel: BrokerChannel, request: String, lease: Lease) -> Self {
        let (tell_lost, lost) = watch::channel(None);
        let (tell_reclaimed, reclaimed) = watch::channel(None);
        let renewal = Renewal { channel: channel.clone(), lease: lease.id.clone(), tell_lost, tell_reclaimed };
        let renewals = tokio::spawn(renewal.keep(Duration::from_millis(lease.term_ms)));
        Self { channel, request, lease, renewals, lost, reclaimed }
    }

    /// Waits until the broker refuses to renew the lease; returns why.
    pub(super) async fn lost(&self) -> Failure {
        let failure = told(&self.lost).await;
        Failure::refused("lease-lost", format!("{} ended: {failure}", self.lease.id))
            .remedy(format!("see 'comity lease show {}'", self.lease.id))
    }

    /// Waits until the donor wants the lease back; returns why and when it ends.
    pub(super) async fn reclaimed(&self) -> String {
        told(&self.reclaimed).await
    }

    /// Releases the lease, and ends its request; a signal ends the attempts.
    pub(super) async fn give_back(self, signals: &mut Signals) {
        self.renewals.abort();
        give_back(&self.channel, &self.request, Some(&self.lease), signals).await;
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

async fn told<T: Clone>(what: &watch::Receiver<Option<T>>) -> T {
    let mut what = what.clone();
    let told = what.wait_for(Option::is_some).await.ok().and_then(|told| told.clone());
    match told {
        Some(told) => told,
        // Whoever tells it has ended.
        None => std::future::pending().await,
    }
}

struct Renewal {
    channel: BrokerChannel,
    lease: String,
    tell_lost: watch::Sender<Option<Failure>>,
    tell_reclaimed: watch::Sender<Option<String>>,
}

impl Renewal {
    /// Renews the lease until the broker refuses.
    async fn keep(self, term: Duration) {
        let mut pause = term / RENEWALS_IN_TERM;
        loop {
            tokio::time::sleep(pause).await;
            pause = RETRY_PAUSE;
            let request = v1::RenewLeaseRequest {
                lease: self.lease.clone(),
                duration_ms: 0,
                idempotency_key: idempotency_key(None),
                may_shorten: false,
            };
            let mut leases = LeaseServiceClient::new(self.channel.clone());
            match tokio::time::timeout(RENEWAL_LIMIT, call(leases.renew_lease(request))).await {
                Ok(Ok(renewed)) => {
                    pause = term / RENEWALS_IN_TERM;
                    let reclaim = Lease::from(renewed.lease.unwrap_or_default()).reclaim;
                    self.tell_reclaimed.send_replace(reclaim.map(|reclaim| reclaim.summary(now_ms())));
                }
                Ok(Err(failure)) if !failure.is_passing() => {
                    self.tell_lost.send_replace(Some(failure));
                    return;
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }
}

/// Releases `lease`, if there is one, and cancels what is left of the request. Says so if that fails.
async fn give_back(channel: &BrokerChannel, request: &str, lease: Option<&Lease>, signals: &mut Signals) {
    let attempts = async {
        let mut attempt = 1;
        loop {
            match try_to_give_back(channel, request, lease).await {
                Err(_) if attempt < GIVE_BACK_ATTEMPTS => attempt += 1,
                done => return done,
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    if let Err(failure) = signals.run_until(attempts).await {
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
