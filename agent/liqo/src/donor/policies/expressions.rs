//! The rules of each policy, in CEL.

use comity_agent_kubernetes::gpu_resource::LEASE_RESOURCE_PREFIX;

use super::cel::{list, of_new_volume, refuse};
use super::{MatchCondition, Namespaces, Policy, PolicySettings, Validation};
use super::{container_resources, visible_devices};

/// Volume types within the namespace: those that Pod Security `restricted` allows.
const VOLUMES: [&str; 8] =
    ["configMap", "secret", "emptyDir", "downwardAPI", "projected", "persistentVolumeClaim", "ephemeral", "csi"];
/// Most remote namespaces of a consumer.
const MAX_NAMESPACES: u32 = 100;
/// Longest grace period of an offloaded pod, in seconds.
const MAX_GRACE_SECONDS: u32 = 3_600;
/// Namespace names that no consumer gets, even if namespaces keep their names.
const RESERVED_NAMES: &str = "^(default|kube-.*|liqo|liqo-.*|comity-.*|openshift-.*)$";

/// This cluster's own Liqo id, among the grants.
const OWN_ID: &str = "'liqo-id'";

/// Operations of consumers that the policies judge.
pub(super) const WRITES: &[&str] = &["CREATE", "UPDATE"];

/// The policies for Liqo's own objects, in the order of [`POLICY_NAMES`](super::POLICY_NAMES).
pub(super) fn all(settings: &PolicySettings) -> [Policy; 4] {
    [slice_status(settings), slice_spec(settings), namespace_map(settings), shadow_pod(settings)]
}

/// Only the donor writes grants.
fn slice_status(settings: &PolicySettings) -> Policy {
    Policy {
        name: super::POLICY_NAMES[0],
        resources: vec![
            ("authentication.liqo.io", vec!["resourceslices/status", "renews/status"]),
            ("offloading.liqo.io", vec!["namespacemaps/status", "shadowpods/status"]),
        ],
        operations: WRITES,
        namespaces: Namespaces::All,
        object_name: None,
        reads_grants: true,
        condition: exempt(settings),
        variables: Vec::new(),
        validations: vec![Validation {
            holds: "false".to_owned(),
            message: "request.resource.resource + '/' + request.subResource + ' may only be written by this cluster \
                itself, not by ' + request.userInfo.username"
                .to_owned(),
            reason: "Forbidden",
        }],
    }
}

/// A slice or a renewal must belong to a lease of the consumer whose tenant namespace it is in. Liqo before 1.2 signs
/// any certificate that a renewal requests.
fn slice_spec(settings: &PolicySettings) -> Policy {
    let mut variables = common_variables();
    variables.extend([
        ("isSlice", "request.resource.resource == 'resourceslices'".to_owned()),
        ("labels", "has(object.metadata.labels) ? object.metadata.labels : {}".to_owned()),
        ("annotations", "has(object.metadata.annotations) ? object.metadata.annotations : {}".to_owned()),
        (
            "oldAnnotations",
            "request.operation == 'UPDATE' && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : \
             {}"
            .to_owned(),
        ),
        (
            "key",
            "variables.isSlice ? 'slice.' + variables.peer + '.' + object.metadata.name : \
             (has(object.spec.resourceSliceRef) ? 'slice.' + variables.peer + '.' + \
             (has(object.spec.resourceSliceRef.name) ? object.spec.resourceSliceRef.name : '') : 'peer.' + \
             variables.peer)"
                .to_owned(),
        ),
        ("csr", "has(object.spec.csr) ? string(object.spec.csr) : ''".to_owned()),
    ]);
    let mut validations = vec![
        refuse("variables.tenantNamespace", "'only a tenant namespace holds slices'"),
        Validation {
            holds: "has(object.spec.consumerClusterID) && object.spec.consumerClusterID == variables.peer".to_owned(),
            message: "'spec.consumerClusterID must be the peer of this tenant namespace, ' + variables.peer".to_owned(),
            reason: "Invalid",
        },
        refuse(
            "!variables.isSlice || (has(object.spec.class) && object.spec.class == 'comity')",
            "'only ResourceSlices of class comity are accepted here, got \"' + (has(object.spec.class) ? \
             object.spec.class : '') + '\"'",
        ),
        refuse(
            "!variables.isSlice || variables.key in variables.data",
            "'no lease in force is called ' + object.metadata.name + ' and lent to ' + variables.peer",
        ),
        refuse(
            "variables.isSlice || variables.key in variables.data",
            "'there is no lease in force that ' + variables.peer + ' could renew its certificate for'",
        ),
        refuse(
            "variables.csr == '' || !(variables.key in variables.data) || variables.data[variables.key].split(' \
             ').exists(begin, variables.csr.startsWith(begin))",
            "'spec.csr must ask for exactly the ' + (variables.key.startsWith('slice.') ? 'slice\\'s own name and the \
             consumer\\'s own group' : 'consumer\\'s own name and the group liqo.io') + ', as Liqo writes it'",
        ),
    ];
    validations.extend(replica_validations());
    validations.push(Validation {
        holds: "['liqo.io/cordon', 'liqo.io/cordon-tenant'].all(key, (key in variables.annotations) == (key in \
            variables.oldAnnotations) && (!(key in variables.annotations) || variables.annotations[key] == \
            variables.oldAnnotations[key]))"
            .to_owned(),
        message: "'cordon annotations belong to the provider'".to_owned(),
        reason: "Forbidden",
    });
    Policy {
        name: super::POLICY_NAMES[1],
        resources: vec![("authentication.liqo.io", vec!["resourceslices", "renews"])],
        operations: WRITES,
        namespaces: Namespaces::All,
        object_name: None,
        reads_grants: true,
        condition: exempt(settings),
        variables,
        validations,
    }
}

