//! A request as burst submits it.

use comity_agent_model::gpu_demand::GpuDemand;
use comity_proto::v1;

use super::facts::pod_options::PodOptions;
use super::group::BurstNote;

/// A request for the GPUs of some pods, delivered as a virtual node.
#[derive(Clone, Debug, PartialEq)]
pub struct BurstRequest {
    /// Tenant charged.
    pub tenant: String,
    /// This cluster.
    pub origin: String,
    /// The GPUs.
    pub gpus: GpuDemand,
    /// Whether one node must have all of them.
    pub same_node: bool,
    /// Length of a lease, in milliseconds.
    pub duration_ms: u64,
    /// Namespace of the pods.
    pub target_namespace: String,
    /// Its pods, for people and for this agent after a restart.
    pub note: BurstNote,
    /// Options that the pods set.
    pub(crate) options: PodOptions,
}

impl BurstRequest {
    /// The message that submits it.
    pub(crate) fn to_message(&self) -> v1::RequestSpec {
        let mut spec = v1::RequestSpec {
            tenant: self.tenant.clone(),
            origin: self.origin.clone(),
            gpus: Some(self.gpus.to_message()),
            topology: Some(v1::Topology { same_node: self.same_node, ..v1::Topology::default() }),
            duration_ms: self.duration_ms,
            delivery: v1::Delivery::VirtualNode.into(),
            target_namespace: self.target_namespace.clone(),
            note: self.note.to_string(),
            ..v1::RequestSpec::default()
        };
        self.options.write_to(&mut spec);
        spec
    }
}
