//! Rules that make Liqo count every resource that a pod gets.
//!
//! Liqo adds up the requests of containers, and takes the largest request of the init containers. Kubernetes counts more:
//! the API server copies limits to requests that are absent, and a sidecar keeps its resources beside the containers.

use super::Validation;
use super::cel::{list, refuse};

/// Resources of containers that are not devices.
pub(super) const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];

/// For the pod of a ShadowPod.
pub(super) fn in_pod() -> [Validation; 4] {
    let plain = list(&PLAIN);
    [
        refuse(
            "variables.containers.all(container, !has(container.resources) || ((!has(container.resources.limits) || \
             container.resources.limits.all(name, name in variables.resources)) && (!has(container.resources.requests) \
             || container.resources.requests.all(name, name in variables.resources))))",
            "'containers may ask for these resources only: ' + variables.resources.filter(name, name != '').join(', ')",
        ),
        refuse(
            "variables.containers.all(container, !has(container.resources) || !has(container.resources.limits) || \
             container.resources.limits.all(name, has(container.resources.requests) && name in \
             container.resources.requests))",
            "'a container requests every resource that it has a limit of: requests are counted against the lease'",
        ),
        refuse(
            &format!(
                "!has(variables.pod.initContainers) || variables.pod.initContainers.all(container, \
                 !has(container.restartPolicy) || container.restartPolicy != 'Always' || !has(container.resources) || \
                 !has(container.resources.requests) || container.resources.requests.all(name, name in {plain}))"
            ),
            "'init containers that run beside the others (restartPolicy Always) have no devices: they are not counted \
             against the lease'",
        ),
        refuse(
            "!has(variables.pod.resources) || (!has(variables.pod.resources.limits) && \
             !has(variables.pod.resources.requests))",
            "'spec.pod.resources is not counted against the lease: state the resources of each container'",
        ),
    ]
}
