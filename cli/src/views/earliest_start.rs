//! When and where a request could start.

use super::reclaimed_leases::Reclaims;
use crate::units::age;

/// The earliest start of a request under the present ends of leases.
pub(super) struct EarliestStart<'a> {
    /// Milliseconds since 1970; none if no lease's end makes room.
    pub(super) at_ms: Option<u64>,
    /// Donor of that start.
    pub(super) donor: Option<&'a str>,
    /// Whether the request's start window closes before.
    pub(super) too_late: bool,
    /// Leases that are, or would be, reclaimed for the request. These end whether they are renewed or not.
    pub(super) reclaims: Option<&'a Reclaims>,
}

impl EarliestStart<'_> {
    /// For people: `in 2h at north, unless leases are renewed`.
    pub(super) fn text(&self, now_ms: u64) -> String {
        let (Some(at), Some(donor)) = (self.at_ms, self.donor) else {
            return "no end of a lease makes room".to_owned();
        };
        if self.too_late {
            return format!("{} at {donor}, after --start-by: the request fails first", age(at, now_ms));
        }
        if at <= now_ms {
            return format!("now at {donor}");
        }
        let by_reclaim = self.reclaims.is_some_and(|reclaims| reclaims.donor == donor);
        let condition = if by_reclaim { "" } else { ", unless leases are renewed" };
        format!("{} at {donor}{condition}", age(at, now_ms))
    }
}
