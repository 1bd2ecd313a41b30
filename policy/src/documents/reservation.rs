//! Reservation: GPUs of donors that are kept for one tenant during weekly windows.

use std::collections::BTreeSet;

use serde::Serialize;

use super::Spec;
use crate::kind::Kind;
use crate::reading::fields::{FieldReader, Fields, Target};

/// GPUs of donors that are kept for one tenant during weekly windows. It permits nothing by itself: terms, agreements
/// and quotas decide about the tenant's leases as always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Reservation {
    /// `tenant`: for whose requests they are kept.
    pub tenant: String,
    /// `class`: their class.
    pub class: String,
    /// `gpus`: how many at each of the clusters, in milli-GPU; at least 1.
    pub gpus_milli: u64,
    /// `clusters`: the donors that keep them.
    pub clusters: BTreeSet<String>,
    /// `during`: the schedule in whose windows they are kept.
    pub during: String,
    /// `releaseUnusedAfter`: how long a window keeps what the tenant does not use, in milliseconds; `None` to its end.
    pub release_unused_after_ms: Option<u64>,
    /// `description`: for people; may be empty.
    pub description: String,
}

impl Spec for Reservation {
    const KIND: Kind = Kind::Reservation;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut reference = |field: &'static str, kind: Kind, reader: &mut FieldReader<'_, '_>| {
            let (path, node) = fields.required(field, reader)?;
            reader.reference(&path, node, Target::Document(kind))
        };
        let tenant = reference("tenant", Kind::Tenant, reader);
        let class = reference("class", Kind::GpuClass, reader);
        let during = reference("during", Kind::Schedule, reader);
        let gpus = fields.required("gpus", reader).and_then(|(path, node)| {
            let remedy = "give how many GPUs each of the clusters keeps, or remove the document";
            reader.gpus_milli_unlike_zero(&path, node, "would keep nothing", remedy)
        });
        let clusters = fields.required("clusters", reader).map(|(path, node)| {
            reader.require_items(&path, node, "name at least one cluster that has a Cluster document");
            reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::Cluster)))
        });
        let release = fields
            .optional("releaseUnusedAfter", reader)
            .and_then(|(path, node)| reader.positive_duration_ms(&path, node));
        let description = fields.optional("description", reader).and_then(|(path, node)| reader.text(&path, node));
        Some(Self {
            tenant: tenant?,
            class: class?,
            gpus_milli: gpus?,
            clusters: clusters?,
            during: during?,
            release_unused_after_ms: release,
            description: description.unwrap_or_default(),
        })
    }
}
