//! Whether the agent is in a pod, on a node of a Kubernetes cluster, or on another host.

use std::ffi::OsStr;
use std::path::Path;

/// Files that the kubelet mounts into a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Files of a kubelet: of kubeadm, k3s, RKE2.
const KUBELETS: [&str; 3] =
    ["/etc/kubernetes/kubelet.conf", "/etc/rancher/k3s/k3s.yaml", "/etc/rancher/rke2/rke2.yaml"];

/// Where the agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a pod with a ServiceAccount.
    Pod,
    /// On a node of a Kubernetes cluster, outside any pod.
    KubernetesNode,
    /// Elsewhere.
    Host,
}

/// Where this process is.
#[must_use]
pub fn place() -> Place {
    place_of(std::env::var_os("KUBERNETES_SERVICE_HOST").as_deref(), &|path| Path::new(path).exists())
}

fn place_of(api_server: Option<&OsStr>, exists: &dyn Fn(&str) -> bool) -> Place {
    if api_server.is_some() && exists(SERVICE_ACCOUNT) {
        return Place::Pod;
    }
    if KUBELETS.iter().any(|path| exists(path)) { Place::KubernetesNode } else { Place::Host }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_an_address_and_a_token_of_the_api() {
        let api = Some(OsStr::new("10.0.0.1"));
        assert_eq!(place_of(api, &|path| path == SERVICE_ACCOUNT), Place::Pod);
        assert_eq!(place_of(api, &|_| false), Place::Host);
        assert_eq!(place_of(None, &|path| path == KUBELETS[1]), Place::KubernetesNode);
    }
}
