//! What connects the pods of a cluster: a plain bridge, or Calico.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::{RealClustersError, machine};
use crate::binaries::Binaries;

/// Programs of the system that Felix runs.
const PROGRAMS_OF_FELIX: [&str; 4] = ["ipset", "conntrack", "iptables-nft-save", "iptables-nft-restore"];
/// The object without which the CNI plugin refuses to work. Usually the program `calico-node` writes it.
const DATASTORE_READY: &str = r#"{"apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
 "metadata": {"name": "default"}, "spec": {"datastoreReady": true}}
"#;

/// The network plugin of a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cni {
    /// The bridge plugin, which enforces no NetworkPolicies.
    #[default]
    Bridge,
    /// Calico's plugin, and on each node Felix (the daemon `felix`), which enforces NetworkPolicies by packet filters.
    /// Addresses come from the plugin host-local and routes between nodes are fixed, as with the bridge: BGP, overlays
    /// and Typha do not run.
    Calico,
}

/// A node as its network plugin knows it.
pub(super) struct PluginNode {
    pub(super) name: String,
    /// The network of its pods.
    pub(super) pods: String,
    /// The folder with the node's files.
    pub(super) dir: PathBuf,
    /// The kubeconfig of the cluster's administrator.
    pub(super) kubeconfig: PathBuf,
}

impl Cni {
    /// Missing requirements of this machine, each with its remedy, beside those of
    /// [`RealClusters::missing`](super::RealClusters::missing).
    #[must_use]
    pub fn missing(self) -> Vec<String> {
        match self {
            Self::Bridge => Vec::new(),
            Self::Calico => machine::missing_programs(&PROGRAMS_OF_FELIX).into_iter().collect(),
        }
    }

    /// Its name for the script `real-clusters`.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bridge => "bridge",
            Self::Calico => "calico",
        }
    }

    /// The folder in which containerd finds the plugins of a node. `dir` has the node's files, `system` is the folder
    /// of the distribution's plugins.
    pub(super) fn plugins(self, dir: &Path, system: &str) -> String {
        match self {
            Self::Bridge => system.to_owned(),
            Self::Calico => dir.join("cni").display().to_string(),
        }
    }

    /// The plugins' configuration for a node.
    pub(super) fn conflist(self, node: &PluginNode) -> String {
        let ipam = format!(
            r#"{{"type": "host-local", "ranges": [[{{"subnet": "{}"}}]], "dataDir": "/run/cni/ipam"}}"#,
            node.pods
        );
        let first = match self {
            Self::Bridge => format!(
                r#"{{"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
  "ipam": {ipam}}}"#
            ),
            Self::Calico => format!(
                r#"{{"type": "calico", "datastore_type": "kubernetes", "nodename": "{}", "nodename_file_optional": true,
  "mtu": 1500, "log_level": "info", "log_file_path": "{}", "policy": {{"type": "k8s"}},
  "kubernetes": {{"kubeconfig": "{}"}}, "ipam": {ipam}}}"#,
                node.name,
                node.dir.join("log/cni.log").display(),
                node.kubeconfig.display(),
            ),
        };
        format!(
            r#"{{"cniVersion": "0.4.0", "name": "comity", "plugins": [
 {first},
 {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#
        )
    }
}

/// Adds what Calico needs to a cluster: an object for the API server in the folder `cluster`, and a folder of plugins in
/// the folders of its nodes.
pub(super) fn add_calico(
    cluster: &Path,
    nodes: &[PathBuf],
    system: &str,
    binaries: &Binaries,
) -> Result<(), RealClustersError> {
    let io = |path: PathBuf| move |source| RealClustersError::Io { path, source };
    for node in nodes {
        let folder = node.join("cni");
        fs::create_dir_all(&folder).map_err(io(folder.clone()))?;
        // The program acts as the plugin under whose name it is called.
        let own = [("calico", binaries.program("calico-cni"))];
        let systems = ["loopback", "host-local", "portmap"].map(|name| (name, Path::new(system).join(name)));
        for (name, program) in own.into_iter().chain(systems) {
            let link = folder.join(name);
            symlink(program, &link).map_err(io(link))?;
        }
    }
    let path = cluster.join("calico.json");
    fs::write(&path, DATASTORE_READY).map_err(io(path))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::node_files::DONOR;
    use super::*;

    #[test]
    fn each_node_has_its_own_addresses() {
        for (cni, plugin) in [(Cni::Bridge, "bridge"), (Cni::Calico, "calico")] {
            let text = cni.conflist(&DONOR.plugin_node(Path::new("/clusters"), 2));
            let conflist: serde_json::Value = serde_json::from_str(&text).unwrap();
            let first = &conflist["plugins"][0];
            assert_eq!(first["type"], plugin);
            assert_eq!(first["ipam"]["ranges"][0][0]["subnet"], "10.220.1.0/24");
            assert_eq!(conflist["plugins"][1]["type"], "portmap");
        }
    }
}
