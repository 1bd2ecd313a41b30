//! Table `inet comity`, loaded by the program `nft`.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::ruleset::REMOVE_TABLE;
use crate::FabricError;

/// Longest error message that is kept.
const MESSAGE_BYTES: usize = 500;

/// Runs a script in one transaction: all of it or nothing.
pub(super) fn load(script: &str) -> Result<(), FabricError> {
    let failed = |reason: String| FabricError::Firewall { reason };
    let mut nft = Command::new("nft");
    nft.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = nft.spawn().map_err(|error| failed(format!("cannot start nft: {error}")))?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(script.as_bytes()));
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return written.map_err(|error| failed(error.to_string()));
    }
    let message = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(MESSAGE_BYTES)]);
    Err(failed(message.split_whitespace().collect::<Vec<_>>().join(" ")))
}

/// Whether a table of that name exists.
pub(super) fn exists(table: &str) -> bool {
    let mut nft = Command::new("nft");
    nft.args(["list", "table", "inet", table]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    nft.status().is_ok_and(|status| status.success())
}

/// Removes the table, if it exists.
pub(super) fn remove() {
    if let Err(error) = load(REMOVE_TABLE) {
        tracing::warn!(%error, "the fabric's firewall table is left behind");
    }
}
