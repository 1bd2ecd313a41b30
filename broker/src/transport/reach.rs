//! Logs when a peer becomes unreachable or reachable again.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::{info, warn};

/// Silence before a warning.
const SILENCE_WARNING_DELAY: Duration = Duration::from_secs(1);

/// Unreachable peers, by heartbeats.
#[derive(Default)]
pub(super) struct Reach(Mutex<BTreeMap<u64, Silence>>);

/// A peer that does not answer.
struct Silence {
    since: Instant,
    told: bool,
}

impl Reach {
    pub(super) fn answered(&self, peer: u64) {
        let silence = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&peer);
        if let Some(Silence { since, told: true }) = silence {
            info!(broker = peer, after_ms = since.elapsed().as_millis(), "broker reached again");
        }
    }

    pub(super) fn failed(&self, peer: u64, reason: &str) {
        let mut silent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let silence = silent.entry(peer).or_insert_with(|| Silence { since: Instant::now(), told: false });
        if !silence.told && silence.since.elapsed() >= SILENCE_WARNING_DELAY {
            silence.told = true;
            warn!(broker = peer, reason, "broker not reached; the group goes on while a majority is");
        }
    }
}
