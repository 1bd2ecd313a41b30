//! `commitKeys` and `signatures`: whose signed commits may change which documents.

use serde::Serialize;
use ssh_key::{Algorithm, EcdsaCurve, PublicKey};

use crate::limits::MAX_COMMIT_KEYS;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// The form of a commit key, for editors.
const COMMIT_KEY: &str = "^(ssh-ed25519|sk-ssh-ed25519@openssh\\.com|ecdsa-sha2-nistp256|sk-ecdsa-sha2-nistp256@openssh\\.com) [A-Za-z0-9+/]+=*( .*)?$";

/// Signatures that a change of the maintainers needs where the Federation does not say.
const DEFAULT_MAINTAINERS_NEEDED: u32 = 2;
/// The largest number of signatures that a Federation may demand.
const MAX_MAINTAINERS_NEEDED: u64 = 16;

/// An OpenSSH public key whose signatures under commits count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CommitKey {
    /// `key`: algorithm and base64, as in `id_ed25519.pub`, without its comment.
    pub key: String,
    /// `until`: its last moment, in milliseconds since 1970. The broker's clock decides, not the date of the commit.
    pub until_ms: Option<u64>,
}

impl CommitKey {
    /// Whether signatures by this key count at `now_ms`.
    #[must_use]
    pub fn is_valid_at(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| now_ms <= until)
    }
}

/// One entry of a Federation's `commitKeys`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MaintainerKey {
    /// `maintainer`: one of `maintainers`.
    pub maintainer: String,
    /// `key` and `until`.
    #[serde(flatten)]
    pub key: CommitKey,
}

/// `signatures` of a Federation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Signatures {
    /// `required`: whether only signed commits change the policy.
    pub required: bool,
    /// `maintainersNeeded`: maintainers who must sign a change of maintainers, broker operators, their keys, or of this
    /// field. 2 by default.
    pub maintainers_needed: u32,
}

impl Default for Signatures {
    fn default() -> Self {
        Self { required: false, maintainers_needed: DEFAULT_MAINTAINERS_NEEDED }
    }
}

impl Signatures {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let required = fields.required("required", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let needed = fields
            .optional("maintainersNeeded", reader)
            .and_then(|(path, node)| reader.number(&path, node, 1, MAX_MAINTAINERS_NEEDED));
        fields.finish(reader);
        let maintainers_needed = needed.and_then(|needed| u32::try_from(needed).ok());
        Some(Self { required: required?, maintainers_needed: maintainers_needed.unwrap_or(DEFAULT_MAINTAINERS_NEEDED) })
    }
}

/// Reads `commitKeys` of an institution.
pub(super) fn read_commit_keys(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Vec<CommitKey> {
    let keys = reader.list(path, node, |reader, path, node| {
        let mut fields = Fields::open(node, path, reader)?;
        let key = read_key(&mut fields, reader);
        fields.finish(reader);
        key
    });
    refuse_too_many(path, node, keys.len(), reader);
    keys
}

/// Reads `commitKeys` of the federation, which say whose key each is.
pub(super) fn read_maintainer_keys(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Vec<MaintainerKey> {
    let keys = reader.list(path, node, |reader, path, node| {
        let mut fields = Fields::open(node, path, reader)?;
        let maintainer = fields.required("maintainer", reader).and_then(|(path, node)| reader.user_id(&path, node));
        let key = read_key(&mut fields, reader);
        fields.finish(reader);
        Some(MaintainerKey { maintainer: maintainer?, key: key? })
    });
    refuse_too_many(path, node, keys.len(), reader);
    keys
}

fn read_key(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<CommitKey> {
    let key = fields.required("key", reader).and_then(|(path, node)| {
        let text = reader.scalar_of_form(&path, node, COMMIT_KEY)?;
        match normalise(text) {
            Ok(key) => Some(key),
            Err(remedy) => {
                let message = format!("`{path}: {}` is not a public key that can sign commits", shorten(text));
                reader.problems.at(node.place, ProblemCode::InvalidKey, message, remedy);
                None
            }
        }
    });
    let until = fields.optional("until", reader).map(|(path, node)| reader.end_ms(&path, node));
    // A key whose end is unreadable must not become a key without an end.
    Some(CommitKey { key: key?, until_ms: until.map_or(Some(None), |until| until.map(Some))? })
}

fn refuse_too_many(path: &str, node: &Node, count: usize, reader: &mut FieldReader<'_, '_>) {
    if count > MAX_COMMIT_KEYS {
        let message = format!("`{path}` of {} has {count} keys; at most {MAX_COMMIT_KEYS} are allowed", reader.label);
        reader.problems.at(node.place, ProblemCode::TooLarge, message, "remove keys that are no longer used");
    }
}

/// One spelling per key: the algorithm and the base64.
fn normalise(text: &str) -> Result<String, &'static str> {
    const WRITE: &str = "copy the line of the public half, such as `~/.ssh/id_ed25519.pub`";
    let key = PublicKey::from_openssh(text.trim()).map_err(|_| WRITE)?;
    match key.algorithm() {
        Algorithm::Ed25519
        | Algorithm::SkEd25519
        | Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 }
        | Algorithm::SkEcdsaSha2NistP256 => {}
        _ => return Err("use an Ed25519 or a NIST P-256 key: `ssh-keygen -t ed25519`"),
    }
    let key = PublicKey::new(key.key_data().clone(), "");
    key.to_openssh().map(|line| line.trim_end().to_owned()).map_err(|_| WRITE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKSGFHN1LIBMn7TCZCHlpXp+hmjmZyxjj6/rXTnCUVlL";

    #[test]
    fn a_key_has_one_spelling_and_a_usable_algorithm() {
        assert_eq!(normalise(KEY).as_deref(), Ok(KEY));
        assert_eq!(normalise(&format!(" {KEY} ada@host \n")).as_deref(), Ok(KEY));
        for bad in
            ["", "ssh-ed25519", "ssh-ed25519 AAAA", "ed25519:AAAA", &KEY[..60], &format!("ssh-rsa {}", &KEY[12..])]
        {
            assert!(normalise(bad).is_err(), "{bad}");
        }
    }
}
