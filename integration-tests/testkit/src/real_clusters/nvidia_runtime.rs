//! NVIDIA's container runtime on a running node.
//!
//! The program is NVIDIA's own, in its mode `cdi`. The CDI specification that it reads is written here: the program
//! that writes it elsewhere, `nvidia-ctk cdi generate`, needs a driver.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

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
        write("nvidia-cdi.json", &cdi_specification(listed.split_whitespace(), |index| self.gpu_uuid(1, index)))?;
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

/// A device for each GPU among the device nodes, by its UUID, and the device `all` with every one.
fn cdi_specification<'a>(device_nodes: impl Iterator<Item = &'a str>, uuid: impl Fn(usize) -> String) -> String {
    let index = |name: &str| name.strip_prefix("nvidia").and_then(|number| number.parse::<usize>().ok());
    let gpus = device_nodes.filter_map(|name| Some((index(name)?, name)));
    let nodes: Vec<_> = gpus
        .map(|(index, gpu)| {
            (uuid(index), json!({ "path": format!("/dev/{gpu}"), "hostPath": format!("{DEVICES}/{gpu}") }))
        })
        .collect();
    let device = |name: &str, nodes: Vec<&Value>| json!({ "name": name, "containerEdits": { "deviceNodes": nodes } });
    let all = device("all", nodes.iter().map(|(_, node)| node).collect());
    let devices: Vec<_> =
        std::iter::once(all).chain(nodes.iter().map(|(uuid, node)| device(uuid, vec![node]))).collect();
    json!({ "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices }).to_string()
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
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_specification_has_every_gpu_and_nothing_else() {
        let names = ["nvidia-caps", "nvidia0", "nvidia12"];
        let text = cdi_specification(names.into_iter(), |index| format!("GPU-{index}"));
        let specification: Value = serde_json::from_str(&text).unwrap();
        let nodes = |device: usize| {
            let device = &specification["devices"][device];
            let nodes = device["containerEdits"]["deviceNodes"].as_array().unwrap();
            let hosts = nodes.iter().map(|node| node["hostPath"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
            (device["name"].as_str().unwrap().to_owned(), hosts)
        };
        let [zero, twelve] = [0, 12].map(|number| format!("/run/nvidia/driver/dev/nvidia{number}"));
        assert_eq!(nodes(0), ("all".to_owned(), vec![zero, twelve.clone()]));
        assert_eq!(nodes(2), ("GPU-12".to_owned(), vec![twelve]));
        assert_eq!(specification["devices"].as_array().unwrap().len(), 3);
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
