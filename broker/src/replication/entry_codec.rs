//! Converts log entries to bytes and back; `command_codec` has the format.

use std::io;

use bytes::Bytes;
use comity_core::log::LOG_FORMAT;
use openraft::EntryPayload;

use super::command_codec::{PayloadRef, StoredPayload, command_format, read, write};
use super::types::{Entry, LogId, Proposed};

/// Encodes the payload of an entry, without its log id.
pub(crate) fn encode(entry: &Entry) -> io::Result<Bytes> {
    match &entry.payload {
        EntryPayload::Blank => write(&PayloadRef::Blank),
        EntryPayload::Normal(proposed) => Ok(proposed.bytes().clone()),
        EntryPayload::Membership(membership) => write(&PayloadRef::Membership(membership)),
    }
}

/// Decodes an entry that [`encode`] wrote. Only the format of a command is read here; the command itself is decoded
/// when it is applied.
pub(crate) fn decode(log_id: LogId, bytes: Bytes) -> io::Result<Entry> {
    let payload = if command_format(&bytes).is_some_and(|format| format <= LOG_FORMAT) {
        EntryPayload::Normal(Proposed::stored(bytes))
    } else {
        match read(&bytes).map_err(|error| io::Error::new(error.kind(), format!("log entry {log_id}: {error}")))? {
            StoredPayload::Blank => EntryPayload::Blank,
            StoredPayload::Command(_) => EntryPayload::Normal(Proposed::stored(bytes)),
            StoredPayload::Membership(membership) => EntryPayload::Membership(membership),
        }
    };
    Ok(Entry { log_id, payload })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_core::command::Expire;
    use comity_core::{Command, Timestamp};
    use openraft::vote::leader_id_std::CommittedLeaderId;

    use super::*;
    use crate::replication::command_codec::encode_command;
    use crate::replication::proposal::Proposal;

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
