//! The demand of a request.

mod demand_bounds;
pub(crate) mod gpu_type;
pub(crate) mod preemptible;
pub(crate) mod template;
pub(crate) mod topology;

use comity_types::{ClassName, ClusterId, DataNeed, Delivery, PriorityName, TemplateName, TenantId};
use serde::{Deserialize, Serialize};

use crate::model::limits::WHOLE_MILLI;
use crate::model::time::{Millis, Timestamp};

pub use comity_types::Isolation;
pub use gpu_type::GpuType;
pub use preemptible::Preemptible;
pub use template::{gpus_of_template, of_template};
pub use topology::{Members, Numa, NvLink, Topology};

/// Namespace on the origin that receives the kubeconfig Secret of requests that name none.
pub const DEFAULT_TARGET_NAMESPACE: &str = "comity-leases";

/// Share of one device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// The whole device.
    Whole,
    /// Thousandths, 50 to 1000.
    Milli(u32),
    /// A MIG profile, by the name that the device reports.
    MigProfile(String),
    /// Device memory in MiB.
    MemoryMib(u64),
}

/// The acceptable devices: those of a class, or those that a CEL expression selects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceChoice {
    /// A GPU class of the policy bundle.
    Class(ClassName),
    /// A CEL expression over `device`.
    Selector(String),
}

/// The GPUs that a request needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuDemand {
    /// The acceptable devices.
    pub devices: DeviceChoice,
    /// Share of each device.
    pub share: Share,
    /// Number of shares.
    pub count: u32,
    /// CPU per share, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Main memory per share, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Isolation that each share needs.
    #[serde(default, skip_serializing_if = "Isolation::is_none")]
    pub isolation: Isolation,
    /// The only acceptable type: the one of its first active lease, if its checkpoints need that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<GpuType>,
}

/// A checked request, as submitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestSpec {
    /// The requesting tenant.
    pub tenant: TenantId,
    /// The cluster that the workload comes from.
    pub origin: ClusterId,
    /// The GPUs, per member if `members` is set.
    pub gpus: GpuDemand,
    /// Their topology.
    pub topology: Topology,
    /// The gang's number of members, each with `gpus`. `None`: `gpus` is the whole demand and may lie on several nodes.
    pub members: Option<Members>,
    /// Whether its members may lie on several donors, with one lease per donor.
    pub spread_donors: bool,
    /// Data that its work reads. The scheduler prefers donors that hold it or can fetch it soon.
    pub data: Vec<DataNeed>,
    /// The purpose for which it reads them: one that the federation declares; empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub purpose: String,
    /// Length of the lease; zero takes the federation's default.
    pub duration: Millis,
    /// Donors that may serve it; empty for any.
    pub allow_donors: Vec<ClusterId>,
    /// Donors that must not serve it. The broker adds those that the origin's agent refused.
    pub deny_donors: Vec<ClusterId>,
    /// How the origin accesses the lease.
    pub delivery: Delivery,
    /// Namespace on the origin: gets the kubeconfig Secret, or holds the pods that may run on the virtual node.
    pub target_namespace: String,
    /// Free text.
    pub note: String,
    /// Priority class; `None` takes the federation's default, if there is one.
    pub priority: Option<PriorityName>,
    /// Earliest time to place it.
    pub not_before: Option<Timestamp>,
    /// Latest time to place it.
    pub start_by: Option<Timestamp>,
    /// Terms of its preemption; `None` if it may not be preempted.
    pub preemptible: Option<Preemptible>,
    /// Idle time after which its leases are released; `None` leaves that to policy.
    pub release_idle: Option<Millis>,
    /// Secret of the target namespace by which pods on the virtual node reach their checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_secret: Option<String>,
    /// The request template that it was made from. Its fields are those of the template at submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateName>,
    /// Who submitted it: a user's SPIFFE id, or the id of the cluster whose agent did; empty if unknown. Limits on each user
    /// count its leases.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub submitted_by: String,
}

impl GpuDemand {
    /// Thousandths of devices that quotas charge before the placement. Exact for whole and milli shares. MIG profiles
    /// and memory shares count as one device each until placed, and by their actual share after that.
    #[must_use]
    pub fn nominal_milli(&self) -> u64 {
        let each = match &self.share {
            Share::Whole => u64::from(WHOLE_MILLI),
            Share::Milli(milli) => u64::from(*milli),
            Share::MigProfile(_) | Share::MemoryMib(_) => u64::from(WHOLE_MILLI),
        };
        each.saturating_mul(u64::from(self.count))
    }

