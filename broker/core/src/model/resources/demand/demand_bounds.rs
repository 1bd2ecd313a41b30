//! The bounds of a request's demand. A refusal names field, value and remedy.

use comity_types::{Delivery, is_dns_label, is_dns_subdomain, is_printable};

use crate::model::data;
use crate::model::demand::{DeviceChoice, GpuDemand, RequestSpec, Share};
use crate::model::limits::{
    MAX_AMOUNT, MAX_DONOR_LIST, MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_SELECTOR_BYTES, MAX_SHARES_PER_REQUEST, MIN_LEASE_MS,
    MIN_RELEASE_IDLE_MS, MIN_SHARE_MILLI, WHOLE_MILLI,
};
use crate::model::refusal::Refusal;
use crate::model::time::Millis;

impl RequestSpec {
    /// Checks every bound. The refusal names field, value and remedy.
    pub fn check(&self) -> Result<(), Refusal> {
        self.gpus.check()?;
        self.topology.check(&self.gpus)?;
        if let Some(members) = self.members {
            members.check(&self.gpus)?;
        }
        self.check_spread()?;
        data::check_needs(&self.data)?;
        self.check_times()?;
        if let Some(preemptible) = &self.preemptible {
            preemptible.check()?;
        }
        self.check_donor_lists()?;
        self.check_target_namespace()?;
        self.check_checkpoint_secret()?;
        self.check_purpose()?;
        self.check_note()
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
        if self.preemptible.is_some_and(|preemptible| preemptible.same_gpu_type) {
            let remedy = "leave one of the two out: donors lend different types";
            return refused("contradicts spec.preemptible.same_gpu_type", remedy);
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), Refusal> {
        let duration = self.duration.0;
        if duration != 0 && !(MIN_LEASE_MS..=MAX_LEASE_MS).contains(&duration) {
            let remedy = format!("use {MIN_LEASE_MS} to {MAX_LEASE_MS}, or leave it out for the default");
            return Err(Refusal::invalid("spec.duration_ms", duration, "is out of range", remedy));
        }
        if let Some(Millis(idle)) = self.release_idle
            && !(MIN_RELEASE_IDLE_MS..=MAX_LEASE_MS).contains(&idle)
        {
            let remedy = format!("use {MIN_RELEASE_IDLE_MS} to {MAX_LEASE_MS}, or leave it out for policy's limit");
            return Err(Refusal::invalid("spec.release_idle_ms", idle, "is out of range", remedy));
        }
        if let (Some(not_before), Some(start_by)) = (self.not_before, self.start_by)
            && start_by <= not_before
        {
            let remedy = format!("name a time after {}, or leave one of the two away", not_before.0);
            return Err(Refusal::invalid("spec.start_by_ms", start_by.0, "is not after spec.not_before_ms", remedy));
        }
        Ok(())
    }

    fn check_donor_lists(&self) -> Result<(), Refusal> {
        for (field, list) in [("spec.allow_donors", &self.allow_donors), ("spec.deny_donors", &self.deny_donors)] {
            if list.len() > MAX_DONOR_LIST {
                let remedy = format!("name at most {MAX_DONOR_LIST}");
                return Err(Refusal::invalid(field, list.len(), "donors are too many", remedy));
            }
        }
        Ok(())
    }

    fn check_target_namespace(&self) -> Result<(), Refusal> {
        let refused =
            |problem, remedy| Err(Refusal::invalid("spec.target_namespace", &self.target_namespace, problem, remedy));
        if self.target_namespace.starts_with("kube-") {
            let remedy = "name a namespace of your own, or leave it empty for comity-leases";
            return refused("belongs to Kubernetes itself", remedy);
        }
        if !is_dns_label(&self.target_namespace) {
            return refused("is not a namespace name", "use a DNS label, or leave it empty for comity-leases");
        }
        Ok(())
    }

    fn check_checkpoint_secret(&self) -> Result<(), Refusal> {
        let Some(secret) = &self.checkpoint_secret else { return Ok(()) };
        let refused = |problem, remedy| Err(Refusal::invalid("spec.checkpoint_secret", secret, problem, remedy));
        if !is_dns_subdomain(secret) {
            let remedy = "name a Secret of spec.target_namespace: lower-case letters, digits, '-' and '.'";
            return refused("is not the name of a Secret", remedy);
        }
        if self.delivery != Delivery::VirtualNode {
            let remedy =
                "leave it out and create the Secret in the lease's namespace, or use the delivery virtual-node";
            return refused("reaches only pods on a virtual node", remedy);
        }
        Ok(())
    }

    /// Whether the federation knows the purpose, policy says.
    fn check_purpose(&self) -> Result<(), Refusal> {
        if self.purpose.is_empty() || is_dns_label(&self.purpose) {
            return Ok(());
        }
        let remedy =
            "name a purpose that the Federation document declares, as in research; free text goes into the note";
        Err(Refusal::invalid("spec.purpose", &self.purpose, "is not the name of a purpose", remedy))
    }

    fn check_note(&self) -> Result<(), Refusal> {
        if !is_printable(&self.note) {
            let remedy = "write plain text on one line; others read it in their terminals";
            return Err(Refusal::invalid("spec.note", &self.note, "has control or invisible characters", remedy));
        }
        if self.note.len() > MAX_NOTE_BYTES {
            let remedy = format!("use at most {MAX_NOTE_BYTES} bytes");
            return Err(Refusal::invalid("spec.note", &self.note, "is too long", remedy));
        }
        Ok(())
    }
}

impl GpuDemand {
    fn check(&self) -> Result<(), Refusal> {
        if self.count == 0 || self.count > MAX_SHARES_PER_REQUEST {
            let remedy = format!("ask for 1 to {MAX_SHARES_PER_REQUEST}");
            return Err(Refusal::invalid("spec.gpus.count", self.count, "is out of range", remedy));
        }
        self.share.check()?;
        if let DeviceChoice::Selector(selector) = &self.devices
            && (selector.is_empty() || selector.len() > MAX_SELECTOR_BYTES)
        {
            let remedy = format!("use a class, or CEL over `device` of at most {MAX_SELECTOR_BYTES} bytes");
            return Err(Refusal::invalid("spec.gpus.selector", selector, "is empty or too long", remedy));
        }
        for (field, amount) in [
            ("spec.gpus.cpu_milli_per_gpu", self.cpu_milli_per_gpu),
            ("spec.gpus.memory_mib_per_gpu", self.memory_mib_per_gpu),
        ] {
            if amount > MAX_AMOUNT {
                return Err(Refusal::invalid(field, amount, "is too large", format!("use at most {MAX_AMOUNT}")));
            }
        }
        Ok(())
    }
}

impl Share {
    fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Milli(milli) if !(MIN_SHARE_MILLI..=WHOLE_MILLI).contains(milli) => {
                let remedy = format!("use {MIN_SHARE_MILLI} (1/20 of a GPU) to {WHOLE_MILLI} (a whole one)");
                Err(Refusal::invalid("spec.gpus.share.milli", milli, "is out of range", remedy))
            }
            Self::MigProfile(profile) if profile.is_empty() || profile.len() > 32 || !profile.is_ascii() => {
                let remedy = "use a name as nvidia-smi reports it, such as 1g.10gb";
                Err(Refusal::invalid("spec.gpus.share.mig_profile", profile, "is not a MIG profile", remedy))
            }
            Self::MemoryMib(memory) if *memory == 0 || *memory > MAX_AMOUNT => {
                let remedy = format!("use 1 to {MAX_AMOUNT}");
                Err(Refusal::invalid("spec.gpus.share.memory_mib", memory, "is out of range", remedy))
            }
            Self::Whole | Self::Milli(_) | Self::MigProfile(_) | Self::MemoryMib(_) => Ok(()),
        }
    }
}
