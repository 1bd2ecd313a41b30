//! The policy for pods that Liqo's controllers make of a consumer's ShadowPods.
//!
//! A quota counts the pods of a virtual node together. If a lease has several nodes, its pods select them by the
//! lease's label, and each node counts the lease's GPUs by an extended resource. The agent's webhook adds it to pods.

use comity_agent_kubernetes::gpu_resource::{LEASE_GPUS_PREFIX, LEASE_RESOURCE_PREFIX};

use super::cel::refuse;
use super::expressions::common_variables;
use super::terms::COUNTED_KEY;
use super::{MatchCondition, Namespaces, POLICY_NAMES, Policy};

/// A pod of a lease on several nodes requests as many units of the lease's own resource as GPUs.
pub(super) fn pod() -> Policy {
    let selected = format!("key, key.startsWith('{LEASE_RESOURCE_PREFIX}')");
    let prefix = LEASE_RESOURCE_PREFIX.len();
    let mut variables = common_variables();
    variables.extend([
        ("leases", format!("object.spec.nodeSelector.filter({selected}).map(key, key.substring({prefix}))")),
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
            "variables.gpuResource != ''",
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
            name: "selects-nodes-of-a-lease",
            expression: format!("object.spec.?nodeSelector.orValue({{}}).exists({selected})"),
        },
        variables,
        validations,
    }
}
