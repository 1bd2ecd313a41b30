//! Records as rows: one table for each kind, JSON in most.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use comity_proto::v1;
use comity_types::PeeringId;
use prost::Message as _;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zeroize::Zeroizing;

use super::change::Dirty;
use super::{FORMAT, StoreError};
use crate::record::{
    DonorRecord, LiqoRecord, MAX_MESSAGE_ID, OriginRecord, Outgoing, PeerRecord, PeeringRecord, Records, ReportKey,
    SecretBlob,
};
use crate::state_copy::StateImage;

pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(super) const BLOBS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("blobs");
pub(super) const NEXT_MESSAGE_ID: &str = "next-message-id";
pub(super) const PEERINGS: TableDefinition<'_, (&str, u32), &[u8]> = TableDefinition::new("peerings");
pub(super) const DONORS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("donor-leases");
pub(super) const ORIGINS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("origin-leases");
pub(super) const PEERS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("peers");
pub(super) const LIQO: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("liqo-peerings");
pub(super) const CLOSED: TableDefinition<'_, &str, u32> = TableDefinition::new("closed-peerings");
pub(super) const OUTBOX: TableDefinition<'_, u64, (&[u8], &[u8])> = TableDefinition::new("outbox");

/// Writes what a change touched, all of it or nothing.
pub(super) fn write(database: &Database, records: &Records, dirty: &BTreeSet<Dirty>) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for dirty in dirty {
        match dirty {
            Dirty::Peering(peering, epoch) => {
                let mut table = transaction.open_table(PEERINGS)?;
                let name = peering.to_string();
                match records.peering(*peering, *epoch) {
                    Some(record) => drop(table.insert((name.as_str(), *epoch), encode(&**record).as_slice())?),
                    None => drop(table.remove((name.as_str(), *epoch))?),
                }
            }
            Dirty::Donor(lease) => {
                put(&transaction, DONORS, &lease.to_string(), records.donors.get(lease).map(|r| encode(&**r)))?;
            }
            Dirty::Origin(lease) => {
                put(&transaction, ORIGINS, &lease.to_string(), records.origins.get(lease).map(|r| encode(&**r)))?;
            }
            Dirty::Peer(cluster) => {
                put(&transaction, PEERS, cluster, records.peers.get(cluster).map(|r| encode(&**r)))?;
            }
            Dirty::Liqo(peering) => {
                put(&transaction, LIQO, &peering.to_string(), records.liqo.get(peering).map(|r| encode(&**r)))?;
            }
            Dirty::Closed(peering) => {
                let mut table = transaction.open_table(CLOSED)?;
                let name = peering.to_string();
                match records.closed.get(peering) {
                    Some(epoch) => drop(table.insert(name.as_str(), *epoch)?),
                    None => drop(table.remove(name.as_str())?),
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

/// Writes a whole image into an empty file.
pub(super) fn fill(database: &Database, image: &StateImage) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(META)?.insert(NEXT_MESSAGE_ID, image.next_message_id)?;
    for (name, blob) in &image.blobs {
        transaction.open_table(BLOBS)?.insert(name.as_str(), blob.expose())?;
    }
    transaction.commit()?;
    let records = &image.records;
    let peerings = records.peerings.keys().map(|(peering, epoch)| Dirty::Peering(*peering, *epoch));
    let leases =
        records.donors.keys().copied().map(Dirty::Donor).chain(records.origins.keys().copied().map(Dirty::Origin));
    let liqo = records.liqo.keys().copied().map(Dirty::Liqo).chain(records.closed.keys().copied().map(Dirty::Closed));
    let outbox = records.outbox.keys().copied().map(Dirty::Outbox);
    let peers = records.peers.keys().cloned().map(Dirty::Peer);
    let all = peerings.chain(leases).chain(peers).chain(liqo).chain(outbox).chain([Dirty::Fence]).collect();
    write(database, records, &all)
}

/// All blobs.
pub(super) fn blobs(database: &Database) -> Result<BTreeMap<String, SecretBlob>, redb::Error> {
    let transaction = database.begin_read()?;
    let mut blobs = BTreeMap::new();
    for entry in transaction.open_table(BLOBS)?.iter()? {
        let (name, blob) = entry?;
        blobs.insert(name.value().to_owned(), SecretBlob::new(blob.value().to_vec()));
    }
    Ok(blobs)
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

pub(super) fn encode<T: Serialize>(record: &T) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(serde_json::to_vec(record).expect("records hold text, numbers and lists only"))
}

type Rows = Vec<(String, Zeroizing<Vec<u8>>)>;

/// Makes missing tables, and reads everything, including the next message id.
pub(super) fn load(path: &Path, database: &Database) -> Result<(Records, u64), StoreError> {
    let fail = |error: redb::Error| super::database("read", path, error);
    let bad = |record: String, reason: String| StoreError::Record { path: path.to_owned(), record, reason };
    let (found, fence, next_id) = prepare(database).map_err(fail)?;
    if found != FORMAT {
        return Err(StoreError::Format { path: path.to_owned(), found });
    }
    if next_id > MAX_MESSAGE_ID {
        return Err(bad(NEXT_MESSAGE_ID.to_owned(), format!("it is {next_id}, want at most {MAX_MESSAGE_ID}")));
    }
    let transaction = database.begin_read().map_err(|error| fail(error.into()))?;
    let mut records = Records { fence, ..Records::default() };
    for (name, bytes) in peerings(&transaction).map_err(fail)? {
        let record: PeeringRecord = decode(&bytes).map_err(|reason| bad(name, reason))?;
        records.peerings.insert((record.peering, record.epoch), Arc::new(record));
    }
    for (name, bytes) in rows(&transaction, DONORS).map_err(fail)? {
        let record: DonorRecord = decode(&bytes).map_err(|reason| bad(name, reason))?;
        records.donors.insert(record.lease, Arc::new(record));
    }
    for (name, bytes) in rows(&transaction, ORIGINS).map_err(fail)? {
        let record: OriginRecord = decode(&bytes).map_err(|reason| bad(name, reason))?;
        records.origins.insert(record.lease, Arc::new(record));
    }
    for (name, bytes) in rows(&transaction, PEERS).map_err(fail)? {
        let record: PeerRecord = decode(&bytes).map_err(|reason| bad(name, reason))?;
        records.peers.insert(record.cluster.clone(), Arc::new(record));
    }
    for (name, bytes) in rows(&transaction, LIQO).map_err(fail)? {
        let record: LiqoRecord = decode(&bytes).map_err(|reason| bad(format!("{name}/liqo"), reason))?;
        records.liqo.insert(record.peering, Arc::new(record));
    }
    for (name, epoch) in closed(&transaction).map_err(fail)? {
        let peering = PeeringId::parse(&name, "closed peering").map_err(|error| bad(name, error.to_string()))?;
        records.closed.insert(peering, epoch);
    }
    for (id, key, message) in outbox(&transaction).map_err(fail)? {
        let key: ReportKey = decode(&key).map_err(|reason| bad(format!("message {id}"), reason))?;
        let message = v1::AgentMessage::decode(message.as_slice())
            .map_err(|error| bad(format!("message {id}"), error.to_string()))?;
        records.outbox.insert(id, Arc::new(Outgoing { key, message }));
    }
    Ok((records, next_id))
}

fn rows(
    transaction: &redb::ReadTransaction,
    table: TableDefinition<'static, &str, &[u8]>,
) -> Result<Rows, redb::Error> {
    let mut rows = Rows::new();
    for entry in transaction.open_table(table)?.iter()? {
        let (key, value) = entry?;
        rows.push((key.value().to_owned(), Zeroizing::new(value.value().to_vec())));
    }
    Ok(rows)
}

fn peerings(transaction: &redb::ReadTransaction) -> Result<Rows, redb::Error> {
    let mut rows = Rows::new();
    for entry in transaction.open_table(PEERINGS)?.iter()? {
        let (key, value) = entry?;
        rows.push((format!("{}/{}", key.value().0, key.value().1), Zeroizing::new(value.value().to_vec())));
    }
    Ok(rows)
}

fn closed(transaction: &redb::ReadTransaction) -> Result<Vec<(String, u32)>, redb::Error> {
    let mut closed = Vec::new();
    for entry in transaction.open_table(CLOSED)?.iter()? {
        let (key, value) = entry?;
        closed.push((key.value().to_owned(), value.value()));
    }
    Ok(closed)
}

type Messages = Vec<(u64, Vec<u8>, Vec<u8>)>;

fn outbox(transaction: &redb::ReadTransaction) -> Result<Messages, redb::Error> {
    let mut messages = Messages::new();
    for entry in transaction.open_table(OUTBOX)?.iter()? {
        let (key, value) = entry?;
        messages.push((key.value(), value.value().0.to_vec(), value.value().1.to_vec()));
    }
    Ok(messages)
}

/// Format found, fence and next message id. A new file gets this format.
fn prepare(database: &Database) -> Result<(u64, u64, u64), redb::Error> {
    let transaction = database.begin_write()?;
    let facts = {
        let mut meta = transaction.open_table(META)?;
        let format = meta.get("format")?.map(|value| value.value());
        if format.is_none() {
            meta.insert("format", FORMAT)?;
        }
        let fence = meta.get("fence")?.map_or(0, |value| value.value());
        let next_id = meta.get(NEXT_MESSAGE_ID)?.map_or(1, |value| value.value());
        transaction.open_table(BLOBS)?;
        transaction.open_table(PEERINGS)?;
        transaction.open_table(DONORS)?;
        transaction.open_table(ORIGINS)?;
        transaction.open_table(PEERS)?;
        transaction.open_table(LIQO)?;
        transaction.open_table(CLOSED)?;
        transaction.open_table(OUTBOX)?;
        (format.unwrap_or(FORMAT), fence, next_id)
    };
    transaction.commit()?;
    Ok(facts)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    // The JSON error may quote content, so only its position is reported.
    serde_json::from_slice(bytes).map_err(|error| format!("not readable at column {}", error.column()))
}
