//! The agent's memory on disk: one redb file, readable by its owner only, in the state directory.
//!
//! Readers see a snapshot in memory; writers change a copy, and the copy is shown only once its changes are on disk. So
//! what a plan was made from is always what a restart would find.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use comity_proto::v1;
use comity_runtime::atomic_file;
use prost::Message as _;
use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::record::{DonorRecord, OriginRecord, Outgoing, PeeringRecord, Records, ReportKey};

/// Unacknowledged messages. A broker group that is away for long gets the newest of each kind, so this many kinds.
pub const MAX_OUTBOX: usize = 4_096;
/// Version of the file's layout.
const FORMAT: u64 = 1;
/// Message ids taken from the disk at once.
const ID_BLOCK: u64 = 1 << 20;

const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const BLOBS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("blobs");
const PEERINGS: TableDefinition<'_, (&str, u32), &[u8]> = TableDefinition::new("peerings");
const DONORS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("donor-leases");
const ORIGINS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("origin-leases");
const CLOSED: TableDefinition<'_, &str, u32> = TableDefinition::new("closed-peerings");
const OUTBOX: TableDefinition<'_, u64, (&[u8], &[u8])> = TableDefinition::new("outbox");

/// Why the memory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory or file cannot be made private.
    #[error(transparent)]
    File(#[from] atomic_file::FileError),
    /// The database failed.
    #[error(
        "cannot {operation} {path}: {source}; check the disk, or move the file away to begin anew (peerings then take fresh keys)"
    )]
    Database {
        /// `open`, `read`, `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// What redb said.
        #[source]
        source: Box<redb::Error>,
    },
    /// A record is not what this version writes.
    #[error("{path}: record {record} cannot be read ({reason}); restore the file, or move it away to begin anew")]
    Record {
        /// The file.
        path: PathBuf,
        /// Which record.
        record: String,
        /// What is wrong with it; no content.
        reason: String,
    },
    /// Another layout.
    #[error("{path} has format {found}, this agent writes format {FORMAT}: run the version that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// Too many messages wait.
    #[error("{MAX_OUTBOX} messages wait for the broker group; nothing more is taken on until some are acknowledged")]
    OutboxFull,
    /// The task that writes ended.
    #[error("the store's task ended: {0}")]
    Task(String),
}

struct Inner {
    path: PathBuf,
    database: Database,
    /// Next message id, and the first that is not taken from the disk yet. Held while writing: one writer at a time.
    ids: Mutex<(u64, u64)>,
    records: watch::Sender<Arc<Records>>,
}

/// The agent's memory. Cheap to clone.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Dirty {
    Peering(String, u32),
    Donor(String),
    Origin(String),
    Closed(String),
    Outbox(u64),
    Fence,
}

/// A change being made: reads and writes go to a copy.
pub struct Change<'a> {
    records: Records,
    dirty: BTreeSet<Dirty>,
    next_id: &'a mut u64,
    full: bool,
}

