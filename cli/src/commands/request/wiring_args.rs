//! Values of `--nvlink` and `--numa`, and of the same fields in a request file.

use clap::ValueEnum;
use comity_proto::v1;
use serde::Deserialize;

/// NVLink between the GPUs of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLinkArg {
    /// No requirement
    #[default]
    None,
    /// Prefer GPUs that NVLink connects
    Preferred,
    /// Wait for GPUs that NVLink connects
    Required,
}

/// Source of CPU and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NumaArg {
    /// Anywhere on the node
    #[default]
    None,
    /// The NUMA node of each GPU
    Aligned,
}

impl From<NvLinkArg> for v1::NvLink {
    fn from(nvlink: NvLinkArg) -> Self {
        match nvlink {
            NvLinkArg::None => Self::Unspecified,
            NvLinkArg::Preferred => Self::Preferred,
            NvLinkArg::Required => Self::Required,
        }
    }
}

impl From<NumaArg> for v1::Numa {
    fn from(numa: NumaArg) -> Self {
        match numa {
            NumaArg::None => Self::Unspecified,
            NumaArg::Aligned => Self::Aligned,
        }
    }
}
