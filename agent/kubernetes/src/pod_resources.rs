//! The kubelet's pod-resources API: the devices that its plugins offer, and the containers that hold them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_agent_model::status_reasons::reasons;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use api::pod_resources_lister_client::PodResourcesListerClient;
use api::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices, ListPodResourcesRequest,
    ListPodResourcesResponse,
};

use crate::gpu_resource::is_gpu_unit;

/// The kubelet's messages.
#[allow(missing_docs, reason = "generated: tonic adds items of its own without documentation")]
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
pub mod api {
    tonic::include_proto!("v1");
}

/// Where kubelets serve it.
pub const KUBELET_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// How long all calls of one reading may take.
const READ_WITHIN: Duration = Duration::from_secs(10);
/// Largest answer, as the kubelet's own clients bound it.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// How often pods are listed while a unit appears to have two holders.
const MOST_LISTS: u32 = 3;

/// One device, or one replica of a shared device, of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceUnit {
    /// The extended resource.
    pub resource: String,
    /// As the plugin names it: a UUID, or "UUID::N" for replica N of a shared device.
    pub id: String,
}

impl DeviceUnit {
    /// The device of the unit: its id without the number of the replica.
    pub fn device(&self) -> &str {
        self.id.split_once("::").map_or(&self.id, |(device, _)| device)
    }
}

/// A pod by its name; the kubelet reports no UID.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// GPUs of one node, as its kubelet has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// Healthy units.
    pub offered: BTreeSet<DeviceUnit>,
    /// Units that containers hold, by pod.
    pub held: BTreeMap<PodName, BTreeSet<DeviceUnit>>,
}

/// The kubelet cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum PodResourcesError {
    /// Nobody answers on the socket.
    #[error("cannot reach the kubelet on {path}: {reason}; mount its folder of that name", path = .path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
    /// It refuses a call.
    #[error("the kubelet refuses to list devices: {}", reasons(.0))]
    Refused(#[from] tonic::Status),
    /// It answers too late.
    #[error("the kubelet does not answer within {} s", READ_WITHIN.as_secs())]
    TimedOut,
}

/// Reads the devices of this node.
///
/// # Errors
/// [`PodResourcesError`].
pub async fn read_devices(socket: &Path) -> Result<NodeDevices, PodResourcesError> {
    let reading = async {
        let mut kubelet = connect(socket).await?;
        let offered = kubelet.get_allocatable_resources(AllocatableResourcesRequest {}).await?;
        let offered = offered_units(offered.into_inner());
        let mut held = BTreeMap::new();
        // The kubelet looks at one pod after another, so a unit that changes hands meanwhile can appear twice.
        for _ in 0..MOST_LISTS {
            held = held_units(kubelet.list(ListPodResourcesRequest {}).await?.into_inner());
            if has_one_holder_each(&held) {
                break;
            }
        }
        Ok(NodeDevices { offered, held })
    };
    tokio::time::timeout(READ_WITHIN, reading).await.map_err(|_| PodResourcesError::TimedOut)?
}

async fn connect(socket: &Path) -> Result<PodResourcesListerClient<Channel>, PodResourcesError> {
    let path = socket.to_owned();
    // The connector ignores the address.
    let endpoint = Endpoint::from_static("http://kubelet");
    let connector = service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    let channel = endpoint.connect_with_connector(connector).await.map_err(|error| {
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        PodResourcesError::Unreachable { path: socket.to_owned(), reason: cause.to_string() }
    })?;
    Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
}

fn gpus(devices: ContainerDevices) -> impl Iterator<Item = DeviceUnit> {
    let ContainerDevices { resource_name, device_ids } = devices;
    // Other plugins offer thousands of devices such as devices.kubevirt.io/kvm.
    let unit =
        move |id: String| is_gpu_unit(&resource_name, &id).then(|| DeviceUnit { resource: resource_name.clone(), id });
    device_ids.into_iter().filter_map(unit)
}

fn offered_units(offered: AllocatableResourcesResponse) -> BTreeSet<DeviceUnit> {
    offered.devices.into_iter().flat_map(gpus).collect()
}

fn held_units(list: ListPodResourcesResponse) -> BTreeMap<PodName, BTreeSet<DeviceUnit>> {
    let mut held: BTreeMap<PodName, BTreeSet<DeviceUnit>> = BTreeMap::new();
    for pod in list.pod_resources {
        let units: BTreeSet<DeviceUnit> =
            pod.containers.into_iter().flat_map(|container| container.devices).flat_map(gpus).collect();
        if !units.is_empty() {
            held.entry(PodName { namespace: pod.namespace, name: pod.name }).or_default().extend(units);
        }
    }
    held
}

fn has_one_holder_each(held: &BTreeMap<PodName, BTreeSet<DeviceUnit>>) -> bool {
    let mut seen = BTreeSet::new();
    held.values().flatten().all(|unit| seen.insert(&unit.id))
}

#[cfg(test)]
mod fuzz_answers;
#[cfg(test)]
mod tests;
