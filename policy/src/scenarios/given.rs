//! What holds in a scenario before its request: clusters with their GPUs, leases in force, waiting requests.

use std::collections::BTreeSet;

use comity_types::Delivery;

use super::asked::AskedRequest;
use super::products::{self, GivenDevice};
use crate::amounts::quantity::{milli_floor, ones_floor};
use crate::documents::DELIVERIES;
use crate::problem::suggest::did_you_mean;
use crate::problem::{ProblemCode, shorten};
use crate::reading::fields::{FieldReader, Fields, Target};
use crate::reading::yaml::Node;

/// CPU of a node that names none, in thousandths of a core: ample.
const DEFAULT_CPU_MILLI: u64 = 128_000;
/// Main memory of a node that names none, in MiB: ample.
const DEFAULT_MEMORY_MIB: u64 = 1_024_000;
/// Most GPUs of a node.
const MAX_NODE_GPUS: u64 = 64;
/// Most nodes that one entry stands for.
const MAX_NODES: u64 = 1_000;
/// Most leases that one entry stands for.
const MAX_LEASES: u64 = 1_000;
const MIB: u64 = 1 << 20;

/// A cluster that has joined and is connected, unless it is silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenCluster {
    /// `name`.
    pub name: String,
    /// `nodes` that it offers.
    pub nodes: Vec<GivenNode>,
    /// `deliveries` that its agent can make now; all by default.
    pub deliveries: BTreeSet<Delivery>,
    /// `silent`: whether its agent is not heard.
    pub silent: bool,
}

/// Equal nodes of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenNode {
    /// `count`: how many there are.
    pub count: u32,
    /// `gpus` of each.
    pub gpus: u32,
    /// The GPUs' attributes.
    pub device: GivenDevice,
    /// `sharing`: how each GPU may be shared.
    pub sharing: GivenSharing,
    /// `localUse`: whole GPUs of each node that local work holds at `now`.
    pub local_use: u32,
    /// `unhealthy`: GPUs of each node that are not healthy at `now`.
    pub unhealthy: u32,
    /// `cpu` of each, in thousandths of a core.
    pub cpu_milli: u64,
    /// `memory` of each, in MiB.
    pub memory_mib: u64,
}

/// How a GPU may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenSharing {
    /// By nobody.
    Exclusive,
    /// By equal replicas, time-sliced.
    TimeSlicing {
        /// `replicas` of each GPU.
        replicas: u32,
    },
    /// By equal shares of CUDA MPS.
    Mps {
        /// `replicas` of each GPU.
        shares: u32,
    },
    /// By any fraction.
    Fractional,
}

/// A lease in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenLease {
    /// `name`, by which `expect.reclaims` names it.
    pub name: String,
    /// `donor`: where it is.
    pub donor: String,
    /// `age`: how long before `now` it began, in milliseconds.
    pub age_ms: u64,
    /// The request that it serves.
    pub request: AskedRequest,
}

/// A request that waits beside that of the scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingRequest {
    /// `age`: how long before `now` it was submitted, in milliseconds.
    pub age_ms: u64,
    /// The request.
    pub request: AskedRequest,
}

/// `given` of a file or of a scenario.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) now_ms: Option<u64>,
    pub(super) clusters: Vec<GivenCluster>,
    pub(super) leases: Vec<GivenLease>,
    pub(super) waiting: Vec<WaitingRequest>,
}

impl Given {
    pub(super) fn read(path: &str, node: &Node, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let mut fields = Fields::open(node, path, reader)?;
        let now = fields.optional("now", reader).and_then(|(path, node)| reader.start_ms(&path, node));
        let clusters = fields.optional("clusters", reader).map(|(path, node)| reader.list(&path, node, read_cluster));
        let leases = fields.optional("leases", reader).map(|(path, node)| reader.list(&path, node, read_lease));
        let waiting = fields.optional("waiting", reader).map(|(path, node)| reader.list(&path, node, read_waiting));
        fields.finish(reader);
        Some(Self {
            now_ms: now,
            clusters: clusters.unwrap_or_default(),
            leases: leases.into_iter().flatten().flatten().collect(),
            waiting: waiting.unwrap_or_default(),
        })
    }

