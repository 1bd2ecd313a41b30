#![expect(clippy::unwrap_used, reason = "tests")]

use comity_fuzz::fuzz;
use serde_json::json;

use super::*;

const GPU: &str = "nvidia.com/gpu";

fn pod(spec: &Value) -> Value {
    let mut spec = spec.clone();
    if spec["containers"].is_null() {
        spec["containers"] = json!([{ "name": "c", "image": "i" }]);
    }
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "p" }, "spec": spec })
}

fn container(fields: &Value) -> Value {
    let mut container = json!({ "name": "c", "image": "registry.example/a/b:1" });
    container.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    pod(&json!({ "containers": [container] }))
}

fn refusal(manifest: &Value) -> String {
    PodPlan::read(manifest, GPU).map(drop).unwrap_err().field
}

#[test]
fn a_pod_of_a_cluster_is_read_with_warnings() {
    let manifest = json!({ "metadata": { "name": "p" }, "spec": {
        "restartPolicy": "OnFailure", "activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 5,
        "nodeName": "n", "serviceAccountName": "default", "tolerations": [{ "operator": "Exists" }],
        "dnsConfig": { "nameservers": ["1.1.1.1"] }, "hostNetwork": false,
        "securityContext": { "runAsUser": 1000, "runAsGroup": 100, "fsGroup": 5 },
        "imagePullSecrets": [{ "name": "pull" }],
        "containers": [{
            "name": "c", "image": "i", "livenessProbe": { "tcpSocket": { "port": 1 } },
            "securityContext": { "runAsUser": 2000, "capabilities": { "drop": ["ALL"] } },
            "resources": { "requests": { "cpu": "250m", "memory": "1Gi" }, "limits": { "memory": "2Gi", GPU: 2 } },
        }],
    }});
    let plan = PodPlan::read(&manifest, GPU).unwrap();
    assert_eq!((plan.restart, plan.deadline), (RestartPolicy::OnFailure, Some(Duration::from_secs(60))));
    assert_eq!((plan.grace, plan.pull_secrets), (Duration::from_secs(5), vec!["pull".to_owned()]));
    let main = plan.main;
    assert_eq!((main.cpu_milli, main.memory_mib, main.units), (Some(250), Some(2_048), 2));
    assert_eq!((main.user.as_deref(), main.dropped_capabilities), (Some("2000:100"), vec!["ALL".to_owned()]));
    let warned: Vec<&str> = plan.warnings.iter().filter_map(|warning| warning.split(':').next()).collect();
    assert_eq!(warned, ["spec.dnsConfig", "spec.securityContext.fsGroup", "spec.containers[0].livenessProbe"]);
}

