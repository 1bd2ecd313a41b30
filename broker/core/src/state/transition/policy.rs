//! Changes of the policy in force.

use crate::model::policy_record::PolicyRecord;
use crate::model::provenance::Provenance;
use crate::model::reply::Change;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Puts a bundle into force. Use until now is accounted under the old one.
    pub(crate) fn set_policy(&mut self, record: PolicyRecord) {
        self.account_all_use();
        self.records().policy = Some(record);
        // The new policy may change classes, values and timeouts, so recompute everything derived.
        self.state.rebuild_derived();
        self.note(Change::Policy);
    }

    /// Records where the policy comes from. No watcher depends on it, so the revision stays.
    pub(crate) fn set_provenance(&mut self, provenance: Provenance) {
        self.records().provenance = provenance;
    }
}
