//! The attempts, by what they are after.

use serde_json::{Value, json};

use super::{AttackedLease, Attempt, PARKED, Protection, Refusal};

/// A shared GPU and the largest MIG instance of an 80 GB board.
const LARGER: [(&str, &str); 2] = [("shared-gpu", "nvidia.com/gpu.shared"), ("larger-slice", "nvidia.com/mig-7g.80gb")];

impl Attempt {
    /// All attempts of a lease's tenant.
    #[must_use]
    pub fn all(of: &AttackedLease) -> Vec<Self> {
        [other_card(of), other_node(of), other_device(of), more_of_one(of), longer(of), other_rights(of)].concat()
    }

    fn new(name: &'static str, protection: Protection, refusal: Refusal, args: &[&str]) -> Self {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        Self { name, protection, refusal, args, input: String::new(), may_run_dry: true }
    }

    /// An attempt to create an object of its name.
    fn create(name: &'static str, protection: Protection, refusal: Refusal, object: &Value) -> Self {
        Self { input: object.to_string(), ..Self::new(name, protection, refusal, &["create", "-f", "-"]) }
    }

    fn not_dry(self) -> Self {
        Self { may_run_dry: false, ..self }
    }
}

/// A refusal of the call with this text.
fn answer(part: impl Into<String>) -> Refusal {
    Refusal::Answer(part.into())
}

/// A refusal by RBAC, which names verb and resource.
fn forbidden(what: &str) -> Refusal {
    answer(format!("cannot {what}"))
}

/// The quota's refusal of one more unit of a resource.
fn exceeded(resource: &str) -> String {
    format!("exceeded quota: gpus, requested: requests.{resource}=1")
}

/// A pod of one unit of a resource that the lease does not have.
fn one_of_another(of: &AttackedLease, name: &'static str, resource: &str) -> Attempt {
    let pod = of.pod(name, &json!({ resource: "1" }));
    Attempt::create(name, Protection::QuotaAndPolicy, answer("its own devices"), &pod)
}

/// A pod without GPUs, with further fields of its spec.
fn with_spec(of: &AttackedLease, name: &str, fields: &Value) -> Value {
    let mut pod = of.pod(name, &json!({}));
    for (field, value) in fields.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn other_card(of: &AttackedLease) -> Vec<Attempt> {
    let larger = LARGER.iter().map(|(name, resource)| one_of_another(of, name, resource));
    larger.chain([one_of_another(of, "other-card", &of.other_resource)]).collect()
}

/// Each would run on a node that is not the lease's.
fn other_node(of: &AttackedLease) -> Vec<Attempt> {
    use Protection::{Limits, NodeResource, Policy, Role};
    let (host, node_resource) = ("kubernetes.io/hostname", of.node_resource());
    let other_leases = format!("lease.comity.dev/{}", of.other_lease);
    let term = json!({ "matchExpressions": [{ "key": host, "operator": "In", "values": [of.other_node] }] });
    let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
    let affinity = json!({ "nodeAffinity": required });
    let pod = |name, fields: Value| with_spec(of, name, &fields);
    let short = || Refusal::Pending(format!("Insufficient {node_resource}"));
    let units =
        |bound: &str, count: &str| answer(format!("{bound} {node_resource} usage per Container is 1, but {count}"));
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": PARKED },
        "target": { "apiVersion": "v1", "kind": "Node", "name": of.other_node },
    });
    let path = format!("/api/v1/namespaces/{}/pods/{PARKED}/binding", of.namespace());
    let bind = Attempt {
        input: binding.to_string(),
        ..Attempt::new(
            "bound-by-hand",
            Role,
            forbidden("create resource \"pods/binding\""),
            &["create", "--raw", &path, "-f", "-"],
        )
    };
    vec![
        Attempt::create(
            "node-selector",
            NodeResource,
            short(),
            &pod("node-selector", json!({ "nodeSelector": { host: of.other_node } })),
        ),
        Attempt::create("node-affinity", NodeResource, short(), &pod("node-affinity", json!({ "affinity": affinity }))),
        Attempt::create(
            "node-name",
            Policy,
            answer("the scheduler chooses the node"),
            &pod("node-name", json!({ "nodeName": of.other_node })),
        ),
        Attempt::create(
            "any-taint",
            Policy,
            answer("tolerate only taints named after their GPUs"),
            &pod("any-taint", json!({ "tolerations": [{ "operator": "Exists" }] })),
        ),
        Attempt::create(
            "other-leases-node",
            Policy,
            answer("request no resource of another lease"),
            &of.pod("other-leases-node", &json!({ other_leases: "1" })),
        ),
        Attempt::create(
            "no-node-unit",
            Limits,
            units("minimum", "request is 0"),
            &of.pod("no-node-unit", &json!({ node_resource.as_str(): "0" })),
        ),
        Attempt::create(
            "two-node-units",
            Limits,
            units("maximum", "limit is 2"),
            &of.pod("two-node-units", &json!({ node_resource.as_str(): "2" })),
        ),
        bind.not_dry(),
    ]
}

