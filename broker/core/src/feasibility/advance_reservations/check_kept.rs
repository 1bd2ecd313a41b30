//! Checks that a lease takes nothing of what a donor keeps for others.

use std::collections::BTreeSet;

use comity_policy::{show_duration, show_time};
use comity_types::{ClassName, ClusterId};

use crate::feasibility::advance_reservations::donor_windows::KeptWindow;
use crate::feasibility::advance_reservations::kept_at_donor::KeptAtDonor;
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::feasibility::verdict::FeasiblePlacement;
use crate::model::demand::RequestSpec;
use crate::model::placement::Placement;
use crate::model::time::{Millis, Timestamp};
use crate::state::notice::schedule_notice;

/// The code of leases that are denied, and of reclaims, because of reservations for others.
pub(crate) const RESERVED: &str = "reserved-for-others";

const SECOND_MS: u64 = 1_000;
/// Ends of windows at which a later start is tried.
const MAX_STARTS_TRIED: usize = 256;
/// How far ahead a later start is sought. Windows repeat weekly, but for exceptions.
const LATER_START_WITHIN: Millis = Millis::from_hours(24 * 35);

/// A lease that a donor would lend or prolong.
#[derive(Clone, Copy)]
pub(crate) struct KeptQuery<'q> {
    pub(crate) tenant: &'q str,
    pub(crate) class: &'q ClassName,
    pub(crate) milli: u64,
    /// How long it lasts at the most.
    pub(crate) lasts: Millis,
    /// Its latest end, if that is known.
    pub(crate) ends_by: Option<Timestamp>,
    pub(crate) preemptible: bool,
    /// Whether it is in force already.
    pub(crate) renews: bool,
}

/// When a lease could start later, as far as reservations are concerned.
#[derive(Clone, Copy)]
enum LaterStart {
    /// Nobody reads it, so it was not sought.
    NotSought,
    At(Timestamp),
    /// It lasts longer than the time between windows.
    Never,
    /// Not before this end of a window, the last one that was tried. Whether it could start later is unknown.
    NotBy(Timestamp),
}

/// The first moment at which a lease would take something of what is kept for others.
struct Conflict<'k, 'a> {
    at: Timestamp,
    windows: Vec<&'k KeptWindow<'a>>,
}

impl<'a> Snapshot<'a> {
    /// Checks a placement against the reservations for other tenants.
    pub(crate) fn check_kept(
        &self,
        spec: &RequestSpec,
        class: &ClassName,
        placement: &Placement,
    ) -> Result<(), Box<Obstacle>> {
        if !self.bundle.has_reservations_at(placement.donor.as_str()) {
            return Ok(());
        }
        let query = KeptQuery {
            tenant: spec.tenant.as_str(),
            class,
            milli: placement.milli(),
            lasts: Millis(self.state.settings().hold.0.saturating_add(spec.duration.0)),
            ends_by: self.kept_end.map(|kept| kept.until),
            preemptible: spec.preemptible.is_some(),
            renews: false,
        };
        self.check_kept_for(&placement.donor, query)
    }

    /// Checks a lease against the reservations for other tenants.
    pub(crate) fn check_kept_for(&self, donor: &ClusterId, query: KeptQuery<'_>) -> Result<(), Box<Obstacle>> {
        let Some(kept) = KeptAtDonor::of(self, donor) else { return Ok(()) };
        let start = self.kept.starts_at.unwrap_or(self.state.log_time);
        match self.conflict(donor, &kept, query, start) {
            None => Ok(()),
            Some(conflict) => Err(Box::new(self.kept_obstacle(donor, &kept, query, start, &conflict))),
        }
    }

    /// Notes a placement of the plan.
    pub(crate) fn note_kept(&mut self, spec: &RequestSpec, class: &ClassName, placement: &Placement) {
        let donor = &placement.donor;
        if !self.bundle.has_reservations_at(donor.as_str()) {
            return;
        }
        let lasts = Millis(self.state.settings().hold.0.saturating_add(spec.duration.0));
        let start = self.kept.starts_at.unwrap_or(self.state.log_time);
        let ends_by = self.kept_end.map(|kept| kept.until);
        let until = self.stays_until(donor, start, lasts, ends_by, spec.preemptible.is_some());
        self.kept.note_taken(placement, (spec.tenant.as_str(), class.as_str()), (start, until));
    }

    /// Takes a placement whose lease starts at `start`.
    pub(crate) fn take_from(&mut self, start: Timestamp, spec: &RequestSpec, found: &FeasiblePlacement) {
        let before = self.kept.starts_at.replace(start);
        self.take(spec, &found.class, found.agreement.as_deref(), &found.placement);
        self.kept.starts_at = before;
    }

    /// How long a lease that starts at `start` stays at the least.
    pub(crate) fn stays_until(
        &self,
        donor: &ClusterId,
        start: Timestamp,
        lasts: Millis,
        ends_by: Option<Timestamp>,
        preemptible: bool,
    ) -> Timestamp {
        let end = ends_by.unwrap_or_else(|| start.after(lasts));
        if preemptible { end.min(start.after(schedule_notice(self.bundle, donor))) } else { end }
    }

