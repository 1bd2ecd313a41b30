#![expect(clippy::unwrap_used, reason = "tests")]

use comity_audit::{AuditRecord, DONE, Entry, Fault, Head, MemoryTree, Subject, Verifier, consistency_proof, root_of};
use redb::TableDefinition;

use super::*;

/// Records `0..size`, and the head after them.
fn records(size: u64, actor: &str) -> (Vec<SealedRecord>, Head) {
    let mut head = Head::default();
    let records = (0..size).map(|index| {
        let record = AuditRecord {
            index,
            time_ms: index,
            revision: index,
            actor: actor.to_owned(),
            act: "policy-applied".to_owned(),
            subject: Subject::new("policy", index),
            command: "apply-policy".to_owned(),
            outcome: DONE.to_owned(),
            cause: String::new(),
            request: String::new(),
            tenant: String::new(),
            institutions: Vec::new(),
            policy: String::new(),
            reasons: Vec::new(),
            nonce: String::new(),
            previous: head.last(),
        };
        let sealed = record.seal().unwrap();
        head.append(sealed.hash);
        sealed
    });
    (records.collect(), head)
}

fn append(store: &AuditStore, records: Vec<SealedRecord>) -> io::Result<()> {
    futures::executor::block_on(store.append(records))
}

fn state_after(records: &[SealedRecord]) -> (u64, Hash) {
    (records.len() as u64, records.last().unwrap().hash)
}

#[test]
fn records_outlive_a_restart_and_may_come_again() {
    let dir = tempfile::tempdir().unwrap();
    let (all, head) = records(11, "alice");
    let store = AuditStore::open(dir.path()).unwrap();
    append(&store, all[..7].to_vec()).unwrap();
    store.flush().unwrap();
    store.close();
    assert!(append(&store, all[7..].to_vec()).is_err(), "it is closed");

    let store = AuditStore::open(dir.path()).unwrap();
    // The log is applied again from the last snapshot on.
    append(&store, all[3..9].to_vec()).unwrap();
    append(&store, all[9..].to_vec()).unwrap();
    store.flush().unwrap();
    assert_eq!(store.read(0, 99, 99).unwrap(), all);
    assert_eq!(store.read(4, 9, 3).unwrap(), all[4..7]);
    assert_eq!(store.gaps().unwrap(), []);
    let mut tree = MemoryTree::default();
    all.iter().for_each(|record| tree.append(record.hash));
    let stored = |from, to| store.tree(|tree| consistency_proof(tree, from, to)).unwrap().unwrap();
    for from in 0..=11 {
        assert_eq!(Ok(Some(stored(from, 11))), consistency_proof(&tree, from, 11));
    }
    assert_eq!(store.tree(|tree| root_of(tree, 11)).unwrap(), Some(head.tree_head().root));
}

#[test]
fn another_record_under_a_number_stops_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let (all, _) = records(5, "alice");
    let (forged, _) = records(5, "mallory");
    let store = AuditStore::open(dir.path()).unwrap();
    append(&store, all).unwrap();
    append(&store, forged[2..3].to_vec()).unwrap();
    let error = store.flush().unwrap_err().to_string();
    assert!(error.contains("record 2 of the audit log is not the one that the log makes"), "{error}");
    assert!(append(&store, forged[3..].to_vec()).is_err(), "nothing is written after a fault");

    // So does a snapshot that counts other records.
    let other = tempfile::tempdir().unwrap();
    let store = AuditStore::open(other.path()).unwrap();
    append(&store, records(5, "alice").0).unwrap();
    let (size, last) = state_after(&forged);
    store.send(Message::Restored { size, last }).unwrap();
    assert!(store.flush().unwrap_err().to_string().contains("record 4"));
}

