//! The inventory of a host without Kubernetes, from a YAML file.
//!
//! The file is polled once a second and read when it changed. An invalid file is logged, and the last valid inventory
//! stays published.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use comity_agent_model::node_id::NodeSalt;
use comity_policy::quantity;
use comity_proto::v1;
use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::sync::watch;

use super::health::WrittenFault;
use super::{Inventory, InventorySettings, LocalReserve, MAX_DEVICES, MAX_NODES, MIB, WHOLE_MILLI};

/// Polling interval.
const POLL: Duration = Duration::from_secs(1);
/// Largest file: a hundred times the inventory of a large machine room.
const MAX_INVENTORY_BYTES: u64 = 4 << 20;

/// Why an inventory file is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryFileError {
    /// It cannot be read.
    #[error("cannot read the inventory {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
    /// It is invalid.
    #[error("{}:{line}:{column}: {reason}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1.
        column: u64,
        /// Field, value and remedy.
        reason: String,
    },
}

/// Reads the file and follows it. Must be called within a tokio runtime; ends when the inventory is dropped.
///
/// # Errors
/// [`InventoryFileError`] for the first reading; later ones are logged.
pub async fn observe(path: &Path, settings: InventorySettings) -> Result<Inventory, InventoryFileError> {
    let (mut seen, nodes) = look(path, &settings).await?;
    let (publish, receiver) = watch::channel(Some(Arc::new(nodes)));
    let path = path.to_owned();
    let follow = async move {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = version(&path).await;
            if now == seen {
                continue;
            }
            match look(&path, &settings).await {
                Ok((version, nodes)) => {
                    seen = version;
                    tracing::info!(path = %path.display(), nodes = nodes.len(), "read the inventory again");
                    publish.send_replace(Some(Arc::new(nodes)));
                }
                Err(error) => {
                    // Logged once for each change of the file.
                    seen = now;
                    tracing::error!(%error, "the inventory stays as it was");
                }
            }
        }
    };
    Ok(Inventory::new(receiver, tokio::spawn(follow)))
}

/// Modification time and length of the file, to detect changes.
type Version = Option<(SystemTime, u64)>;

