//! Log payloads as bytes: JSON, so that a later release can read what an earlier one wrote.

use std::io;

use bytes::Bytes;
use comity_core::LogEnvelope;
use comity_core::log::LOG_FORMAT;
use openraft::Membership;
use serde::{Deserialize, Serialize};

use super::member::MemberNode;

/// Bytes of one entry. Commands are bounded before they are proposed; the rest is room for the envelope.
pub(crate) const MAX_ENTRY_BYTES: usize = comity_core::limits::MAX_COMMAND_BYTES + (64 << 10);

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum PayloadRef<'a> {
    Blank,
    Command(&'a LogEnvelope),
    Membership(&'a Membership<u64, MemberNode>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "it is read, taken apart and dropped")]
pub(super) enum StoredPayload {
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
    write(&PayloadRef::Command(envelope))
}

pub(super) fn write(writing: &PayloadRef<'_>) -> io::Result<Bytes> {
    let bytes = serde_json::to_vec(writing).map_err(io::Error::other)?;
    if bytes.len() > MAX_ENTRY_BYTES {
        let message = format!("an entry of {} bytes, allowed are {MAX_ENTRY_BYTES}", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok(bytes.into())
}

/// The command that [`encode_command`] wrote.
pub(crate) fn decode_command(bytes: &[u8]) -> io::Result<LogEnvelope> {
    match read(bytes)? {
        StoredPayload::Command(envelope) => Ok(envelope),
        StoredPayload::Blank | StoredPayload::Membership(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "the entry is not a command"))
        }
    }
}

/// Format of a command whose bytes begin as this release writes them.
pub(super) fn command_format(bytes: &[u8]) -> Option<u16> {
    let rest = bytes.strip_prefix(COMMAND)?;
    let digits = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

pub(super) fn read(bytes: &[u8]) -> io::Result<StoredPayload> {
    let read = serde_json::from_slice(bytes);
    let found = match &read {
        Ok(StoredPayload::Command(envelope)) => envelope.format,
        Ok(StoredPayload::Blank | StoredPayload::Membership(_)) => LOG_FORMAT,
        Err(_) => serde_json::from_slice::<Format>(bytes).map_or(LOG_FORMAT, |f| f.command.format),
    };
    if found > LOG_FORMAT {
        let message = format!("it has format {found}, this broker reads up to {LOG_FORMAT}; install the newer release");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    read.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("it cannot be read: {error}")))
}
