//! Patience on a busy machine: a step of the start is repeated while the brokers cannot answer.

use std::time::Duration;

use tokio::time::Instant;

use super::POLL_INTERVAL;
use super::timeline::Timeline;
use crate::failure::Failure;

/// Limit of each step; takes at most seconds unless the machine is overloaded.
pub(super) const STEP_LIMIT: Duration = Duration::from_secs(120);
/// How often the caller is told what the start waits for.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Repeats `attempt` while it fails as it does without a leader, and tells the caller now and then what it waits for.
///
/// # Errors
/// The last [`Failure`] after [`STEP_LIMIT`]; any other one at once.
pub(super) async fn patiently<T>(
    timeline: &Timeline,
    what: &str,
    mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let began = Instant::now();
    let mut told = Duration::ZERO;
    loop {
        let failure = match attempt().await {
            Err(failure) if failure.is_passing() => failure,
            outcome => return outcome,
        };
        let waited = began.elapsed();
        if waited >= STEP_LIMIT {
            let reason = format!("{what} took longer than {} s: {}", STEP_LIMIT.as_secs(), failure.reason);
            return Err(Failure { reason, ..failure }.remedy("try again when this machine has less to do"));
        }
        if waited >= told + PROGRESS_INTERVAL {
            told = waited;
            timeline.note(&format!("{what} takes long ({} s): {}", waited.as_secs(), failure.reason));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    /// Attempts until one succeeds after `busy`, or fails with `failure`.
    async fn start(busy: Duration, failure: Failure) -> Result<(), Failure> {
        let began = Instant::now();
        let attempt = async || if began.elapsed() < busy { Err(failure.clone()) } else { Ok(()) };
        patiently(&Timeline::new(Format::Json), "an election", attempt).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_for_a_busy_group_and_for_nothing_else() {
        let no_leader = || Failure::unavailable("no leader");
        start(Duration::from_secs(90), no_leader()).await.expect("within the limit");
        let late = start(Duration::from_secs(3_600), no_leader()).await.expect_err("too late");
        assert_eq!(late.reason, "an election took longer than 120 s: no leader");
        let began = Instant::now();
        start(Duration::from_secs(90), Failure::refused("bad-policy", "no")).await.expect_err("at once");
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
