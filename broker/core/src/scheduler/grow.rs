//! Members that come later: gangs that run with fewer than they would have.

use crate::model::proposal::{Aim, ProposedPlacement};
use crate::scheduler::plan::Plan;
use crate::scheduler::planning::Planning;
use crate::state::gang::{held_milli, join_spec};

/// Gangs for which one plan looks for room; the next plan begins behind them.
const MAX_GROWING: usize = 16;

impl Planning<'_, '_> {
    /// Places more members of gangs that run, after all that waits and beside what is reserved: it is those who have
    /// least that come first, and a gang that runs has something.
    pub(crate) fn grow(&mut self, plan: &mut Plan, limit: usize) {
        let state = self.snapshot.state;
        let after = *self.grown_last;
        let growing: Vec<_> = state.growing().collect();
        let first = growing.partition_point(|(id, _)| Some(*id) <= after);
        let turn = growing[first..].iter().chain(&growing[..first]);
        for (id, request) in turn.take(MAX_GROWING) {
            if plan.placements.len() >= limit {
                return;
            }
            *self.grown_last = Some(*id);
            let Some(spec) = join_spec(state, request) else { continue };
            // At one donor at a time: what joins is one lease.
            let spec = crate::model::demand::RequestSpec { spread_donors: false, ..spec };
            let held = held_milli(state, request);
            self.each_view(|snapshot| snapshot.beside_milli = held);
            let found = self.find(&spec, Some(request));
            self.each_view(|snapshot| snapshot.beside_milli = 0);
            if let Some(found) = found {
                let proposed = self.propose(*id, request, found);
                plan.placements.push(ProposedPlacement { aim: Aim::Join, ..proposed });
            }
        }
    }
}