/// Remote namespaces: limited in number, with names that belong to nobody else, and new ones only with a lease.
fn namespace_map(settings: &PolicySettings) -> Policy {
    let mut variables = common_variables();
    variables.extend([
        ("labels", "has(object.metadata.labels) ? object.metadata.labels : {}".to_owned()),
        ("wanted", "has(object.spec) && has(object.spec.desiredMapping) ? object.spec.desiredMapping : {}".to_owned()),
        (
            "before",
            "request.operation == 'UPDATE' && has(oldObject.spec) && has(oldObject.spec.desiredMapping) ? \
             oldObject.spec.desiredMapping : {}"
                .to_owned(),
        ),
        (
            "added",
            "variables.wanted.filter(name, !(name in variables.before) || variables.before[name] != \
             variables.wanted[name]).map(name, variables.wanted[name])"
                .to_owned(),
        ),
    ]);
    let names = if settings.same_names {
        refuse(
            &format!("variables.added.all(name, !name.matches('{RESERVED_NAMES}'))"),
            "'remote namespaces may not be called ' + variables.added.join(', ') + ': such names are this cluster\\'s \
             own'",
        )
    } else {
        refuse(
            "variables.added.all(name, name.endsWith('-' + variables.peer))",
            "'remote namespace names must end in -' + variables.peer + ', got ' + variables.added.join(', ')",
        )
    };
    let mut validations = vec![
        refuse("variables.tenantNamespace", "'only a tenant namespace holds NamespaceMaps'"),
        refuse(
            &format!("{OWN_ID} in variables.data && object.metadata.name == variables.data[{OWN_ID}]"),
            &format!("'the NamespaceMap for this cluster is called ' + variables.data[{OWN_ID}]"),
        ),
        names,
        refuse(
            "size(variables.added) == 0 || ('peer.' + variables.peer) in variables.data",
            "'no lease in force is lent to ' + variables.peer + ': no namespace is made for it'",
        ),
        refuse(
            &format!("size(variables.wanted) <= {MAX_NAMESPACES}"),
            &format!("'a consumer has at most {MAX_NAMESPACES} remote namespaces'"),
        ),
    ];
    validations.extend(replica_validations());
    Policy {
        name: super::POLICY_NAMES[2],
        resources: vec![("offloading.liqo.io", vec!["namespacemaps"])],
        operations: WRITES,
        namespaces: Namespaces::All,
        object_name: None,
        reads_grants: true,
        condition: exempt(settings),
        variables,
        validations,
    }
}

/// An offloaded pod stays within its lease.
fn shadow_pod(settings: &PolicySettings) -> Policy {
    let mut variables = common_variables();
    variables.extend([
        ("user", "request.userInfo.username".to_owned()),
        (
            "consumer",
            "('user.' + variables.user) in variables.data ? variables.data['user.' + variables.user] : ''".to_owned(),
        ),
        ("labels", "has(object.metadata.labels) ? object.metadata.labels : {}".to_owned()),
        ("pod", "object.spec.pod".to_owned()),
        (
            "containers",
            "variables.pod.containers + (has(variables.pod.initContainers) ? variables.pod.initContainers : \
             [])".to_owned(),
        ),
        ("chosen", "has(variables.pod.nodeSelector) ? variables.pod.nodeSelector : {}".to_owned()),
        (
            "selector",
            "variables.consumer == '' ? [] : variables.data['selector.' + variables.user].split(',').filter(pair, pair \
             != '')".to_owned(),
        ),
        (
            "resources",
            format!(
                "{} + (variables.consumer == '' ? [] : variables.data['resources.' + variables.user].split(','))",
                list(&container_resources::PLAIN)
            ),
        ),
        container_resources::sidecars(),
    ]);
    let mut validations = whose_pod(settings);
    validations.extend(which_node(settings));
    validations.extend(permissions(settings));
    Policy {
        name: super::POLICY_NAMES[3],
        resources: vec![("offloading.liqo.io", vec!["shadowpods"])],
        operations: WRITES,
        namespaces: Namespaces::All,
        object_name: None,
        reads_grants: true,
        condition: exempt(settings),
        variables,
        validations,
    }
}

