//! The part of a request that decides whether it fits.

use comity_types::{ClusterId, DataNeed, Delivery};

use crate::model::demand::{GpuDemand, Members, RequestSpec, Topology};
use crate::model::time::Millis;

/// Equal keys fit alike under the same snapshot.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DemandKey<'a> {
    tenant: &'a str,
    /// Limits may hold for each user.
    user: &'a str,
    origin: &'a ClusterId,
    gpus: &'a GpuDemand,
    topology: Topology,
    members: Option<Members>,
    spread_donors: bool,
    seeks_one_gpu_type: bool,
    duration: Millis,
    delivery: Delivery,
    /// Policy says where datasets may go, and for what.
    data: &'a [DataNeed],
    purpose: &'a str,
    /// Preemptible leases may run on when a schedule closes.
    preemptible: bool,
    allow: &'a [ClusterId],
    deny: &'a [ClusterId],
}

impl<'a> DemandKey<'a> {
    pub(crate) fn of(spec: &'a RequestSpec) -> Self {
        Self {
            tenant: spec.tenant.as_str(),
            user: &spec.submitted_by,
            origin: &spec.origin,
            gpus: &spec.gpus,
            topology: spec.topology,
            members: spec.members,
            spread_donors: spec.spread_donors,
            seeks_one_gpu_type: spec.seeks_one_gpu_type(),
            duration: spec.duration,
            delivery: spec.delivery,
            data: &spec.data,
            purpose: &spec.purpose,
            preemptible: spec.preemptible.is_some(),
            allow: &spec.allow_donors,
            deny: &spec.deny_donors,
        }
    }
}