impl Change<'_> {
    /// Everything as it stands within this change.
    #[must_use]
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Inserts or replaces.
    pub fn put_peering(&mut self, record: PeeringRecord) {
        let key = (record.peering.clone(), record.epoch);
        self.dirty.insert(Dirty::Peering(key.0.clone(), key.1));
        self.records.peerings.insert(key, Arc::new(record));
    }

    /// Changes one that exists; false if it does not.
    pub fn change_peering(&mut self, peering: &str, epoch: u32, change: impl FnOnce(&mut PeeringRecord)) -> bool {
        let Some(mut record) = self.records.peering(peering, epoch).map(|record| PeeringRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_peering(record);
        true
    }

    /// Removes one epoch.
    pub fn drop_peering(&mut self, peering: &str, epoch: u32) {
        if self.records.peerings.remove(&(peering.to_owned(), epoch)).is_some() {
            self.dirty.insert(Dirty::Peering(peering.to_owned(), epoch));
        }
    }

    /// Inserts or replaces.
    pub fn put_donor(&mut self, record: DonorRecord) {
        if record.fencing_token > self.records.fence {
            self.records.fence = record.fencing_token;
            self.dirty.insert(Dirty::Fence);
        }
        self.dirty.insert(Dirty::Donor(record.lease.clone()));
        self.records.donors.insert(record.lease.clone(), Arc::new(record));
    }

    /// Changes one that exists; false if it does not.
    pub fn change_donor(&mut self, lease: &str, change: impl FnOnce(&mut DonorRecord)) -> bool {
        let Some(mut record) = self.records.donors.get(lease).map(|record| DonorRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_donor(record);
        true
    }

    /// Inserts or replaces.
    pub fn put_origin(&mut self, record: OriginRecord) {
        self.dirty.insert(Dirty::Origin(record.lease.clone()));
        self.records.origins.insert(record.lease.clone(), Arc::new(record));
    }

    /// Changes one that exists; false if it does not.
    pub fn change_origin(&mut self, lease: &str, change: impl FnOnce(&mut OriginRecord)) -> bool {
        let Some(mut record) = self.records.origins.get(lease).map(|record| OriginRecord::clone(record)) else {
            return false;
        };
        change(&mut record);
        self.put_origin(record);
        true
    }

    /// Forgets both sides of a lease. The fence stays.
    pub fn drop_lease(&mut self, lease: &str) {
        if self.records.donors.remove(lease).is_some() {
            self.dirty.insert(Dirty::Donor(lease.to_owned()));
        }
        if self.records.origins.remove(lease).is_some() {
            self.dirty.insert(Dirty::Origin(lease.to_owned()));
        }
    }

    /// Remembers that a peering was taken down and that the broker knows it.
    pub fn put_closed(&mut self, peering: &str, epoch: u32) {
        self.records.closed.insert(peering.to_owned(), epoch);
        self.dirty.insert(Dirty::Closed(peering.to_owned()));
    }

    /// Forgets it.
    pub fn drop_closed(&mut self, peering: &str) {
        if self.records.closed.remove(peering).is_some() {
            self.dirty.insert(Dirty::Closed(peering.to_owned()));
        }
    }

    /// Puts a message into the outbox. It takes the place of an earlier one about the same, unless that says the same.
    pub fn send(&mut self, key: ReportKey, body: v1::agent_message::Body) {
        let earlier: Vec<u64> = self
            .records
            .outbox
            .iter()
            .filter(|(_, outgoing)| outgoing.key == key)
            .map(|(id, outgoing)| (*id, outgoing.message.body.as_ref() == Some(&body)))
            .filter_map(|(id, same)| (!same).then_some(id))
            .collect();
        let same = self
            .records
            .outbox
            .values()
            .any(|outgoing| outgoing.key == key && outgoing.message.body.as_ref() == Some(&body));
        if same {
            return;
        }
        for id in earlier {
            self.unsend(id);
        }
        if self.records.outbox.len() >= MAX_OUTBOX {
            self.full = true;
            return;
        }
        let id = *self.next_id;
        *self.next_id += 1;
        let traceparent = comity_runtime::telemetry::current_traceparent().unwrap_or_default();
        let message = v1::AgentMessage { message_id: id, body: Some(body), traceparent };
        self.records.outbox.insert(id, Arc::new(Outgoing { key, message }));
        self.dirty.insert(Dirty::Outbox(id));
    }

    /// Takes a message out of the outbox.
    pub fn unsend(&mut self, id: u64) -> Option<Arc<Outgoing>> {
        let outgoing = self.records.outbox.remove(&id)?;
        self.dirty.insert(Dirty::Outbox(id));
        Some(outgoing)
    }
}

impl Store {
    /// Opens or makes the memory in a directory that only the owner can enter.
    ///
    /// # Errors
    /// [`StoreError`]; a damaged file is an error and not replaced.
    pub fn open(directory: &Path) -> Result<Self, StoreError> {
        atomic_file::create_private_dir(directory)?;
        let path = directory.join("agent.redb");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(atomic_file::PRIVATE);
        let file = options.open(&path).map_err(|error| database("open", &path, redb::Error::Io(error)))?;
        let database = redb::Builder::new().create_file(file).map_err(|error| database("open", &path, error))?;
        let (records, ids) = load(&path, &database)?;
        let records = watch::Sender::new(Arc::new(records));
        let store = Self(Arc::new(Inner { path, database, ids: Mutex::new((ids, ids)), records }));
        Ok(store)
    }

    /// Everything as it stands on disk.
    #[must_use]
    pub fn records(&self) -> Arc<Records> {
        self.0.records.borrow().clone()
    }

    /// Follows it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<Records>> {
        self.0.records.subscribe()
    }

    /// Makes a change, all of it or nothing, and returns once it is on disk.
    ///
    /// # Errors
    /// [`StoreError`]; nothing is then changed.
    pub async fn update<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Change<'_>) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let inner = Arc::clone(&self.0);
        let span = tracing::Span::current();
        let task = tokio::task::spawn_blocking(move || span.in_scope(|| inner.update(change)));
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// A message id for a message that is not kept.
    ///
    /// # Errors
    /// [`StoreError`] where ids cannot be taken from the disk.
    pub async fn take_message_id(&self) -> Result<u64, StoreError> {
        let inner = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || {
            let mut ids = inner.ids.lock().unwrap_or_else(PoisonError::into_inner);
            if ids.0 >= ids.1 {
                inner.reserve(&mut ids)?;
            }
            ids.0 += 1;
            Ok(ids.0 - 1)
        });
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// Keeps a blob under a name, without waiting for the disk: what is lost by a crash comes again.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep_soon(&self, name: &'static str, blob: Vec<u8>) -> Result<(), StoreError> {
        self.keep_with(name, blob, Durability::None).await
    }

    /// Keeps a blob under a name; returns once it is on disk.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep(&self, name: &'static str, blob: Vec<u8>) -> Result<(), StoreError> {
        self.keep_with(name, blob, Durability::Immediate).await
    }

    async fn keep_with(&self, name: &'static str, blob: Vec<u8>, durability: Durability) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.0);
        let task = tokio::task::spawn_blocking(move || inner.keep(name, &blob, durability));
        task.await.map_err(|error| StoreError::Task(error.to_string()))?
    }

    /// Reads what was kept under a name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn kept(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let fail = |error| database("read", &self.0.path, error);
        let read = || -> Result<_, redb::Error> {
            let transaction = self.0.database.begin_read()?;
            let table = transaction.open_table(BLOBS)?;
            Ok(table.get(name)?.map(|blob| blob.value().to_vec()))
        };
        read().map_err(fail)
    }
}

