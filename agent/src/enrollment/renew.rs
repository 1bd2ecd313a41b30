//! Renews the certificate after two thirds of its life, without interrupting the stream.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use comity_agent_model::status_reasons::reasons;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::ca::CaError;
use comity_runtime::identity::IdentityError;
use comity_runtime::telemetry::TraceInjector;
use comity_runtime::{
    Backoff, ClientTls, Clock, Entropy, IdentityDir, IdentityKey, IdentityPem, IdentitySource, KeyAndCsr, KnownBrokers,
    TlsIdentity, tls,
};
use prometheus::IntGauge;
use tokio_util::sync::CancellationToken;

/// First and longest pause before a renewal is retried.
const RENEWAL_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// A pause between tries is at most this part of the time that a certificate has left.
const TRIES_BEFORE_THE_END: u32 = 16;
/// How often the clock is checked: it may jump.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(60);
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// How far the clocks of a broker and this agent may differ when it judges a certificate's start.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3_600);

#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error("{0}")]
    Call(String),
    #[error(transparent)]
    Key(#[from] CaError),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(
        "the new certificate ends {}s before the present one, which stays in use: check the broker's clock, and whether \
         its intermediate ends soon",
        .0.as_secs()
    )]
    EndsEarlier(Duration),
    #[error("the new certificate begins in {}s, so the present one stays in use: check the clocks of broker and agent", .0.as_secs())]
    BeginsLater(Duration),
}

/// Checks that a renewal leaves this agent with a certificate that is valid now, and for as long as before: without
/// one it could renew no more, and would have to join again.
fn check_life(present_end: SystemTime, next: (SystemTime, SystemTime), now: SystemTime) -> Result<(), RenewError> {
    let (begin, end) = next;
    if let Ok(wait) = begin.duration_since(now + CLOCK_DIFFERENCE)
        && !wait.is_zero()
    {
        return Err(RenewError::BeginsLater(wait + CLOCK_DIFFERENCE));
    }
    match present_end.duration_since(end) {
        Ok(lost) if !lost.is_zero() => Err(RenewError::EndsEarlier(lost)),
        _ => Ok(()),
    }
}

/// Pause before a renewal is retried, by the backoff's delay and the time that the certificate has left: a broker that
/// refuses for a while must not cost a short-lived certificate all its tries.
fn retry_pause(delay: Duration, left: Duration) -> Duration {
    delay.min(left / TRIES_BEFORE_THE_END).max(RENEWAL_BACKOFF.0)
}

/// Renews one identity.
pub struct Renewal {
    /// Where it is kept.
    pub directory: IdentityDir,
    /// Where new connections take it from.
    pub source: IdentitySource,
    /// This agent's identity key, which signs each request.
    pub key: IdentityKey,
    /// The issuer.
    pub brokers: KnownBrokers,
    /// TLS for connections to them.
    pub tls: ClientTls,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// When the certificate ends, in seconds since 1970.
    pub not_after: IntGauge,
}

impl Renewal {
    /// Runs until stopped.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = Backoff::new(RENEWAL_BACKOFF.0, RENEWAL_BACKOFF.1);
        loop {
            let current = self.source.current();
            self.not_after.set(unix_seconds(current.not_after()));
            let wait = current.renew_at().duration_since(self.clock.now()).unwrap_or_default();
            let sleep = if wait.is_zero() && backoff.attempts() > 0 {
                let left = current.not_after().duration_since(self.clock.now()).unwrap_or_default();
                retry_pause(backoff.next_delay(self.entropy.as_ref()), left)
            } else {
                wait.min(CLOCK_CHECK_INTERVAL)
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.clock.sleep(sleep) => {}
            }
            if self.clock.now() < current.renew_at() {
                continue;
            }
            match self.renew().await {
                Ok(identity) => {
                    tracing::info!(not_after = unix_seconds(identity.not_after()), "the certificate was renewed");
                    self.source.update(identity);
                    backoff.reset();
                }
                Err(error) => {
                    tracing::warn!(%error, not_after = unix_seconds(current.not_after()), "cannot renew the certificate yet");
                    let _ = backoff.next_delay(self.entropy.as_ref());
                }
            }
        }
    }

    async fn renew(&self) -> Result<TlsIdentity, RenewError> {
        let fresh = KeyAndCsr::generate()?;
        let channel = tls::connect(&self.brokers, &self.tls);
        let mut client = FederationServiceClient::with_interceptor(channel, TraceInjector);
        let csr = fresh.csr.as_bytes();
        let identity_proof = self.key.sign_renewal(self.source.current().id(), csr).as_bytes().to_vec();
        let request = v1::RenewCertificateRequest { csr_der: csr.to_vec(), identity_proof };
        let answer = tokio::time::timeout(CALL_LIMIT, client.renew_certificate(request))
            .await
            .map_err(|_| RenewError::Call(format!("no answer within {}s", CALL_LIMIT.as_secs())))?
            .map_err(|status| RenewError::Call(reasons(&status)))?
            .into_inner();
        let pem = IdentityPem { key: fresh.key_pem, chain: answer.certificate_pem, ca: answer.ca_pem };
        let next = TlsIdentity::from_pem(&pem)?;
        let life = (next.not_before(), next.not_after());
        check_life(self.source.current().not_after(), life, self.clock.now())?;
        let directory = self.directory.clone();
        let save = tokio::task::spawn_blocking(move || directory.renew(&pem));
        Ok(save.await.map_err(|error| RenewError::Call(error.to_string()))??)
    }
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_is_retried_more_often_as_the_end_comes_near() {
        let seconds = Duration::from_secs;
        assert_eq!(retry_pause(seconds(300), seconds(8 * 3_600)), seconds(300));
        assert_eq!(retry_pause(seconds(300), seconds(160)), seconds(10));
        assert_eq!(retry_pause(seconds(300), seconds(0)), seconds(1));
    }

    #[test]
    fn broker_renews_with_a_certificate_that_ends_at_once() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let (now, end) = (at(100_000), at(130_000));
        assert!(check_life(end, (at(99_000), at(190_000)), now).is_ok());
        assert!(check_life(end, (at(99_000), end), now).is_ok(), "its authority ends then");
        assert!(check_life(end, (at(103_600), at(190_000)), now).is_ok(), "the clocks differ");
        let early = check_life(end, (at(99_000), at(100_001)), now);
        assert!(
            matches!(early, Err(RenewError::EndsEarlier(lost)) if lost == Duration::from_secs(29_999)),
            "{early:?}"
        );
        let late = check_life(end, (at(120_000), at(990_000)), now);
        assert!(matches!(late, Err(RenewError::BeginsLater(wait)) if wait == Duration::from_secs(20_000)), "{late:?}");
    }
}
