//! The GPUs of a real node, as NVIDIA's own programs find them.
//!
//! NVIDIA's device plugin and GPU Feature Discovery run unchanged. The library below them, `libnvidia-ml.so.1`, is a
//! stand-in that reads this text: there is no driver, and nothing computes. A loop copies the labels of GPU Feature
//! Discovery to the node, in place of Node Feature Discovery.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use super::RealClustersError;
use crate::mig_manager::MigLayouts;

const DRIVER: &str = "driver 550.163.01\ncuda 12.4\n";

/// A kind of GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Board {
    /// NVIDIA H100 80GB HBM3.
    H100,
    /// NVIDIA A100-SXM4-40GB.
    A100,
    /// NVIDIA L40S, which MIG cannot cut.
    L40s,
}

impl Board {
    /// As the stand-in names it.
    const fn key(self) -> &'static str {
        match self {
            Self::H100 => "h100-80",
            Self::A100 => "a100-40",
            Self::L40s => "l40s",
        }
    }
}

/// How the device plugin offers GPUs in MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigStrategy {
    /// As `nvidia.com/gpu`; all GPUs of the node have the same instances.
    Single,
    /// One resource for each profile, beside whole GPUs.
    Mixed,
}

/// How the device plugin names time slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedName {
    /// As whole GPUs: `nvidia.com/gpu`.
    Kept,
    /// `nvidia.com/gpu.shared`.
    Renamed,
}

/// The GPUs of a node, and the device plugin's configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuBox {
    board: Board,
    /// The profiles of each GPU's instances; `None` for one that is not in MIG mode.
    gpus: Vec<Option<Vec<String>>>,
    strategy: Option<MigStrategy>,
    slices: Option<(u32, SharedName)>,
}

impl GpuBox {
    /// Whole GPUs.
    #[must_use]
    pub fn whole(board: Board, count: u32) -> Self {
        Self { board, gpus: (0..count).map(|_| None).collect(), strategy: None, slices: None }
    }

    /// GPUs that the device plugin offers in `replicas` time slices each.
    #[must_use]
    pub fn time_sliced(board: Board, count: u32, replicas: u32, name: SharedName) -> Self {
        Self { slices: Some((replicas, name)), ..Self::whole(board, count) }
    }

    /// GPUs with instances of these profiles, such as `3g.40gb`; without any, a GPU is whole.
    #[must_use]
    pub fn cut(board: Board, strategy: MigStrategy, gpus: &[&[&str]]) -> Self {
        let named = |profiles: &[&str]| profiles.iter().map(|profile| (*profile).to_owned()).collect();
        let gpus = gpus.iter().map(|profiles| (!profiles.is_empty()).then(|| named(profiles))).collect();
        Self { board, gpus, strategy: Some(strategy), slices: None }
    }

    /// GPUs as a configuration of the MIG manager cuts them, with the mixed strategy.
    #[must_use]
    pub fn configured(board: Board, layouts: &MigLayouts) -> Self {
        Self { board, gpus: layouts.instances(), strategy: Some(MigStrategy::Mixed), slices: None }
    }

    /// The text that the stand-in reads. The GPUs of a node are known by its address.
    fn text(&self, node: Ipv4Addr) -> String {
        let mut text = DRIVER.to_owned();
        for (index, profiles) in self.gpus.iter().enumerate() {
            let mig = if profiles.is_some() { " mig=on" } else { "" };
            let (board, uuid) = (self.board.key(), uuid(node, index));
            let _ = writeln!(text, "gpu board={board} uuid={uuid} bus=0000:{:02x}:00.0 numa=-1{mig}", 0x10 + index);
            for profile in profiles.iter().flatten() {
                let _ = writeln!(text, "mig gpu={index} profile={profile}");
            }
        }
        text
    }

    /// The configuration file that the device plugin and GPU Feature Discovery read.
    fn configuration(&self) -> String {
        let strategy = match self.strategy {
            None => "none",
            Some(MigStrategy::Single) => "single",
            Some(MigStrategy::Mixed) => "mixed",
        };
        let mut text = format!("version: v1\nflags: {{migStrategy: {strategy}}}\n");
        if let Some((replicas, name)) = self.slices {
            let renamed = name == SharedName::Renamed;
            let _ = writeln!(
                text,
                "sharing: {{timeSlicing: {{renameByDefault: {renamed}, resources: [{{name: nvidia.com/gpu, replicas: \
                 {replicas}}}]}}}}"
            );
        }
        text
    }

    /// Writes the files that the script `real-clusters` hands to NVIDIA's programs, into the folder of a node.
    pub(super) fn write(&self, node_folder: &Path, node: Ipv4Addr) -> Result<(), RealClustersError> {
        let folder = node_folder.join("gpus");
        let io = |source| RealClustersError::Io { path: folder.clone(), source };
        fs::create_dir_all(&folder).map_err(io)?;
        fs::write(folder.join("box.new"), self.text(node)).map_err(io)?;
        fs::write(folder.join("config.new"), self.configuration()).map_err(io)
    }
}

pub(super) fn uuid(node: Ipv4Addr, index: usize) -> String {
    format!("GPU-{:08x}-0000-4000-8000-{index:012x}", node.to_bits())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_written_as_the_stand_in_and_nvidias_programs_read_it() {
        let node = Ipv4Addr::new(203, 0, 113, 10);
        let cut = GpuBox::cut(Board::H100, MigStrategy::Mixed, &[&[], &["3g.40gb", "1g.10gb+me"]]);
        assert_eq!(
            cut.text(node),
            "driver 550.163.01\ncuda 12.4\n\
             gpu board=h100-80 uuid=GPU-cb00710a-0000-4000-8000-000000000000 bus=0000:10:00.0 numa=-1\n\
             gpu board=h100-80 uuid=GPU-cb00710a-0000-4000-8000-000000000001 bus=0000:11:00.0 numa=-1 mig=on\n\
             mig gpu=1 profile=3g.40gb\nmig gpu=1 profile=1g.10gb+me\n"
        );
        assert_eq!(cut.configuration(), "version: v1\nflags: {migStrategy: mixed}\n");
        let layouts = MigLayouts(vec![None, Some([("1g.10gb+me".to_owned(), 1), ("3g.40gb".to_owned(), 1)].into())]);
        let cut = GpuBox::cut(Board::H100, MigStrategy::Mixed, &[&[], &["1g.10gb+me", "3g.40gb"]]);
        assert_eq!(GpuBox::configured(Board::H100, &layouts), cut);
        assert_eq!(
            GpuBox::time_sliced(Board::A100, 1, 4, SharedName::Renamed).configuration(),
            "version: v1\nflags: {migStrategy: none}\n\
             sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
        );
    }
}
