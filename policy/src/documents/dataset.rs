//! Dataset: where a dataset may go, and for what it may be read.

use std::collections::BTreeSet;

use comity_types::LeaseTreatment;
use serde::Serialize;

use super::Spec;
use super::on_withdrawal::read_on_withdrawal;
use super::request_template::read_flag;
use crate::kind::Kind;
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// The terms of an institution on which requests may read one of its datasets. The document has the name by which
/// requests and offers know the dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Dataset {
    /// `institution`: its owner.
    pub institution: String,
    /// `mayGoTo.institutions`: institutions on whose clusters it may be read; by default only its owner.
    pub to_institutions: BTreeSet<String>,
    /// `mayGoTo.clusters`: single clusters on which it may be read.
    pub to_clusters: BTreeSet<String>,
    /// `personalData`: whether it has personal data, which an agreement must allow.
    pub personal_data: bool,
    /// `purposes`: those for which it may be read, which an agreement must allow; empty for any, and for none.
    pub purposes: BTreeSet<String>,
    /// `onWithdrawal`: what becomes of leases that it no longer permits; drain by default.
    pub on_withdrawal: LeaseTreatment,
    /// `description`: for people; may be empty.
    pub description: String,
}

impl Dataset {
    /// Whether it may be read on a cluster of an institution.
    #[must_use]
    pub fn may_go_to(&self, cluster: &str, institution: &str) -> bool {
        self.to_clusters.contains(cluster) || self.to_institutions.contains(institution)
    }

    /// Whether only agreements that allow its data serve requests that read it.
    #[must_use]
    pub fn needs_agreement_on_data(&self) -> bool {
        self.personal_data || !self.purposes.is_empty()
    }
}

impl Spec for Dataset {
    const KIND: Kind = Kind::Dataset;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let institution = fields
            .required("institution", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Institution)));
        // What cannot be read must not become the default, which may be wider.
        let destinations =
            fields.optional("mayGoTo", reader).map(|(path, node)| read_destinations(&path, node, reader));
        let personal_data = read_flag("personalData", fields, reader);
        let purposes = fields.optional("purposes", reader).map(|(path, node)| {
            reader.require_items(&path, node, "name at least one purpose, or remove `purposes` to allow any");
            read_purposes(&path, node, reader)
        });
        let on_withdrawal = read_on_withdrawal(Self::KIND, fields, reader);
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        let institution = institution?;
        let (to_institutions, to_clusters) = match destinations {
            Some(read) => read?,
            None => (BTreeSet::from([institution.clone()]), BTreeSet::new()),
        };
        Some(Self {
            institution,
            to_institutions,
            to_clusters,
            personal_data,
            purposes: purposes.unwrap_or_default(),
            on_withdrawal,
            description: description.unwrap_or_default(),
        })
    }
}

/// The institutions and clusters of `mayGoTo`. Empty lists are valid: the dataset then goes nowhere.
fn read_destinations(
    path: &str,
    node: &Node,
    reader: &mut FieldReader<'_, '_>,
) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
    let mut fields = Fields::open(node, path, reader)?;
    let institutions = fields.optional("institutions", reader).map(|(path, node)| {
        reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::Institution)))
    });
    let clusters = fields.optional("clusters", reader).map(|(path, node)| {
        reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::EnrolledCluster))
    });
    fields.finish(reader);
    Some((institutions.unwrap_or_default(), clusters.unwrap_or_default()))
}

/// Purposes, which the Federation must declare.
pub(super) fn read_purposes(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> BTreeSet<String> {
    reader.set(path, node, |reader, path, node| reader.reference(path, node, Target::Purpose))
}
