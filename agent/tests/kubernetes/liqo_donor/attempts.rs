//! A consumer's attempts to get more than its lease, with its own valid credentials.

use std::sync::LazyLock;

use comity_agent_liqo::donor::slice_user;
use comity_agent_liqo::{namespace_map, resource_slice};
use serde_json::{Value, json};

use super::attempt::{Act, Attempt};
use super::consumer::{Consumer, namespace_map_of, shadow_pod_of, slice};
use super::lab::{OTHER_NAMESPACE, POD_NAMESPACE, TENANT_NAMESPACE};

fn gpus(count: &str) -> Value {
    json!({ "cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": count })
}

fn own_csr(consumer: &Consumer, name: &str) -> String {
    consumer.key.csr(&["origin"], &slice_user(name, "origin"))
}

fn pod(change: impl FnOnce(&mut Value)) -> Act {
    Act::CreateWithSlice(shadow_pod_of("greedy", change))
}

fn in_pod(field: &'static str, value: Value) -> Act {
    pod(move |object| object["spec"]["pod"][field] = value)
}

fn mounted_at(path: &'static str) -> Act {
    pod(move |object| {
        object["spec"]["pod"]["volumes"] = json!([{ "name": "all", "emptyDir": {} }]);
        object["spec"]["pod"]["containers"][0]["volumeMounts"] = json!([{ "name": "all", "mountPath": path }]);
    })
}

fn in_container(field: &'static str, value: Value) -> Act {
    pod(move |object| object["spec"]["pod"]["containers"][0][field] = value)
}

fn init_container(resources: Value, more: Value) -> Act {
    let mut container = json!({ "name": "init", "image": "example.invalid/work:1", "resources": resources });
    container.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    in_pod("initContainers", json!([container]))
}

fn annotated(key: &'static str) -> Act {
    pod(move |object| object["metadata"]["annotations"] = json!({ key: "nvidia.com/gpu=all" }))
}

fn of_slice(patch: Value, back: Value) -> Act {
    Act::Merge { kind: resource_slice, name: "lease-7", status: false, patch, back }
}

fn of_map(patch: Value, back: Value) -> Act {
    Act::Merge { kind: namespace_map, name: "donor", status: false, patch, back }
}

fn plain(kind: &str, change: impl FnOnce(&mut Value)) -> Act {
    let mut object =
        json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": "greedy", "namespace": POD_NAMESPACE } });
    change(&mut object);
    Act::CreateWithSlice(object)
}

fn service(change: impl FnOnce(&mut Value)) -> Act {
    plain("Service", |object| {
        object["spec"] = json!({ "selector": { "a": "b" }, "ports": [{ "port": 80 }] });
        change(object);
    })
}

fn ingress() -> Act {
    plain("Ingress", |object| {
        object["apiVersion"] = json!("networking.k8s.io/v1");
        object["spec"] = json!({ "defaultBackend": { "service": { "name": "greedy", "port": { "number": 80 } } } });
    })
}

/// A claim's spec that names a volume.
fn donors_volume() -> Value {
    let amounts = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let mut spec = json!({ "storageClassName": "", "volumeName": "donor-data" });
    spec.as_object_mut().unwrap().extend(amounts.as_object().unwrap().clone());
    spec
}

fn open(name: &'static str, refusal: &'static str, act: Act) -> Attempt {
    Attempt { name, open: true, refusal, act }
}

fn shut(name: &'static str, refusal: &'static str, act: Act) -> Attempt {
    Attempt { name, open: false, refusal, act }
}

pub(crate) static ATTEMPTS: LazyLock<Vec<Attempt>> =
    LazyLock::new(|| [grants(), slices(), maps(), pods(), objects()].into_iter().flatten().collect());

fn grants() -> Vec<Attempt> {
    let own = "may only be written by this cluster itself";
    let status = json!({ "status": { "resources": gpus("100") } });
    let merge = Act::Merge { kind: resource_slice, name: "lease-7", status: true, patch: status, back: Value::Null };
    let map =
        json!({ "status": { "currentMapping": { "x": { "remoteNamespace": "kube-system", "phase": "Accepted" } } } });
    let map = Act::Merge { kind: namespace_map, name: "donor", status: true, patch: map, back: Value::Null };
    vec![
        open("grant itself by a patch of the status", own, merge),
        open("grant itself by PUT", own, Act::PutStatus(gpus("100"))),
        open("grant itself by server-side apply", own, Act::ApplyStatus(gpus("100"))),
        open("claim another namespace in a NamespaceMap's status", own, map),
    ]
}

