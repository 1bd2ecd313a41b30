//! The request of a scenario: what a user would submit.

use std::collections::BTreeSet;

use comity_types::{DataNeed, Delivery};

use crate::amounts::WHOLE_MILLI;
use crate::documents::{DELIVERIES, read_data};
use crate::kind::Kind;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// Most GPUs of one request in a scenario; the federation's limit is what scenarios test.
const MAX_GPUS: u64 = 100_000;

/// A request as a user submits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedRequest {
    /// `tenant`.
    pub tenant: String,
    /// `origin`: the cluster that it comes from.
    pub origin: String,
    /// `template`: a RequestTemplate that sets the fields which are not set here.
    pub template: Option<String>,
    /// `class`; `None` if `selector` is set, or the template sets it.
    pub class: Option<String>,
    /// `selector`: CEL over `device`.
    pub selector: Option<String>,
    /// `gpus`: number of shares, and the share of each GPU; `None` if the template sets them.
    pub gpus: Option<(u32, AskedShare)>,
    /// `sameNode`: all on one node.
    pub same_node: bool,
    /// `wholeNode`: whole nodes only.
    pub whole_node: bool,
    /// `data`: datasets that it reads.
    pub data: Vec<DataNeed>,
    /// `purpose`: the purpose for which it reads them.
    pub purpose: Option<String>,
    /// `duration`, in milliseconds; 0 for the federation's default.
    pub duration_ms: u64,
    /// `delivery`; `None` for the template's, or else `namespace`.
    pub delivery: Option<Delivery>,
    /// `priority`: a PriorityClass.
    pub priority: Option<String>,
    /// `preemptible`.
    pub preemptible: Option<AskedPreemption>,
    /// `donors`: only these may serve it; empty for any.
    pub donors: BTreeSet<String>,
    /// `notDonors`: these may not.
    pub not_donors: BTreeSet<String>,
}

/// Share of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedShare {
    /// All of it.
    Whole,
    /// Thousandths of it.
    Milli(u32),
}

/// Terms on which a request may be preempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AskedPreemption {
    /// `grace`: notice that the work needs, in milliseconds.
    pub grace_ms: u64,
    /// `checkpoint`: whether the work reports when it is saved.
    pub checkpoint: bool,
}

impl AskedRequest {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let request = Self::read_fields(&mut fields, reader);
        fields.finish(reader);
        request
    }

    /// Reads the fields of a request among others.
    pub(super) fn read_fields(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let tenant = fields
            .required("tenant", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Tenant)));
        let origin = fields
            .required("origin", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::EnrolledCluster));
        let template = fields
            .optional("template", reader)
            .map(|(path, node)| reader.reference(&path, node, Target::Document(Kind::RequestTemplate)));
        let class_field = fields.optional("class", reader);
        let selector_field = fields.optional("selector", reader);
        match (&class_field, &selector_field) {
            (None, None) if template.is_some() => {}
            (None, None) => {
                let message = format!("a request of {} names no GPUs", reader.label);
                let place = fields.place();
                let remedy = "add `class:`, `selector:` or `template:` here";
                reader.problems.at(place, ProblemCode::MissingField, message, remedy);
            }
            (Some(_), Some((path, node))) => {
                let message = format!("`{path}` of {} is beside a `class`", reader.label);
                reader.problems.at(node.place, ProblemCode::Contradiction, message, "keep one of the two");
            }
            _ => {}
        }
        let is_named = class_field.is_some() || selector_field.is_some() || template.is_some();
        let class =
            class_field.and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::GpuClass)));
        let selector = selector_field.and_then(|(path, node)| reader.text(&path, node));
        let gpus_field = fields.optional("gpus", reader);
        if gpus_field.is_none() && template.is_none() {
            let message = format!("a request of {} does not say how many `gpus`", reader.label);
            reader.problems.at(fields.place(), ProblemCode::MissingField, message, "add `gpus:` here");
            return None;
        }
        let gpus = gpus_field.map(|(path, node)| read_gpus(&path, node, reader));
        let same_node = fields.optional("sameNode", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let whole_node = fields.optional("wholeNode", reader).and_then(|(path, node)| reader.boolean(&path, node));
        let data = fields.optional("data", reader).map(|(path, node)| read_data(&path, node, reader));
        let purpose = fields.optional("purpose", reader).and_then(|(path, node)| reader.text(&path, node));
        let duration = fields.optional("duration", reader).and_then(|(path, node)| reader.duration_ms(&path, node));
        let delivery =
            fields.optional("delivery", reader).and_then(|(path, node)| reader.word(&path, node, &DELIVERIES));
        let priority = fields
            .optional("priority", reader)
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::PriorityClass)));
        let preemptible =
            fields.optional("preemptible", reader).and_then(|(path, node)| read_preemption(&path, node, reader));
        let donors = read_donors("donors", fields, reader);
        let not_donors = read_donors("notDonors", fields, reader);
        let gpus = match gpus {
            Some(read) => Some(read?),
            None => None,
        };
        let template = match template {
            Some(read) => Some(read?),
            None => None,
        };
        if !is_named {
            return None;
        }
        Some(Self {
            tenant: tenant?,
            origin: origin?,
            template,
            class,
            selector,
            gpus,
            same_node: same_node.unwrap_or(false),
            whole_node: whole_node.unwrap_or(false),
            data: data.unwrap_or_default(),
            purpose,
            duration_ms: duration.unwrap_or(0),
            delivery,
            priority,
            preemptible,
            donors,
            not_donors,
        })
    }
}

/// `gpus`: whole GPUs, or one share of a GPU.
fn read_gpus(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<(u32, AskedShare)> {
    let milli = reader.positive_gpus_milli(path, node)?;
    if milli < WHOLE_MILLI {
        return Some((1, AskedShare::Milli(u32::try_from(milli).ok()?)));
    }
    if !milli.is_multiple_of(WHOLE_MILLI) || milli > MAX_GPUS * WHOLE_MILLI {
        let text = reader.scalar(path, node).unwrap_or_default().to_owned();
        let message =
            format!("`{path}: {}` of {} is neither whole GPUs nor a share of one", shorten(&text), reader.label);
        reader.problems.at(node.place, ProblemCode::InvalidQuantity, message, "write `gpus: 2` or `gpus: 0.5`");
        return None;
    }
    Some((u32::try_from(milli / WHOLE_MILLI).ok()?, AskedShare::Whole))
}

fn read_preemption(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<AskedPreemption> {
    let mut fields = Fields::open(node, path, reader)?;
    let grace = fields.optional("grace", reader).and_then(|(path, node)| reader.duration_ms(&path, node));
    let checkpoint = fields.optional("checkpoint", reader).and_then(|(path, node)| reader.boolean(&path, node));
    fields.finish(reader);
    Some(AskedPreemption { grace_ms: grace.unwrap_or(0), checkpoint: checkpoint.unwrap_or(false) })
}

fn read_donors(name: &'static str, fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> BTreeSet<String> {
    let Some((path, node)) = fields.optional(name, reader) else {
        return BTreeSet::new();
    };
    reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::EnrolledCluster))
}
