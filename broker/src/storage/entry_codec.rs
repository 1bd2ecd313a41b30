//! Log entries as bytes: JSON, so that a later release can read what an earlier one wrote.

use std::io;

use comity_core::LogEnvelope;
use comity_core::log::LOG_FORMAT;
use openraft::{EntryPayload, Membership};
use serde::{Deserialize, Serialize};

use crate::group::MemberNode;
use crate::group::raft_types::{Entry, LogId, Proposed};

/// Bytes of one entry. Commands are bounded before they are proposed; the rest is room for the envelope.
pub(super) const MAX_ENTRY_BYTES: usize = comity_core::limits::MAX_COMMAND_BYTES + (64 << 10);

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Writing<'a> {
    Blank,
    Command(&'a LogEnvelope),
    Membership(&'a Membership<u64, MemberNode>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Reading {
    Blank,
    Command(Proposed),
    Membership(Membership<u64, MemberNode>),
}

/// Only the format of a command, for entries that this release cannot read.
#[derive(Deserialize)]
struct Format {
    command: FormatOnly,
}

#[derive(Deserialize)]
struct FormatOnly {
    format: u16,
}

/// The payload of an entry; its place in the log is kept beside it.
pub(super) fn encode(entry: &Entry) -> io::Result<Vec<u8>> {
    let writing = match &entry.payload {
        EntryPayload::Blank => Writing::Blank,
        EntryPayload::Normal(proposed) => Writing::Command(&proposed.0),
        EntryPayload::Membership(membership) => Writing::Membership(membership),
    };
    let bytes = serde_json::to_vec(&writing).map_err(io::Error::other)?;
    if bytes.len() > MAX_ENTRY_BYTES {
        let message = format!("entry {} has {} bytes, allowed are {MAX_ENTRY_BYTES}", entry.log_id, bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(bytes)
}

/// The entry that [`encode`] wrote.
pub(super) fn decode(log_id: LogId, bytes: &[u8]) -> io::Result<Entry> {
    let read = serde_json::from_slice(bytes);
    let found = match &read {
        Ok(Reading::Command(proposed)) => proposed.0.format,
        Ok(Reading::Blank | Reading::Membership(_)) => LOG_FORMAT,
        Err(_) => serde_json::from_slice::<Format>(bytes).map_or(LOG_FORMAT, |f| f.command.format),
    };
    if found > LOG_FORMAT {
        let message = format!(
            "log entry {log_id} has format {found}, this broker reads up to {LOG_FORMAT}; install the newer release"
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let reading = read.map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("log entry {log_id} cannot be read: {error}"))
    })?;
    let payload = match reading {
        Reading::Blank => EntryPayload::Blank,
        Reading::Command(proposed) => EntryPayload::Normal(proposed),
        Reading::Membership(membership) => EntryPayload::Membership(membership),
    };
    Ok(Entry { log_id, payload })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use openraft::vote::leader_id_std::CommittedLeaderId;

    use super::*;

    #[test]
    fn an_entry_of_a_later_release_is_named_as_such() {
        let bytes = br#"{"command":{"format":9,"command":{"teleport":{}}}}"#;
        let error = decode(LogId::new(CommittedLeaderId::new(3), 17), bytes).unwrap_err().to_string();
        assert!(error.contains("has format 9") && error.contains("newer release"), "{error}");
    }
}
