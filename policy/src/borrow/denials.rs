//! Builds the denials that several checks share.

use super::{BorrowFacts, Denial, DenyCode};
use crate::amounts::{show_duration, show_gpus};
use crate::documents::DocRef;

/// The result of a check. The denial is boxed to keep the common `Ok` small.
pub(super) type CheckResult<T> = Result<T, Box<Denial>>;

pub(super) fn deny<T>(code: DenyCode, message: String, unblock: impl Into<String>, by: Vec<DocRef>) -> CheckResult<T> {
    Err(Box::new(Denial { code, message, unblock: unblock.into(), by }))
}

/// Denies a lease longer than `max_ms`. `limit` is the limit in the message: ``quota `q` allows leases``.
pub(super) fn deny_duration<T>(facts: &BorrowFacts<'_>, limit: &str, max_ms: u64, by: DocRef) -> CheckResult<T> {
    let max = show_duration(max_ms);
    let message = format!("{limit} of at most {max}, not {}", show_duration(facts.duration_ms));
    let unblock = format!("ask for {max} and renew, or raise the limit in {by}");
    deny(DenyCode::LeaseTooLong, message, unblock, vec![by])
}

/// Denies a request for more than `max_milli` GPUs. `limit` is the limit in the message: ``quota `q` ``.
pub(super) fn deny_request_size<T>(facts: &BorrowFacts<'_>, limit: &str, max_milli: u64, by: DocRef) -> CheckResult<T> {
    let max = show_gpus(max_milli);
    let message = format!("{limit} allows {max} GPUs in one request, not {}", show_gpus(facts.request_milli()));
    let unblock = format!("ask for at most {max} GPUs, or raise the limit in {by}");
    deny(DenyCode::RequestTooLarge, message, unblock, vec![by])
}

/// A lease beside the GPUs in use, against a limit on both. In milli-GPU.
#[derive(Clone, Copy)]
pub(super) struct Headroom {
    pub(super) max_milli: u64,
    pub(super) used_milli: u64,
    pub(super) requested_milli: u64,
}

impl Headroom {
    /// Whether the lease fits.
    pub(super) const fn fits(self) -> bool {
        self.used_milli.saturating_add(self.requested_milli) <= self.max_milli
    }

    /// Whether the lease would not fit even beside none.
    pub(super) const fn never_fits(self) -> bool {
        self.requested_milli > self.max_milli
    }

    /// Denies a lease that does not fit: with `code` if it would beside fewer GPUs. `limit` is the limit in the
    /// message: ``quota `q` for tenant `t` ``.
    pub(super) fn deny<T>(self, code: DenyCode, limit: &str, by: DocRef) -> CheckResult<T> {
        let Self { max_milli, used_milli, requested_milli } = self;
        if self.never_fits() {
            let (max, requested) = (show_gpus(max_milli), show_gpus(requested_milli));
            let message = format!("{limit} allows {max} GPUs at a time, and the request needs {requested}");
            let unblock = format!("ask for at most {max} GPUs, or raise the limit in {by}");
            return deny(DenyCode::RequestTooLarge, message, unblock, vec![by]);
        }
        let message = format!(
            "{limit} allows {} GPUs at a time; {} are in use and the request needs {} more",
            show_gpus(max_milli),
            show_gpus(used_milli),
            show_gpus(requested_milli)
        );
        let excess_milli = used_milli.saturating_add(requested_milli) - max_milli;
        let unblock = format!("wait until {} of them are free, or raise the limit in {by}", show_gpus(excess_milli));
        deny(code, message, unblock, vec![by])
    }
}
