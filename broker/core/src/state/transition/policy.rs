//! Changes of the policy in force.

use crate::model::policy_record::PolicyRecord;
use crate::model::provenance::Provenance;
use crate::model::reply::Change;
use crate::state::Records;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Puts a bundle into force. Use until now is accounted under the old one.
    pub(crate) fn set_policy(&mut self, record: PolicyRecord) {
        self.audit_policy(&record);
        self.account_all_use();
        let Records { gpu_time, policy, .. } = self.records();
        gpu_time.keep_same(policy.as_ref().map(|record| &*record.bundle), &record.bundle);
        *policy = Some(record);
        // The new policy may change classes, values and timeouts, so recompute everything derived.
        self.state.rebuild_derived();
        self.tolerate_gpu_time();
        self.note(Change::Policy);
    }

    /// Records where the policy comes from. No watcher depends on it, so the revision stays.
    pub(crate) fn set_provenance(&mut self, provenance: Provenance) {
        self.records().provenance = provenance;
    }
}
