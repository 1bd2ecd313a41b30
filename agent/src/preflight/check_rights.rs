//! The agent's rights in its cluster, as the API server knows them.

use comity_agent_delivery::CLEANING_NAMESPACE;
use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::dynamic_resources::{DRA_GROUP, DRA_VERSION};
use comity_runtime::checks::{Check, CheckList};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::observe::PLACEHOLDER_NAMESPACE;
use crate::services::canary::CANARY_NAMESPACE;
use crate::standby::{ACTIVE_LEASE, STATE_SECRET};

const RIGHTS_CHECK: &str = "rights";
const CLAIMS_CHECK: &str = "claims";
/// Namespace of kubeconfig Secrets that `deploy/agent/rbac.yaml` makes.
const ORIGIN_NAMESPACE: &str = "comity-leases";

/// A right that the agent needs.
struct NeededRight<'a> {
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    /// Name of the only object; empty: all.
    object: &'a str,
}

const fn right<'a>(
    verb: &'static str,
    group: &'static str,
    resource: &'static str,
    object: &'a str,
) -> NeededRight<'a> {
    NeededRight { verb, group, resource, object }
}

/// Samples of each rule in `deploy/agent/rbac.yaml`.
const NEEDED: [NeededRight<'static>; 13] = [
    right("watch", "", "nodes", ""),
    right("watch", "", "pods", ""),
    right("patch", "", "nodes/status", ""),
    right("deletecollection", "", "pods", ""),
    right("create", "", "pods/eviction", ""),
    right("create", "events.k8s.io", "events", ""),
    right("create", "", "namespaces", ""),
    right("delete", "", "namespaces", ""),
    right("create", "", "resourcequotas", ""),
    right("create", "networking.k8s.io", "networkpolicies", ""),
    right("patch", "", "serviceaccounts", "comity-tenant"),
    right("patch", "rbac.authorization.k8s.io", "rolebindings", "comity-tenant"),
    right("bind", "rbac.authorization.k8s.io", "clusterroles", "comity-tenant"),
];

/// A setting that needs rights of its own.
pub(super) struct SettingRights<'a> {
    check: &'static str,
    setting: &'static str,
    /// Empty: the rights are the whole cluster's.
    namespace: &'a str,
    manifest: &'static str,
    effect: &'static str,
    needed: &'static [NeededRight<'static>],
}

/// Placeholders.
pub(super) const HOLD: SettingRights<'static> = SettingRights {
    check: "hold",
    setting: "sharing.hold",
    namespace: PLACEHOLDER_NAMESPACE.name,
    manifest: PLACEHOLDER_NAMESPACE.manifest,
    effect: "placeholders can hold leased GPUs, but no devices of DRA drivers,",
    needed: &[right("create", "", "pods", ""), right("delete", "", "pods", "")],
};

/// Cleaning pods.
pub(super) const CLEAN: SettingRights<'static> = SettingRights {
    check: "clean",
    setting: "sharing.cleanNodes",
    namespace: CLEANING_NAMESPACE.name,
    manifest: CLEANING_NAMESPACE.manifest,
    effect: "pods can clean nodes after leases",
    needed: &[
        right("get", "", "podtemplates", "comity-clean"),
        right("create", "", "pods", ""),
        right("delete", "", "pods", ""),
    ],
};

/// Canaries.
pub(super) const CANARY: SettingRights<'static> = SettingRights {
    check: "canary",
    setting: "canary",
    namespace: CANARY_NAMESPACE.name,
    manifest: CANARY_NAMESPACE.manifest,
    effect: "canaries can prove nodes",
    needed: &[right("create", "", "pods", ""), right("delete", "", "pods", "")],
};

/// ProvisioningRequests of Kueue.
pub(super) const KUEUE: SettingRights<'static> = SettingRights {
    check: "kueue",
    setting: "burst.provisioningRequests",
    namespace: "",
    manifest: "deploy/agent/kueue.yaml",
    effect: "ProvisioningRequests can be served",
    needed: &[
        right("watch", "autoscaling.x-k8s.io", "provisioningrequests", ""),
        right("delete", "autoscaling.x-k8s.io", "provisioningrequests", ""),
        right("patch", "autoscaling.x-k8s.io", "provisioningrequests/status", ""),
        right("get", "", "podtemplates", ""),
        right("get", "kueue.x-k8s.io", "workloads", ""),
        right("create", "comity.dev", "gpurequests", ""),
        right("delete", "comity.dev", "gpurequests", ""),
    ],
};

const OF_REPLICAS: [NeededRight<'static>; 4] = [
    right("update", "coordination.k8s.io", "leases", ACTIVE_LEASE),
    right("get", "", "secrets", STATE_SECRET),
    right("update", "", "secrets", STATE_SECRET),
    right("patch", "discovery.k8s.io", "endpointslices", "comity-agent"),
];

/// Replicas in the agent's own namespace.
pub(super) const fn standby(namespace: &str) -> SettingRights<'_> {
    SettingRights {
        check: "standby",
        setting: "standby",
        namespace,
        manifest: "deploy/agent/standby/rbac.yaml",
        effect: "replicas can take over from each other",
        needed: &OF_REPLICAS,
    }
}

