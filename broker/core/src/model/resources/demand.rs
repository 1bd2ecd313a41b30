//! The demand of a request.

pub(crate) mod preemptible;
pub(crate) mod topology;

use comity_types::{ClassName, ClusterId, Delivery, PriorityName, TenantId, is_dns_label};
use serde::{Deserialize, Serialize};

use crate::model::data::{self, DataNeed};
use crate::model::limits::{
    MAX_AMOUNT, MAX_DONOR_LIST, MAX_LEASE_MS, MAX_PURPOSE_BYTES, MAX_SELECTOR_BYTES, MAX_SHARES_PER_REQUEST,
    MIN_LEASE_MS, MIN_SHARE_MILLI, WHOLE_MILLI,
};
use crate::model::refusal::Refusal;
use crate::model::time::{Millis, Timestamp};

pub use preemptible::Preemptible;
pub use topology::{Members, Numa, NvLink, Topology};

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
}

/// A checked offloading request, as submitted.
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
    /// Length of the lease; zero takes the federation's default.
    pub duration: Millis,
    /// Donors that may serve it; empty for any.
    pub allow_donors: Vec<ClusterId>,
    /// Donors that must not serve it.
    pub deny_donors: Vec<ClusterId>,
    /// How the origin accesses the lease.
    pub delivery: Delivery,
    /// Namespace on the origin: gets the kubeconfig Secret, or holds the pods that may run on the virtual node.
    pub target_namespace: String,
    /// Free text.
    pub purpose: String,
    /// Priority class; `None` takes the federation's default, if there is one.
    pub priority: Option<PriorityName>,
    /// Earliest time to place it.
    pub not_before: Option<Timestamp>,
    /// Latest time to place it.
    pub start_by: Option<Timestamp>,
    /// Terms of its preemption; `None` if it may not be preempted.
    pub preemptible: Option<Preemptible>,
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

    /// Only gangs may spread over donors, and nothing may connect their members across donors.
    fn check_spread(&self) -> Result<(), Refusal> {
        if !self.spread_donors {
            return Ok(());
        }
        let refused = |problem: &str, remedy: &str| {
            Err(Refusal::invalid("spec.spread_donors", self.spread_donors, problem, remedy))
        };
        if self.members.is_none() {
            return refused("is asked for without spec.members", "say of how many members it is, or leave it out");
        }
        if self.topology.same_node {
            return refused("contradicts spec.topology.same_node", "leave one of the two out");
        }
        if self.topology.rdma_gbits > 0 {
            let remedy = "leave one of the two out: there is no RDMA from donor to donor";
            return refused("contradicts spec.topology.rdma_gbits", remedy);
        }
        Ok(())
    }

    /// Checks every bound. The refusal names field, value and remedy.
    pub fn check(&self) -> Result<(), Refusal> {
        let gpus = &self.gpus;
        if gpus.count == 0 || gpus.count > MAX_SHARES_PER_REQUEST {
            return Err(Refusal::invalid(
                "spec.gpus.count",
                gpus.count,
                "is out of range",
                format!("ask for 1 to {MAX_SHARES_PER_REQUEST}"),
            ));
        }
        match &gpus.share {
            Share::Whole => {}
            Share::Milli(milli) if (MIN_SHARE_MILLI..=WHOLE_MILLI).contains(milli) => {}
            Share::Milli(milli) => {
                return Err(Refusal::invalid(
                    "spec.gpus.share.milli",
                    milli,
                    "is out of range",
                    format!("use {MIN_SHARE_MILLI} (1/20 of a GPU) to {WHOLE_MILLI} (a whole one)"),
                ));
            }
            Share::MigProfile(profile) => {
                if profile.is_empty() || profile.len() > 32 || !profile.is_ascii() {
                    return Err(Refusal::invalid(
                        "spec.gpus.share.mig_profile",
                        profile,
                        "is not a MIG profile",
                        "use a name as nvidia-smi reports it, such as 1g.10gb",
                    ));
                }
            }
            Share::MemoryMib(memory) => {
                if *memory == 0 || *memory > MAX_AMOUNT {
                    return Err(Refusal::invalid(
                        "spec.gpus.share.memory_mib",
                        memory,
                        "is out of range",
                        format!("use 1 to {MAX_AMOUNT}"),
                    ));
                }
            }
        }
        if let DeviceChoice::Selector(selector) = &gpus.devices
            && (selector.is_empty() || selector.len() > MAX_SELECTOR_BYTES)
        {
            return Err(Refusal::invalid(
                "spec.gpus.selector",
                selector,
                "is empty or too long",
                format!("use a class, or CEL over `device` of at most {MAX_SELECTOR_BYTES} bytes"),
            ));
        }
        for (field, amount) in [
            ("spec.gpus.cpu_milli_per_gpu", gpus.cpu_milli_per_gpu),
            ("spec.gpus.memory_mib_per_gpu", gpus.memory_mib_per_gpu),
        ] {
            if amount > MAX_AMOUNT {
                return Err(Refusal::invalid(field, amount, "is too large", format!("use at most {MAX_AMOUNT}")));
            }
        }
        self.topology.check(gpus)?;
        if let Some(members) = self.members {
            members.check(gpus)?;
        }
        self.check_spread()?;
        data::check_needs(&self.data)?;
        let duration = self.duration.0;
        if duration != 0 && !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&duration) {
            return Err(Refusal::invalid(
                "spec.duration_ms",
                duration,
                "is out of range",
                format!("use {MIN_LEASE_MS} to {MAX_LEASE_MS}, or leave it out for the default"),
            ));
        }
        if let (Some(not_before), Some(start_by)) = (self.not_before, self.start_by)
            && start_by <= not_before
        {
            return Err(Refusal::invalid(
                "spec.start_by_ms",
                start_by.0,
                "is not after spec.not_before_ms",
                format!("name a time after {}, or leave one of the two away", not_before.0),
            ));
        }
        if let Some(preemptible) = &self.preemptible {
            preemptible.check()?;
        }
        for (field, list) in [("spec.allow_donors", &self.allow_donors), ("spec.deny_donors", &self.deny_donors)] {
            if list.len() > MAX_DONOR_LIST {
                return Err(Refusal::invalid(
                    field,
                    list.len(),
                    "donors are too many",
                    format!("name at most {MAX_DONOR_LIST}"),
                ));
            }
        }
        if self.target_namespace.starts_with("kube-") {
            return Err(Refusal::invalid(
                "spec.target_namespace",
                &self.target_namespace,
                "belongs to Kubernetes itself",
                "name a namespace of your own, or leave it empty for comity-leases",
            ));
        }
        if !is_dns_label(&self.target_namespace) {
            return Err(Refusal::invalid(
                "spec.target_namespace",
                &self.target_namespace,
                "is not a namespace name",
                "use a DNS label, or leave it empty for comity-leases",
            ));
        }
        if self.purpose.chars().any(char::is_control) {
            return Err(Refusal::invalid(
                "spec.purpose",
                self.purpose.escape_debug(),
                "has control characters",
                "write plain text on one line; others read it in their terminals",
            ));
        }
        if self.purpose.len() > MAX_PURPOSE_BYTES {
            return Err(Refusal::invalid(
                "spec.purpose",
                &self.purpose,
                "is too long",
                format!("use at most {MAX_PURPOSE_BYTES} bytes"),
            ));
        }
        Ok(())
    }
}
