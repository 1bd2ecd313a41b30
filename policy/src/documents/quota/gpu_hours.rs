//! `gpuHours`: most GPU-time in a calendar period.

use serde::Serialize;

use crate::amounts::GPU_HOUR;
use crate::calendar::period::CalendarPeriod;
use crate::reading::fields::{FieldReader, Fields};
use crate::reading::yaml::Node;

/// A limit on GPU-time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GpuHours {
    /// `limit`: most GPU-hours of a period, in thousandths.
    pub limit_milli: u64,
    /// `per`: the period.
    pub per: CalendarPeriod,
    /// `timeZone`: an IANA name such as `Europe/Berlin`; at its midnight periods begin.
    pub time_zone: String,
}

impl GpuHours {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let limit = fields.required("limit", reader).and_then(|(path, node)| reader.gpu_hours_milli(&path, node));
        let per =
            fields.required("per", reader).and_then(|(path, node)| reader.word(&path, node, &CalendarPeriod::WORDS));
        let time_zone = fields.required("timeZone", reader).and_then(|(path, node)| reader.time_zone(&path, node));
        fields.finish(reader);
        Some(Self { limit_milli: limit?, per: per?, time_zone: time_zone? })
    }

    /// The limit as GPU-time, in thousandths of a GPU × milliseconds.
    #[must_use]
    pub fn limit(&self) -> u128 {
        u128::from(self.limit_milli) * GPU_HOUR / 1_000
    }
}
