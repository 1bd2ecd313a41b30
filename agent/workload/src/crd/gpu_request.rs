//! The `GpuRequest` resource.
#![expect(unreachable_pub, reason = "the schema derive copies the type into a function")]
#![expect(clippy::duplicated_attributes, reason = "columns of one type are no repetition")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Condition, DataNeed, Isolation, Members, Preemptible, Topology, Window};

/// Asks other clusters for GPUs. It cannot be changed: delete it and create another.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "comity.dev",
    version = "v1alpha1",
    kind = "GpuRequest",
    plural = "gpurequests",
    shortname = "gpureq",
    category = "comity",
    namespaced,
    status = "GpuRequestStatus",
    derive = "PartialEq",
    doc = "GPUs asked for from other clusters",
    printcolumn(name = "GPUs", type_ = "integer", json_path = ".spec.gpus"),
    printcolumn(name = "Template", type_ = "string", json_path = ".spec.template", priority = "1"),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.class"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(name = "Donor", type_ = "string", json_path = ".status.donor"),
    printcolumn(name = "Lease", type_ = "string", json_path = ".status.lease"),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiresAt"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = "1"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[x_kube(
    validation = Rule::new("self == oldSelf").message("a GpuRequest cannot be changed: delete it and create another"),
    validation = Rule::new("has(self.gpus) || has(self.template)").message("gpus is required: say how many, or name a template"),
    validation = Rule::new("!(has(self.class) && has(self.selector))").message("give either class or selector, not both"),
    validation = Rule::new("[has(self.milli), has(self.migProfile), has(self.memoryMib)].filter(given, given).size() <= 1").message("give at most one of milli, migProfile and memoryMib: each says how much of a GPU one share is"),
    validation = Rule::new("!(has(self.sameNode) && has(self.topology) && has(self.topology.sameNode))").message("give either sameNode or topology.sameNode, not both: they are the same"),
    validation = Rule::new("!(has(self.topology) && has(self.topology.spreadNodes) && self.topology.spreadNodes) || !((has(self.sameNode) && self.sameNode) || (has(self.topology.sameNode) && self.topology.sameNode) || (has(self.topology.wholeNode) && self.topology.wholeNode))").message("topology.spreadNodes contradicts sameNode and wholeNode: leave one of them out"),
    validation = Rule::new("!(has(self.spreadDonors) && self.spreadDonors) || has(self.members) || has(self.template)").message("spreadDonors is about members of a gang: say of how many with members, or leave it out"),
    validation = Rule::new("!has(self.members) || !has(self.gpus) || self.members.desired * self.gpus <= 4096").message("members.desired times gpus must be at most 4096: each member has that many GPUs"),
    validation = Rule::new("!(has(self.migProfile) && has(self.topology) && has(self.topology.nvlink) && self.topology.nvlink == 'Required')").message("NVLink does not join MIG instances: leave topology.nvlink out, or ask for whole GPUs"),
    validation = Rule::new("!(has(self.checkpointSecret) && has(self.delivery) && self.delivery == 'Namespace')").message("checkpointSecret reaches only pods on a virtual node: leave it out and create the Secret in the lease's namespace, or use delivery VirtualNode"),
    validation = Rule::new("!(has(self.topology) && has(self.topology.numa)) || (has(self.cpuMilliPerGpu) && self.cpuMilliPerGpu > 0) || (has(self.memoryMibPerGpu) && self.memoryMibPerGpu > 0) || has(self.template)").message("topology.numa aligns CPU and memory: say how much with cpuMilliPerGpu or memoryMibPerGpu")
)]
pub struct GpuRequestSpec {
    /// Tenant charged. Absent: the namespace's label comity.dev/tenant, or the agent's default; it must equal that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("tenant must be a DNS label: lower-case letters, digits and '-'"))]
    #[schemars(length(max = 63))]
    pub tenant: Option<String>,
    /// Request template of the policy bundle, which sets the fields that are absent here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("template must be a DNS label: lower-case letters, digits and '-'"))]
    #[schemars(length(max = 63))]
    pub template: Option<String>,
    /// GPU class. Absent, with no selector and no template either: the agent's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("class must be a DNS label: lower-case letters, digits and '-'"))]
    #[schemars(length(max = 63))]
    pub class: Option<String>,
    /// CEL over `device`, in place of a class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub selector: Option<String>,
    /// How many GPUs, or shares of GPUs; where there are members, of each of them. Required without a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 4096").message("gpus must be from 1 to 4096"))]
    pub gpus: Option<i32>,
    /// Thousandths of a GPU that one share is. Absent: a whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 50 && self <= 1000").message("milli must be from 50 to 1000: a twentieth of a GPU to a whole one"))]
    pub milli: Option<i32>,
    /// MIG profile that one share is, as in "1g.10gb".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^([1-9]c[.])?[1-9]g[.][1-9][0-9]{0,3}gb([+-][a-z]+([.][a-z]+)?)?$')").message("migProfile must be a name as nvidia-smi mig -lgip shows it, such as 1g.10gb or 1g.10gb+me"))]
    #[schemars(length(min = 1, max = 32))]
    pub mig_profile: Option<String>,
    /// GPU memory in MiB that one share is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 1 && self <= 1099511627776").message("memoryMib must be from 1 to 1099511627776"))]
    pub memory_mib: Option<i64>,
    /// CPU for each share, in thousandths of a core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1099511627776").message("cpuMilliPerGpu must be from 0 to 1099511627776, thousandths of a core"))]
    pub cpu_milli_per_gpu: Option<i64>,
    /// Main memory for each share, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self >= 0 && self <= 1099511627776").message("memoryMibPerGpu must be from 0 to 1099511627776 MiB"))]
    pub memory_mib_per_gpu: Option<i64>,
    /// Isolation of each share from other work on its GPU. Absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<Isolation>,
    /// All shares on one node; as topology.sameNode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub same_node: Option<bool>,
    /// Length of the lease, as in "2h"; absent: the federation's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,6}[smhd]$')").message("duration must be a number and one of s, m, h, d, as in 90s, 30m, 2h or 1d"), validation = Rule::new("!self.matches('^[1-9][0-9]{0,6}[smhd]$') || (int(self.substring(0, self.size() - 1)) * (self.endsWith('s') ? 1 : self.endsWith('m') ? 60 : self.endsWith('h') ? 3600 : 86400) >= 10 && int(self.substring(0, self.size() - 1)) * (self.endsWith('s') ? 1 : self.endsWith('m') ? 60 : self.endsWith('h') ? 3600 : 86400) <= 7776000)").message("duration must be from 10s to 90d"))]
    #[schemars(length(max = 8))]
    pub duration: Option<String>,
    /// Idle time after which the lease is released, as in "30m": no pod of it runs or waits, or its GPUs have no load.
    /// Absent: policy's limit, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[1-9][0-9]{0,6}[smhd]$')").message("releaseIdle must be a number and one of s, m, h, d, as in 90s, 30m, 2h or 1d"), validation = Rule::new("!self.matches('^[1-9][0-9]{0,6}[smhd]$') || (int(self.substring(0, self.size() - 1)) * (self.endsWith('s') ? 1 : self.endsWith('m') ? 60 : self.endsWith('h') ? 3600 : 86400) >= 10 && int(self.substring(0, self.size() - 1)) * (self.endsWith('s') ? 1 : self.endsWith('m') ? 60 : self.endsWith('h') ? 3600 : 86400) <= 7776000)").message("releaseIdle must be from 10s to 90d"))]
    #[schemars(length(max = 8))]
    pub release_idle: Option<String>,
    /// How the GPUs lie together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<Topology>,
    /// A gang of members, each with `gpus` GPUs on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Members>,
    /// Whether a gang may spread over several donors, with one lease and one virtual node for each. Absent: no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_donors: Option<bool>,
    /// Datasets that its work reads: donors that hold them, or can have them soon, come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub data: Vec<DataNeed>,
    /// Purpose for which its work reads `data`: one that the Federation document declares. Required by datasets that may be
    /// read for some purposes only. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("purpose must be a DNS label: lower-case letters, digits and '-'"))]
    #[schemars(length(max = 63))]
    pub purpose: Option<String>,
    /// Priority class of the policy bundle. Absent: the federation's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')").message("priorityClass must be a DNS label: lower-case letters, digits and '-'"))]
    #[schemars(length(max = 63))]
    pub priority_class: Option<String>,
    /// It may be preempted by requests of higher priority. Absent: it may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemptible: Option<Preemptible>,
    /// Secret of this namespace by which pods on its virtual node reach their checkpoints: GPU pods that are created here
    /// while the request lives, and name no other, get it as variables. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("checkpointSecret must be the name of a Secret: lower-case letters, digits, '-' and '.'"))]
    #[schemars(length(max = 253))]
    pub checkpoint_secret: Option<String>,
    /// When it may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// How the GPUs arrive. Absent: VirtualNode; with a template, as that says, or Namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DeliveryKind>,
}

/// How the GPUs of a request arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeliveryKind {
    /// As a node of this cluster, on which GPU pods of this namespace run unchanged.
    #[default]
    VirtualNode,
    /// As a namespace of the donor, by a kubeconfig Secret in this namespace.
    Namespace,
}

/// Status of a `GpuRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GpuRequestStatus {
    /// Generation that this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Refused, Submitting, Queued, Placed, Connecting, Active, Suspect, Reclaiming, Ending, Completed, Cancelled or
    /// Failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The broker's request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Its lease; of a gang with several, the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<String>,
    /// All its leases, where a gang has several: also at other donors, and of later members. Each has a GpuLease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leases: Vec<String>,
    /// Who lends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub donor: Option<String>,
    /// When the lease ends unless renewed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When the lease ends because it is being reclaimed, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_at: Option<String>,
    /// When the lease is released because it is idle, unless work uses it again, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_release_at: Option<String>,
    /// Why it waits, or what went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Accepted, Placed and Ready.
    #[serde(default)]
    pub conditions: Vec<Condition>,
}