    /// What holds in a scenario of a file: the scenario's clusters replace the file's, the rest adds up.
    pub(super) fn with(&self, scenario: Self) -> Self {
        let is_replaced = |cluster: &GivenCluster| scenario.clusters.iter().any(|other| other.name == cluster.name);
        let kept = self.clusters.iter().filter(|cluster| !is_replaced(cluster)).cloned();
        Self {
            now_ms: scenario.now_ms.or(self.now_ms),
            clusters: kept.chain(scenario.clusters.iter().cloned()).collect(),
            leases: self.leases.iter().cloned().chain(scenario.leases).collect(),
            waiting: self.waiting.iter().cloned().chain(scenario.waiting).collect(),
        }
    }
}

fn read_cluster(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<GivenCluster> {
    let mut fields = Fields::open(node, path, reader)?;
    let name =
        fields.required("name", reader).and_then(|(path, node)| reader.reference(&path, node, Target::EnrolledCluster));
    let nodes = fields.optional("nodes", reader).map(|(path, node)| reader.list(&path, node, read_node));
    let deliveries = fields.optional("deliveries", reader).map(|(path, node)| {
        reader.require_items(&path, node, "name a delivery, or leave the field out for all");
        reader.set(&path, node, |reader, path, node| reader.word(path, node, &DELIVERIES))
    });
    let silent = fields.optional("silent", reader).and_then(|(path, node)| reader.boolean(&path, node));
    fields.finish(reader);
    Some(GivenCluster {
        name: name?,
        nodes: nodes.unwrap_or_default(),
        deliveries: deliveries.unwrap_or_else(|| DELIVERIES.iter().map(|(_, delivery)| *delivery).collect()),
        silent: silent.unwrap_or(false),
    })
}

fn read_node(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<GivenNode> {
    let mut fields = Fields::open(node, path, reader)?;
    let count = fields.optional("count", reader).and_then(|(path, node)| reader.number(&path, node, 1, MAX_NODES));
    let gpus = fields.required("gpus", reader).and_then(|(path, node)| reader.number(&path, node, 1, MAX_NODE_GPUS));
    let device = read_device(&mut fields, reader);
    let sharing = read_sharing(&mut fields, reader);
    let local = read_part("localUse", gpus, &mut fields, reader);
    let unhealthy = read_part("unhealthy", gpus, &mut fields, reader);
    let cpu = fields.optional("cpu", reader).and_then(|(path, node)| reader.quantity(&path, node, milli_floor));
    let memory = fields.optional("memory", reader).and_then(|(path, node)| reader.quantity(&path, node, ones_floor));
    fields.finish(reader);
    let narrow = |number: Option<u64>, default: u32| number.and_then(|it| u32::try_from(it).ok()).unwrap_or(default);
    Some(GivenNode {
        count: narrow(count, 1),
        gpus: narrow(Some(gpus?), 1),
        device: device?,
        sharing: sharing?,
        local_use: narrow(local, 0),
        unhealthy: narrow(unhealthy, 0),
        cpu_milli: cpu.unwrap_or(DEFAULT_CPU_MILLI),
        memory_mib: memory.map_or(DEFAULT_MEMORY_MIB, |bytes| bytes / MIB),
    })
}

/// A number of the node's GPUs.
fn read_part(
    name: &'static str,
    gpus: Option<u64>,
    fields: &mut Fields<'_>,
    reader: &mut FieldReader<'_, '_>,
) -> Option<u64> {
    let (path, node) = fields.optional(name, reader)?;
    let part = reader.number(&path, node, 0, MAX_NODE_GPUS)?;
    if let Some(gpus) = gpus.filter(|gpus| part > *gpus) {
        let message = format!("`{path}: {part}` of {} is more than the {gpus} GPUs of the node", reader.label);
        reader.problems.at(node.place, ProblemCode::Contradiction, message, "lower it, or give the node more `gpus`");
    }
    Some(part)
}

/// The attributes that the fields give, in place of the known ones of the product.
fn read_device(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<GivenDevice> {
    let product_field = fields.required("product", reader);
    let product = product_field.as_ref().and_then(|(path, node)| reader.text(path, node));
    let architecture = fields.optional("architecture", reader).and_then(|(path, node)| reader.text(&path, node));
    let memory =
        fields.optional("memoryMiB", reader).and_then(|(path, node)| reader.number(&path, node, 1, 10_000_000));
    let capability = fields.optional("computeCapability", reader).and_then(|(path, node)| reader.text(&path, node));
    let driver = fields.optional("driverVersion", reader).and_then(|(path, node)| reader.text(&path, node));
    let product = product?;
    let known = products::device(&product);
    if known.is_none() && (architecture.is_none() || memory.is_none() || capability.is_none()) {
        let (path, node) = product_field?;
        let message = format!("`{path}: {}` is not a known product", shorten(&product));
        let known = did_you_mean(&product, &products::names());
        let remedy = format!("{known}; or add `architecture`, `memoryMiB` and `computeCapability`");
        reader.problems.at(node.place, ProblemCode::InvalidValue, message, remedy);
        return None;
    }
    let known = known.as_ref();
    Some(GivenDevice {
        architecture: architecture.or(known.map(|known| known.architecture.clone()))?,
        memory_mib: memory.or(known.map(|known| known.memory_mib))?,
        compute_capability: capability.or(known.map(|known| known.compute_capability.clone()))?,
        driver_version: driver.unwrap_or_else(|| products::DRIVER_VERSION.to_owned()),
        product,
    })
}

fn read_sharing(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<GivenSharing> {
    let words = [
        ("exclusive", GivenSharing::Exclusive),
        ("time-slicing", GivenSharing::TimeSlicing { replicas: 0 }),
        ("mps", GivenSharing::Mps { shares: 0 }),
        ("fractional", GivenSharing::Fractional),
    ];
    let sharing = match fields.optional("sharing", reader) {
        Some((path, node)) => reader.word(&path, node, &words)?,
        None => GivenSharing::Exclusive,
    };
    let replicas_field = fields.optional("replicas", reader);
    let replicas = replicas_field.as_ref().and_then(|(path, node)| reader.number(path, node, 2, 64));
    let needs = matches!(sharing, GivenSharing::TimeSlicing { .. } | GivenSharing::Mps { .. });
    match replicas_field {
        None if needs => {
            let message = format!("{} shares GPUs without `replicas`", reader.label);
            let place = fields.place();
            reader.problems.at(place, ProblemCode::MissingField, message, "add `replicas: 4` here");
            return None;
        }
        Some((path, node)) if !needs => {
            let message = format!("`{path}` of {} needs `sharing: time-slicing` or `sharing: mps`", reader.label);
            reader.problems.at(node.place, ProblemCode::Contradiction, message, "name the sharing, or remove it");
            return None;
        }
        _ => {}
    }
    let replicas = replicas.and_then(|replicas| u32::try_from(replicas).ok());
    Some(match sharing {
        GivenSharing::TimeSlicing { .. } => GivenSharing::TimeSlicing { replicas: replicas? },
        GivenSharing::Mps { .. } => GivenSharing::Mps { shares: replicas? },
        other => other,
    })
}

/// The leases of one entry: `count` of them are named `NAME-1`, `NAME-2` and so on.
fn read_lease(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<Vec<GivenLease>> {
    let mut fields = Fields::open(node, path, reader)?;
    let name = fields.required("name", reader).and_then(|(path, node)| reader.name(&path, node));
    let count = fields.optional("count", reader).map(|(path, node)| reader.number(&path, node, 1, MAX_LEASES));
    let donor = fields
        .required("donor", reader)
        .and_then(|(path, node)| reader.reference(&path, node, Target::EnrolledCluster));
    let age_ms = read_age(&mut fields, reader);
    let request = AskedRequest::read_fields(&mut fields, reader);
    fields.finish(reader);
    let lease = GivenLease { name: name?, donor: donor?, age_ms, request: request? };
    let Some(count) = count else { return Some(vec![lease]) };
    let numbered = |number: u64| GivenLease { name: format!("{}-{number}", lease.name), ..lease.clone() };
    Some((1..=count?).map(numbered).collect())
}

fn read_waiting(reader: &mut FieldReader<'_, '_>, path: &str, node: &Node) -> Option<WaitingRequest> {
    let mut fields = Fields::open(node, path, reader)?;
    let age_ms = read_age(&mut fields, reader);
    let request = AskedRequest::read_fields(&mut fields, reader);
    fields.finish(reader);
    Some(WaitingRequest { age_ms, request: request? })
}

fn read_age(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> u64 {
    let age = fields.optional("age", reader).and_then(|(path, node)| reader.duration_ms(&path, node));
    age.unwrap_or(0)
}
