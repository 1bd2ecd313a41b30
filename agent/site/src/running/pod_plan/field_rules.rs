//! What happens to each field of a pod's manifest.

use serde_json::{Map, Value};

use super::PodRefusal;

/// What happens to a field that is set.
#[derive(Clone, Copy)]
enum Rule {
    /// The host does what it says.
    Read,
    /// It places the pod, or names it; the lease did that.
    Placement,
    /// It has no effect here, for this reason, and the author is warned.
    Warn(&'static str),
    /// The pod is refused, for this reason.
    Refuse(&'static str),
}

use Rule::{Placement, Read, Refuse, Warn};

const GUEST: &str = "guests of this host are held in their containers; leave it out";

const SPEC: &[(&str, Rule)] = &[
    ("activeDeadlineSeconds", Read),
    ("containers", Read),
    ("hostname", Read),
    ("imagePullSecrets", Read),
    ("initContainers", Read),
    ("restartPolicy", Read),
    ("securityContext", Read),
    ("terminationGracePeriodSeconds", Read),
    ("volumes", Read),
    ("affinity", Placement),
    ("automountServiceAccountToken", Placement),
    ("dnsPolicy", Placement),
    ("enableServiceLinks", Placement),
    ("hostUsers", Placement),
    ("nodeName", Placement),
    ("nodeSelector", Placement),
    ("os", Placement),
    ("overhead", Placement),
    ("preemptionPolicy", Placement),
    ("priority", Placement),
    ("priorityClassName", Placement),
    ("runtimeClassName", Placement),
    ("schedulerName", Placement),
    ("schedulingGates", Placement),
    ("serviceAccount", Placement),
    ("serviceAccountName", Placement),
    ("subdomain", Placement),
    ("tolerations", Placement),
    ("topologySpreadConstraints", Placement),
    ("dnsConfig", Warn("pods of this host have no DNS of a cluster")),
    ("hostAliases", Warn("pods of this host keep their own /etc/hosts")),
    ("readinessGates", Warn("a pod of this host is ready while its container runs")),
    ("setHostnameAsFQDN", Warn("pods of this host have no domain")),
    ("ephemeralContainers", Refuse("this host adds no containers to a pod")),
    ("hostIPC", Refuse(GUEST)),
    ("hostNetwork", Refuse(GUEST)),
    ("hostPID", Refuse(GUEST)),
    ("resourceClaims", Refuse("the lease has its devices already; ask for them in resources.limits")),
    ("resources", Refuse("state the resources of the container instead")),
    ("shareProcessNamespace", Refuse("a pod of this host has one container")),
];

const CONTAINER: &[(&str, Rule)] = &[
    ("args", Read),
    ("command", Read),
    ("env", Read),
    ("envFrom", Read),
    ("image", Read),
    ("imagePullPolicy", Read),
    ("name", Read),
    ("resources", Read),
    ("securityContext", Read),
    ("tty", Read),
    ("volumeMounts", Read),
    ("workingDir", Read),
    ("ports", Placement),
    ("resizePolicy", Placement),
    // The API server sets both in every container.
    ("terminationMessagePath", Placement),
    ("terminationMessagePolicy", Placement),
    ("livenessProbe", Warn("this host runs no probes")),
    ("readinessProbe", Warn("this host runs no probes; the container is ready while it runs")),
    ("startupProbe", Warn("this host runs no probes")),
    ("stdin", Warn("nothing is attached to the container's input")),
    ("stdinOnce", Warn("nothing is attached to the container's input")),
    ("lifecycle", Refuse("this host runs no hooks; handle SIGTERM instead of preStop")),
    ("restartPolicy", Refuse("sidecars are not run; the pod's restartPolicy holds for all its containers")),
    ("restartPolicyRules", Refuse("the pod's restartPolicy holds for all its containers")),
    ("volumeDevices", Refuse("this host has no block volumes")),
];

const POD_SECURITY: &[(&str, Rule)] = &[
    ("runAsGroup", Read),
    ("runAsNonRoot", Read),
    ("runAsUser", Read),
    ("fsGroup", Warn("volumes belong to the container's user")),
    ("fsGroupChangePolicy", Placement),
    ("seLinuxOptions", Warn("the host chooses SELinux labels")),
    ("seLinuxChangePolicy", Placement),
    ("seccompProfile", Warn("containers have the runtime's default profile")),
    ("appArmorProfile", Warn("containers have the runtime's default profile")),
    ("supplementalGroups", Warn("containers have no groups besides the user's")),
    ("supplementalGroupsPolicy", Placement),
    ("sysctls", Refuse(GUEST)),
];

const CONTAINER_SECURITY: &[(&str, Rule)] = &[
    ("capabilities", Read),
    ("readOnlyRootFilesystem", Read),
    ("runAsGroup", Read),
    ("runAsNonRoot", Read),
    ("runAsUser", Read),
    ("allowPrivilegeEscalation", Warn("no container of this host gains privileges, as by sudo")),
    ("seLinuxOptions", Warn("the host chooses SELinux labels")),
    ("seccompProfile", Warn("containers have the runtime's default profile")),
    ("appArmorProfile", Warn("containers have the runtime's default profile")),
    ("privileged", Refuse(GUEST)),
    ("procMount", Refuse(GUEST)),
];

const VOLUME: &[(&str, Rule)] = &[
    ("name", Read),
    ("configMap", Read),
    ("downwardAPI", Read),
    ("emptyDir", Read),
    ("projected", Read),
    ("secret", Read),
    ("hostPath", Refuse(GUEST)),
    ("persistentVolumeClaim", Refuse("this host has no PersistentVolumes; use an emptyDir, or fetch the data")),
];

const MOUNT: &[(&str, Rule)] = &[
    ("mountPath", Read),
    ("name", Read),
    ("readOnly", Read),
    ("subPath", Read),
    ("recursiveReadOnly", Placement),
    ("mountPropagation", Refuse(GUEST)),
    ("subPathExpr", Refuse("use subPath")),
];

/// Checks all fields; returns the warnings.
pub(super) fn check(manifest: &Value) -> Result<Vec<String>, PodRefusal> {
    let mut warnings = Vec::new();
    let spec = &manifest["spec"];
    apply(SPEC, spec, "spec", &mut warnings)?;
    apply(POD_SECURITY, &spec["securityContext"], "spec.securityContext", &mut warnings)?;
    for (index, volume) in items(&spec["volumes"]) {
        let at = format!("spec.volumes[{index}]");
        apply(VOLUME, volume, &at, &mut warnings)?;
        let folder = &volume["emptyDir"];
        if !folder["sizeLimit"].is_null() && folder["medium"] != "Memory" {
            warnings.push(format!("{at}.emptyDir.sizeLimit: nothing on this host limits disk"));
        }
    }
    for kind in ["initContainers", "containers"] {
        for (index, container) in items(&spec[kind]) {
            let at = format!("spec.{kind}[{index}]");
            apply(CONTAINER, container, &at, &mut warnings)?;
            let security = format!("{at}.securityContext");
            apply(CONTAINER_SECURITY, &container["securityContext"], &security, &mut warnings)?;
            for (index, mount) in items(&container["volumeMounts"]) {
                apply(MOUNT, mount, &format!("{at}.volumeMounts[{index}]"), &mut warnings)?;
            }
            if !container["resources"]["limits"]["ephemeral-storage"].is_null() {
                warnings.push(format!("{at}.resources.limits.ephemeral-storage: nothing on this host counts it"));
            }
        }
    }
    Ok(warnings)
}

fn items(list: &Value) -> impl Iterator<Item = (usize, &Value)> {
    list.as_array().into_iter().flatten().enumerate()
}

fn apply(rules: &[(&str, Rule)], object: &Value, at: &str, warnings: &mut Vec<String>) -> Result<(), PodRefusal> {
    let empty = Map::new();
    for (name, _) in object.as_object().unwrap_or(&empty).iter().filter(|(_, value)| is_set(value)) {
        let field = format!("{at}.{name}");
        match rules.iter().find(|(known, _)| known == name).map(|(_, rule)| *rule) {
            Some(Read | Placement) => {}
            Some(Warn(reason)) => warnings.push(format!("{field}: {reason}")),
            Some(Refuse(reason)) => return Err(PodRefusal::new(field, reason)),
            None => {
                return Err(PodRefusal::new(field, "this host does not know the field, or does not do what it says"));
            }
        }
    }
    Ok(())
}

/// Whether a value says something: `hostNetwork: false` does not.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::String(_) | Value::Object(_) => true,
    }
}
