//! Fuzzes the rows of the store. Edits of the file itself would not get past the checksums of its pages.

use comity_fuzz::fuzz;
use redb::TableDefinition;
use redb::backends::InMemoryBackend;
use zeroize::Zeroizing;

use super::tables::{CLOSED, DONORS, LIQO, ORIGINS, OUTBOX, PEERINGS, PEERS, encode};
use super::*;
use crate::record::MAX_MESSAGE_ID;
use crate::state_copy::fuzz_image::records;

/// Tables with a text as key, and bytes as value.
const OF_BYTES: [TableDefinition<'_, &str, &[u8]>; 5] = [BLOBS, DONORS, ORIGINS, PEERS, LIQO];
/// Numbers of the other tables in an input.
const IN_META: u8 = 0;
const IN_CLOSED: u8 = 1;
const IN_PEERINGS: u8 = 2;
const IN_OUTBOX: u8 = 3;
/// Number of the first of [`OF_BYTES`] in an input.
const IN_BYTES: u8 = 5;

/// A row in an input: the number of its table, the lengths of key and value in one and two bytes, key, value.
fn row(table: u8, key: &[u8], value: &[u8]) -> Vec<u8> {
    let key_bytes = u8::try_from(key.len()).expect("a short key");
    let value_bytes = u16::try_from(value.len()).expect("a short value");
    [&[table, key_bytes][..], &value_bytes.to_be_bytes(), key, value].concat()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// Writes the rows of an input.
fn write(database: &Database, mut input: &[u8]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    while let Some((&[table, key_bytes, high, low], rest)) = input.split_first_chunk() {
        let (key, rest) = rest.split_at(usize::from(key_bytes).min(rest.len()));
        let (value, rest) = rest.split_at(usize::from(u16::from_be_bytes([high, low])).min(rest.len()));
        input = rest;
        let name = String::from_utf8_lossy(key);
        let short = u32::try_from(number(value)).unwrap_or(u32::MAX);
        match table {
            IN_META => drop(transaction.open_table(META)?.insert(&*name, number(value))?),
            IN_CLOSED => drop(transaction.open_table(CLOSED)?.insert(&*name, short)?),
            IN_PEERINGS => drop(transaction.open_table(PEERINGS)?.insert((&*name, 2_u32), value)?),
            IN_OUTBOX => {
                // The first line is the subject, the rest the message.
                let end = value.iter().position(|byte| *byte == b'\n').unwrap_or(value.len());
                let message = value.get(end + 1..).unwrap_or_default();
                drop(transaction.open_table(OUTBOX)?.insert(number(key), (&value[..end], message))?);
            }
            other => {
                let table = OF_BYTES[usize::from(other) % OF_BYTES.len()];
                drop(transaction.open_table(table)?.insert(&*name, value)?);
            }
        }
    }
    transaction.commit()?;
    Ok(())
}

fn valid() -> Vec<u8> {
    let records = records();
    let mut rows = vec![
        row(IN_META, b"fence", &7_u64.to_be_bytes()),
        row(IN_META, NEXT_MESSAGE_ID.as_bytes(), &9_u64.to_be_bytes()),
        row(IN_BYTES, b"brokers", b"a:1"),
    ];
    let mut put = |table: u8, name: &str, record: &Zeroizing<Vec<u8>>| rows.push(row(table, name.as_bytes(), record));
    for (lease, record) in &records.donors {
        put(IN_BYTES + 1, &lease.to_string(), &encode(&**record));
    }
    for (lease, record) in &records.origins {
        put(IN_BYTES + 2, &lease.to_string(), &encode(&**record));
    }
    for (cluster, record) in &records.peers {
        put(IN_BYTES + 3, cluster, &encode(&**record));
    }
    for (peering, record) in &records.liqo {
        put(IN_BYTES + 4, &peering.to_string(), &encode(&**record));
    }
    for ((peering, _), record) in &records.peerings {
        put(IN_PEERINGS, &peering.to_string(), &encode(&**record));
    }
    for (peering, epoch) in &records.closed {
        rows.push(row(IN_CLOSED, peering.to_string().as_bytes(), &epoch.to_be_bytes()));
    }
    for (id, outgoing) in &records.outbox {
        let message = prost::Message::encode_to_vec(&outgoing.message);
        let value = [&encode(&outgoing.key)[..], b"\n", &message[..]].concat();
        rows.push(row(IN_OUTBOX, &id.to_be_bytes(), &value));
    }
    rows.concat()
}

fn in_memory() -> Database {
    redb::Builder::new().create_with_backend(InMemoryBackend::new()).expect("memory")
}

fn image_of(database: &Database) -> Result<StateImage, StoreError> {
    let (records, next_message_id) = tables::load(Path::new(STORE_FILE), database)?;
    let blobs = tables::blobs(database).expect("a table that can be read");
    Ok(StateImage { records, next_message_id, blobs, files: StateFiles::default() })
}

#[test]
fn rows_of_the_store() {
    fuzz!("agent_records", vec![valid()], |bytes: &[u8]| {
        let database = in_memory();
        write(&database, bytes).expect("memory takes every row");
        let image = match image_of(&database) {
            Ok(image) => image,
            Err(error) => {
                assert!(error.to_string().contains(STORE_FILE), "{error}");
                return false;
            }
        };
        assert!(image.next_message_id <= MAX_MESSAGE_ID, "message ids would overflow");
        let again = in_memory();
        tables::fill(&again, &image).expect("memory takes every record");
        let again = image_of(&again).expect("what was read can be written, and read again");
        assert_eq!(again.encode(), image.encode(), "nothing is lost");
        true
    });
}
