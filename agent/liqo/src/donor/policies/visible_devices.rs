//! Rules against getting GPUs from the container runtime, past the device plugin. An image's own environment is not
//! visible here: the agent's canary looks for that.

use super::Validation;
use super::cel::{list, refuse};

/// Variables by which container runtimes hand out devices. A pod's own value overrides the device plugin's.
const VARIABLES: [&str; 3] = ["NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"];

/// For the pod of a ShadowPod.
pub(super) fn in_pod() -> [Validation; 5] {
    let variables = list(&VARIABLES);
    [
        refuse(
            &format!(
                "variables.containers.all(container, !has(container.env) || container.env.all(variable, \
                 !(variable.name in {variables}) || (has(variable.value) && variable.value in ['void', 'none'])))"
            ),
            "'the variables by which container runtimes hand out GPUs belong to the device plugin: \
             NVIDIA_VISIBLE_DEVICES and its like may not be set'",
        ),
        refuse(
            &format!(
                "variables.containers.all(container, !has(container.envFrom) || container.envFrom.all(source, \
                 !has(source.prefix) || source.prefix == '' || !{variables}.exists(name, \
                 name.startsWith(source.prefix))))"
            ),
            "'a prefix in envFrom could make NVIDIA_VISIBLE_DEVICES or its like'",
        ),
        refuse(
            "variables.containers.all(container, !has(container.volumeMounts) || container.volumeMounts.all(mount, \
             !mount.mountPath.contains('nvidia-container-devices')))",
            "'a mount below nvidia-container-devices asks the container runtime for GPUs'",
        ),
        refuse(
            "!has(object.metadata.annotations) || object.metadata.annotations.all(key, !key.contains('cdi.k8s.io/'))",
            "'the device plugin names the CDI devices of a pod, not an annotation'",
        ),
        // HAMi's scheduler counts a pod on the node that these annotations name.
        refuse(
            "!has(object.metadata.annotations) || object.metadata.annotations.all(key, !key.startsWith('hami.io/'))",
            "'annotations hami.io/* belong to HAMi, which serves no virtual nodes'",
        ),
    ]
}

/// For ConfigMaps and Secrets, from which `envFrom` takes variables.
pub(super) fn in_data() -> Validation {
    refuse(
        &format!(
            "!variables.isConsumer || !(request.resource.resource in ['configmaps', 'secrets']) || \
             !has(object.data) || {}.all(name, !(name in object.data))",
            list(&VARIABLES)
        ),
        "'ConfigMaps and Secrets of a consumer have no key NVIDIA_VISIBLE_DEVICES or its like, which envFrom would \
         set'",
    )
}