/// Whether the namespace is one that Liqo makes for the lease's. Consumers choose, where both forms are allowed.
fn remote_names(settings: &PolicySettings) -> String {
    let own = "variables.data['namespace.' + variables.user]";
    let with_id = format!("request.namespace == {own} + '-' + variables.consumer");
    if settings.same_names { format!("{with_id} || request.namespace == {own}") } else { with_id }
}

fn whose_pod(settings: &PolicySettings) -> Vec<Validation> {
    vec![
        refuse("variables.consumer != ''", "'no lease in force is granted to ' + variables.user"),
        refuse(
            "variables.peer == variables.consumer && !variables.tenantNamespace && variables.consumer in \
             request.userInfo.groups",
            "'pods of ' + variables.consumer + ' run in its own remote namespaces only'",
        ),
        // All slices of a consumer have the same rights in all of its remote namespaces, which may be other tenants'.
        refuse(
            &format!("variables.consumer == '' || {}", remote_names(settings)),
            "'pods of ' + variables.user + ' are those of namespace ' + variables.data['namespace.' + variables.user] + \
             ': the lease is for no other one'",
        ),
        refuse(
            "has(namespaceObject.metadata.labels) && 'pod-security.kubernetes.io/enforce' in \
             namespaceObject.metadata.labels && namespaceObject.metadata.labels['pod-security.kubernetes.io/enforce'] \
             in ['baseline', 'restricted']",
            "'namespace ' + request.namespace + ' is not under Pod Security baseline yet; this cluster\\'s agent sees \
             to it'",
        ),
        refuse(
            "!('liqo.io/creator-user' in variables.labels) || variables.labels['liqo.io/creator-user'] == \
             variables.user",
            "'the label liqo.io/creator-user names another than ' + variables.user",
        ),
        refuse("has(object.spec) && has(object.spec.pod)", "'spec.pod is absent'"),
    ]
}

fn which_node(settings: &PolicySettings) -> Vec<Validation> {
    let schedulers = [vec!["", "default-scheduler"], settings.schedulers.iter().map(String::as_str).collect()].concat();
    vec![
        refuse(
            "!has(variables.pod.nodeName) || variables.pod.nodeName == ''",
            "'spec.pod.nodeName may not be set: the scheduler chooses'",
        ),
        refuse(
            "variables.selector.all(pair, variables.chosen.exists(key, key + '=' + variables.chosen[key] == pair))",
            "'spec.pod.nodeSelector must have the lease\\'s own: ' + variables.selector.join(',')",
        ),
        // The webhook counts a pod's GPUs by this label.
        refuse(
            &format!(
                "variables.chosen.all(key, !key.startsWith('{LEASE_RESOURCE_PREFIX}') || \
                 variables.selector.exists(pair, pair.startsWith(key + '=')))"
            ),
            "'spec.pod.nodeSelector may not name another lease'",
        ),
        refuse(
            &format!("!has(variables.pod.schedulerName) || variables.pod.schedulerName in {}", list(&schedulers)),
            "'spec.pod.schedulerName is none that is offered'",
        ),
        refuse(
            "!has(variables.pod.tolerations) || variables.pod.tolerations.all(toleration, has(toleration.key) && \
             (toleration.key in ['node.kubernetes.io/not-ready', 'node.kubernetes.io/unreachable', \
             'node.kubernetes.io/memory-pressure', 'virtual-node.liqo.io/not-allowed', 'comity.dev/lease'] || \
             toleration.key.matches('^([a-z]+[.])*(nvidia|amd|intel)[.]com/')))",
            "'offloaded pods tolerate only taints named after their GPUs'",
        ),
        refuse(
            &format!(
                "!has(variables.pod.priorityClassName) || variables.pod.priorityClassName == '' || \
                 variables.pod.priorityClassName in {}",
                list(&settings.priority_classes.iter().map(String::as_str).collect::<Vec<_>>())
            ),
            "'spec.pod.priorityClassName is none that is offered: offloaded pods do not push away this cluster\\'s \
             own'",
        ),
    ]
}