impl Inner {
    fn update<T>(&self, change: impl FnOnce(&mut Change<'_>) -> T) -> Result<T, StoreError> {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next_id = ids.0;
        let records = Records::clone(&self.records.borrow());
        let mut pending = Change { records, dirty: BTreeSet::new(), next_id: &mut next_id, full: false };
        let answer = change(&mut pending);
        let Change { records, dirty, full, .. } = pending;
        if full {
            return Err(StoreError::OutboxFull);
        }
        if dirty.is_empty() {
            return Ok(answer);
        }
        if next_id > ids.1 {
            self.reserve(&mut ids)?;
        }
        self.write(&records, &dirty).map_err(|error| database("write", &self.path, error))?;
        ids.0 = next_id;
        self.records.send_replace(Arc::new(records));
        Ok(answer)
    }

    fn reserve(&self, ids: &mut (u64, u64)) -> Result<(), StoreError> {
        let reserved = ids.1 + ID_BLOCK;
        let write = || -> Result<(), redb::Error> {
            let transaction = self.database.begin_write()?;
            transaction.open_table(META)?.insert("next-message-id", reserved)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| database("write", &self.path, error))?;
        ids.1 = reserved;
        Ok(())
    }

    fn keep(&self, name: &str, blob: &[u8], durability: Durability) -> Result<(), StoreError> {
        let _writer = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let write = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability)?;
            transaction.open_table(BLOBS)?.insert(name, blob)?;
            transaction.commit()?;
            Ok(())
        };
        write().map_err(|error| database("write", &self.path, error))
    }

    fn write(&self, records: &Records, dirty: &BTreeSet<Dirty>) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        for dirty in dirty {
            match dirty {
                Dirty::Peering(peering, epoch) => {
                    let mut table = transaction.open_table(PEERINGS)?;
                    match records.peering(peering, *epoch) {
                        Some(record) => drop(table.insert((peering.as_str(), *epoch), encode(&**record).as_slice())?),
                        None => drop(table.remove((peering.as_str(), *epoch))?),
                    }
                }
                Dirty::Donor(lease) => {
                    put(&transaction, DONORS, lease, records.donors.get(lease).map(|r| encode(&**r)))?
                }
                Dirty::Origin(lease) => {
                    put(&transaction, ORIGINS, lease, records.origins.get(lease).map(|r| encode(&**r)))?;
                }
                Dirty::Closed(peering) => {
                    let mut table = transaction.open_table(CLOSED)?;
                    match records.closed.get(peering) {
                        Some(epoch) => drop(table.insert(peering.as_str(), *epoch)?),
                        None => drop(table.remove(peering.as_str())?),
                    }
                }
                Dirty::Outbox(id) => {
                    let mut table = transaction.open_table(OUTBOX)?;
                    match records.outbox.get(id) {
                        Some(outgoing) => {
                            let key = encode(&outgoing.key);
                            let message = outgoing.message.encode_to_vec();
                            table.insert(*id, (key.as_slice(), message.as_slice()))?;
                        }
                        None => drop(table.remove(*id)?),
                    }
                }
                Dirty::Fence => drop(transaction.open_table(META)?.insert("fence", records.fence)?),
            }
        }
        transaction.commit()?;
        Ok(())
    }
}