#[test]
fn a_gap_is_filled_from_its_end_by_the_right_records_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (all, head) = records(12, "alice");
    let (forged, _) = records(12, "mallory");
    let store = AuditStore::open(dir.path()).unwrap();
    append(&store, all[..2].to_vec()).unwrap();
    let (size, last) = state_after(&all[..10]);
    store.send(Message::Restored { size, last }).unwrap();
    append(&store, all[10..].to_vec()).unwrap();
    store.flush().unwrap();
    let lines = |records: &[SealedRecord]| records.iter().map(|record| record.line.clone()).collect::<Vec<_>>();
    let gap = || store.gaps().unwrap().first().cloned().unwrap();
    assert_eq!(gap(), Gap { start: 2, end: 10, last });
    assert_eq!(store.tree(|tree| root_of(tree, 12)).unwrap(), None, "no root without the missing records");

    for wrong in [lines(&forged[7..10]), lines(&all[6..9]), lines(&[&all[7..8], &all[9..10]].concat())] {
        assert!(store.fill(&gap(), &wrong).is_err());
        assert_eq!(gap(), Gap { start: 2, end: 10, last }, "nothing is stored");
    }
    store.fill(&gap(), &lines(&all[7..10])).unwrap();
    assert_eq!(gap(), Gap { start: 2, end: 7, last: all[6].hash });
    assert!(store.fill(&gap(), &lines(&all[..7])).is_err(), "more than the gap");
    store.fill(&gap(), &lines(&all[2..7])).unwrap();
    assert_eq!(store.gaps().unwrap(), []);
    assert_eq!(store.read(0, 99, 99).unwrap(), all);
    assert_eq!(store.tree(|tree| root_of(tree, 12)).unwrap(), Some(head.tree_head().root));
}

#[test]
fn a_record_after_missing_ones_leaves_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let (all, _) = records(6, "alice");
    let store = AuditStore::open(dir.path()).unwrap();
    append(&store, all[4..].to_vec()).unwrap();
    store.flush().unwrap();
    assert_eq!(store.gaps().unwrap(), [Gap { start: 0, end: 4, last: all[3].hash }]);
    store.close();
    let store = AuditStore::open(dir.path()).unwrap();
    let lines: Vec<String> = all[..4].iter().map(|record| record.line.clone()).collect();
    store.fill(&store.gaps().unwrap()[0], &lines).unwrap();
    assert_eq!(store.read(0, 99, 99).unwrap(), all);
}

#[test]
fn a_recovered_group_carries_the_records_that_it_has() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (all, _) = records(9, "alice");
    let store = AuditStore::open(from.path()).unwrap();
    append(&store, all[..8].to_vec()).unwrap();
    store.close();
    // The copy of the log ends at record 5; the recovery is record 6 of its group.
    let (recovered, head) = {
        let (mut records, mut head) = (all[..6].to_vec(), Head::default());
        records.iter().for_each(|record| head.append(record.hash));
        let Entry::Record(record, _) = Entry::parse(&all[6].line).unwrap() else { panic!("a record") };
        let sealed = AuditRecord { act: "group-recovered".to_owned(), ..*record }.seal().unwrap();
        head.append(sealed.hash);
        records.push(sealed);
        (records, head)
    };
    carry_over(from.path(), to.path(), 6, recovered[4..].to_vec()).unwrap();
    let store = AuditStore::open(to.path()).unwrap();
    assert_eq!(store.read(0, 99, 99).unwrap(), recovered);
    assert_eq!(store.tree(|tree| root_of(tree, 7)).unwrap(), Some(head.tree_head().root));
}

#[test]
fn an_edited_byte_on_disk_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (all, head) = records(8, "alice");
    let store = AuditStore::open(dir.path()).unwrap();
    append(&store, all.clone()).unwrap();
    store.close();
    // Whoever has the disk can write a valid file.
    let edit = |index: u64, line: &str| {
        let database = open_database(&dir.path().join(AUDIT_FILE)).unwrap();
        let transaction = database.begin_write().unwrap();
        let table: TableDefinition<'_, u64, &str> = TableDefinition::new("records");
        transaction.open_table(table).unwrap().insert(index, line).unwrap();
        transaction.commit().unwrap();
    };
    edit(5, &all[5].line.replace("alice", "alicf"));
    let store = AuditStore::open(dir.path()).unwrap();
    let mut verifier = Verifier::default();
    let fault = store
        .read(0, 99, 99)
        .unwrap()
        .iter()
        .find_map(|record| verifier.push(&Entry::parse(&record.line).unwrap()).err());
    assert_eq!(fault, Some(Fault::Edited { index: 5 }));
    // The nodes of the tree still give the true root.
    assert_eq!(store.tree(|tree| root_of(tree, 8)).unwrap(), Some(head.tree_head().root));
}
