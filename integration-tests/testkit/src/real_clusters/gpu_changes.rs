//! Changes of the GPUs of a running node.

use std::fs;
use std::io::Write as _;

use super::gpu_box::{GpuBox, uuid};
use super::{RealCluster, RealClustersError};

impl RealCluster {
    /// The name of a GPU of the N-th node, from 1, as a container has it in `NVIDIA_VISIBLE_DEVICES`.
    #[must_use]
    pub fn gpu_uuid(&self, node: u32, index: usize) -> String {
        uuid(self.settings.ip(node), index)
    }

    /// Gives the N-th node, from 1, other GPUs and restarts NVIDIA's programs there. The node's resources and labels
    /// follow within some seconds. Running containers keep their devices.
    ///
    /// # Errors
    ///
    /// When a file cannot be written or a program cannot be restarted.
    pub async fn set_gpus(&self, node: u32, gpus: &GpuBox) -> Result<(), RealClustersError> {
        gpus.write(&self.node_folder(node), self.settings.ip(node))?;
        self.script("gpus", &[&self.settings.folder(node)]).await
    }

    /// Reports an XID error of a GPU of the N-th node, from 1, as the driver would.
    ///
    /// # Errors
    ///
    /// When the file of events cannot be written.
    pub fn report_xid(&self, node: u32, gpu: u32, xid: u32) -> Result<(), RealClustersError> {
        let path = self.node_folder(node).join("gpus/box.events");
        let io = |source| RealClustersError::Io { path: path.clone(), source };
        let mut events = fs::File::options().create(true).append(true).open(&path).map_err(io)?;
        events.write_all(format!("{gpu} {xid}\n").as_bytes()).map_err(io)
    }
}
