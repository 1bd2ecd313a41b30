//! Changes of the broker group's own records.

use comity_audit::NonceKey;

use crate::model::broker_record::BrokerRecord;
use crate::model::limits::RECOVERY_GAP;
use crate::state::transition::Transition;

impl Transition<'_> {
    /// Records a broker's role. Watchers do not depend on it, so the revision stays.
    pub(crate) fn set_broker(&mut self, number: u64, record: BrokerRecord) {
        self.audit_broker(number, record.role);
        self.records().brokers.insert(number, record);
    }

    /// Records that a leader's term begins now.
    pub(crate) fn begin_term(&mut self, nonce_key: NonceKey) {
        let now = self.now;
        let records = self.records();
        records.term_began = now;
        records.nonce_key = nonce_key;
    }

    /// Records that a collector has the audit log's records before a number. No watcher depends on it.
    pub(crate) fn set_audit_exported(&mut self, until: u64) {
        self.records().audit_exported = until;
    }

    /// Skips [`RECOVERY_GAP`] values of every counter.
    pub(crate) fn skip_counters(&mut self) {
        let records = self.records();
        let counters =
            [&mut records.revision, &mut records.next_request, &mut records.next_lease, &mut records.next_peering];
        for counter in counters {
            *counter = counter.saturating_add(RECOVERY_GAP);
        }
        // A certificate of the lost entries must not outlast a later revocation.
        records.certificate_generation = records.certificate_generation.saturating_add(RECOVERY_GAP);
        for (_, cluster) in records.clusters.iter_mut() {
            cluster.last_fencing_token = cluster.last_fencing_token.saturating_add(RECOVERY_GAP);
        }
    }
}