    fn conflict<'k>(
        &self,
        donor: &ClusterId,
        kept: &'k KeptAtDonor<'_, 'a>,
        query: KeptQuery<'_>,
        start: Timestamp,
    ) -> Option<Conflict<'k, 'a>> {
        let KeptQuery { tenant, class, milli, lasts, ends_by, preemptible, renews: _ } = query;
        let until = self.stays_until(donor, start, lasts, ends_by, preemptible);
        // What is counted rises only as windows open, and as something starts that the plan placed.
        let openings = kept.windows().iter().map(|window| Timestamp(window.span.start_ms));
        let rises = openings.chain(kept.planned_starts()).filter(|at| *at > start && *at < until);
        let moments: BTreeSet<Timestamp> = rises.chain([start]).collect();
        moments.into_iter().find_map(|at| {
            let moment = kept.moment(at);
            if moment.taken_from_others(kept.lendable(), tenant, class.as_str(), milli) == 0 {
                return None;
            }
            let of_others = |window: &&KeptWindow<'_>| {
                let spec = &window.reservation.spec;
                window.is_open(at) && spec.tenant != tenant && moment.unused(&spec.tenant, &spec.class) > 0
            };
            Some(Conflict { at, windows: kept.windows().iter().filter(of_others).collect() })
        })
    }

    fn kept_obstacle(
        &self,
        donor: &ClusterId,
        kept: &KeptAtDonor<'_, 'a>,
        query: KeptQuery<'_>,
        start: Timestamp,
        conflict: &Conflict<'_, 'a>,
    ) -> Obstacle {
        let first = conflict.windows.first().map(|window| window.text()).unwrap_or_default();
        let more = match conflict.windows.len() {
            0 | 1 => String::new(),
            all => format!(", and has {} more reservations then", all - 1),
        };
        let reason = format!("{donor} keeps {first}{more}");
        // Later starts are costly to find, so they are found only for readers.
        let later = if self.explains && !query.renews {
            self.later_start(donor, kept, query, start)
        } else {
            LaterStart::NotSought
        };
        let mut remedies = Vec::new();
        let hold = if query.renews { Millis(0) } else { self.state.settings().hold };
        let left = conflict.at.since(start).0.saturating_sub(hold.0);
        if !query.preemptible && conflict.at > start {
            if left >= SECOND_MS {
                remedies.push(format!("ask for at most {}", show_duration(left - left % SECOND_MS)));
            }
            remedies.push("ask for a preemptible lease".to_owned());
        }
        match later {
            LaterStart::At(at) => remedies.push(format!("wait until {}", show_time(at.0))),
            LaterStart::NotBy(at) => remedies.push(format!("wait until after {}", show_time(at.0))),
            LaterStart::NotSought if !query.renews => {
                let ends = conflict.windows.iter().map(|window| window.span.end_ms).max().unwrap_or(start.0);
                remedies.push(format!("wait until {}", show_time(ends)));
            }
            LaterStart::NotSought | LaterStart::Never => {}
        }
        if remedies.is_empty() {
            remedies.push("ask for less, or another donor".to_owned());
        }
        let (cure, until) = match later {
            LaterStart::Never => (Cure::Change, None),
            LaterStart::At(at) => (Cure::Waiting, Some(at)),
            LaterStart::NotSought | LaterStart::NotBy(_) => (Cure::Waiting, None),
        };
        let mut by: Vec<String> =
            conflict.windows.iter().map(|window| window.reservation.cite("gpus").to_string()).collect();
        by.dedup();
        Obstacle { by, until, ..obstacle(cure, RESERVED, reason, remedies.join(", or ")) }
    }

    /// The first end of a window at which a lease could start.
    fn later_start(
        &self,
        donor: &ClusterId,
        kept: &KeptAtDonor<'_, 'a>,
        query: KeptQuery<'_>,
        start: Timestamp,
    ) -> LaterStart {
        let latest = start.after(LATER_START_WITHIN);
        let ends: Vec<Timestamp> =
            kept_ends(kept.windows(), start).into_iter().take_while(|at| *at <= latest).collect();
        let (tried, rest) = ends.split_at(ends.len().min(MAX_STARTS_TRIED));
        match (tried.iter().find(|at| self.conflict(donor, kept, query, **at).is_none()), tried.last()) {
            (Some(at), _) => LaterStart::At(*at),
            (None, Some(_)) if rest.is_empty() => LaterStart::Never,
            (None, last) => LaterStart::NotBy(last.copied().unwrap_or(latest)),
        }
    }

    /// The ends after `after` of the windows of a donor's reservations, at which more may be lent.
    pub(crate) fn kept_ends_at(&self, donor: &ClusterId, after: Timestamp) -> Vec<Timestamp> {
        KeptAtDonor::of(self, donor).map_or_else(Vec::new, |kept| kept_ends(kept.windows(), after))
    }

    /// Whether a donor keeps GPUs now that a tenant does not use yet.
    pub(crate) fn keeps_for(&self, donor: &ClusterId, tenant: &str, class: &str) -> bool {
        let mut reservations = self.bundle.reservations_at(donor.as_str());
        if !reservations.any(|it| it.spec.tenant == tenant && it.spec.class == class) {
            return false;
        }
        let at = self.kept.starts_at.unwrap_or(self.state.log_time);
        KeptAtDonor::of(self, donor).is_some_and(|kept| kept.moment(at).unused(tenant, class) > 0)
    }
}

fn kept_ends(windows: &[KeptWindow<'_>], after: Timestamp) -> Vec<Timestamp> {
    let mut ends: Vec<Timestamp> = windows.iter().map(|window| Timestamp(window.span.end_ms)).collect();
    ends.retain(|end| *end > after);
    ends.sort_unstable();
    ends.dedup();
    ends
}