#[test]
fn a_refusal_names_the_field() {
    for (manifest, field) in [
        (pod(&json!({ "hostIPC": true })), "spec.hostIPC"),
        (pod(&json!({ "containers": [] })), "spec.containers"),
        (pod(&json!({ "somethingNew": "x" })), "spec.somethingNew"),
        (pod(&json!({ "restartPolicy": "Sometimes" })), "spec.restartPolicy"),
        (pod(&json!({ "activeDeadlineSeconds": -1 })), "spec.activeDeadlineSeconds"),
        (pod(&json!({ "volumes": [{ "name": "../v", "emptyDir": {} }] })), "spec.volumes[0].name"),
        (pod(&json!({ "volumes": [{ "name": "v" }] })), "spec.volumes[0]"),
        (
            pod(
                &json!({ "volumes": [{ "name": "v", "configMap": { "name": "m", "items": [{ "key": "k", "path": "../x" }] } }] }),
            ),
            "spec.volumes[0].configMap.items",
        ),
        (
            pod(
                &json!({ "volumes": [{ "name": "v", "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } }] }),
            ),
            "spec.volumes[0].projected.sources[0]",
        ),
        (container(&json!({ "image": "" })), "spec.containers[0].image"),
        (container(&json!({ "image": "oci:etc" })), "spec.containers[0].image"),
        (container(&json!({ "image": "a b" })), "spec.containers[0].image"),
        (container(&json!({ "env": [{ "name": "A=B", "value": "" }] })), "spec.containers[0].env[0].name"),
        (
            container(
                &json!({ "env": [{ "name": "A", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu" } } }] }),
            ),
            "spec.containers[0].env[0].valueFrom",
        ),
        (
            container(&json!({ "volumeMounts": [{ "name": "v", "mountPath": "/x" }] })),
            "spec.containers[0].volumeMounts[0].name",
        ),
        (
            container(&json!({ "resources": { "limits": { "amd.com/gpu": 1 } } })),
            "spec.containers[0].resources.limits.amd.com/gpu",
        ),
        (
            container(&json!({ "resources": { "limits": { "memory": "much" } } })),
            "spec.containers[0].resources.limits.memory",
        ),
        (
            container(&json!({ "resources": { "limits": { "memory": "1Mi" } } })),
            "spec.containers[0].resources.limits.memory",
        ),
        (
            container(&json!({ "securityContext": { "runAsUser": 70_000 } })),
            "spec.containers[0].securityContext.runAsUser",
        ),
        (
            container(&json!({ "securityContext": { "runAsUser": 0, "runAsNonRoot": true } })),
            "spec.containers[0].securityContext.runAsNonRoot",
        ),
    ] {
        assert_eq!(refusal(&manifest), field, "{manifest}");
    }
}

#[test]
fn mounts_lead_to_no_option_of_podman_and_to_no_folder_of_the_host() {
    let mount = |path: &str, sub_path: Option<&str>, volume: &Value| {
        let mount = json!({ "name": "v", "mountPath": path, "subPath": sub_path });
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        pod(&json!({ "volumes": [volume],
            "containers": [{ "name": "c", "image": "i", "volumeMounts": [mount] }] }))
    };
    let (folder, map) = (json!({ "emptyDir": {} }), json!({ "configMap": { "name": "m" } }));
    for (path, sub_path, volume, field) in [
        ("/a:rw", None, &folder, "mountPath"),
        ("/a,suid", None, &folder, "mountPath"),
        ("/", None, &folder, "mountPath"),
        ("a", None, &folder, "mountPath"),
        ("/a/../b", None, &folder, "mountPath"),
        ("/a", Some("x"), &folder, "subPath"),
        ("/a", Some("../x"), &map, "subPath"),
        ("/a", Some("/x"), &map, "subPath"),
    ] {
        assert_eq!(refusal(&mount(path, sub_path, volume)), format!("spec.containers[0].volumeMounts[0].{field}"));
    }
    let plan = PodPlan::read(&mount("/a", Some("x/y"), &map), GPU).unwrap();
    assert_eq!(plan.main.mounts[0].sub_path.as_deref(), Some("x/y"));
}

#[test]
fn manifests_of_guests() {
    let valid = container(&json!({
        "env": [{ "name": "A", "value": "$(B)" }], "resources": { "limits": { "memory": "1Gi", GPU: 1 } },
        "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
    }));
    let mut valid = valid;
    valid["spec"]["volumes"] = json!([{ "name": "v", "emptyDir": { "medium": "Memory", "sizeLimit": "1Gi" } }]);
    fuzz!("site_pod", vec![valid.to_string().into_bytes()], |bytes: &[u8]| {
        let Ok(manifest) = serde_json::from_slice::<Value>(bytes) else { return false };
        match PodPlan::read(&manifest, GPU) {
            Ok(plan) => {
                for container in plan.containers() {
                    assert!(is_reference(&container.image), "{}", container.image);
                    for mount in &container.mounts {
                        assert!(mount.path.starts_with('/') && !mount.path.contains([':', ',']), "{}", mount.path);
                        assert!(plan.volumes.contains_key(&mount.volume));
                    }
                }
                true
            }
            Err(refusal) => {
                assert!(!refusal.field.is_empty() && !refusal.reason.is_empty());
                false
            }
        }
    });
}
