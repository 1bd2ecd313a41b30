//! Institution: a legal member with its keys, clusters and operators.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use super::commit_key::read_commit_keys;
use super::{CommitKey, Spec};
use crate::kind::Kind;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// The weight of an institution or tenant without `weight`.
pub(crate) const DEFAULT_WEIGHT: u32 = 100;

/// The form of a signing key, for editors.
const SIGNING_KEY: &str = "^ed25519:[A-Za-z0-9+/]{43}=$";

/// A legal member of the federation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Institution {
    /// `displayName`: name for people.
    pub display_name: String,
    /// `contact`: a mail address or URL for borrowers.
    pub contact: String,
    /// `homeRegion`: its region, by the federation's own region names.
    pub home_region: Option<String>,
    /// `signingKeys`: public keys that vouch for its clusters' identity keys, 32 bytes each (Ed25519).
    #[serde(serialize_with = "serialize_keys")]
    pub signing_keys: Vec<[u8; 32]>,
    /// `commitKeys`: the keys with which it signs commits that change its documents.
    pub commit_keys: Vec<CommitKey>,
    /// `clusters`: ids of the clusters it may enrol.
    pub clusters: BTreeSet<String>,
    /// `operators`: users who may invite and list its clusters.
    pub operators: BTreeSet<String>,
    /// `weight`: its share in fair scheduling, 1 to 1,000; 100 by default.
    pub weight: u32,
}

impl Spec for Institution {
    const KIND: Kind = Kind::Institution;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let display_name = fields.required("displayName", reader).and_then(|(path, node)| reader.text(&path, node));
        let contact = fields.required("contact", reader).and_then(|(path, node)| reader.text(&path, node));
        let home_region = fields.optional("homeRegion", reader).and_then(|(path, node)| reader.name(&path, node));
        let signing_keys = fields
            .optional("signingKeys", reader)
            .map(|(path, node)| reader.list(&path, node, read_signing_key))
            .unwrap_or_default();
        let commit_keys = fields
            .optional("commitKeys", reader)
            .map(|(path, node)| read_commit_keys(&path, node, reader))
            .unwrap_or_default();
        let clusters = fields
            .optional("clusters", reader)
            .map(|(path, node)| reader.set(&path, node, FieldReader::name))
            .unwrap_or_default();
        let operators = fields
            .optional("operators", reader)
            .map(|(path, node)| reader.set(&path, node, FieldReader::user_id))
            .unwrap_or_default();
        let weight = fields.optional("weight", reader).and_then(|(path, node)| reader.weight(&path, node));
        Some(Self {
            display_name: display_name?,
            contact: contact?,
            home_region,
            signing_keys,
            commit_keys,
            clusters,
            operators,
            weight: weight.unwrap_or(DEFAULT_WEIGHT),
        })
    }
}

fn read_signing_key(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<[u8; 32]> {
    let text = reader.scalar_of_form(path, node, SIGNING_KEY)?;
    let key = text.strip_prefix("ed25519:").and_then(decode_base64);
    if key.is_none() {
        let message = format!("`{path}: {}` is not a signing key", shorten(text));
        reader.problems.at(
            node.place,
            ProblemCode::InvalidKey,
            message,
            "write `ed25519:` and the base64 of the 32 bytes of the public key",
        );
    }
    key
}

/// Decodes exactly 32 bytes. The strict decoder accepts one spelling per key.
fn decode_base64(text: &str) -> Option<[u8; 32]> {
    STANDARD.decode(text).ok()?.try_into().ok()
}

fn serialize_keys<S: serde::Serializer>(keys: &[[u8; 32]], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(keys.iter().map(|key| format!("ed25519:{}", STANDARD.encode(key))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_written_in_one_spelling() {
        let zero = format!("{}=", "A".repeat(43));
        assert_eq!(decode_base64(&zero), Some([0; 32]));
        let key: [u8; 32] = std::array::from_fn(|index| u8::try_from(index * 7 + 3).unwrap_or(255));
        assert_eq!(decode_base64(&STANDARD.encode(key)), Some(key));
        for bad in ["", "AAAA", &"A".repeat(44), &format!("{}B=", "A".repeat(42)), &format!("{}!=", "A".repeat(42))] {
            assert_eq!(decode_base64(bad), None, "{bad}");
        }
    }
}
