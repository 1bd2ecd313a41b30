//! The audit log that the broker shows to agents.

use comity_audit::{Hash, MemoryTree, TreeHead, consistency_proof, root_of};
use comity_proto::v1;

/// What a forged record holds.
const FORGED: u64 = u64::MAX;

/// A log that grows with each welcome.
#[derive(Default)]
pub(crate) struct ToldHistory {
    log: MemoryTree,
}

impl ToldHistory {
    /// Appends a record.
    pub(crate) fn go_on(&mut self) {
        let record = self.log.size();
        self.log.append(Hash::of_leaf(&record.to_be_bytes()));
    }

    /// Whether a head is one of this log.
    pub(crate) fn has(&self, head: &TreeHead) -> bool {
        head.size <= self.log.size() && root_of(&self.log, head.size).is_ok_and(|root| root == Some(head.root))
    }

    /// The log with the proof that it continues its first `from` records. `is_rewritten`: its first record is another one,
    /// and the proof is that of the other log.
    pub(crate) fn proof(&self, from: u64, is_rewritten: bool) -> v1::AuditProof {
        let mut log = self.log.clone();
        if is_rewritten {
            log = MemoryTree::default();
            log.append(Hash::of_leaf(&FORGED.to_be_bytes()));
            (1..self.log.size()).for_each(|record| log.append(Hash::of_leaf(&record.to_be_bytes())));
        }
        let size = log.size();
        let (Ok(root), Ok(hashes)) = (root_of(&log, size), consistency_proof(&log, from.min(size), size));
        let root = root.map_or_else(String::new, |root| root.to_string());
        let hashes = hashes.unwrap_or_default().iter().map(Hash::to_string).collect();
        v1::AuditProof { head: Some(v1::AuditHead { size, root }), hashes }
    }
}
