//! `perUser`: limits that hold for each user separately.

use serde::Serialize;

use super::GpuHours;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// Limits on each user of a quota's tenant, or of all tenants of its institution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PerUser {
    /// `maxConcurrentGpus`: most GPUs borrowed at a time, in milli-GPU.
    pub max_concurrent_gpus_milli: Option<u64>,
    /// `gpuHours`: most GPU-time in a calendar period.
    pub gpu_hours: Option<GpuHours>,
}

impl PerUser {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let place = fields.place();
        let concurrent = fields.optional("maxConcurrentGpus", reader);
        let hours = fields.optional("gpuHours", reader);
        if concurrent.is_none() && hours.is_none() {
            let message = format!("`{path}` of {} limits nothing", reader.label);
            reader.problems.at(place, ProblemCode::MissingField, message, "add `maxConcurrentGpus` or `gpuHours`");
        }
        let concurrent = concurrent.map(|(path, node)| reader.gpus_milli(&path, node));
        let hours = hours.map(|(path, node)| GpuHours::read(&path, node, reader));
        fields.finish(reader);
        Some(Self { max_concurrent_gpus_milli: concurrent.flatten(), gpu_hours: hours.flatten() })
    }
}
