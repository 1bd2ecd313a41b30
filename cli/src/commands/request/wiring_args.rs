//! How GPUs, CPU and networks are joined, by flags or fields.

use clap::ValueEnum;
use comity_proto::v1;
use serde::Deserialize;

/// Whether NVLink joins the GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NvLinkArg {
    /// As it comes
    #[default]
    None,
    /// Where a donor has such GPUs free
    Preferred,
    /// Or the request waits
    Required,
}

/// Where CPU and memory come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NumaArg {
    /// From anywhere on the node
    #[default]
    None,
    /// From the NUMA node of each GPU
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
