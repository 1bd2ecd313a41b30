//! Shares of this host's API: no lease keeps others out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use comity_types::LeaseId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Requests of a lease at one time, watches and followed logs included.
pub(crate) const MAX_REQUESTS: usize = 32;
/// Commands in a lease's pods at one time: each has processes of the host.
pub(crate) const MAX_COMMANDS: usize = 16;

#[derive(Debug)]
struct Seats {
    requests: Arc<Semaphore>,
    commands: Arc<Semaphore>,
}

/// The seats of all leases.
#[derive(Debug, Default)]
pub(crate) struct LeaseSeats(Mutex<BTreeMap<LeaseId, Seats>>);

impl LeaseSeats {
    /// A seat for a request; `None` if all are taken.
    pub(crate) fn request(&self, lease: LeaseId) -> Option<OwnedSemaphorePermit> {
        self.take(lease, |seats| &seats.requests)
    }

    /// A seat for a command; `None` if all are taken.
    pub(crate) fn command(&self, lease: LeaseId) -> Option<OwnedSemaphorePermit> {
        self.take(lease, |seats| &seats.commands)
    }

    /// Forgets a lease that has ended.
    pub(crate) fn forget(&self, lease: LeaseId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&lease);
    }

    fn take(&self, lease: LeaseId, which: impl FnOnce(&Seats) -> &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seats = all.entry(lease).or_insert_with(|| Seats {
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
        });
        Arc::clone(which(seats)).try_acquire_owned().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_has_taken_all_its_seats_keeps_no_other_out() {
        let seats = LeaseSeats::default();
        let taken: Vec<_> = (0..MAX_REQUESTS).map_while(|_| seats.request(LeaseId(1))).collect();
        assert!(taken.len() == MAX_REQUESTS && seats.request(LeaseId(1)).is_none());
        assert!(seats.request(LeaseId(2)).is_some() && seats.command(LeaseId(1)).is_some());
        drop(taken);
        assert!(seats.request(LeaseId(1)).is_some());
    }
}
