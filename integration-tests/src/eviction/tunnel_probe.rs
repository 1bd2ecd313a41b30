//! Asks the donor's API server through the tunnel of a lease, again and again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use kube::Client;
use tokio::task::{JoinHandle, JoinSet};

use super::GIVE_UP;
use crate::wait::{PATIENCE, until};

/// Interval of the questions: the precision of the result.
const QUESTION_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of one question, with its own connection.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(3);
/// A tunnel without answers for this long is gone.
const SILENT_FOR: Duration = Duration::from_secs(4);

/// Asks until dropped.
pub(super) struct TunnelProbe {
    last: Arc<Mutex<Option<Instant>>>,
    task: JoinHandle<()>,
}

impl TunnelProbe {
    /// Begins to ask, and waits for the first answer.
    ///
    /// # Errors
    /// When none comes.
    pub(super) async fn start(config: kube::Config) -> Result<Self> {
        let last = Arc::new(Mutex::new(None));
        let probe = Self { task: tokio::spawn(ask_again(config, Arc::clone(&last))), last };
        until("an answer through the tunnel", PATIENCE, async || Ok(probe.last_answer())).await?;
        Ok(probe)
    }

    fn last_answer(&self) -> Option<Instant> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the tunnel is silent, not before `earliest`. Returns the time from `since` to the last answer: zero
    /// if none came.
    pub(super) async fn silent(self, since: Instant, earliest: Instant) -> Duration {
        loop {
            let last = self.last_answer().unwrap_or(since).max(since);
            let answered_for = last - since;
            if last.max(earliest).elapsed() > SILENT_FOR || answered_for > GIVE_UP {
                return answered_for.min(GIVE_UP);
            }
            tokio::time::sleep(QUESTION_INTERVAL).await;
        }
    }
}

impl Drop for TunnelProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn ask_again(config: kube::Config, last: Arc<Mutex<Option<Instant>>>) {
    let mut questions = JoinSet::new();
    let mut ticks = tokio::time::interval(QUESTION_INTERVAL);
    loop {
        ticks.tick().await;
        while questions.try_join_next().is_some() {}
        let (config, last) = (config.clone(), Arc::clone(&last));
        questions.spawn(async move {
            if tokio::time::timeout(QUESTION_TIMEOUT, is_answered(config)).await == Ok(true) {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                *last = (*last).max(Some(Instant::now()));
            }
        });
    }
}

/// Whether the API server answers on a new connection; a refusal is an answer.
async fn is_answered(config: kube::Config) -> bool {
    let Ok(client) = Client::try_from(config) else { return false };
    matches!(client.apiserver_version().await, Ok(_) | Err(kube::Error::Api(_)))
}
