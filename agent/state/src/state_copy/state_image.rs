//! The whole state as bytes: JSON, compressed.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

use comity_proto::v1;
use comity_types::PeeringId;
use prost::Message as _;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::StateFiles;
use crate::record::{
    DonorRecord, LiqoRecord, MAX_MESSAGE_ID, OriginRecord, Outgoing, PeerRecord, PeeringRecord, Records, ReportKey,
    SecretBlob,
};

/// Version of the image's layout.
const IMAGE_FORMAT: u64 = 1;
/// Bound of the decompressed image.
const MAX_RAW_BYTES: u64 = 64 << 20;
/// The fastest level: each change writes an image.
const LEVEL: i32 = 1;

/// The records, the blobs and the files.
#[derive(Clone, Debug)]
pub(crate) struct StateImage {
    pub(crate) records: Records,
    /// All message ids that were used are lower.
    pub(crate) next_message_id: u64,
    /// Blobs of the store by name.
    pub(crate) blobs: BTreeMap<String, SecretBlob>,
    pub(crate) files: StateFiles,
}

#[derive(Serialize, Deserialize)]
struct ClosedRow {
    peering: PeeringId,
    epoch: u32,
}

#[derive(Serialize, Deserialize)]
struct OutboxRow {
    id: u64,
    key: ReportKey,
    message: SecretBlob,
}

#[derive(Serialize)]
struct WrittenImage<'a> {
    format: u64,
    fence: u64,
    next_message_id: u64,
    peerings: Vec<&'a PeeringRecord>,
    donors: Vec<&'a DonorRecord>,
    origins: Vec<&'a OriginRecord>,
    peers: Vec<&'a PeerRecord>,
    liqo: Vec<&'a LiqoRecord>,
    closed: Vec<ClosedRow>,
    outbox: Vec<OutboxRow>,
    blobs: &'a BTreeMap<String, SecretBlob>,
    files: &'a StateFiles,
}

#[derive(Deserialize)]
struct ReadImage {
    format: u64,
    fence: u64,
    next_message_id: u64,
    peerings: Vec<PeeringRecord>,
    donors: Vec<DonorRecord>,
    origins: Vec<OriginRecord>,
    peers: Vec<PeerRecord>,
    liqo: Vec<LiqoRecord>,
    closed: Vec<ClosedRow>,
    outbox: Vec<OutboxRow>,
    blobs: BTreeMap<String, SecretBlob>,
    files: StateFiles,
}

impl StateImage {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let records = &self.records;
        let closed = records.closed.iter().map(|(peering, epoch)| ClosedRow { peering: *peering, epoch: *epoch });
        let outbox = records.outbox.iter().map(|(id, outgoing)| OutboxRow {
            id: *id,
            key: outgoing.key.clone(),
            message: SecretBlob::new(outgoing.message.encode_to_vec()),
        });
        let written = WrittenImage {
            format: IMAGE_FORMAT,
            fence: records.fence,
            next_message_id: self.next_message_id,
            peerings: records.peerings.values().map(|record| &**record).collect(),
            donors: records.donors.values().map(|record| &**record).collect(),
            origins: records.origins.values().map(|record| &**record).collect(),
            peers: records.peers.values().map(|record| &**record).collect(),
            liqo: records.liqo.values().map(|record| &**record).collect(),
            closed: closed.collect(),
            outbox: outbox.collect(),
            blobs: &self.blobs,
            files: &self.files,
        };
        let raw = serde_json::to_vec(&written).map(Zeroizing::new).expect("records hold text, numbers and lists only");
        zstd::encode_all(raw.as_slice(), LEVEL).expect("memory takes every byte")
    }

    pub(crate) fn decode(image: &[u8]) -> Result<Self, String> {
        let mut raw = Zeroizing::new(Vec::new());
        let decoder = zstd::Decoder::new(image).map_err(|error| error.to_string())?;
        decoder.take(MAX_RAW_BYTES).read_to_end(&mut raw).map_err(|error| error.to_string())?;
        Self::from_json(&raw)
    }

    /// Reads the decompressed image.
    pub(super) fn from_json(raw: &[u8]) -> Result<Self, String> {
        // The JSON error may quote content, so only its position is reported.
        let read: ReadImage =
            serde_json::from_slice(raw).map_err(|error| format!("not readable at column {}", error.column()))?;
        if read.format != IMAGE_FORMAT {
            return Err(format!("it has format {}, this agent reads format {IMAGE_FORMAT}", read.format));
        }
        if read.next_message_id > MAX_MESSAGE_ID {
            return Err(format!("next_message_id is {}, want at most {MAX_MESSAGE_ID}", read.next_message_id));
        }
        let mut records = Records { fence: read.fence, ..Records::default() };
        for record in read.peerings {
            records.peerings.insert((record.peering, record.epoch), Arc::new(record));
        }
        records.donors = read.donors.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        records.origins = read.origins.into_iter().map(|record| (record.lease, Arc::new(record))).collect();
        records.peers = read.peers.into_iter().map(|record| (record.cluster.clone(), Arc::new(record))).collect();
        records.liqo = read.liqo.into_iter().map(|record| (record.peering, Arc::new(record))).collect();
        records.closed = read.closed.into_iter().map(|row| (row.peering, row.epoch)).collect();
        for OutboxRow { id, key, message } in read.outbox {
            let message =
                v1::AgentMessage::decode(message.expose()).map_err(|error| format!("message {id}: {error}"))?;
            records.outbox.insert(id, Arc::new(Outgoing { key, message }));
        }
        let (next_message_id, blobs, files) = (read.next_message_id, read.blobs, read.files);
        Ok(Self { records, next_message_id, blobs, files })
    }
}
