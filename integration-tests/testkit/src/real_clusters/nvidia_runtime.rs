//! NVIDIA's container runtime on a running node.
//!
//! The program is NVIDIA's own, in its mode `cdi`. The CDI specification that it reads is written here: the program
//! that writes it elsewhere, `nvidia-ctk cdi generate`, needs a driver.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::{RealCluster, RealClustersError};
use crate::binaries::Binaries;

/// Device nodes of the stand-in for the driver, as the script `real-clusters` makes them.
const DEVICES: &str = "/run/nvidia/driver/dev";
const RUNC: &str = "default_runtime_name = \"runc\"";
const NVIDIA_BY_DEFAULT: &str = "default_runtime_name = \"nvidia\"";

/// What NVIDIA's container runtime does with `NVIDIA_VISIBLE_DEVICES` of containers without privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VisibleDevices {
    /// It hands out the devices: NVIDIA's default.
    Obeyed,
    /// It hands out none: `accept-nvidia-visible-devices-envvar-when-unprivileged = false`.
    Ignored,
}

impl RealCluster {
    /// Makes NVIDIA's container runtime the default of the first node. containerd is restarted at the first call only;
    /// running containers stay.
    ///
    /// # Errors
    ///
    /// When a file cannot be written, or containerd cannot be restarted.
    pub async fn use_nvidia_runtime(
        &self,
        binaries: &Binaries,
        visible_devices: VisibleDevices,
    ) -> Result<(), RealClustersError> {
        let folder = self.node_folder(1);
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).map_err(|source| RealClustersError::Io { path, source })
        };
        write("nvidia-runtime.toml", &runtime_configuration(visible_devices))?;
        let listed = self.exec_in_node(&["ls", DEVICES]).await?;
        write("nvidia-cdi.json", &cdi_specification(listed.split_whitespace()))?;
        let copy = format!(
            "mkdir -p /etc/nvidia-container-runtime /run/cdi
             cp {0}/nvidia-runtime.toml /etc/nvidia-container-runtime/config.toml
             cp {0}/nvidia-cdi.json /run/cdi/nvidia.json",
            folder.display()
        );
        self.exec_in_node(&["sh", "-ec", &copy]).await?;

        let path = folder.join("containerd.toml");
        let before =
            fs::read_to_string(&path).map_err(|source| RealClustersError::Io { path: path.clone(), source })?;
        if before.contains(NVIDIA_BY_DEFAULT) {
            return Ok(());
        }
        write("containerd.toml", &with_nvidia_runtime(&before, &binaries.program("nvidia-container-runtime")))?;
        let script = folder.with_file_name("real-clusters");
        self.exec_in_node(&["bash", &script.to_string_lossy(), "stop", "TERM", "containerd"]).await?;
        self.start_daemon("containerd").await
    }
}

fn runtime_configuration(visible_devices: VisibleDevices) -> String {
    let is_obeyed = visible_devices == VisibleDevices::Obeyed;
    format!(
        "accept-nvidia-visible-devices-envvar-when-unprivileged = {is_obeyed}\n\
         [nvidia-container-runtime]\nmode = \"cdi\"\n"
    )
}

/// The device `all`, which has every GPU among the device nodes.
fn cdi_specification<'a>(device_nodes: impl Iterator<Item = &'a str>) -> String {
    let is_gpu = |name: &&str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let gpus = device_nodes.filter(is_gpu);
    let nodes: Vec<_> =
        gpus.map(|gpu| json!({ "path": format!("/dev/{gpu}"), "hostPath": format!("{DEVICES}/{gpu}") })).collect();
    let all = json!({ "name": "all", "containerEdits": { "deviceNodes": nodes } });
    json!({ "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [all] }).to_string()
}

/// The change that `nvidia-ctk runtime configure --runtime=containerd --set-as-default` makes.
fn with_nvidia_runtime(containerd: &str, program: &Path) -> String {
    const RUNTIME: &str = "plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.nvidia";
    let before = containerd.replace(RUNC, NVIDIA_BY_DEFAULT);
    let program = program.display();
    format!(
        "{before}\n[{RUNTIME}]\n  runtime_type = \"io.containerd.runc.v2\"\n[{RUNTIME}.options]\n  BinaryName = \
         \"{program}\"\n  SystemdCgroup = false\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification_has_every_gpu_and_nothing_else() {
        let text = cdi_specification(["nvidia-caps", "nvidia0", "nvidia12"].into_iter());
        assert_eq!(text.matches("hostPath").count(), 2, "{text}");
        assert!(text.contains(r#"{"hostPath":"/run/nvidia/driver/dev/nvidia12","path":"/dev/nvidia12"}"#), "{text}");
    }

    #[test]
    fn the_runtime_becomes_the_default() {
        let text = with_nvidia_runtime("a\n    default_runtime_name = \"runc\"\n", Path::new("/bin/runtime"));
        assert!(
            text.contains(NVIDIA_BY_DEFAULT) && !text.contains(RUNC) && text.contains("BinaryName = \"/bin/runtime\""),
            "{text}"
        );
    }
}