/// Each would see devices that the device plugin did not give it.
fn other_device(of: &AttackedLease) -> Vec<Attempt> {
    use Protection::{PodSecurity, Policy, Role};
    let volume = json!({ "volumes": [{ "name": "dev", "hostPath": { "path": "/dev" } }] });
    let claim = json!({ "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "more" }] });
    let mut visible = of.pod("visible-devices", &json!({}));
    let source = json!({ "prefix": "NVIDIA_VISIBLE_", "configMapRef": { "name": "all" } });
    visible["spec"]["containers"][0]["envFrom"] = json!([source]);
    let key = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "visible-devices-key" },
        "data": { "NVIDIA_VISIBLE_DEVICES": "all" },
    });
    let mut privileged = of.pod("privileged", &json!({}));
    privileged["spec"]["containers"][0]["securityContext"] = json!({ "privileged": true });
    let debug = ["debug", &of.holder, "--profile=restricted", "--image", &of.image, "--image-pull-policy=Never"];
    vec![
        Attempt::create(
            "hosts-devices",
            PodSecurity,
            answer("restricted volume type \"hostPath\""),
            &with_spec(of, "hosts-devices", &volume),
        ),
        Attempt::create("privileged", PodSecurity, answer("must not set securityContext.privileged=true"), &privileged),
        Attempt::create(
            "claim-template",
            Policy,
            answer("use only the claims gpu-N"),
            &with_spec(of, "claim-template", &claim),
        ),
        Attempt::new("ephemeral-container", Role, forbidden("patch resource \"pods/ephemeralcontainers\""), &debug)
            .not_dry(),
        Attempt::create("visible-devices", Policy, answer("a prefix in envFrom"), &visible),
        Attempt::create("visible-devices-key", Policy, answer("have no key NVIDIA_VISIBLE_DEVICES"), &key),
    ]
}

/// Each would use more than was leased, of the very resource.
fn more_of_one(of: &AttackedLease) -> Vec<Attempt> {
    use Protection::{Quota, Role};
    let limits = json!({ of.resource.as_str(): "1" });
    let template =
        |name: &str| json!({ "metadata": { "labels": { "attempt": name } }, "spec": of.pod(name, &limits)["spec"] });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "by-job" },
        "spec": { "template": template("by-job") },
    });
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "by-deployment" },
        "spec": { "selector": { "matchLabels": { "attempt": "by-deployment" } }, "template": template("by-deployment") },
    });
    deployment["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    let no_pod = || Refusal::NoPod(exceeded(&of.resource));
    let hard = json!({ "spec": { "hard": { format!("requests.{}", of.resource): "64" } } }).to_string();
    let capacity = json!({ "status": { "capacity": { of.node_resource(): "64" } } }).to_string();
    let patch_node = ["patch", "node", &of.other_node, "--subresource=status", "--type=merge", "-p", &capacity];
    vec![
        Attempt::create("one-more", Quota, answer(exceeded(&of.resource)), &of.pod("one-more", &limits)),
        Attempt::create("by-job", Quota, no_pod(), &job),
        Attempt::create("by-deployment", Quota, no_pod(), &deployment),
        Attempt::new(
            "larger-quota",
            Role,
            forbidden("patch resource \"resourcequotas\""),
            &["patch", "resourcequota", "gpus", "--type=merge", "-p", &hard],
        ),
        Attempt::new("no-limits", Role, answer("resource \"limitranges\""), &["delete", "limitrange", "defaults"]),
        Attempt::new("mark-a-node", Role, answer("resource \"nodes"), &patch_node),
    ]
}

/// Each would outlive the lease.
fn longer(of: &AttackedLease) -> Vec<Attempt> {
    let forever = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "for-ever", "finalizers": ["example.com/for-ever"] },
    });
    let token = ["create", "token", "comity-tenant", "--duration=48h"];
    let role = Protection::Role;
    vec![
        Attempt::create("for-ever", Protection::Policy, answer("have no finalizers of their own"), &forever),
        Attempt::new("longer-token", role, forbidden("create resource \"serviceaccounts/token\""), &token).not_dry(),
        Attempt::new(
            "no-longer-a-lease",
            role,
            answer("resource \"namespaces\""),
            &["label", "namespace", &of.namespace(), "comity.dev/lease-"],
        ),
    ]
}

/// Each would rank above the donor's own work, or act outside the namespace.
fn other_rights(of: &AttackedLease) -> Vec<Attempt> {
    use Protection::{Policy, QuotaAndPolicy, Role};
    let port = |name: &str, kind: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "type": kind, "selector": { "a": "b" }, "ports": [{ "port": 80 }] },
        })
    };
    let opens = || answer("open no ports of this cluster");
    let before_all = json!({ "priorityClassName": "system-node-critical" });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "outside-address" },
        "spec": { "externalIPs": ["192.0.2.1"], "selector": { "a": "b" }, "ports": [{ "port": 80 }] },
    });
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "donors-volume" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
            "storageClassName": "manual", "volumeName": "donor-data",
        },
    });
    let elsewhere = Attempt {
        input: of.pod("other-namespace", &json!({})).to_string(),
        ..Attempt::new(
            "other-namespace",
            Role,
            forbidden("create resource \"pods\" in API group \"\" in the namespace \"default\""),
            &["-n", "default", "create", "-f", "-"],
        )
    };
    vec![
        Attempt::create(
            "before-all",
            Policy,
            answer("no priority over the donor's own"),
            &with_spec(of, "before-all", &before_all),
        ),
        Attempt::create("outside-address", Policy, answer("have no external addresses"), &service),
        Attempt::create("node-port", QuotaAndPolicy, opens(), &port("node-port", "NodePort")),
        Attempt::create("load-balancer", QuotaAndPolicy, opens(), &port("load-balancer", "LoadBalancer")),
        Attempt::create("donors-volume", Policy, answer("claims of a lease get new volumes"), &volume),
        elsewhere,
    ]
}
