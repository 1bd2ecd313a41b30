//! `request` of a template: the fields of a request that it sets.

use comity_types::{DataNeed, Delivery};
use serde::Serialize;

use super::template_data::read_data;
use super::template_field::TemplateField;
use super::template_gpus::{TemplateDevices, TemplateGpus, TemplateShare};
use super::template_topology::{TemplateNvLink, TemplateTopology, read_flag};
use crate::amounts::WHOLE_MILLI;
use crate::documents::DELIVERIES;
use crate::kind::Kind;
use crate::limits::{
    MAX_TEMPLATE_GRACE_MS, MAX_TEMPLATE_LEASE_MS, MAX_TEMPLATE_SHARES, MIN_IDLE_RELEASE_MS, MIN_TEMPLATE_LEASE_MS,
};
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

const MEMBERS: &str = "^[1-9][0-9]*(-[1-9][0-9]*)?$";

/// The fields of a request that a template sets. A request sets the others itself, or they have their defaults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateRequest {
    /// `gpus`; of a gang, those of each member.
    pub gpus: TemplateGpus,
    /// `topology`.
    pub topology: TemplateTopology,
    /// `members`.
    pub members: Option<TemplateMembers>,
    /// `spreadDonors`.
    pub spread_donors: bool,
    /// `data`.
    pub data: Vec<DataNeed>,
    /// `purpose`: the purpose for which it reads its data.
    pub purpose: Option<String>,
    /// `duration`, in milliseconds.
    pub duration_ms: Option<u64>,
    /// `delivery`.
    pub delivery: Option<Delivery>,
    /// `priority`: a PriorityClass of the bundle.
    pub priority: Option<String>,
    /// `releaseIdle`, in milliseconds.
    pub release_idle_ms: Option<u64>,
    /// `preemptible`.
    pub preemptible: Option<TemplatePreemption>,
}

/// Number of members of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateMembers {
    /// Members that start together, at least 1.
    pub min: u32,
    /// Most members.
    pub desired: u32,
}

/// Terms on which a request may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplatePreemption {
    /// `grace`: notice that the work needs, in milliseconds; 0 for the donor's.
    pub grace_ms: u64,
    /// `checkpoint`: whether the work reports when it is saved.
    pub checkpoint: bool,
    /// `sameGpuType`: whether what it saved fits only the type of GPUs that it ran on.
    pub same_gpu_type: bool,
}

impl TemplateRequest {
    /// Whether the template sets this field.
    #[must_use]
    pub fn sets(&self, field: TemplateField) -> bool {
        match field {
            TemplateField::Class => true,
            TemplateField::Amount => self.gpus.amount.is_some(),
            TemplateField::Isolation => self.gpus.isolation.is_some(),
            TemplateField::CpuPerGpu => self.gpus.cpu_milli_per_gpu.is_some(),
            TemplateField::MemoryPerGpu => self.gpus.memory_mib_per_gpu.is_some(),
            TemplateField::NvLink => self.topology.nvlink.is_some(),
            TemplateField::RdmaGbits => self.topology.rdma_gbits > 0,
            TemplateField::Members => self.members.is_some(),
            TemplateField::Data => !self.data.is_empty(),
            TemplateField::Purpose => self.purpose.is_some(),
            TemplateField::Duration => self.duration_ms.is_some(),
            TemplateField::Delivery => self.delivery.is_some(),
            TemplateField::Priority => self.priority.is_some(),
            TemplateField::ReleaseIdle => self.release_idle_ms.is_some(),
            TemplateField::Preemptible => self.preemptible.is_some(),
        }
    }

    /// Thousandths of GPUs with all desired members: MIG profiles and memory shares count as nothing, because their part
    /// of a GPU is not known.
    pub(crate) fn most_milli(&self) -> u64 {
        let Some(amount) = &self.gpus.amount else { return 0 };
        let each = match amount.share {
            TemplateShare::Whole => WHOLE_MILLI,
            TemplateShare::Milli(milli) => u64::from(milli),
            TemplateShare::MigProfile(_) | TemplateShare::MemoryMib(_) => 0,
        };
        let members = self.members.map_or(1, |members| members.desired);
        each.saturating_mul(u64::from(amount.count)).saturating_mul(u64::from(members))
    }