fn slices() -> Vec<Attempt> {
    let class = "only ResourceSlices of class comity";
    vec![
        open(
            "a slice of the default class",
            class,
            Act::Create(|consumer| {
                slice("lease-8", &own_csr(consumer, "lease-8"), |object| object["spec"]["class"] = json!("default"))
            }),
        ),
        open(
            "a slice of no class",
            class,
            Act::Create(|consumer| {
                slice("lease-8", &own_csr(consumer, "lease-8"), |object| object["spec"]["class"] = json!(""))
            }),
        ),
        open(
            "another class for a slice that it has",
            class,
            of_slice(json!({ "spec": { "class": "default" } }), json!({ "spec": { "class": "comity" } })),
        ),
        open(
            "a second slice beside its lease",
            "no lease in force is called second",
            Act::Create(|consumer| slice("second", &own_csr(consumer, "second"), |_| ())),
        ),
        open(
            "a slice in the name of somebody else's lease",
            "no lease in force is called lease-9",
            Act::Create(|consumer| slice("lease-9", &own_csr(consumer, "lease-9"), |_| ())),
        ),
        open(
            "a slice for another consumer",
            "spec.consumerClusterID must be the peer",
            Act::Create(|consumer| {
                slice("lease-8", &own_csr(consumer, "lease-8"), |object| {
                    object["spec"]["consumerClusterID"] = json!("other")
                })
            }),
        ),
        shut(
            "a slice in another tenant's namespace",
            "forbidden",
            Act::Create(|consumer| {
                slice("lease-9", &own_csr(consumer, "lease-9"), |object| {
                    object["metadata"]["namespace"] = json!("liqo-tenant-other")
                })
            }),
        ),
        open(
            "a certificate with a further group",
            "spec.csr must ask for exactly",
            Act::Create(|consumer| {
                slice(
                    "lease-8",
                    &consumer.key.csr(&["origin", "cluster-operators"], &slice_user("lease-8", "origin")),
                    |_| (),
                )
            }),
        ),
        open(
            "a certificate in another slice's name",
            "spec.csr must ask for exactly",
            Act::Create(|consumer| slice("lease-8", &own_csr(consumer, "lease-9"), |_| ())),
        ),
        open(
            "a slice that poses as this cluster's own",
            "the label liqo.io/replicated must be true",
            Act::Create(|consumer| {
                slice(
                    "lease-8",
                    &own_csr(consumer, "lease-8"),
                    |object| object["metadata"]["labels"] = json!({ "liqo.io/replication": "true", "liqo.io/remoteID": "other", "liqo.io/remote-cluster-id": "other" }),
                )
            }),
        ),
        open(
            "take the label off that makes it looked after",
            "the label liqo.io/replicated must be true",
            of_slice(
                json!({ "metadata": { "labels": { "liqo.io/replicated": null } } }),
                json!({ "metadata": { "labels": { "liqo.io/replicated": "true" } } }),
            ),
        ),
        shut(
            "decide about cordons",
            "cordon annotations belong to the provider",
            of_slice(
                json!({ "metadata": { "annotations": { "liqo.io/cordon": "false" } } }),
                json!({ "metadata": { "annotations": { "liqo.io/cordon": null } } }),
            ),
        ),
        open(
            "outlast its lease by a finalizer",
            "carry no finalizers",
            of_slice(
                json!({ "metadata": { "finalizers": ["example.com/forever"] } }),
                json!({ "metadata": { "finalizers": null } }),
            ),
        ),
        open(
            "renew somebody else's certificate",
            "spec.consumerClusterID must be the peer",
            Act::Create(|consumer| {
                renewal(&own_csr(consumer, "lease-9"), |object| object["spec"]["consumerClusterID"] = json!("other"))
            }),
        ),
        open(
            "renew its control plane's certificate as this cluster's controller manager",
            "the consumer's own name and the group liqo.io",
            Act::Create(|consumer| renewal(&consumer.key.csr(&["liqo.io"], "system:kube-controller-manager"), |_| ())),
        ),
        open(
            "renew its control plane's certificate into a further group",
            "the consumer's own name and the group liqo.io",
            Act::Create(|consumer| renewal(&consumer.key.csr(&["liqo.io", "cluster-operators"], "origin"), |_| ())),
        ),
        open(
            "renew a slice's certificate under another name",
            "the slice's own name and the consumer's own group",
            Act::Create(|consumer| {
                renewal(&consumer.key.csr(&["origin"], "system:kube-controller-manager"), |object| {
                    object["spec"]["identityType"] = json!("ResourceSlice");
                    object["spec"]["resourceSliceRef"] = json!({ "name": "lease-7" });
                })
            }),
        ),
        open(
            "renew the certificate of a lease that is lent to another",
            "there is no lease in force",
            Act::Create(|consumer| {
                renewal(&own_csr(consumer, "lease-9"), |object| {
                    object["spec"]["identityType"] = json!("ResourceSlice");
                    object["spec"]["resourceSliceRef"] = json!({ "name": "lease-9" });
                })
            }),
        ),
    ]
}

