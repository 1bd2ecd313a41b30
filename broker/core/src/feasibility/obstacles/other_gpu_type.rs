//! Explains that a donor has room for a request, but on GPUs of another type than its checkpoint fits.

use comity_types::ClusterId;

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::{Fit, Wanted, fit};
use crate::feasibility::obstacle::{Cure, Obstacle, obstacle};
use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::GpuDemand;

/// The obstacle, if the donor could serve the request now with GPUs of any type, or never with those of its type.
/// The request needs `least` shares; `ever` of them fit when the donor is idle.
pub(crate) fn other_gpu_type(
    snapshot: &Snapshot<'_>,
    donor: &ClusterId,
    wanted: &Wanted<'_>,
    ever: u64,
    least: u64,
) -> Option<Obstacle> {
    let gpu_type = wanted.gpus.gpu_type.as_ref()?;
    let any = GpuDemand { gpu_type: None, ..wanted.gpus.clone() };
    match fit(snapshot, donor, &Wanted { gpus: &any, ..*wanted }, &mut MigValues::default()) {
        Fit::Lacks { ever: of_any_type, .. } if ever >= least || of_any_type < least => return None,
        Fit::Fits { .. } | Fit::Lacks { .. } => {}
    }
    let class = wanted.class;
    Some(if ever < least {
        let reason = format!(
            "{donor} has room for {ever} shares of class {class} on GPUs of type {gpu_type} even when idle; the \
             request's checkpoint needs {least} on that type"
        );
        obstacle(
            Cure::Change,
            "other-gpu-type",
            reason,
            "submit it again without sameGpuType, or ask for another donor",
        )
    } else {
        let reason =
            format!("{donor} has room on GPUs of class {class}, but the request's checkpoint needs type {gpu_type}");
        obstacle(Cure::Waiting, "other-gpu-type", reason, "wait until GPUs of that type are free")
    })
}
