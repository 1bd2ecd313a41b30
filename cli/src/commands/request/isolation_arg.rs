//! The flag for the isolation of a share.

use clap::ValueEnum;
use comity_proto::v1;
use serde::Deserialize;

/// Isolation of a share from other work on its GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IsolationArg {
    /// No requirement
    #[default]
    None,
    /// Other work cannot take the share's memory: whole GPUs, MIG, MPS, HAMi
    Memory,
    /// Memory, compute and faults are separate in hardware: whole GPUs, MIG
    Hardware,
}

impl From<IsolationArg> for v1::Isolation {
    fn from(isolation: IsolationArg) -> Self {
        match isolation {
            IsolationArg::None => Self::Unspecified,
            IsolationArg::Memory => Self::Memory,
            IsolationArg::Hardware => Self::Hardware,
        }
    }
}