/// A renewal as the consumer's replicator makes it.
fn renewal(csr: &str, change: impl FnOnce(&mut Value)) -> Value {
    let labels = json!({ "liqo.io/replicated": "true", "liqo.io/originID": "origin" });
    let mut object = json!({
        "apiVersion": "authentication.liqo.io/v1beta1", "kind": "Renew",
        "metadata": { "name": "greedy", "namespace": TENANT_NAMESPACE, "labels": labels },
        "spec": { "consumerClusterID": "origin", "identityType": "ControlPlane", "publicKey": "YQ==", "csr": csr },
    });
    change(&mut object);
    object
}

/// Valid renewals, as Liqo makes them: of the control plane's certificate, and of a slice's.
pub(crate) fn honest_renewals(consumer: &Consumer) -> [(&'static str, Value); 2] {
    let named = |name: &'static str| move |object: &mut Value| object["metadata"]["name"] = json!(name);
    let control_plane = renewal(&consumer.key.csr(&["liqo.io"], "origin"), named("controlplane-donor"));
    let mut slice = renewal(&own_csr(consumer, "lease-7"), named("resourceslice-lease-7"));
    slice["spec"]["identityType"] = json!("ResourceSlice");
    slice["spec"]["resourceSliceRef"] = json!({ "name": "lease-7" });
    [("the control plane's", control_plane), ("the slice's", slice)]
}

fn maps() -> Vec<Attempt> {
    vec![
        open(
            "a namespace of any name",
            "remote namespace names must end in -origin",
            of_map(
                json!({ "spec": { "desiredMapping": { "more": "finance" } } }),
                json!({ "spec": { "desiredMapping": { "more": null } } }),
            ),
        ),
        open(
            "a second NamespaceMap",
            "is called donor",
            Act::Create(|_| namespace_map_of("second", json!({ "b": "b-origin" }))),
        ),
        open(
            "a namespace for the group of somebody else",
            "must name origin",
            of_map(
                json!({ "metadata": { "labels": { "liqo.io/originID": "cluster-operators" } } }),
                json!({ "metadata": { "labels": { "liqo.io/originID": "origin" } } }),
            ),
        ),
    ]
}

fn pods() -> Vec<Attempt> {
    let (privileged, gpu) = (json!({ "privileged": true }), json!({ "nvidia.com/gpu": "1" }));
    vec![
        open("choose a node", "nodeName may not be set", in_pod("nodeName", json!("donor-node"))),
        open("other nodes than leased", "nodeSelector must have the lease's own", in_pod("nodeSelector", json!({}))),
        open(
            "the GPUs of another lease's nodes",
            "may not name another lease",
            in_pod("nodeSelector", json!({ "kubernetes.io/os": "linux", "lease.comity.dev/lease-9": "true" })),
        ),
        open(
            "run in the namespace of another tenant of its cluster",
            "are those of namespace team-a: the lease is for no other one",
            pod(|object| object["metadata"]["namespace"] = json!(OTHER_NAMESPACE)),
        ),
        open("the host's network", "host namespaces", in_pod("hostNetwork", json!(true))),
        open("the host's processes", "host namespaces", in_pod("hostPID", json!(true))),
        open("the host's IPC", "host namespaces", in_pod("hostIPC", json!(true))),
        open(
            "the host's files",
            "volumes may only be of these kinds",
            in_pod("volumes", json!([{ "name": "root", "hostPath": { "path": "/" } }])),
        ),
        open(
            "a volume of a server elsewhere",
            "volumes may only be of these kinds",
            in_pod("volumes", json!([{ "name": "n", "nfs": { "server": "10.0.0.1", "path": "/" } }])),
        ),
        open(
            "a volume of the donor's, for one pod",
            "claims of a consumer get new volumes",
            in_pod(
                "volumes",
                json!([{ "name": "v", "ephemeral": { "volumeClaimTemplate": { "spec": donors_volume() } } }]),
            ),
        ),
        open("a privileged container", "privileged containers", in_container("securityContext", privileged.clone())),
        open(
            "a privileged init container",
            "privileged containers",
            in_pod("initContainers", json!([{ "name": "init", "image": "a", "securityContext": privileged }])),
        ),
        open(
            "a port of the host",
            "host ports",
            in_container("ports", json!([{ "containerPort": 80, "hostPort": 80 }])),
        ),
        open(
            "devices by another resource name",
            "these resources only",
            in_container("resources", json!({ "limits": { "rdma/hca": "1" } })),
        ),
        open(
            "GPUs by limits without requests",
            "a container requests every resource that it has a limit of",
            in_container("resources", json!({ "limits": { "nvidia.com/gpu": "2" } })),
        ),
        open(
            "GPUs by limits of an init container without requests",
            "a container requests every resource that it has a limit of",
            init_container(json!({ "limits": { "nvidia.com/gpu": "2" } }), json!({})),
        ),
        open(
            "a GPU of a sidecar",
            "have no devices",
            init_container(json!({ "requests": gpu, "limits": gpu }), json!({ "restartPolicy": "Always" })),
        ),
        open(
            "CPU of sidecars that is not counted",
            "of a pod request at most cpu 100m",
            in_pod(
                "initContainers",
                json!([("one", "60m"), ("two", "60m")].map(|(name, cpu)| json!({
                    "name": name, "image": "example.invalid/work:1", "restartPolicy": "Always",
                    "resources": { "requests": { "cpu": cpu, "memory": "1Mi" } },
                }))),
            ),
        ),
        open(
            "memory of a sidecar that is not counted",
            "of a pod request at most cpu 100m",
            init_container(json!({ "requests": { "memory": "257Mi" } }), json!({ "restartPolicy": "Always" })),
        ),
        open(
            "devices by a resource claim",
            "resource claims are not offered",
            in_pod("resourceClaims", json!([{ "name": "gpu", "resourceClaimTemplateName": "all" }])),
        ),
        open(
            "every GPU by a variable of the container runtime",
            "NVIDIA_VISIBLE_DEVICES",
            in_container("env", json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }])),
        ),
        open(
            "every GPU by a prefix of variables",
            "a prefix in envFrom",
            in_container("envFrom", json!([{ "prefix": "NVIDIA_", "configMapRef": { "name": "a" } }])),
        ),
        open(
            "every GPU by a mount",
            "a mount below nvidia-container-devices",
            mounted_at("/var/run/nvidia-container-devices/all"),
        ),
        open("every GPU by an annotation", "not an annotation", annotated("cdi.k8s.io/all")),
        open("every GPU by NVIDIA's annotation", "not an annotation", annotated("nvidia.cdi.k8s.io/all")),
        open("a place in HAMi's books", "belong to HAMi", annotated("hami.io/vgpu-node")),
        open("push others away", "priorityClassName", in_pod("priorityClassName", json!("system-node-critical"))),
        open("tolerate every taint", "tolerate only", in_pod("tolerations", json!([{ "operator": "Exists" }]))),
        open("a scheduler of its own", "schedulerName", in_pod("schedulerName", json!("mine"))),
        open("a service account of the cluster", "service accounts", in_pod("serviceAccountName", json!("builder"))),
        open("days to end", "terminationGracePeriodSeconds", in_pod("terminationGracePeriodSeconds", json!(864_000))),
        shut("a pod elsewhere", "forbidden", pod(|object| object["metadata"]["namespace"] = json!("default"))),
    ]
}

fn objects() -> Vec<Attempt> {
    vec![
        open("a port on every node", "open no ports", service(|object| object["spec"]["type"] = json!("NodePort"))),
        open(
            "somebody else's address",
            "no external IPs",
            service(|object| object["spec"]["externalIPs"] = json!(["10.0.0.1"])),
        ),
        open("a name at the donor's gateway", "makes no Ingresses", ingress()),
        open(
            "a volume of the donor's",
            "claims of a consumer get new volumes",
            plain("PersistentVolumeClaim", |object| object["spec"] = donors_volume()),
        ),
        open(
            "a namespace that never ends",
            "carry no finalizers",
            plain("ConfigMap", |object| object["metadata"]["finalizers"] = json!(["example.com/forever"])),
        ),
        open(
            "every GPU by a ConfigMap's key",
            "have no key NVIDIA_VISIBLE_DEVICES",
            plain("ConfigMap", |object| object["data"] = json!({ "NVIDIA_VISIBLE_DEVICES": "all" })),
        ),
        shut(
            "read the donor's Secrets",
            "forbidden",
            Act::CreateWithSlice(
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "greedy", "namespace": "kube-system" } }),
            ),
        ),
    ]
}
