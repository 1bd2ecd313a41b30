//! GPU-time that counts against quotas of GPU-hours.
//!
//! The ledger has the use of leases that have ended, in the present period of each quota. What leases in force have used
//! since the period began, and what they may use until their terms end, comes from the leases themselves.

use comity_policy::{Booking, Bundle, GpuTimeTable, LimitKey};
use serde::{Deserialize, Serialize};

use crate::model::lease::Lease;
use crate::model::meter::Meter;
use crate::model::request::Request;
use crate::model::time::Timestamp;
use crate::state::State;
use crate::state::gang::{Role, parts};

/// GPU-time that the leases in force do not show. At most one period of each quota, and few more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuTimeLedger {
    /// Use of ended leases, by quota, user and period.
    pub(crate) used: GpuTimeTable,
    /// Use and bookings above a limit that nobody granted: leases were in force when a policy lowered the limit, an outage
    /// lengthened them, or a replacement failed. New leases and renewals wait until less counts than the limit.
    pub(crate) tolerated: GpuTimeTable,
}

impl GpuTimeLedger {
    pub(crate) fn is_empty(&self) -> bool {
        self.used.is_empty() && self.tolerated.is_empty()
    }

    /// Accounts a change of a lease; `booked` has all use and bookings.
    pub(crate) fn rebook(
        &mut self,
        bundle: &Bundle,
        booked: &mut GpuTimeTable,
        [before, after]: [&Lease; 2],
        now: Timestamp,
    ) {
        if let Some(booking) = booking(before) {
            bundle.for_each_period(&booking, |key, span, time| booked.remove(key, span.start_ms, time));
        }
        if let Some(booking) = booking(after) {
            bundle.for_each_period(&booking, |key, span, time| booked.add(key, span.start_ms, time));
        }
        if let Some(used) = booking(before).filter(|_| before.meter.counts() && !after.meter.counts()) {
            self.settle(bundle, booked, Booking { until_ms: used.until_ms.min(now.0), ..used }, now);
        }
    }

    /// Notes the use of a lease that counts no more. Only the present period is of interest.
    fn settle(&mut self, bundle: &Bundle, booked: &mut GpuTimeTable, used: Booking<'_>, now: Timestamp) {
        let mut begins = false;
        bundle.for_each_period(&used, |key, span, time| {
            if (span.start_ms..span.end_ms).contains(&now.0) {
                begins |= self.used.get(key, span.start_ms) == 0;
                self.used.add(key, span.start_ms, time);
                booked.add(key, span.start_ms, time);
            }
        });
        if begins {
            self.forget_past(bundle, booked, now);
        }
    }

    /// Forgets periods that have ended.
    fn forget_past(&mut self, bundle: &Bundle, booked: &mut GpuTimeTable, now: Timestamp) {
        let is_past = |key: LimitKey<'_>, start_ms: u64| {
            bundle.gpu_time_limit(key, now.0).is_none_or(|(_, present)| start_ms < present.start_ms)
        };
        let old = self.used.clone();
        for (key, start_ms, time) in old.iter().filter(|(key, start_ms, _)| is_past(*key, *start_ms)) {
            self.used.remove(key, start_ms, time);
            booked.remove(key, start_ms, time);
        }
        self.tolerated.retain(|key, start_ms| !is_past(key, start_ms));
    }

    /// Keeps what the quotas of `after` count as those of `before` did.
    pub(crate) fn keep_same(&mut self, before: Option<&Bundle>, after: &Bundle) {
        self.used.retain(|key, _| before.is_some_and(|before| after.counts_same_gpu_time(before, key)));
    }

    /// Tolerates what counts now, where it is above a limit.
    pub(crate) fn tolerate(&mut self, bundle: Option<&Bundle>, booked: &GpuTimeTable) {
        self.tolerated = GpuTimeTable::default();
        for (key, start_ms, time) in booked.iter() {
            let limit = bundle.and_then(|bundle| bundle.gpu_time_limit(key, start_ms)).map_or(0, |(limit, _)| limit);
            if time > limit {
                self.tolerated.add(key, start_ms, time);
            }
        }
    }

    /// Moves use of periods that have not begun, after log time was moved back, to the present ones.
    pub(crate) fn move_back(&mut self, bundle: Option<&Bundle>, now: Timestamp) {
        let mut used = GpuTimeTable::default();
        for (key, start_ms, time) in self.used.iter() {
            let present = bundle.and_then(|bundle| bundle.gpu_time_limit(key, now.0));
            used.add(key, present.map_or(start_ms, |(_, span)| start_ms.min(span.start_ms)), time);
        }
        self.used = used;
    }
}

/// What a lease has used and may use, as far as the ledger has it not; `None` if nothing.
pub(crate) fn booking(lease: &Lease) -> Option<Booking<'_>> {
    let (gpus_milli, from, until, most_ms) = match lease.meter {
        Meter::Waits { reserved_milli } => {
            let latest = lease.hold_until.after(lease.term);
            let most_ms = if lease.ends_by.is_some() { u64::MAX } else { lease.term.0 };
            (reserved_milli, lease.placed_at, lease.ends_by.unwrap_or(latest), most_ms)
        }
        Meter::Counts { since } => (lease.placement.milli(), since, lease.term_end(), u64::MAX),
        Meter::Stopped => return None,
    };
    let (tenant, user, class) = (lease.tenant.as_str(), lease.submitted_by.as_str(), lease.class.as_str());
    Some(Booking { tenant, user, class, gpus_milli, from_ms: from.0, until_ms: until.0, most_ms })
}

/// The end that a new lease takes over, and GPUs that count already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptEnd {
    /// When it ends: with its gang, or when the lease that it replaces would have.
    pub(crate) until: Timestamp,
    /// Thousandths of GPUs of the lease that it replaces.
    pub(crate) counted_milli: u64,
}

/// The end that a new lease of a request takes over; `None` if it has a term of its own. Under a quota of GPU-hours, a
/// replacement needs no GPU-hours that the lease before it has not booked.
pub(crate) fn kept_end(state: &State, request: &Request, role: Role) -> Option<KeptEnd> {
    match role {
        Role::Starts => None,
        Role::Joins => {
            let until = parts(state, request).filter_map(|(_, lease)| lease.expires_at).min()?;
            Some(KeptEnd { until, counted_milli: 0 })
        }
        Role::Replaces(old) => {
            let bundle = &state.policy.as_ref()?.bundle;
            if !bundle.limits_gpu_time_of(request.spec.tenant.as_str()) {
                return None;
            }
            let chain = request.chain_of(state, old);
            let leases = || chain.iter().filter_map(|id| state.leases.get(id));
            let counted_milli = leases().map(|lease| lease.placement.milli()).min()?;
            Some(KeptEnd { until: leases().map(Lease::term_end).max()?, counted_milli })
        }
    }
}

/// All use and bookings.
pub(crate) fn all_booked(state: &State) -> GpuTimeTable {
    let mut booked = state.gpu_time.used.clone();
    if let Some(record) = &state.policy {
        let leases = state.leases.values().filter(|lease| record.bundle.limits_gpu_time_of(lease.tenant.as_str()));
        for booking in leases.filter_map(booking) {
            record.bundle.for_each_period(&booking, |key, span, time| booked.add(key, span.start_ms, time));
        }
    }
    booked
}
