//! The policies for other objects of consumers, and for the grants themselves.

use super::cel::{of_new_volume, quoted, refuse};
use super::expressions::{WRITES, common_variables, exempt};
use super::visible_devices;
use super::{MatchCondition, Namespaces, POLICY_NAMES, Policy, PolicySettings, Validation, params_name};
use crate::donor::peer_account::ACCOUNT as PEER_ACCOUNT;

/// Objects of a consumer may neither outlast its lease through a finalizer nor open ports of this cluster.
pub(super) fn objects(settings: &PolicySettings) -> Policy {
    let mut variables = common_variables();
    variables.extend([
        (
            "isConsumer",
            format!(
                "variables.peer in request.userInfo.groups || 'liqo.io' in request.userInfo.groups || ('user.' + \
                 request.userInfo.username) in variables.data || request.userInfo.username == \
                 'system:serviceaccount:liqo-tenant-' + variables.peer + ':{PEER_ACCOUNT}'"
            ),
        ),
        ("finalizers", "has(object.metadata.finalizers) ? object.metadata.finalizers : []".to_owned()),
        (
            "oldFinalizers",
            "request.operation == 'UPDATE' && has(oldObject.metadata.finalizers) ? oldObject.metadata.finalizers : \
             []"
            .to_owned(),
        ),
        ("isService", "request.resource.resource == 'services'".to_owned()),
        ("isClaim", "request.resource.resource == 'persistentvolumeclaims'".to_owned()),
    ]);
    let mut validations = vec![
        refuse(
            "!variables.isConsumer || variables.finalizers.all(name, name in variables.oldFinalizers || name in \
             ['kubernetes.io/pvc-protection', 'foregroundDeletion'])",
            "'objects of a consumer carry no finalizers of their own, for they end with its lease'",
        ),
        refuse(
            "!variables.isConsumer || !variables.isService || !has(object.spec.externalIPs) || \
             size(object.spec.externalIPs) == 0",
            "'Services of a consumer have no external IPs'",
        ),
    ];
    validations.push(visible_devices::in_data());
    // By name, by selector or by an empty class a claim would get a volume that this cluster made for its own. Who binds a
    // claim later is no consumer.
    validations.push(refuse(
        &format!(
            "!variables.isConsumer || !variables.isClaim || ((has(object.spec.volumeName) ? object.spec.volumeName : '') \
             == (request.operation == 'UPDATE' && has(oldObject.spec.volumeName) ? oldObject.spec.volumeName : '') && {})",
            of_new_volume("object.spec")
        ),
        "'claims of a consumer get new volumes: no volumeName, no selector, no empty storageClassName'",
    ));
    if !settings.exposed_services {
        // Ingresses lead into endpoints that the consumer chooses, also to addresses of this cluster's own.
        validations.push(refuse(
            "!variables.isConsumer || request.resource.resource != 'ingresses'",
            "'a consumer makes no Ingresses on this cluster: they would open it to the outside'",
        ));
        validations.push(refuse(
            "!variables.isConsumer || !variables.isService || !has(object.spec.type) || object.spec.type in ['', \
             'ClusterIP', 'ExternalName']",
            "'Services of a consumer open no ports of this cluster: type ' + object.spec.type",
        ));
    }
    Policy {
        name: POLICY_NAMES[4],
        resources: vec![
            ("", vec!["configmaps", "secrets", "services", "persistentvolumeclaims", "events"]),
            ("networking.k8s.io", vec!["ingresses"]),
            ("authentication.liqo.io", vec!["resourceslices", "renews"]),
            ("offloading.liqo.io", vec!["namespacemaps", "shadowpods", "shadowendpointslices"]),
        ],
        operations: WRITES,
        namespaces: Namespaces::OfConsumers,
        object_name: None,
        reads_grants: true,
        condition: exempt(settings),
        variables,
        validations,
    }
}

/// Only the agent writes the grants.
pub(super) fn grants(settings: &PolicySettings) -> Policy {
    let agent = quoted(&settings.agent_user());
    Policy {
        name: POLICY_NAMES[6],
        resources: vec![("", vec!["configmaps"])],
        operations: WRITES,
        namespaces: Namespaces::Named(settings.agent_namespace.clone()),
        object_name: Some(params_name()),
        reads_grants: false,
        condition: MatchCondition {
            name: "not-the-agent",
            expression: format!(
                "!(request.userInfo.username == {agent} || (has(request.userInfo.groups) && 'system:masters' in \
                 request.userInfo.groups))"
            ),
        },
        variables: Vec::new(),
        validations: vec![Validation {
            holds: "false".to_owned(),
            message: "'the leases in force are written by this cluster\\'s agent, not by ' + request.userInfo.username"
                .to_owned(),
            reason: "Forbidden",
        }],
    }
}
