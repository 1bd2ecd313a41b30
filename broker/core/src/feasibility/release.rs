//! Whether a demand fits once leases are gone.

use crate::feasibility::fit::cutting::Worths;
use crate::feasibility::fit::fit;
use crate::feasibility::snapshot::{Held, View};
use crate::feasibility::verdict::{Candidate, ask_donor};
use crate::model::demand::RequestSpec;
use crate::model::id::ClusterId;
use crate::model::lease::Lease;
use crate::model::time::Timestamp;

/// Where `spec` fits at `donor` once those are gone.
pub(crate) fn released(
    view: &View<'_>,
    gone: &[&Held<'_>],
    spec: &RequestSpec,
    donor: &ClusterId,
) -> Option<Candidate> {
    let mut view = view.clone();
    for held in gone {
        view.release(held);
    }
    let mut worths = Worths::default();
    ask_donor(&view, spec, donor, &mut |view, donor, wanted| fit(view, donor, wanted, &mut worths)).ok()
}

/// Where `spec` fits at `donor` once those are gone.
pub(crate) fn fits_when_gone<'l>(
    view: &View<'_>,
    spec: &RequestSpec,
    donor: &ClusterId,
    gone: impl Iterator<Item = &'l Lease>,
) -> Option<Candidate> {
    let held = gone.map(|lease| Held { end: Timestamp(0), counts: lease.as_use(), placement: &lease.placement });
    let held: Vec<Held<'_>> = held.collect();
    released(view, &held.iter().collect::<Vec<_>>(), spec, donor)
}
