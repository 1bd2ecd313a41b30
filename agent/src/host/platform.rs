//! Whether the agent is in a pod, on a node of a Kubernetes cluster, or on another host.

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
    let has_api = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    place_of(has_api, &|path| Path::new(path).exists())
}

fn place_of(has_api: bool, exists: &dyn Fn(&str) -> bool) -> Place {
    if has_api && exists(SERVICE_ACCOUNT) {
        return Place::Pod;
    }
    if KUBELETS.iter().any(|path| exists(path)) { Place::KubernetesNode } else { Place::Host }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_an_address_and_a_token_of_the_api() {
        assert_eq!(place_of(true, &|path| path == SERVICE_ACCOUNT), Place::Pod);
        assert_eq!(place_of(true, &|_| false), Place::Host);
        assert_eq!(place_of(false, &|path| path == KUBELETS[1]), Place::KubernetesNode);
    }
}
