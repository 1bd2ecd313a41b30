//! Waiting for something to become true.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Asks every 50 ms until `check` gives a value; fails with what it said last.
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
