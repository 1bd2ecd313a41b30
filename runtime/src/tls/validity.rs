//! Certificates that are expired or not valid yet: descriptions with both times, and a record of refused peers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustls::{AlertDescription, CertificateError};
use rustls_pki_types::UnixTime;

use crate::identity::TlsIdentity;
use crate::spiffe::SpiffeId;

/// Recorded peers, at most. A further one replaces the oldest.
const MAX_REMEMBERED: usize = 64;

/// Describes a peer's certificate that is expired or not valid yet; `None` for other errors.
pub(super) fn describe(error: &CertificateError) -> Option<String> {
    match error {
        CertificateError::NotValidYetContext { time, not_before } => Some(format!(
            "the peer's certificate is not valid yet: it begins at {}, and this machine's clock says {}, {} earlier; \
             set this machine's clock if it is slow, else the clock of the broker that issued it",
            UtcTime::of(*not_before),
            UtcTime::of(*time),
            HumanSeconds(not_before.as_secs().saturating_sub(time.as_secs())),
        )),
        CertificateError::ExpiredContext { time, not_after } => Some(format!(
            "the peer's certificate has expired: it ended at {}, and this machine's clock says {}, {} later; \
             renew it, or set this machine's clock if it is fast",
            UtcTime::of(*not_after),
            UtcTime::of(*time),
            HumanSeconds(time.as_secs().saturating_sub(not_after.as_secs())),
        )),
        _ => None,
    }
}

/// Describes an alert of the peer about this side's certificate. TLS has one alert for "expired" and "not valid yet":
/// the clock of this side tells which one applies, or that the clock of the peer is wrong.
pub(super) fn describe_alert(alert: AlertDescription, own: Option<&TlsIdentity>, now: SystemTime) -> Option<String> {
    let own = own.filter(|_| alert == AlertDescription::CertificateExpired)?;
    let (begins, ends) = (UtcTime(own.not_before()), UtcTime(own.not_after()));
    let now_text = UtcTime(now);
    Some(if now > own.not_after() {
        format!(
            "the peer refused this side's certificate, which has expired: it ended at {ends}, and this machine's clock \
             says {now_text}; renew it"
        )
    } else if now < own.not_before() {
        format!(
            "the peer refused this side's certificate, which is not valid yet: it begins at {begins}, and this \
             machine's clock says {now_text}; set this machine's clock, or that of the broker that issued it"
        )
    } else {
        format!(
            "the peer refused this side's certificate as not valid at its time, though it is valid from {begins} to \
             {ends} and this machine's clock says {now_text}; the peer's clock is off: set it"
        )
    })
}

/// Peers that a server refused although the federation's root signed their certificates, because these were expired or
/// not valid yet. If most peers of a leader are among them, the leader's clock is wrong. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct RefusedForTime(Arc<Mutex<BTreeMap<SpiffeId, Instant>>>);

impl RefusedForTime {
    pub(super) fn record(&self, peer: SpiffeId) {
        let mut refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MAX_REMEMBERED
            && !refused.contains_key(&peer)
            && let Some(oldest) = refused.iter().min_by_key(|(_, at)| **at).map(|(id, _)| id.clone())
        {
            refused.remove(&oldest);
        }
        refused.insert(peer, Instant::now());
    }

    /// The peers refused within the last `span`.
    #[must_use]
    pub fn within(&self, span: Duration) -> Vec<SpiffeId> {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused.iter().filter(|(_, at)| at.elapsed() <= span).map(|(id, _)| id.clone()).collect()
    }
}

/// Shows a time to the second: "2026-11-22 18:40:07 UTC".
struct UtcTime(SystemTime);

impl UtcTime {
    fn of(time: UnixTime) -> Self {
        Self(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
    }
}

impl fmt::Display for UtcTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = jiff::Timestamp::try_from(self.0).unwrap_or(jiff::Timestamp::MAX);
        write!(f, "{}", time.strftime("%F %T UTC"))
    }
}

/// Shows seconds in the largest fitting unit.
struct HumanSeconds(u64);

impl fmt::Display for HumanSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            seconds @ 0..120 => write!(f, "{seconds} s"),
            seconds @ 120..7_200 => write!(f, "{} min", seconds / 60),
            seconds @ 7_200..172_800 => write!(f, "{} h", seconds / 3_600),
            seconds => write!(f, "{} days", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn describes_expired_and_not_yet_valid_with_both_times() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let early = CertificateError::NotValidYetContext { time: at(1_795_545_607), not_before: at(1_795_552_807) };
        let text = describe(&early).unwrap_or_default();
        for part in ["not valid yet", "begins at 2026-11-24 20:40:07 UTC", "says 2026-11-24 18:40:07 UTC, 2 h earlier"]
        {
            assert!(text.contains(part), "{text}");
        }
        let late = CertificateError::ExpiredContext { time: at(1_795_545_607), not_after: at(1_795_545_577) };
        let text = describe(&late).unwrap_or_default();
        for part in ["has expired", "ended at 2026-11-24 18:39:37 UTC", "18:40:07 UTC, 30 s later"] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(describe(&CertificateError::Revoked), None);
    }

    #[test]
    fn the_record_forgets_and_is_bounded() {
        let refused = RefusedForTime::default();
        for broker in 0..1_000 {
            let id = format!("spiffe://dev.test/broker/{}", broker + 1).parse();
            refused.record(id.unwrap_or_else(|error| panic!("{error}")));
        }
        assert_eq!(refused.within(Duration::from_secs(60)).len(), MAX_REMEMBERED);
        std::thread::sleep(Duration::from_millis(5));
        assert!(refused.within(Duration::from_millis(1)).is_empty());
    }
}
