//! The GPU classes of this cluster's devices by the signed policy. The broker's word on a class does not count: otherwise a
//! tenant that may borrow small GPUs could get large ones.

use comity_agent_state::record::AdmittedCapacity;
use comity_policy::{Bundle, DeviceFacts};
use comity_proto::v1::{Device, Node, sharing};
use comity_types::SharingMode;

/// The first device of a capacity that is not of a class: its index and node, and its class if it has one.
pub(super) fn other_device<'c>(
    bundle: &'c Bundle,
    class: &str,
    capacity: &'c AdmittedCapacity,
    nodes: &[Node],
) -> Option<(u32, &'c str, Option<&'c str>)> {
    let mut devices = capacity.nodes.iter().flat_map(|(id, part)| part.devices.keys().map(move |index| (id, *index)));
    devices.find_map(|(id, index)| {
        let node = nodes.iter().find(|node| node.id == *id);
        let device = node.and_then(|node| node.devices.get(usize::try_from(index).ok()?));
        let has = device.and_then(|device| bundle.class_of(&facts(device)));
        (has != Some(class)).then_some((index, id.as_str(), has))
    })
}

/// What selectors see of a device, as of one in an offer.
fn facts(device: &Device) -> DeviceFacts {
    DeviceFacts {
        architecture: device.architecture.clone(),
        memory_mib: device.memory_mib,
        cuda_compute_capability: device.cuda_compute_capability.clone(),
        driver_version: device.driver_version.clone(),
        ..DeviceFacts::of_product(&device.product_name, mode(device))
    }
}

fn mode(device: &Device) -> SharingMode {
    match device.sharing.as_ref().and_then(|sharing| sharing.mode.as_ref()) {
        Some(sharing::Mode::TimeSlicing(_)) => SharingMode::TimeSlicing,
        Some(sharing::Mode::Mps(_)) => SharingMode::Mps,
        Some(sharing::Mode::Mig(_)) => SharingMode::Mig,
        Some(sharing::Mode::Fractional(_)) => SharingMode::Fractional,
        Some(sharing::Mode::Exclusive(_)) | None => SharingMode::Exclusive,
    }
}