fn permissions(settings: &PolicySettings) -> Vec<Validation> {
    let known_volume = VOLUMES.map(|kind| format!("has(volume.{kind})")).join(" || ");
    let mut validations = vec![
        refuse(
            "!(has(variables.pod.hostNetwork) && variables.pod.hostNetwork) && !(has(variables.pod.hostPID) && \
             variables.pod.hostPID) && !(has(variables.pod.hostIPC) && variables.pod.hostIPC)",
            "'host namespaces are not offered'",
        ),
        refuse(
            &format!("!has(variables.pod.volumes) || variables.pod.volumes.all(volume, {known_volume})"),
            &format!("'volumes may only be of these kinds: {}'", VOLUMES.join(", ")),
        ),
        refuse(
            &format!(
                "!has(variables.pod.volumes) || variables.pod.volumes.all(volume, !has(volume.ephemeral) || \
                 !has(volume.ephemeral.volumeClaimTemplate) || (!has(volume.ephemeral.volumeClaimTemplate.spec.volumeName) \
                 && {}))",
                of_new_volume("volume.ephemeral.volumeClaimTemplate.spec")
            ),
            "'claims of a consumer get new volumes: no volumeName, no selector, no empty storageClassName'",
        ),
        refuse(
            "variables.containers.all(container, !has(container.securityContext) || \
             !has(container.securityContext.privileged) || !container.securityContext.privileged)",
            "'privileged containers are not offered'",
        ),
        refuse(
            "variables.containers.all(container, !has(container.ports) || container.ports.all(port, \
             !has(port.hostPort) || port.hostPort == 0))",
            "'host ports are not offered'",
        ),
        refuse(
            "!has(variables.pod.resourceClaims) || size(variables.pod.resourceClaims) == 0",
            "'resource claims are not offered: they are not counted against the lease'",
        ),
        refuse(
            "!has(variables.pod.serviceAccountName) || variables.pod.serviceAccountName in ['', 'default']",
            "'service accounts of this cluster are not offered'",
        ),
        refuse(
            &format!(
                "!has(variables.pod.terminationGracePeriodSeconds) || variables.pod.terminationGracePeriodSeconds <= \
                 {MAX_GRACE_SECONDS}"
            ),
            &format!("'terminationGracePeriodSeconds is at most {MAX_GRACE_SECONDS}'"),
        ),
    ];
    validations.extend(container_resources::in_pod());
    validations.extend(visible_devices::in_pod());
    if settings.refuse_privilege_escalation {
        validations.push(refuse(
            "variables.containers.all(container, has(container.securityContext) && \
             has(container.securityContext.allowPrivilegeEscalation) && \
             !container.securityContext.allowPrivilegeEscalation)",
            "'containers must say allowPrivilegeEscalation: false'",
        ));
    }
    validations
}

/// Replicas must name their true consumer: Liqo's controllers trust these labels.
fn replica_validations() -> [Validation; 2] {
    [
        refuse(
            "'liqo.io/replicated' in variables.labels && variables.labels['liqo.io/replicated'] == 'true' && \
             !('liqo.io/replication' in variables.labels && variables.labels['liqo.io/replication'] == 'true')",
            "'the label liqo.io/replicated must be true, and liqo.io/replication must not: this is a replica'",
        ),
        refuse(
            "['liqo.io/originID', 'liqo.io/remote-cluster-id'].all(key, !(key in variables.labels) || \
             variables.labels[key] == variables.peer) && 'liqo.io/originID' in variables.labels",
            "'the labels liqo.io/originID and liqo.io/remote-cluster-id must name ' + variables.peer",
        ),
    ]
}

pub(super) fn common_variables() -> Vec<(&'static str, String)> {
    vec![
        ("data", "has(params.data) ? params.data : {}".to_owned()),
        (
            "peer",
            "has(namespaceObject.metadata.labels) && 'liqo.io/remote-cluster-id' in namespaceObject.metadata.labels ? \
             namespaceObject.metadata.labels['liqo.io/remote-cluster-id'] : ''"
                .to_owned(),
        ),
        (
            "tenantNamespace",
            "has(namespaceObject.metadata.labels) && 'liqo.io/tenant-namespace' in namespaceObject.metadata.labels && \
             request.namespace == 'liqo-tenant-' + variables.peer"
                .to_owned(),
        ),
    ]
}

/// True for everybody but this cluster's own controllers and administrators.
pub(super) fn exempt(settings: &PolicySettings) -> MatchCondition {
    let liqo = &settings.liqo_namespace;
    let mut users = vec![
        settings.agent_user(),
        format!("system:serviceaccount:{liqo}:liqo-controller-manager"),
        format!("system:serviceaccount:{liqo}:liqo-crd-replicator"),
        "system:kube-controller-manager".to_owned(),
        "system:apiserver".to_owned(),
    ];
    users.extend(settings.trusted_users.iter().cloned());
    let users = list(&users.iter().map(String::as_str).collect::<Vec<_>>());
    let expression = format!(
        "!(request.userInfo.username in {users} || \
         request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || (has(request.userInfo.groups) \
         && 'system:masters' in request.userInfo.groups))"
    );
    MatchCondition { name: "not-this-cluster-itself", expression }
}
