//! Adds members to running gangs that have fewer than they want.

use crate::scheduler::plan_state::Holding;
use crate::scheduler::plan_state::placed::Purpose;
use crate::scheduler::planning::Planning;
use crate::state::gang::{Role, held_milli, join_spec};
use crate::state::gpu_time::kept_end;

/// Gangs that one plan tries to grow; the next plan continues behind them.
const MAX_GROWING: usize = 16;

impl Planning<'_, '_> {
    /// Places more members of running gangs, after all waiting requests and alongside reservations: those with least
    /// come first, and a running gang has something already.
    pub(crate) fn grow_gangs(&mut self, limit: usize) {
        let state = self.state();
        let after = *self.last_grown;
        let growing: Vec<_> = state.growing().collect();
        let first = growing.partition_point(|(id, _)| Some(*id) <= after);
        let rotated = growing[first..].iter().chain(&growing[..first]);
        for (id, request) in rotated.take(MAX_GROWING) {
            if self.plan_state.placed().len() >= limit {
                return;
            }
            *self.last_grown = Some(*id);
            let Some(spec) = join_spec(state, request) else { continue };
            // At one donor at a time: the new members form one lease.
            let spec = crate::model::demand::RequestSpec { spread_donors: false, ..spec };
            let holding = Holding::Beside(held_milli(state, request), kept_end(state, request, Role::Joins));
            if let Some(found) = self.plan_state.find_for_holder(&[spec], request, holding) {
                self.plan_state.place(*id, request, found, Purpose::Join);
            }
        }
    }
}
