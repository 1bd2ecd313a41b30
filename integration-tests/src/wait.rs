//! Polls a condition until it holds.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Limit for each wait of these tests. It guards against hanging and measures nothing: a machine that flushes its disk
/// can take half a minute for one fsync.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// Calls `check` every 50 ms until it returns a value; fails after `limit` with the last error.
pub async fn until<T>(what: &str, limit: Duration, mut check: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    let mut last = String::from("nothing yet");
    loop {
        match check().await {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => {}
            Err(error) => last = format!("{error:#}"),
        }
        if start.elapsed() > limit {
            bail!("gave up waiting for {what} after {limit:?}; last: {last}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