    /// The GPU class, unless a selector takes its place.
    #[must_use]
    pub fn class(&self) -> Option<&str> {
        match &self.gpus.devices {
            TemplateDevices::Class(class) => Some(class),
            TemplateDevices::Selector(_) => None,
        }
    }

    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let gpus = fields.required("gpus", reader).and_then(|(path, node)| TemplateGpus::read(&path, node, reader));
        let topology =
            fields.optional("topology", reader).and_then(|(path, node)| TemplateTopology::read(&path, node, reader));
        let members = fields.optional("members", reader).and_then(|(path, node)| read_members(&path, node, reader));
        let spread_donors = read_flag("spreadDonors", &mut fields, reader);
        let data = fields.optional("data", reader).map(|(path, node)| read_data(&path, node, reader));
        let purpose =
            fields.optional("purpose", reader).and_then(|(path, node)| reader.reference(&path, node, Target::Purpose));
        let duration = fields
            .optional("duration", reader)
            .and_then(|(path, node)| bounded_ms(&path, node, (MIN_TEMPLATE_LEASE_MS, MAX_TEMPLATE_LEASE_MS), reader));
        let delivery =
            fields.optional("delivery", reader).and_then(|(path, node)| reader.word(&path, node, &DELIVERIES));
        let priority = fields
            .optional("priority", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::PriorityClass)));
        let release_idle = fields
            .optional("releaseIdle", reader)
            .and_then(|(path, node)| bounded_ms(&path, node, (MIN_IDLE_RELEASE_MS, MAX_TEMPLATE_LEASE_MS), reader));
        let preemptible =
            fields.optional("preemptible", reader).and_then(|(path, node)| read_preemption(&path, node, reader));
        fields.finish(reader);
        let request = Self {
            gpus: gpus?,
            topology: topology.unwrap_or_default(),
            members,
            spread_donors,
            data: data.unwrap_or_default(),
            purpose,
            duration_ms: duration,
            delivery,
            priority,
            release_idle_ms: release_idle,
            preemptible,
        };
        request.report_contradictions(path, node, reader);
        Some(request)
    }

    /// What the broker refuses in every request.
    fn report_contradictions(&self, path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) {
        let amount = self.gpus.amount.as_ref();
        let count = amount.map_or(1, |amount| amount.count);
        let is_mig = amount.is_some_and(|amount| matches!(amount.share, TemplateShare::MigProfile(_)));
        let shares = self.members.map_or(0, |members| u64::from(members.desired).saturating_mul(u64::from(count)));
        let no_amounts = self.gpus.cpu_milli_per_gpu.is_none() && self.gpus.memory_mib_per_gpu.is_none();
        let same_type = self.preemptible.is_some_and(|terms| terms.same_gpu_type);
        let most = format!("has more than {MAX_TEMPLATE_SHARES} shares in all");
        for (is_wrong, field, problem, remedy) in [
            (
                self.spread_donors && self.members.is_none(),
                "spreadDonors",
                "is without `members`",
                "say how many members",
            ),
            (
                self.spread_donors && self.topology.same_node,
                "spreadDonors",
                "contradicts `topology.sameNode`",
                "leave one of the two out",
            ),
            (
                self.spread_donors && self.topology.rdma_gbits > 0,
                "spreadDonors",
                "contradicts `topology.rdmaGbits`",
                "leave one of the two out: there is no RDMA from donor to donor",
            ),
            (
                self.spread_donors && same_type,
                "spreadDonors",
                "contradicts `preemptible.sameGpuType`",
                "leave one of the two out: donors lend different types",
            ),
            (
                self.topology.nvlink == Some(TemplateNvLink::Required) && is_mig,
                "topology.nvlink",
                "is required for MIG instances, which NVLink does not join",
                "ask for whole GPUs, or leave it out",
            ),
            (
                self.topology.numa_aligned && no_amounts,
                "topology.numa",
                "is without CPU and memory",
                "add `cpuPerGpu` or `memoryPerGpu` to `gpus`",
            ),
            (shares > u64::from(MAX_TEMPLATE_SHARES), "members", most.as_str(), "name fewer members or GPUs"),
        ] {
            if is_wrong {
                let field = format!("{path}.{field}");
                let place = reader.places.get(&field).copied().unwrap_or(node.place);
                let message = format!("`{field}` of {} {problem}", reader.label);
                reader.problems.at(place, ProblemCode::Contradiction, message, remedy);
            }
        }
    }
}

/// `4` or `2-8`.
fn read_members(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<TemplateMembers> {
    let text = reader.number_of_form(path, node, MEMBERS)?;
    let (min, desired) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().ok().filter(|number| (1..=MAX_TEMPLATE_SHARES).contains(number));
    match (number(min), number(desired)) {
        (Some(min), Some(desired)) if min <= desired => Some(TemplateMembers { min, desired }),
        _ => {
            let message = format!("`{path}: {}` of {} is not a number of members", shorten(text), reader.label);
            let remedy = format!("write a number (4) or a range (2-8), of at most {MAX_TEMPLATE_SHARES}");
            reader.problems.at(node.place, ProblemCode::InvalidQuantity, message, remedy);
            None
        }
    }
}

/// A duration in the bounds of a request.
fn bounded_ms(path: &str, node: &Node, bounds: (u64, u64), reader: &mut FieldReader<'_, '_>) -> Option<u64> {
    let ms = reader.duration_ms(path, node)?;
    if (bounds.0..=bounds.1).contains(&ms) {
        return Some(ms);
    }
    let [shown, least, most] = [ms, bounds.0, bounds.1].map(crate::amounts::show_duration);
    let message = format!("`{path}: {shown}` of {} is out of range", reader.label);
    reader.problems.at(node.place, ProblemCode::InvalidDuration, message, format!("write {least} to {most}"));
    None
}

fn read_preemption(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<TemplatePreemption> {
    let mut fields = Fields::open(node, path, reader)?;
    let grace = fields
        .optional("grace", reader)
        .and_then(|(path, node)| bounded_ms(&path, node, (0, MAX_TEMPLATE_GRACE_MS), reader));
    let checkpoint = read_flag("checkpoint", &mut fields, reader);
    let same_gpu_type = read_flag("sameGpuType", &mut fields, reader);
    if same_gpu_type && !checkpoint {
        let message = format!("`{}` of {} is without `checkpoint`", fields.path_of("sameGpuType"), reader.label);
        let remedy = "set `checkpoint` too, or leave it out";
        reader.problems.at(node.place, ProblemCode::Contradiction, message, remedy);
    }
    fields.finish(reader);
    Some(TemplatePreemption { grace_ms: grace.unwrap_or(0), checkpoint, same_gpu_type })
}