fn put(
    transaction: &redb::WriteTransaction,
    table: TableDefinition<'static, &str, &[u8]>,
    key: &str,
    value: Option<Zeroizing<Vec<u8>>>,
) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(table)?;
    match value {
        Some(value) => drop(table.insert(key, value.as_slice())?),
        None => drop(table.remove(key)?),
    }
    Ok(())
}

fn encode<T: Serialize>(record: &T) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(serde_json::to_vec(record).expect("records hold text, numbers and lists only"))
}

fn database(operation: &'static str, path: &Path, source: impl Into<redb::Error>) -> StoreError {
    StoreError::Database { operation, path: path.to_owned(), source: Box::new(source.into()) }
}

/// Makes the tables where they are not there, and reads everything.
fn load(path: &Path, database: &Database) -> Result<(Records, u64), StoreError> {
    let fail = |error: redb::Error| self::database("read", path, error);
    let bad = |record: String, reason: String| StoreError::Record { path: path.to_owned(), record, reason };
    let (found, fence, next_id) = prepare(database).map_err(fail)?;
    if found != FORMAT {
        return Err(StoreError::Format { path: path.to_owned(), found });
    }
    let transaction = database.begin_read().map_err(|error| fail(error.into()))?;
    let mut records = Records { fence, ..Records::default() };
    let mut raw: Vec<(String, Zeroizing<Vec<u8>>)> = Vec::new();
    let mut read = || -> Result<_, redb::Error> {
        for entry in transaction.open_table(PEERINGS)?.iter()? {
            let (key, value) = entry?;
            raw.push((format!("{}/{}", key.value().0, key.value().1), Zeroizing::new(value.value().to_vec())));
        }
        let peerings = std::mem::take(&mut raw);
        for entry in transaction.open_table(DONORS)?.iter()? {
            let (key, value) = entry?;
            raw.push((key.value().to_owned(), Zeroizing::new(value.value().to_vec())));
        }
        let donors = std::mem::take(&mut raw);
        for entry in transaction.open_table(ORIGINS)?.iter()? {
            let (key, value) = entry?;
            raw.push((key.value().to_owned(), Zeroizing::new(value.value().to_vec())));
        }
        let origins = std::mem::take(&mut raw);
        for entry in transaction.open_table(CLOSED)?.iter()? {
            let (key, value) = entry?;
            records.closed.insert(key.value().to_owned(), value.value());
        }
        let mut outbox = Vec::new();
        for entry in transaction.open_table(OUTBOX)?.iter()? {
            let (key, value) = entry?;
            outbox.push((key.value(), value.value().0.to_vec(), value.value().1.to_vec()));
        }
        Ok((peerings, donors, origins, outbox))
    };
    let (peerings, donors, origins, outbox) = read().map_err(fail)?;
    for (name, bytes) in &peerings {
        let record: PeeringRecord = decode(bytes).map_err(|reason| bad(name.clone(), reason))?;
        records.peerings.insert((record.peering.clone(), record.epoch), Arc::new(record));
    }
    for (name, bytes) in &donors {
        let record: DonorRecord = decode(bytes).map_err(|reason| bad(name.clone(), reason))?;
        records.donors.insert(name.clone(), Arc::new(record));
    }
    for (name, bytes) in &origins {
        let record: OriginRecord = decode(bytes).map_err(|reason| bad(name.clone(), reason))?;
        records.origins.insert(name.clone(), Arc::new(record));
    }
    for (id, key, message) in outbox {
        let key: ReportKey = decode(&key).map_err(|reason| bad(format!("message {id}"), reason))?;
        let message = v1::AgentMessage::decode(message.as_slice())
            .map_err(|error| bad(format!("message {id}"), error.to_string()))?;
        records.outbox.insert(id, Arc::new(Outgoing { key, message }));
    }
    Ok((records, next_id))
}

