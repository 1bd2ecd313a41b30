//! Log entries as bytes: JSON, so that a later release can read what an earlier one wrote.

use std::io;

use bytes::Bytes;
use comity_core::LogEnvelope;
use comity_core::log::LOG_FORMAT;
use openraft::{EntryPayload, Membership};
use serde::{Deserialize, Serialize};

use crate::group::MemberNode;
use crate::group::raft_types::{Entry, LogId, Proposed};

/// Bytes of one entry. Commands are bounded before they are proposed; the rest is room for the envelope.
pub(crate) const MAX_ENTRY_BYTES: usize = comity_core::limits::MAX_COMMAND_BYTES + (64 << 10);

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Writing<'a> {
    Blank,
    Command(&'a LogEnvelope),
    Membership(&'a Membership<u64, MemberNode>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "it is read, taken apart and dropped")]
enum Reading {
    Blank,
    Command(LogEnvelope),
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

/// How the bytes of a command begin; its format follows.
const COMMAND: &[u8] = br#"{"command":{"format":"#;

/// The bytes of a command.
pub(crate) fn encode_command(envelope: &LogEnvelope) -> io::Result<Bytes> {
    write(&Writing::Command(envelope))
}

/// The payload of an entry; its place in the log is kept beside it.
pub(crate) fn encode(entry: &Entry) -> io::Result<Bytes> {
    match &entry.payload {
        EntryPayload::Blank => write(&Writing::Blank),
        EntryPayload::Normal(proposed) => Ok(proposed.bytes().clone()),
        EntryPayload::Membership(membership) => write(&Writing::Membership(membership)),
    }
}

fn write(writing: &Writing<'_>) -> io::Result<Bytes> {
    let bytes = serde_json::to_vec(writing).map_err(io::Error::other)?;
    if bytes.len() > MAX_ENTRY_BYTES {
        let message = format!("an entry of {} bytes, allowed are {MAX_ENTRY_BYTES}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(bytes.into())
}

/// The entry that [`encode`] wrote. A command is read when it is applied; here only its format is looked at.
pub(crate) fn decode(log_id: LogId, bytes: Bytes) -> io::Result<Entry> {
    let payload = if command_format(&bytes).is_some_and(|format| format <= LOG_FORMAT) {
        EntryPayload::Normal(Proposed::stored(bytes))
    } else {
        match read(&bytes).map_err(|error| io::Error::new(error.kind(), format!("log entry {log_id}: {error}")))? {
            Reading::Blank => EntryPayload::Blank,
            Reading::Command(_) => EntryPayload::Normal(Proposed::stored(bytes)),
            Reading::Membership(membership) => EntryPayload::Membership(membership),
        }
    };
    Ok(Entry { log_id, payload })
}

/// The command that [`encode_command`] wrote.
pub(crate) fn decode_command(bytes: &[u8]) -> io::Result<LogEnvelope> {
    match read(bytes)? {
        Reading::Command(envelope) => Ok(envelope),
        Reading::Blank | Reading::Membership(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the entry is not a command"))
        }
    }
}

/// Format of a command whose bytes begin as this release writes them.
fn command_format(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.strip_prefix(COMMAND)?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

fn read(bytes: &[u8]) -> io::Result<Reading> {
    let read = serde_json::from_slice(bytes);
    let found = match &read {
        Ok(Reading::Command(envelope)) => envelope.format,
        Ok(Reading::Blank | Reading::Membership(_)) => LOG_FORMAT,
        Err(_) => serde_json::from_slice::<Format>(bytes).map_or(LOG_FORMAT, |f| f.command.format),
    };
    if found > LOG_FORMAT {
        let message = format!("it has format {found}, this broker reads up to {LOG_FORMAT}; install the newer release");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("it cannot be read: {error}")))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_core::command::Expire;
    use comity_core::{Command, Timestamp};
    use openraft::vote::leader_id_std::CommittedLeaderId;

    use super::*;
    use crate::group::Proposal;

    #[test]
    fn an_entry_of_a_later_release_is_named_as_such() {
        for bytes in
            [r#"{"command":{"format":9,"command":{"teleport":{}}}}"#, r#"{"command":{"teleport":{},"format":9}}"#]
        {
            let error = decode(at(17), Bytes::from_static(bytes.as_bytes())).unwrap_err().to_string();
            assert!(error.contains("has format 9") && error.contains("newer release"), "{error}");
        }
    }

    fn at(index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(3), index)
    }

    #[test]
    fn a_command_is_stored_and_sent_as_the_bytes_that_were_proposed() {
        let envelope = Proposal::of_leader(1, Command::Expire(Expire {})).at(Timestamp(7));
        let bytes = encode_command(&envelope).unwrap();
        assert_eq!(command_format(&bytes), Some(LOG_FORMAT));
        let entry = Entry { log_id: at(1), payload: EntryPayload::Normal(Proposed::new(envelope, bytes.clone())) };
        let (stored, sent) = (encode(&entry).unwrap(), encode(&entry).unwrap());
        assert!(stored.as_ptr() == bytes.as_ptr() && sent.as_ptr() == bytes.as_ptr());

        let EntryPayload::Normal(received) = decode(at(1), sent).unwrap().payload else { panic!("not a command") };
        assert_eq!(received.bytes().as_ptr(), bytes.as_ptr());
        let read = received.take().unwrap();
        assert_eq!((read.time, read.command.name()), (Timestamp(7), "expire"));
    }

    #[test]
    fn other_entries_are_read_as_they_were_written() {
        let blank = Entry { log_id: at(2), payload: EntryPayload::Blank };
        let read = decode(at(2), encode(&blank).unwrap()).unwrap();
        assert!(read.log_id == at(2) && matches!(read.payload, EntryPayload::Blank));
        let error = decode(at(3), Bytes::from_static(b"{}")).unwrap_err().to_string();
        assert!(error.contains("3") && error.contains("cannot be read"), "{error}");
    }
}
