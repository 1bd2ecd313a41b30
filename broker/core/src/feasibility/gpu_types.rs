//! Types of GPUs, for requests whose checkpoints fit one type only.

use std::collections::BTreeSet;

use comity_types::{ClassName, ClusterId};

use crate::feasibility::fit::ResourceKind;
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{GpuType, Share};
use crate::model::placement::Placement;
use crate::state::State;

/// The types of a donor's devices of a class, by name.
pub(crate) fn gpu_types(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    class: &ClassName,
    share: &Share,
) -> BTreeSet<GpuType> {
    let devices = snapshot.nodes(donor).flat_map(|(_, node, classes)| node.devices.iter().zip(classes));
    let of_class = devices.filter(|(_, of)| of.as_ref() == Some(class)).map(|(device, _)| device);
    of_class
        .map(|device| GpuType {
            product: device.product_name.clone(),
            profile: ResourceKind::of(device, share).profile,
        })
        .collect()
}

/// The type of a placement's first device; `None` if its donor does not offer it any more.
pub(crate) fn gpu_type_of(state: &State, placement: &Placement) -> Option<GpuType> {
    let offer = state.clusters.get(&placement.donor)?.offer.as_ref()?;
    let (node, part) = placement.nodes.iter().next()?;
    let index = usize::try_from(*part.devices.keys().next()?).ok()?;
    let device = offer.nodes.get(node)?.devices.get(index)?;
    Some(GpuType { product: device.product_name.clone(), profile: placement.profile.clone() })
}
