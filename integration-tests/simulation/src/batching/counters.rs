//! Counts requests, placements and moves of one run.

use std::collections::BTreeMap;

use comity_core::State;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_types::{ClusterId, LeaseId, LeaseState, RequestId};

use super::batching_report::BatchingFigures;
use super::request_arrivals::RequestArrival;
use super::{IN_PLACE_FOR, MOST_MOVES};
use crate::time::{HOUR, MINUTE};

/// A submitted request.
struct Submitted {
    at: u64,
    lasts: u64,
    milli: u64,
    is_gang: bool,
    /// Whether it arrived during the measured days.
    counts: bool,
}

/// The counters of one run.
pub(super) struct Counters {
    capacity_milli: u64,
    counts_from: u64,
    counts_until: u64,
    submitted: BTreeMap<RequestId, Submitted>,
    /// Leases being reclaimed, each with the request that needs its place.
    moving: BTreeMap<LeaseId, RequestId>,
    /// Number of leases that moved for each queued request.
    moves: BTreeMap<RequestId, u64>,
    waited: u64,
    lent_milli_time: u128,
    stranded_milli_time: u128,
    figures: BatchingFigures,
}

impl Counters {
    pub(super) fn new(capacity_milli: u64, counts_from: u64, counts_until: u64) -> Self {
        Self {
            capacity_milli,
            counts_from,
            counts_until,
            submitted: BTreeMap::new(),
            moving: BTreeMap::new(),
            moves: BTreeMap::new(),
            waited: 0,
            lent_milli_time: 0,
            stranded_milli_time: 0,
            figures: BatchingFigures::default(),
        }
    }

    fn counts(&self, at: u64) -> bool {
        (self.counts_from..self.counts_until).contains(&at)
    }

    /// Counts a submitted request.
    pub(super) fn submitted(&mut self, id: RequestId, arrival: &RequestArrival<'_>, now: u64) {
        let (counts, milli) = (self.counts(now), arrival.task.device_milli());
        let is_gang = arrival.task.devices > 1;
        if counts {
            self.figures.requests += 1.0;
            self.figures.gangs += f64::from(u8::from(is_gang));
            self.figures.gpu_hours_asked += gpu_hours(u128::from(milli) * u128::from(arrival.lasts));
        }
        self.submitted.insert(id, Submitted { at: now, lasts: arrival.lasts, milli, is_gang, counts });
    }

    /// Counts a placed request; returns the duration of its work in milliseconds.
    pub(super) fn placed(&mut self, id: RequestId, now: u64) -> Option<u64> {
        let moves = self.moves.remove(&id);
        let submitted = self.submitted.get(&id)?;
        if submitted.counts {
            let figures = &mut self.figures;
            figures.requests_let_in += 1.0;
            figures.gangs_let_in += f64::from(u8::from(submitted.is_gang));
            figures.gpu_hours_let_in += gpu_hours(u128::from(submitted.milli) * u128::from(submitted.lasts));
            figures.let_in_by_moving += f64::from(u8::from(moves.is_some()));
            self.waited += now - submitted.at;
        }
        Some(submitted.lasts)
    }

    /// Counts proposed reclaims that break the broker's bound: no migration, or too soon after the lease started or moved.
    pub(super) fn proposed(&mut self, state: &State, reclaims: &[ProposedReclaim]) {
        for reclaim in reclaims {
            let since = state.leases.get(&reclaim.lease).and_then(|lease| lease.active_at);
            let in_place = since.map_or(0, |since| state.log_time.since(since).0);
            let is_migration = matches!(reclaim.reason, ReclaimReason::Migration { .. });
            self.figures.beyond_the_bound += f64::from(u8::from(!is_migration || in_place < IN_PLACE_FOR));
        }
    }

    /// Remembers which of the proposed `reclaims` took effect.
    pub(super) fn reclaimed(&mut self, leases: &[LeaseId], reclaims: &[ProposedReclaim]) {
        for reclaim in reclaims.iter().filter(|reclaim| leases.contains(&reclaim.lease)) {
            let Some(by) = reclaim.reason.for_request() else { continue };
            self.moving.insert(reclaim.lease, by);
        }
    }

    /// Counts leases whose reclaim was withdrawn.
    pub(super) fn spared(&mut self, leases: &[LeaseId]) {
        for lease in leases {
            self.figures.spared += f64::from(u8::from(self.moving.remove(lease).is_some()));
        }
    }

    /// Counts reclaimed leases that ended since the last call, as moved or as stopped.
    pub(super) fn record_finished_moves(&mut self, state: &State) {
        let over = |id: &LeaseId| state.leases.get(id).is_none_or(|lease| lease.state != LeaseState::Reclaiming);
        let over: Vec<LeaseId> = self.moving.keys().copied().filter(over).collect();
        for id in over {
            let Some(by) = self.moving.remove(&id) else { continue };
            let request = state.leases.get(&id).and_then(|lease| state.requests.get(&lease.request));
            let moved = request.is_some_and(|request| request.lease.is_some_and(|now| now != id));
            self.figures.stopped += f64::from(u8::from(!moved));
            if self.submitted.get(&by).is_some_and(|submitted| submitted.counts) {
                self.figures.leases_moved += f64::from(u8::from(moved));
            }
            let moves = self.moves.entry(by).or_default();
            *moves += 1;
            self.figures.beyond_the_bound += f64::from(u8::from(*moves > MOST_MOVES));
            self.figures.most_moved_for_one = self.figures.most_moved_for_one.max(real(*moves));
        }
    }

    /// Adds the current allocation and stranded GPUs, which last for `span` milliseconds.
    pub(super) fn sample(&mut self, state: &State, donor: &ClusterId, now: u64, span: u64) {
        if !self.counts(now) {
            return;
        }
        let lent = state.occupancy().lent_milli(donor);
        let free = self.capacity_milli.saturating_sub(lent);
        let waiting = state.queued().filter_map(|(id, _)| Some(self.submitted.get(&id)?.milli));
        let wanted: u64 = waiting.filter(|milli| *milli <= free).sum();
        self.lent_milli_time += u128::from(lent) * u128::from(span);
        self.stranded_milli_time += u128::from(wanted.min(free)) * u128::from(span);
    }

    pub(super) fn figures(mut self) -> BatchingFigures {
        let counted = real(self.counts_until - self.counts_from);
        let hours = counted / real(HOUR);
        let counts = |id: &RequestId| self.submitted.get(id).is_some_and(|submitted| submitted.counts);
        let in_vain: u64 = self.moves.iter().filter(|(id, _)| counts(id)).map(|(_, moves)| moves).sum();
        let figures = &mut self.figures;
        figures.moved_in_vain = real(in_vain);
        figures.stranded_gpus = gpu_hours(self.stranded_milli_time) / hours;
        figures.allocated_percent = gpu_hours(self.lent_milli_time) / hours / real(self.capacity_milli) * 100_000.0;
        figures.mean_wait_minutes = real(self.waited) / real(MINUTE) / figures.requests_let_in.max(1.0);
        self.figures
    }
}

/// Converts thousandths of GPUs times milliseconds.
#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn gpu_hours(milli_time: u128) -> f64 {
    milli_time as f64 / 1_000.0 / real(HOUR)
}

#[expect(clippy::cast_precision_loss, reason = "counts and times are far below 2^52")]
fn real(count: u64) -> f64 {
    count as f64
}
