//! Threads that keep every core busy at the flood's priority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Niceness of the flood's threads, and of these.
const FLOOD_NICENESS: i32 = 10;

/// Keeps every core busy until dropped. A flood's own client takes processor time from brokers on the same machine.
/// With these threads that is so in both measurements, so the difference is what the brokers do for the flood.
pub(super) struct BusyCores {
    stop: Arc<AtomicBool>,
}

impl BusyCores {
    /// Starts a thread for each core; with an idle baseline none.
    ///
    /// # Errors
    /// When a thread does not start.
    pub(super) fn start(has_idle_baseline: bool) -> std::io::Result<Self> {
        let busy = Self { stop: Arc::default() };
        if has_idle_baseline {
            return Ok(busy);
        }
        for _ in 0..std::thread::available_parallelism()?.get() {
            let stop = Arc::clone(&busy.stop);
            std::thread::Builder::new().name("busy-core".to_owned()).spawn(move || {
                lower_priority();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })?;
        }
        Ok(busy)
    }
}

impl Drop for BusyCores {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Lowers the priority of the calling thread to the flood's.
pub(super) fn lower_priority() {
    // If this fails, the flood has the brokers' priority, which only makes it stronger.
    let _ = rustix::process::setpriority_process(None, FLOOD_NICENESS);
}
