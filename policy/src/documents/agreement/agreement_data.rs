//! `data` of an agreement: what leases under it may read.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::documents::dataset::read_purposes;
use crate::documents::request_template::read_flag;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// The data that leases under an agreement may read, of datasets whose documents demand that an agreement allows it. The
/// default allows none of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgreementData {
    /// `personal`: whether they may read personal data.
    pub personal: bool,
    /// `purposes`: those for which they may read datasets that are bound to purposes.
    pub purposes: BTreeSet<String>,
}

impl AgreementData {
    /// Whether it allows no more than `other`.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let Self { personal, purposes } = self;
        (other.personal || !personal) && purposes.is_subset(&other.purposes)
    }

    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let personal = read_flag("personal", &mut fields, reader);
        let purposes = fields.optional("purposes", reader).map(|(path, node)| read_purposes(&path, node, reader));
        fields.finish(reader);
        Some(Self { personal, purposes: purposes.unwrap_or_default() })
    }
}