fn prepare(database: &Database) -> Result<(u64, u64, u64), redb::Error> {
    let transaction = database.begin_write()?;
    let facts = {
        let mut meta = transaction.open_table(META)?;
        let format = meta.get("format")?.map(|value| value.value());
        if format.is_none() {
            meta.insert("format", FORMAT)?;
        }
        let fence = meta.get("fence")?.map_or(0, |value| value.value());
        let next_id = meta.get("next-message-id")?.map_or(1, |value| value.value());
        transaction.open_table(BLOBS)?;
        transaction.open_table(PEERINGS)?;
        transaction.open_table(DONORS)?;
        transaction.open_table(ORIGINS)?;
        transaction.open_table(CLOSED)?;
        transaction.open_table(OUTBOX)?;
        (format.unwrap_or(FORMAT), fence, next_id)
    };
    transaction.commit()?;
    Ok(facts)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // The JSON error may quote content, so only its place is told.
    serde_json::from_slice(bytes).map_err(|error| format!("not readable at column {}", error.column()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn heartbeat() -> v1::agent_message::Body {
        v1::agent_message::Body::Heartbeat(v1::Heartbeat {})
    }

    fn clean(token: u64) -> v1::agent_message::Body {
        v1::agent_message::Body::LeaseReport(v1::LeaseReport {
            lease: "lease-1".into(),
            fencing_token: token,
            outcome: None,
        })
    }

    fn donor(lease: &str, token: u64) -> DonorRecord {
        DonorRecord {
            lease: lease.into(),
            fencing_token: token,
            milli: 1_000,
            admitted_at_ms: 5,
            namespace: None,
            last_sequence: 0,
            sealed: None,
            removed: false,
            clean_acked: false,
        }
    }

    #[tokio::test]
    async fn everything_is_there_after_a_restart_and_only_for_the_owner() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("state");
        let store = Store::open(&directory).unwrap();
        store
            .update(|change| {
                change.put_donor(donor("lease-1", 7));
                change.put_origin(OriginRecord::new("lease-2", 3));
                change.put_closed("peer-1", 2);
                change.send(ReportKey::Clean("lease-1".into()), clean(7));
            })
            .await
            .unwrap();
        store.keep("brokers", b"a:1".to_vec()).await.unwrap();
        let before = store.records();
        drop(store);
        let mode = std::fs::metadata(directory.join("agent.redb")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let store = Store::open(&directory).unwrap();
        let after = store.records();
        assert_eq!(after.donors, before.donors);
        assert_eq!(after.origins, before.origins);
        assert_eq!((after.fence, after.closed.get("peer-1")), (7, Some(&2)));
        assert_eq!(after.outbox, before.outbox);
        assert_eq!(store.kept("brokers").unwrap().unwrap(), b"a:1");
    }

    #[tokio::test]
    async fn message_ids_grow_over_restarts_and_over_messages_that_are_not_kept() {
        let home = tempfile::tempdir().unwrap();
        let mut last = 0;
        for _ in 0..3 {
            let store = Store::open(home.path()).unwrap();
            let loose = store.take_message_id().await.unwrap();
            store.update(|change| change.send(ReportKey::Clean("lease-1".into()), clean(loose_token()))).await.unwrap();
            let kept = *store.records().outbox.keys().next_back().unwrap();
            assert!(loose > last && kept > loose, "{last} {loose} {kept}");
            store.update(move |change| drop(change.unsend(kept))).await.unwrap();
            last = kept;
        }
    }

    fn loose_token() -> u64 {
        9
    }

    #[tokio::test]
    async fn one_message_of_a_kind_waits_and_the_newest_wins() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let key = || ReportKey::Clean("lease-1".into());
        store.update(move |change| change.send(key(), clean(1))).await.unwrap();
        let first = store.records();
        store.update(move |change| change.send(key(), clean(1))).await.unwrap();
        assert_eq!(store.records().outbox, first.outbox, "the same again changes nothing");
        store.update(move |change| change.send(key(), clean(2))).await.unwrap();
        let records = store.records();
        assert_eq!(records.outbox.len(), 1);
        assert!(records.outbox.keys().next() > first.outbox.keys().next());
    }

    #[tokio::test]
    async fn a_full_outbox_refuses_and_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        store
            .update(|change| {
                (0..MAX_OUTBOX).for_each(|n| change.send(ReportKey::Clean(format!("lease-{n}")), heartbeat()))
            })
            .await
            .unwrap();
        let refused = store
            .update(|change| {
                change.put_donor(donor("lease-1", 1));
                change.send(ReportKey::Ready("lease-1".into()), heartbeat());
            })
            .await;
        assert!(matches!(refused, Err(StoreError::OutboxFull)));
        assert!(store.records().donors.is_empty());
    }

    #[tokio::test]
    async fn a_damaged_record_is_named_and_not_quoted() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let write = || -> Result<(), redb::Error> {
            let transaction = store.0.database.begin_write()?;
            transaction.open_table(DONORS)?.insert("lease-9", b"{\"secret\"".as_slice())?;
            transaction.commit()?;
            Ok(())
        };
        write().unwrap();
        drop(store);
        let error = Store::open(home.path()).err().unwrap().to_string();
        assert!(error.contains("lease-9") && !error.contains("secret"), "{error}");
    }
}
