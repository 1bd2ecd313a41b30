//! Rules that make Liqo count every resource that a pod gets.
//!
//! Liqo adds up the requests of containers, and takes the largest request of the init containers. Kubernetes counts more:
//! the API server copies limits to requests that are absent, and a sidecar keeps its resources beside the containers.

use super::Validation;
use super::cel::{list, refuse};

/// Resources of containers that are not devices.
pub(super) const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// What the sidecars of one pod may request together, uncounted: no more than the room that a virtual node has beyond
/// the lease for each of its shares.
const UNCOUNTED: [(&str, &str); 3] = [("cpu", "100m"), ("memory", "256Mi"), ("ephemeral-storage", "1Gi")];

/// The variable with a pod's sidecars.
pub(super) fn sidecars() -> (&'static str, String) {
    let sidecars = "(has(variables.pod.initContainers) ? variables.pod.initContainers : []).filter(container, \
                    has(container.restartPolicy) && container.restartPolicy == 'Always')";
    ("sidecars", sidecars.to_owned())
}

/// Whether the sidecars together request at most `most` of a resource.
fn sidecars_request_at_most(resource: &str, most: &str) -> String {
    format!(
        "variables.sidecars.map(container, has(container.resources) && has(container.resources.requests) && \
         '{resource}' in container.resources.requests ? \
         quantity(string(container.resources.requests['{resource}'])).asApproximateFloat() : 0.0).sum() <= \
         quantity('{most}').asApproximateFloat()"
    )
}

/// For the pod of a ShadowPod.
pub(super) fn in_pod() -> [Validation; 5] {
    let plain = list(&PLAIN);
    let little = UNCOUNTED.map(|(resource, most)| sidecars_request_at_most(resource, most)).join(" && ");
    let amounts = UNCOUNTED.map(|(resource, most)| format!("{resource} {most}")).join(", ");
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
                "variables.sidecars.all(container, !has(container.resources) || !has(container.resources.requests) || \
                 container.resources.requests.all(name, name in {plain}))"
            ),
            "'init containers that run beside the others (restartPolicy Always) have no devices: they are not counted \
             against the lease'",
        ),
        refuse(
            &little,
            &format!(
                "'the sidecars (init containers with restartPolicy Always) of a pod request at most {amounts} together, \
                 because they are not counted against the lease; make a larger one an ordinary container'"
            ),
        ),
        refuse(
            "!has(variables.pod.resources) || (!has(variables.pod.resources.limits) && \
             !has(variables.pod.resources.requests))",
            "'spec.pod.resources is not counted against the lease: state the resources of each container'",
        ),
    ]
}
