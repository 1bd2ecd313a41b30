//! `data` of the federation: the purposes for which data is read, and requests for datasets without a document.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::limits::MAX_PURPOSES;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// What requests may say about the data that they read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FederationData {
    /// `purposes`: those that requests, Datasets and Agreements may name.
    pub purposes: BTreeSet<String>,
    /// `datasets: declared-only`: whether requests may name only datasets with a document.
    pub declared_only: bool,
}

impl FederationData {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let purposes = fields.optional("purposes", reader).map(|(path, node)| {
            let purposes = reader.set(&path, node, FieldReader::name);
            if purposes.len() > MAX_PURPOSES {
                let message = format!("`{path}` of {} has {} purposes", reader.label, purposes.len());
                let remedy = format!("name at most {MAX_PURPOSES}");
                reader.problems.at(node.place, ProblemCode::TooLarge, message, remedy);
            }
            purposes
        });
        let words = [("any", false), ("declared-only", true)];
        let declared_only = fields.optional("datasets", reader).map(|(path, node)| reader.word(&path, node, &words));
        fields.finish(reader);
        // What cannot be read must not become the default, which denies nothing.
        let declared_only = declared_only.map_or(Some(false), |read| read)?;
        Some(Self { purposes: purposes.unwrap_or_default(), declared_only })
    }
}
