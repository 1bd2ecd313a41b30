//! `maxReclaims`: most leases that may be reclaimed in a time for local need or a preemption.

use serde::Serialize;

use crate::limits::{MAX_RECLAIM_LIMIT, MAX_RECLAIM_PERIOD_MS, MIN_RECLAIM_PERIOD_MS};
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// A limit on reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReclaimLimit {
    /// `leases`: most leases that may be reclaimed in any period; 0 for none at all.
    pub leases: u32,
    /// `per`: length of the period, in milliseconds.
    pub per_ms: u64,
}

impl ReclaimLimit {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let leases = fields
            .required("leases", reader)
            .and_then(|(path, node)| reader.number(&path, node, 0, MAX_RECLAIM_LIMIT.into()));
        let per = fields.required("per", reader).and_then(|(path, node)| {
            let ms = reader.duration_ms(&path, node)?;
            if !(MIN_RECLAIM_PERIOD_MS..=MAX_RECLAIM_PERIOD_MS).contains(&ms) {
                let message = format!("`{path}` of {} must be from 1m to 7d", reader.label);
                reader.problems.at(node.place, ProblemCode::InvalidDuration, message, "write `per: 24h`");
                return None;
            }
            Some(ms)
        });
        fields.finish(reader);
        Some(Self { leases: u32::try_from(leases?).ok()?, per_ms: per? })
    }
}
