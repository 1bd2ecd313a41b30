//! Checks a log from its first record on.

use crate::entry::Entry;
use crate::hash::Hash;
use crate::head::TreeHead;
use crate::tree::{MemoryTree, root_of};

/// The first record that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A record is missing.
    #[error("record {index} is missing: record {found} follows record {}", .index.saturating_sub(1))]
    Missing {
        /// Number of the missing record.
        index: u64,
        /// Number in its place.
        found: u64,
    },
    /// A record comes a second time, or too late.
    #[error("record {found} is in the place of record {index}")]
    Misplaced {
        /// Number of the record that belongs there.
        index: u64,
        /// Number in its place.
        found: u64,
    },
    /// The next record names another hash.
    #[error("record {index} was edited, or replaced: record {} names another hash", .index + 1)]
    Edited {
        /// Its number.
        index: u64,
    },
    /// The first record names one before it.
    #[error("record 0 was edited: it names a record before it")]
    NotTheFirst,
}

impl Fault {
    /// Number of the first record that is wrong.
    #[must_use]
    pub const fn index(&self) -> u64 {
        match self {
            Self::Missing { index, .. } | Self::Misplaced { index, .. } | Self::Edited { index } => *index,
            Self::NotTheFirst => 0,
        }
    }
}

/// Checks entries in order. Keeps 64 bytes for each.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    tree: MemoryTree,
    last: Hash,
    withheld: u64,
}

impl Verifier {
    /// Checks the next entry. The last record of a log is only checked by a head of it: compare
    /// [`head_at`](Self::head_at).
    ///
    /// # Errors
    /// [`Fault`].
    pub fn push(&mut self, entry: &Entry) -> Result<(), Fault> {
        let (index, found) = (self.size(), entry.index());
        if found > index {
            return Err(Fault::Missing { index, found });
        }
        if found < index {
            return Err(Fault::Misplaced { index, found });
        }
        match entry {
            Entry::Record(record, _) if record.previous != self.last => {
                return Err(index.checked_sub(1).map_or(Fault::NotTheFirst, |index| Fault::Edited { index }));
            }
            Entry::Record(..) => {}
            Entry::Withheld { .. } => self.withheld += 1,
        }
        self.last = entry.hash();
        self.tree.append(self.last);
        Ok(())
    }

    /// Number of entries so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.tree.size()
    }

    /// Number of withheld records so far.
    #[must_use]
    pub const fn withheld(&self) -> u64 {
        self.withheld
    }

    /// The tree over all entries so far.
    #[must_use]
    pub const fn tree(&self) -> &MemoryTree {
        &self.tree
    }

    /// Size and root after the first `size` entries; `None` if there are fewer.
    #[must_use]
    pub fn head_at(&self, size: u64) -> Option<TreeHead> {
        let Ok(root) = root_of(&self.tree, size);
        Some(TreeHead { size, root: root? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::Head;
    use crate::record::{AuditRecord, DONE, Subject};

    /// A log of `size` records, as lines.
    fn log(size: u64) -> (Vec<String>, Head) {
        let (mut lines, mut head) = (Vec::new(), Head::default());
        for index in 0..size {
            let record = AuditRecord {
                index,
                time_ms: 1_000 + index,
                revision: index,
                actor: "spiffe://test.example/user/alice".to_owned(),
                act: "request-cancelled".to_owned(),
                subject: Subject::new("request", format!("req-{index}")),
                command: "cancel-request".to_owned(),
                outcome: DONE.to_owned(),
                cause: String::new(),
                request: format!("req-{index}"),
                tenant: "ml".to_owned(),
                institutions: vec!["polytechnic".to_owned()],
                policy: "c0ffee".to_owned(),
                reasons: Vec::new(),
                nonce: String::new(),
                previous: head.last(),
            };
            let sealed = record.seal().expect("JSON");
            head.append(sealed.hash);
            lines.push(sealed.line);
        }
        (lines, head)
    }

    fn verify(lines: &[String]) -> Result<Verifier, String> {
        let mut verifier = Verifier::default();
        for line in lines {
            let entry = Entry::parse(line).map_err(|error| format!("{}: {error}", verifier.size()))?;
            assert_eq!(entry.line().expect("JSON"), *line);
            verifier.push(&entry).map_err(|fault| format!("{}: {fault}", fault.index()))?;
        }
        Ok(verifier)
    }

    #[test]
    fn a_whole_log_has_the_root_of_its_head() {
        let (lines, head) = log(9);
        let verifier = verify(&lines).expect("whole");
        assert_eq!(verifier.head_at(9), Some(head.tree_head()));
        assert_eq!(verifier.head_at(10), None);
    }

    #[test]
    fn every_changed_byte_is_found() {
        let (lines, head) = log(4);
        for (index, line) in lines.iter().enumerate() {
            for at in 0..line.len() {
                let mut bytes = line.clone().into_bytes();
                bytes[at] ^= 1;
                let Ok(text) = String::from_utf8(bytes) else { continue };
                let mut edited = lines.clone();
                edited[index] = text;
                let found = match verify(&edited) {
                    Ok(verifier) => verifier.head_at(4) != Some(head.tree_head()),
                    Err(fault) => fault.split(':').next().and_then(|text| text.parse::<usize>().ok()) <= Some(index),
                };
                assert!(found, "{}", edited[index]);
            }
        }
    }

    #[test]
    fn the_first_wrong_record_is_named() {
        let (lines, head) = log(6);
        let fault = |lines: &[String]| verify(lines).expect_err("wrong");
        let mut gap = lines.clone();
        gap.remove(2);
        assert_eq!(fault(&gap), "2: record 2 is missing: record 3 follows record 1");
        let mut swapped = lines.clone();
        swapped.swap(2, 3);
        assert_eq!(fault(&swapped), "2: record 2 is missing: record 3 follows record 1");
        let mut twice = lines.clone();
        twice.insert(3, lines[2].clone());
        assert_eq!(fault(&twice), "3: record 2 is in the place of record 3");
        let mut edited = lines.clone();
        edited[2] = lines[2].replace("alice", "mallory");
        assert_eq!(fault(&edited), "2: record 2 was edited, or replaced: record 3 names another hash");
        assert_eq!(fault(&lines[1..]), "0: record 0 is missing: record 1 follows record 0");
        // The end of the log is checked by its head.
        let cut = verify(&lines[..5]).expect("a whole beginning");
        assert_ne!(cut.head_at(5), Some(head.tree_head()));
    }

    #[test]
    fn a_withheld_record_keeps_the_chain() {
        let (mut lines, head) = log(5);
        let hash = Entry::parse(&lines[2]).expect("a record").hash();
        lines[2] = Entry::Withheld { index: 2, hash }.line().expect("JSON");
        let verifier = verify(&lines).expect("whole");
        assert_eq!((verifier.head_at(5), verifier.withheld()), (Some(head.tree_head()), 1));
        lines[2] = Entry::Withheld { index: 2, hash: Hash::default() }.line().expect("JSON");
        assert!(verify(&lines).is_err());
    }
}