/// Checks the rights that a setting needs.
pub(super) async fn check_setting(client: &Client, of: &SettingRights<'_>, list: &mut CheckList) {
    let namespace = Some(of.namespace).filter(|name| !name.is_empty());
    let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
    let mut missing = Vec::new();
    for right in of.needed {
        if !matches!(is_granted(client, right, namespace).await, Ok(true)) {
            missing.push(format!("{} {}{place}", right.verb, right.resource));
        }
    }
    list.push(if missing.is_empty() {
        Check::ok(of.check, format!("{}{place}", of.effect))
    } else {
        let detail = format!("{} is set, and rights are missing: {}", of.setting, missing.join(", "));
        Check::failed(of.check, detail, format!("kubectl apply -f {}", of.manifest))
    });
}

/// Checks the rights to devices of DRA drivers, if the cluster has dynamic resource allocation.
pub(super) async fn check_claims(client: &Client, list: &mut CheckList) {
    let group = within_limit(client.list_api_group_resources(&format!("{DRA_GROUP}/{DRA_VERSION}"))).await;
    if !group.is_ok_and(|group| group.resources.iter().any(|resource| resource.name == "resourceslices")) {
        return;
    }
    let mut missing = Vec::new();
    for (verb, resource) in [("list", "resourceslices"), ("watch", "resourceclaims"), ("create", "resourceclaims")] {
        if !matches!(is_granted(client, &right(verb, DRA_GROUP, resource, ""), None).await, Ok(true)) {
            missing.push(format!("{verb} {resource}"));
        }
    }
    list.push(if missing.is_empty() {
        Check::ok(CLAIMS_CHECK, "devices of DRA drivers can be offered")
    } else {
        let detail = format!("devices of DRA drivers are not offered; missing: {}", missing.join(", "));
        Check::warning(
            CLAIMS_CHECK,
            detail,
            "if a DRA driver publishes GPUs here, kubectl apply -f deploy/agent/dra.yaml",
        )
    });
}

/// Whether the agent can at least read the inventory.
pub(super) async fn check(client: &Client, list: &mut CheckList) -> bool {
    let asked = futures::future::join_all(NEEDED.iter().map(|right| is_granted(client, right, None))).await;
    let mut missing = Vec::new();
    for (right, granted) in NEEDED.iter().zip(asked) {
        match granted {
            Ok(true) => {}
            Ok(false) => missing.push(format!("{} {}", right.verb, right.resource)),
            Err(reason) => {
                let detail = format!("the API server does not tell the agent's rights: {reason}");
                list.push(Check::failed(
                    RIGHTS_CHECK,
                    detail,
                    "kubectl auth can-i --list must work with the same account",
                ));
                return false;
            }
        }
    }
    let can_look = missing.iter().all(|missing| !missing.starts_with("watch "));
    if !missing.is_empty() {
        let detail = format!("missing: {}", missing.join(", "));
        list.push(Check::failed(
            RIGHTS_CHECK,
            detail,
            "kubectl apply -f deploy/agent/rbac.yaml -f deploy/agent/tenant-role.yaml",
        ));
        return can_look;
    }
    let secrets = right("create", "", "secrets", "");
    list.push(match is_granted(client, &secrets, Some(ORIGIN_NAMESPACE)).await {
        Ok(true) => Check::ok(RIGHTS_CHECK, "those of deploy/agent/rbac.yaml"),
        Ok(false) | Err(_) => Check::warning(
            RIGHTS_CHECK,
            format!("no kubeconfig Secret can be written in namespace {ORIGIN_NAMESPACE}: this cluster can lend only"),
            "to borrow, apply the Role and RoleBinding comity-agent-origin of deploy/agent/rbac.yaml in each namespace \
             that requests name",
        ),
    });
    true
}

/// What `deploy/agent/mig.yaml` grants beyond reading the MIG manager's ConfigMap; an error is one sentence.
pub(super) async fn check_mig(client: &Client, config_map: ConfigMapName<'_>) -> Result<(), String> {
    let ConfigMapName { namespace, name } = config_map;
    match is_granted(client, &right("update", "", "configmaps", name), Some(namespace)).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("the agent may not update ConfigMap {namespace}/{name} (deploy/agent/mig.yaml)")),
        Err(reason) => Err(format!("the API server does not tell the agent's rights: {reason}")),
    }
}

/// A ConfigMap.
#[derive(Clone, Copy)]
pub(super) struct ConfigMapName<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

async fn is_granted(client: &Client, right: &NeededRight<'_>, namespace: Option<&str>) -> Result<bool, String> {
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let (resource, subresource) = right.resource.split_once('/').unwrap_or((right.resource, ""));
    let mut question = SelfSubjectAccessReview::default();
    question.spec.resource_attributes = Some(ResourceAttributes {
        verb: text(right.verb),
        group: text(right.group),
        resource: text(resource),
        subresource: text(subresource),
        name: text(right.object),
        namespace: namespace.map(str::to_owned),
        ..ResourceAttributes::default()
    });
    let reviews = Api::<SelfSubjectAccessReview>::all(client.clone());
    let answer = within_limit(reviews.create(&PostParams::default(), &question)).await;
    answer.map(|review| review.status.is_some_and(|status| status.allowed)).map_err(|error| error.to_string())
}