async fn version(path: &Path) -> Version {
    let metadata = tokio::fs::metadata(path).await.ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

async fn look(path: &Path, settings: &InventorySettings) -> Result<(Version, Vec<v1::Node>), InventoryFileError> {
    let failed = |reason: String| InventoryFileError::Read { path: path.to_owned(), reason };
    // The version is read first, so that a concurrent change is seen at the next poll.
    let seen = version(path).await;
    if let Some((_, length)) = seen
        && length > MAX_INVENTORY_BYTES
    {
        return Err(failed(format!("it has {length} bytes, at most {MAX_INVENTORY_BYTES} are read")));
    }
    let text = tokio::fs::read_to_string(path).await.map_err(|error| failed(error.to_string()))?;
    Ok((seen, parse(path, &text, &settings.salt, &settings.reserve)?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    nodes: Vec<FileNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileNode {
    name: Spanned<String>,
    cpu: Spanned<String>,
    memory: Spanned<String>,
    #[serde(default = "yes")]
    schedulable: bool,
    #[serde(default = "yes")]
    ready: bool,
    #[serde(default)]
    local_use: Option<LocalUse>,
    gpus: Vec<FileGpus>,
    #[serde(default)]
    numa: BTreeMap<u32, node_wiring::FileNuma>,
    /// Gbit/s by network.
    #[serde(default)]
    rdma: BTreeMap<String, Spanned<u32>>,
}

/// Local use of the node; devices are taken from the last one down.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct LocalUse {
    cpu: Option<Spanned<String>>,
    memory: Option<Spanned<String>>,
    gpus: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileGpus {
    count: Spanned<u32>,
    product: Spanned<String>,
    #[serde(rename = "memoryMiB")]
    memory_mib: u64,
    architecture: String,
    compute_capability: String,
    driver_version: String,
    #[serde(default)]
    sharing: Option<Spanned<FileSharing>>,
    #[serde(default)]
    resource_name: Option<String>,
    #[serde(default = "yes")]
    healthy: bool,
    /// Their fault, if any.
    #[serde(default)]
    fault: Option<Spanned<WrittenFault>>,
    /// NUMA node that they are nearest to.
    #[serde(default)]
    numa: Option<Spanned<u32>>,
    /// Name of their NVLink clique.
    #[serde(default)]
    nvlink: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum FileSharing {
    Exclusive,
    TimeSlicing { replicas: u32 },
    Mps { shares: u32 },
    Mig(FileMig),
    Fractional { step_milli: u32 },
}

/// Either the number of instances, or their positions.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileMig {
    #[serde(default)]
    instances: BTreeMap<String, u32>,
    #[serde(default)]
    layout: Option<Vec<FileInstance>>,
    /// Whether free slices are repartitioned as leases need them.
    #[serde(default)]
    repartition: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileInstance {
    profile: String,
    start: u32,
    #[serde(default)]
    local: bool,
}

const fn yes() -> bool {
    true
}

/// A problem and its place in the file.
struct Problem(serde_saphyr::Location, String);

/// Reads an inventory; `path` is for the errors only.
///
/// # Errors
/// [`InventoryFileError::Wrong`] with line and column.
pub fn parse(
    path: &Path,
    text: &str,
    salt: &NodeSalt,
    reserve: &LocalReserve,
) -> Result<Vec<v1::Node>, InventoryFileError> {
    let wrong = |location: serde_saphyr::Location, reason: String| InventoryFileError::Wrong {
        path: path.to_owned(),
        line: location.line().max(1),
        column: location.column().max(1),
        reason,
    };
    let file: File = serde_saphyr::from_str(text).map_err(|error| {
        let plain = error.without_snippet();
        wrong(
            plain.location().unwrap_or(serde_saphyr::Location::UNKNOWN),
            plain.render_with_formatter(&serde_saphyr::UserMessageFormatter),
        )
    })?;
    nodes(&file, salt, reserve).map_err(|Problem(location, reason)| wrong(location, reason))
}

fn nodes(file: &File, salt: &NodeSalt, reserve: &LocalReserve) -> Result<Vec<v1::Node>, Problem> {
    let mut names = BTreeSet::new();
    let mut nodes = Vec::with_capacity(file.nodes.len());
    for (count, given) in file.nodes.iter().enumerate() {
        let at = given.name.referenced;
        if given.name.value.is_empty() || !names.insert(given.name.value.as_str()) {
            return Err(Problem(
                at,
                format!("name {:?} is empty or given twice; each node needs a name of its own", given.name.value),
            ));
        }
        if count >= MAX_NODES {
            return Err(Problem(at, format!("more than {MAX_NODES} nodes; an offer holds no more")));
        }
        nodes.push(node(given, salt, reserve)?);
    }
    nodes.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(nodes)
}

fn node(given: &FileNode, salt: &NodeSalt, reserve: &LocalReserve) -> Result<v1::Node, Problem> {
    let local = given.local_use.as_ref();
    let cpu = |given: &Spanned<String>| amount("cpu", given, quantity::milli_floor);
    let memory = |given: &Spanned<String>| amount("memory", given, quantity::ones_floor).map(|bytes| bytes / MIB);
    let mut devices = Vec::new();
    for gpus in &given.gpus {
        let device = device(gpus)?;
        let room = MAX_DEVICES.saturating_sub(devices.len());
        let count = usize::try_from(gpus.count.value).unwrap_or(usize::MAX);
        if count == 0 || count > room {
            return Err(Problem(
                gpus.count.referenced,
                format!("count {count} is out of range; a node has 1 to {MAX_DEVICES} devices in all"),
            ));
        }
        devices.extend(std::iter::repeat_n(device, count));
    }
    let taken = local.map_or(0, |local| local.gpus).max(reserve.gpus_per_node);
    for device in
        devices.iter_mut().rev().filter(|device| device.healthy).take(usize::try_from(taken).unwrap_or(usize::MAX))
    {
        device.local_use_milli = WHOLE_MILLI;
    }
    for (index, device) in (0_u32..).zip(&mut devices) {
        device.index = index;
    }
    Ok(v1::Node {
        id: salt.node_id(&given.name.value),
        cpu_milli: cpu(&given.cpu)?,
        memory_mib: memory(&given.memory)?,
        local_cpu_milli: local.and_then(|local| local.cpu.as_ref()).map_or(Ok(0), cpu)?.max(reserve.cpu_milli),
        local_memory_mib: local.and_then(|local| local.memory.as_ref()).map_or(Ok(0), memory)?.max(reserve.memory_mib),
        devices,
        schedulable: given.schedulable,
        not_ready: !given.ready,
        numa: node_wiring::numa(given)?,
        rdma: node_wiring::rdma(given)?,
    })
}

fn amount(field: &str, given: &Spanned<String>, read: impl Fn(&str) -> Option<u64>) -> Result<u64, Problem> {
    read(&given.value).ok_or_else(|| {
        Problem(
            given.referenced,
            format!(
                "{field} {:?} is not an amount; write it as Kubernetes does, as in \"64\", \"500m\" or 512Gi",
                given.value
            ),
        )
    })
}

fn device(given: &FileGpus) -> Result<v1::Device, Problem> {
    if given.product.value.is_empty() {
        return Err(Problem(
            given.product.referenced,
            "product is empty; write the model, as in NVIDIA-H100-80GB-HBM3".to_owned(),
        ));
    }
    let (mode, is_mig) = match &given.sharing {
        None => (v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {}), false),
        Some(sharing) => (mode(sharing)?, matches!(sharing.value, FileSharing::Mig(_))),
    };
    let usual_name = if is_mig { "nvidia.com/mig" } else { "nvidia.com/gpu" };
    Ok(v1::Device {
        index: 0,
        product_name: given.product.value.clone(),
        architecture: super::gpu_pool::architecture(&given.architecture),
        memory_mib: given.memory_mib,
        cuda_compute_capability: given.compute_capability.clone(),
        driver_version: given.driver_version.clone(),
        sharing: Some(v1::Sharing { mode: Some(mode) }),
        healthy: given.healthy,
        local_use_milli: 0,
        resource_name: given.resource_name.clone().unwrap_or_else(|| usual_name.to_owned()),
        numa_node: given.numa.as_ref().map(|numa| numa.value),
        fault: fault(given)?,
        nvlink_clique: given.nvlink.as_ref().map(|clique| clique.value.clone()).unwrap_or_default(),
    })
}

/// The fault of devices; those that are not healthy always have one.
fn fault(given: &FileGpus) -> Result<Option<v1::DeviceFault>, Problem> {
    match &given.fault {
        Some(fault) => {
            fault.value.to_proto().map(Some).map_err(|reason| Problem(fault.referenced, format!("fault: {reason}")))
        }
        None => Ok((!given.healthy)
            .then(|| v1::DeviceFault { class: v1::FaultClass::Degraded.into(), ..v1::DeviceFault::default() })),
    }
}

fn mode(given: &Spanned<FileSharing>) -> Result<v1::sharing::Mode, Problem> {
    let within = |name: &str, value: u32, range: std::ops::RangeInclusive<u32>| {
        if range.contains(&value) {
            return Ok(value);
        }
        Err(Problem(
            given.referenced,
            format!("sharing: {name} {value} is out of range; use {} to {}", range.start(), range.end()),
        ))
    };
    Ok(match &given.value {
        FileSharing::Exclusive => v1::sharing::Mode::Exclusive(v1::sharing::Exclusive {}),
        FileSharing::TimeSlicing { replicas } => v1::sharing::Mode::TimeSlicing(v1::sharing::TimeSlicing {
            replicas: within("replicas", *replicas, 2..=64)?,
        }),
        FileSharing::Mps { shares } => {
            v1::sharing::Mode::Mps(v1::sharing::Mps { shares: within("shares", *shares, 2..=48)? })
        }
        FileSharing::Fractional { step_milli } => v1::sharing::Mode::Fractional(v1::sharing::Fractional {
            step_milli: within("stepMilli", *step_milli, 1..=WHOLE_MILLI)?,
        }),
        FileSharing::Mig(mig) => v1::sharing::Mode::Mig(match &mig.layout {
            None if mig.repartition => {
                return Err(Problem(
                    given.referenced,
                    "sharing: repartition needs a layout; list the instances that exist, or write layout: []"
                        .to_owned(),
                ));
            }
            None => {
                within("instances in all", mig.instances.values().copied().fold(0, u32::saturating_add), 1..=8)?;
                let count = |(profile, count): (&String, &u32)| v1::sharing::MigInstances {
                    profile: profile.clone(),
                    count: *count,
                };
                v1::sharing::Mig { instances: mig.instances.iter().map(count).collect(), layout: None }
            }
            Some(_) if !mig.instances.is_empty() => {
                return Err(Problem(
                    given.referenced,
                    "sharing: instances and layout say the same; keep one of them".to_owned(),
                ));
            }
            Some(layout) => {
                within(
                    "instances in all",
                    u32::try_from(layout.len()).unwrap_or(u32::MAX),
                    u32::from(!mig.repartition)..=8,
                )?;
                let mut starts = BTreeSet::new();
                for instance in layout {
                    within(&format!("start of {}", instance.profile), instance.start, 0..=7)?;
                    if !starts.insert(instance.start) {
                        let reason =
                            format!("sharing: two instances start at {}; each has slots of its own", instance.start);
                        return Err(Problem(given.referenced, reason));
                    }
                }
                let instance = |instance: &FileInstance| v1::sharing::MigInstance {
                    profile: instance.profile.clone(),
                    start: instance.start,
                    local: instance.local,
                };
                let layout = v1::sharing::MigLayout {
                    instances: layout.iter().map(instance).collect(),
                    repartition: mig.repartition,
                };
                v1::sharing::Mig { instances: Vec::new(), layout: Some(layout) }
            }
        }),
    })
}

mod node_wiring;

#[cfg(test)]
mod tests;
