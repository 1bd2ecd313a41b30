//! Repeats calls while parts of the federation are down.

use std::time::Duration;

use anyhow::{Result, bail};
use tokio::time::Instant;

/// The federation must recover from a fault within this time: a limit against hanging.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval of the checks for recovery.
const RECOVERY_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Repeats `ask` until it returns true.
pub(super) async fn retried<F: Future<Output = Result<bool>> + Send>(
    what: &str,
    ask: impl Fn() -> F + Send,
) -> Result<()> {
    let began = Instant::now();
    let mut last = "no".to_owned();
    while began.elapsed() < RECOVERY_TIMEOUT {
        match ask().await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => last = format!("{error:#}"),
        }
        tokio::time::sleep(RECOVERY_POLL_INTERVAL).await;
    }
    bail!("gave up waiting for {what} after {RECOVERY_TIMEOUT:?}; last: {last}")
}
