//! The fields of a template that it may let requests override.

use std::fmt;

use serde::{Serialize, Serializer};

/// A field of a request that can have another value than its template's, by its path in the request file of `comity
/// request submit --file`. Fields with only one value beside their default, such as `topology.sameNode`, are missing: a
/// request that leaves one out takes the template's.
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
    /// `topology.nvlink`.
    NvLink,
    /// `topology.rdmaGbits`.
    RdmaGbits,
    /// `members`.
    Members,
    /// `data`.
    Data,
    /// `purpose`.
    Purpose,
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
    /// All of them, in the order of a request file.
    pub const ALL: [Self; 15] = [
        Self::Class,
        Self::Amount,
        Self::Isolation,
        Self::CpuPerGpu,
        Self::MemoryPerGpu,
        Self::NvLink,
        Self::RdmaGbits,
        Self::Members,
        Self::Data,
        Self::Purpose,
        Self::Duration,
        Self::Delivery,
        Self::Priority,
        Self::ReleaseIdle,
        Self::Preemptible,
    ];

    /// Each field with its word in `mayOverride`.
    pub(super) const WORDS: [(&'static str, Self); 15] = {
        let mut words = [("", Self::Class); 15];
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
            Self::NvLink => "topology.nvlink",
            Self::RdmaGbits => "topology.rdmaGbits",
            Self::Members => "members",
            Self::Data => "data",
            Self::Purpose => "purpose",
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
