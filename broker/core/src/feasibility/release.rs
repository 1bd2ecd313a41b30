//! Checks whether a demand fits once leases are gone.

use comity_types::ClusterId;

use crate::feasibility::fit::cutting::MigValues;
use crate::feasibility::fit::fit;
use crate::feasibility::snapshot::{HeldCapacity, Snapshot};
use crate::feasibility::verdict::{FeasiblePlacement, ask_donor};
use crate::model::demand::RequestSpec;
use crate::model::lease::Lease;
use crate::model::time::Timestamp;

/// The placement of `spec` at `donor` once `gone` are released.
pub(crate) fn fits_after_release(
    snapshot: &Snapshot<'_>,
    gone: &[&HeldCapacity<'_>],
    spec: &RequestSpec,
    donor: &ClusterId,
) -> Option<FeasiblePlacement> {
    let mut snapshot = snapshot.clone();
    for held in gone {
        snapshot.release(held);
    }
    let mut mig_values = MigValues::default();
    ask_donor(&snapshot, spec, donor, &mut |snapshot, donor, wanted| fit(snapshot, donor, wanted, &mut mig_values)).ok()
}

/// Like [`fits_after_release`], for leases.
pub(crate) fn fits_when_gone<'l>(
    snapshot: &Snapshot<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    gone: impl Iterator<Item = &'l Lease>,
) -> Option<FeasiblePlacement> {
    let held =
        gone.map(|lease| HeldCapacity { end: Timestamp(0), counts: lease.as_use(), placement: &lease.placement });
    let held: Vec<HeldCapacity<'_>> = held.collect();
    fits_after_release(snapshot, &held.iter().collect::<Vec<_>>(), spec, donor)
}
