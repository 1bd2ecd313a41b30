//! The GPUs that a request asks for.

use comity_proto::v1;
use comity_proto::v1::share::{Kind, Whole};

/// Shares of devices, and the CPU and memory of each share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuDemand {
    /// GPU class of the devices; empty if there is a selector.
    pub class: String,
    /// CEL over `device`; empty if there is a class.
    pub selector: String,
    /// How much of a device each share is; `None` if this version does not know it.
    pub share: Option<Share>,
    /// Number of shares.
    pub count: u32,
    /// CPU per share, in thousandths of a core.
    pub cpu_milli_per_gpu: u64,
    /// Main memory per share, in MiB.
    pub memory_mib_per_gpu: u64,
    /// Isolation of each share.
    pub isolation: v1::Isolation,
}

/// How much of a device one share is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Share {
    /// The whole device.
    Whole,
    /// Thousandths of the device.
    Milli(u32),
    /// A MIG profile, as in "1g.10gb".
    MigProfile(String),
    /// Device memory in MiB.
    MemoryMib(u64),
}

impl GpuDemand {
    /// The demand as requests carry it.
    #[must_use]
    pub fn to_message(&self) -> v1::GpuDemand {
        v1::GpuDemand {
            class: self.class.clone(),
            selector: self.selector.clone(),
            share: self.share.as_ref().map(Share::to_message),
            count: self.count,
            cpu_milli_per_gpu: self.cpu_milli_per_gpu,
            memory_mib_per_gpu: self.memory_mib_per_gpu,
            isolation: self.isolation.into(),
        }
    }
}

impl From<v1::GpuDemand> for GpuDemand {
    fn from(demand: v1::GpuDemand) -> Self {
        Self {
            class: demand.class,
            selector: demand.selector,
            share: demand.share.and_then(|share| share.kind).map(Share::from),
            count: demand.count,
            cpu_milli_per_gpu: demand.cpu_milli_per_gpu,
            memory_mib_per_gpu: demand.memory_mib_per_gpu,
            isolation: v1::Isolation::try_from(demand.isolation).unwrap_or_default(),
        }
    }
}

impl Share {
    fn to_message(&self) -> v1::Share {
        let kind = match self {
            Self::Whole => Kind::Whole(Whole {}),
            Self::Milli(milli) => Kind::Milli(*milli),
            Self::MigProfile(profile) => Kind::MigProfile(profile.clone()),
            Self::MemoryMib(memory) => Kind::MemoryMib(*memory),
        };
        v1::Share { kind: Some(kind) }
    }
}

impl From<Kind> for Share {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Whole(Whole {}) => Self::Whole,
            Kind::Milli(milli) => Self::Milli(milli),
            Kind::MigProfile(profile) => Self::MigProfile(profile),
            Kind::MemoryMib(memory) => Self::MemoryMib(memory),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_survives_its_message_and_an_unknown_share_is_left_open() {
        for share in [Share::Whole, Share::Milli(250), Share::MigProfile("1g.10gb".to_owned()), Share::MemoryMib(8_192)]
        {
            let demand = GpuDemand {
                class: "frontier".to_owned(),
                selector: "true".to_owned(),
                share: Some(share),
                count: 3,
                cpu_milli_per_gpu: 4_000,
                memory_mib_per_gpu: 16_384,
                isolation: v1::Isolation::Memory,
            };
            assert_eq!(GpuDemand::from(demand.to_message()), demand);
        }
        let unknown = v1::GpuDemand { share: Some(v1::Share { kind: None }), count: 2, ..v1::GpuDemand::default() };
        assert_eq!(GpuDemand::from(unknown), GpuDemand { count: 2, ..GpuDemand::default() });
    }
}