    /// Lower bound, in thousandths of devices, of what it takes wherever it is placed. Exact for whole and milli
    /// shares. A MIG profile takes at least one of at most eight slots per compute slice. A memory share has no bound
    /// before the device is known.
    #[must_use]
    pub fn lower_bound_milli(&self) -> u64 {
        let each = match &self.share {
            Share::Whole => u64::from(WHOLE_MILLI),
            Share::Milli(milli) => u64::from(*milli),
            Share::MigProfile(profile) => {
                let slices =
                    profile.bytes().next().filter(u8::is_ascii_digit).map_or(1, |digit| u64::from(digit - b'0'));
                slices.clamp(1, 8) * u64::from(WHOLE_MILLI) / 8
            }
            Share::MemoryMib(_) => 1,
        };
        each.saturating_mul(u64::from(self.count))
    }
}

impl RequestSpec {
    /// A request for `gpus` that sets nothing else: one lease of the federation's default length, by any donor, delivered
    /// as a namespace.
    #[must_use]
    pub fn new(tenant: TenantId, origin: ClusterId, gpus: GpuDemand) -> Self {
        Self {
            tenant,
            origin,
            gpus,
            topology: Topology::default(),
            members: None,
            spread_donors: false,
            data: Vec::new(),
            purpose: String::new(),
            duration: Millis(0),
            allow_donors: Vec::new(),
            deny_donors: Vec::new(),
            delivery: Delivery::Namespace,
            target_namespace: DEFAULT_TARGET_NAMESPACE.to_owned(),
            note: String::new(),
            priority: None,
            not_before: None,
            start_by: None,
            preemptible: None,
            release_idle: None,
            checkpoint_secret: None,
            template: None,
            submitted_by: String::new(),
        }
    }

    /// Thousandths of devices that it starts with at least, as counted by [`GpuDemand::nominal_milli`].
    #[must_use]
    pub fn nominal_milli(&self) -> u64 {
        self.gpus.nominal_milli().saturating_mul(u64::from(self.members.map_or(1, |members| members.min)))
    }

    /// Thousandths of devices that it starts with at least, as counted by [`GpuDemand::lower_bound_milli`].
    #[must_use]
    pub fn least_milli(&self) -> u64 {
        self.gpus.lower_bound_milli().saturating_mul(u64::from(self.members.map_or(1, |members| members.min)))
    }

    /// Thousandths of devices with all desired members, as counted by [`GpuDemand::lower_bound_milli`].
    #[must_use]
    pub fn most_milli(&self) -> u64 {
        self.gpus.lower_bound_milli().saturating_mul(u64::from(self.members.map_or(1, |members| members.desired)))
    }

    /// Minimum number of shares to start.
    #[must_use]
    pub fn least_shares(&self) -> u64 {
        u64::from(self.gpus.count).saturating_mul(u64::from(self.members.map_or(1, |members| members.min)))
    }

    /// Number of shares with all desired members.
    #[must_use]
    pub fn most_shares(&self) -> u64 {
        u64::from(self.gpus.count).saturating_mul(u64::from(self.members.map_or(1, |members| members.desired)))
    }

    /// Whether all its devices must be of one type, which is not known yet.
    #[must_use]
    pub(crate) fn seeks_one_gpu_type(&self) -> bool {
        self.gpus.gpu_type.is_none() && self.preemptible.is_some_and(|preemptible| preemptible.same_gpu_type)
    }

    /// The same request for devices of this type only.
    #[must_use]
    pub(crate) fn of_gpu_type(&self, gpu_type: GpuType) -> Self {
        Self { gpus: GpuDemand { gpu_type: Some(gpu_type), ..self.gpus.clone() }, ..self.clone() }
    }

    /// The same request for `members`, limited to `donors`; empty for any donor that it allows.
    #[must_use]
    pub(crate) fn for_members(&self, members: Members, donors: Vec<ClusterId>) -> Self {
        let mut part = Self { members: self.members.map(|_| members), ..self.clone() };
        if !donors.is_empty() {
            part.deny_donors.extend(donors.iter().filter(|donor| !self.allows(donor)).cloned());
            part.allow_donors = donors;
        }
        part
    }

    /// Whether it allows this donor.
    #[must_use]
    pub fn allows(&self, donor: &ClusterId) -> bool {
        (self.allow_donors.is_empty() || self.allow_donors.contains(donor)) && !self.deny_donors.contains(donor)
    }
}
