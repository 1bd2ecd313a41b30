//! The policy for pods that Liqo's controllers make of a consumer's ShadowPods.
//!
//! A quota counts the pods of a virtual node together. If a lease has several nodes, its pods select them by the
//! lease's label, and each node counts the lease's GPUs by an extended resource. The agent's webhook adds it to pods.
//!
//! A ShadowPod that names no PriorityClass gets the cluster's default one, which only the pod shows.

use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, LEASE_RESOURCE_PREFIX};

use super::cel::{list, refuse};
use super::expressions::common_variables;
use super::terms::COUNTED_KEY;
use super::{MatchCondition, Namespaces, POLICY_NAMES, Policy, PolicySettings};

/// A pod of a lease on several nodes requests as many units of the lease's own resource as GPUs, and no pod has priority
/// over this cluster's own, unless its class is offered.
pub(super) fn pod(settings: &PolicySettings) -> Policy {
    let offered = list(&settings.priority_classes.iter().map(String::as_str).collect::<Vec<_>>());
    let selected = format!("key, key.startsWith('{LEASE_RESOURCE_PREFIX}')");
    let prefix = LEASE_RESOURCE_PREFIX.len();
    let mut variables = common_variables();
    variables.extend([
        (
            "leases",
            format!("object.spec.?nodeSelector.orValue({{}}).filter({selected}).map(key, key.substring({prefix}))"),
        ),
        ("counted", format!("variables.leases.map(lease, '{COUNTED_KEY}' + lease)")),
        (
            "gpuResource",
            "variables.counted.size() == 1 && variables.counted[0] in variables.data ? \
             variables.data[variables.counted[0]] : ''"
                .to_owned(),
        ),
        ("gpus", format!("'{LEASE_GPUS_PREFIX}' + variables.leases[0]")),
        ("containers", "object.spec.containers + object.spec.?initContainers.orValue([])".to_owned()),
    ]);
    let amount = |resource: &str| {
        format!("quantity(string(container.?resources.?requests[?variables.{resource}].orValue('0')))")
    };
    let validations = vec![
        refuse(
            "variables.leases.size() == 0 || variables.gpuResource != ''",
            "'no lease in force counts its GPUs on each node as ' + variables.leases.join(', ')",
        ),
        refuse(
            &format!(
                "variables.gpuResource == '' || variables.containers.all(container, {}.compareTo({}) == 0)",
                amount("gpus"),
                amount("gpuResource")
            ),
            "'the lease has several nodes, which count its GPUs: a container that requests ' + \
             variables.gpuResource + ' requests as many ' + variables.gpus + '; the webhook comity-lease-pods of this \
             cluster\\'s agent adds them'",
        ),
        // Virtual-kubelets of this cluster, as an origin, run in tenant namespaces.
        refuse(
            &format!(
                "variables.tenantNamespace || object.spec.?priority.orValue(0) <= 0 || \
                 object.spec.?priorityClassName.orValue('') in {offered}"
            ),
            "'offloaded pods do not push away this cluster\\'s own: PriorityClass ' + \
             object.spec.?priorityClassName.orValue('') + ' has a value above 0; if it is the one with globalDefault, give \
             that a value of 0 or less'",
        ),
    ];
    Policy {
        name: POLICY_NAMES[5],
        resources: vec![("", vec!["pods"])],
        operations: &["CREATE"],
        namespaces: Namespaces::OfConsumers,
        object_name: None,
        reads_grants: true,
        // Whoever makes the pod.
        condition: MatchCondition {
            name: "selects-nodes-of-a-lease-or-has-priority",
            expression: format!(
                "object.spec.?nodeSelector.orValue({{}}).exists({selected}) || object.spec.?priority.orValue(0) > 0"
            ),
        },
        variables,
        validations,
    }
}
