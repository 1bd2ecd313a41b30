//! The fields of a request that a template may set.

use std::fmt;

use serde::{Serialize, Serializer};

/// A field of a request, by its path in the request file of `comity request submit --file`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TemplateField {
    /// `gpus.class`, or `gpus.selector` in its place.
    Class,
    /// `gpus.amount`, with `gpus.mig` and `gpus.memory`.
    Amount,
    /// `gpus.isolation`.
    Isolation,
    /// `gpus.cpuPerGpu`.
    CpuPerGpu,
    /// `gpus.memoryPerGpu`.
    MemoryPerGpu,
    /// `topology.sameNode`.
    SameNode,
    /// `topology.wholeNode`.
    WholeNode,
    /// `topology.nvlink`.
    NvLink,
    /// `topology.numa`.
    Numa,
    /// `topology.rdmaGbits`.
    RdmaGbits,
    /// `topology.spreadNodes`.
    SpreadNodes,
    /// `members`.
    Members,
    /// `spreadDonors`.
    SpreadDonors,
    /// `data`.
    Data,
    /// `duration`.
    Duration,
    /// `delivery`.
    Delivery,
    /// `priority`.
    Priority,
    /// `releaseIdle`.
    ReleaseIdle,
    /// `preemptible`.
    Preemptible,
}

impl TemplateField {
    /// All fields, in the order of a request file.
    pub const ALL: [Self; 19] = [
        Self::Class,
        Self::Amount,
        Self::Isolation,
        Self::CpuPerGpu,
        Self::MemoryPerGpu,
        Self::SameNode,
        Self::WholeNode,
        Self::NvLink,
        Self::Numa,
        Self::RdmaGbits,
        Self::SpreadNodes,
        Self::Members,
        Self::SpreadDonors,
        Self::Data,
        Self::Duration,
        Self::Delivery,
        Self::Priority,
        Self::ReleaseIdle,
        Self::Preemptible,
    ];

    /// Each field with its word in `mayOverride`.
    pub(super) const WORDS: [(&'static str, Self); 19] = {
        let mut words = [("", Self::Class); 19];
        let mut index = 0;
        while index < words.len() {
            words[index] = (Self::ALL[index].as_str(), Self::ALL[index]);
            index += 1;
        }
        words
    };

    /// Its path in a request file.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Class => "gpus.class",
            Self::Amount => "gpus.amount",
            Self::Isolation => "gpus.isolation",
            Self::CpuPerGpu => "gpus.cpuPerGpu",
            Self::MemoryPerGpu => "gpus.memoryPerGpu",
            Self::SameNode => "topology.sameNode",
            Self::WholeNode => "topology.wholeNode",
            Self::NvLink => "topology.nvlink",
            Self::Numa => "topology.numa",
            Self::RdmaGbits => "topology.rdmaGbits",
            Self::SpreadNodes => "topology.spreadNodes",
            Self::Members => "members",
            Self::SpreadDonors => "spreadDonors",
            Self::Data => "data",
            Self::Duration => "duration",
            Self::Delivery => "delivery",
            Self::Priority => "priority",
            Self::ReleaseIdle => "releaseIdle",
            Self::Preemptible => "preemptible",
        }
    }
}

impl fmt::Display for TemplateField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for TemplateField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}
