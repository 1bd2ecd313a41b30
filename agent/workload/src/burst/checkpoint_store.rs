//! A pod's access to its checkpoints where it runs: a Secret with the store's address and credentials as variables, and
//! the notice of a reclaim as a file.
//!
//! The agent reads no Secret: Liqo reflects it to the donor, and the kubelet there hands it to the containers.

use std::collections::BTreeMap;

use comity_types::is_dns_subdomain;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use super::CHECKPOINT_SECRET;
use crate::reclaim::RECLAIM_AT;

/// Volume with the notice.
const NOTICE_VOLUME: &str = "comity-notice";
/// Where containers find it, in the file `reclaim-at`.
const NOTICE_FOLDER: &str = "/run/comity";

/// The Secret that a pod's annotation names.
///
/// # Errors
/// The invalid annotation, and what to write.
pub(super) fn checkpoint_secret(annotations: &BTreeMap<String, String>) -> Result<Option<&str>, String> {
    let Some(name) = annotations.get(CHECKPOINT_SECRET) else { return Ok(None) };
    if is_dns_subdomain(name) {
        return Ok(Some(name));
    }
    Err(format!("its annotation {CHECKPOINT_SECRET} is {name:?}; write the name of a Secret of its namespace"))
}

/// Steps of a JSON patch that give each container the Secret and the notice, as far as it lacks them.
pub(super) fn checkpoint_steps(pod: &Pod, secret: &str) -> Vec<Value> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut steps = Vec::new();
    let volumes = spec.volumes.as_deref();
    if !volumes.is_some_and(|volumes| volumes.iter().any(|volume| volume.name == NOTICE_VOLUME)) {
        let field = format!("metadata.annotations['{RECLAIM_AT}']");
        let notice = json!({
            "name": NOTICE_VOLUME,
            "downwardAPI": { "items": [{ "path": "reclaim-at", "fieldRef": { "fieldPath": field } }] },
        });
        steps.push(appended("/spec/volumes", volumes.is_some(), notice));
    }
    for (index, container) in spec.containers.iter().enumerate() {
        let path = format!("/spec/containers/{index}");
        if !reads(container, secret) {
            let from = json!({ "secretRef": { "name": secret } });
            steps.push(appended(&format!("{path}/envFrom"), container.env_from.is_some(), from));
        }
        if !sees_notice(container) {
            let mount = json!({ "name": NOTICE_VOLUME, "mountPath": NOTICE_FOLDER, "readOnly": true });
            steps.push(appended(&format!("{path}/volumeMounts"), container.volume_mounts.is_some(), mount));
        }
    }
    steps
}

/// Why a pod that names a checkpoint store cannot burst, if so.
pub(super) fn checkpoint_obstacle(pod: &Pod) -> Option<String> {
    let secret = match checkpoint_secret(pod.metadata.annotations.as_ref()?) {
        Ok(secret) => secret?,
        Err(problem) => return Some(problem),
    };
    let has_both = |container: &&Container| reads(container, secret) && sees_notice(container);
    let bare = pod.spec.as_ref()?.containers.iter().find(|container| !has_both(container))?;
    Some(format!(
        "container {} lacks the Secret {secret} of its annotation {CHECKPOINT_SECRET}, or {NOTICE_FOLDER}, because the \
         agent's webhook did not answer when the pod was created; create the pod again",
        bare.name
    ))
}

fn reads(container: &Container, secret: &str) -> bool {
    let mut sources = container.env_from.iter().flatten().filter_map(|source| source.secret_ref.as_ref());
    sources.any(|source| source.name == secret)
}

fn sees_notice(container: &Container) -> bool {
    container.volume_mounts.iter().flatten().any(|mount| mount.mount_path == NOTICE_FOLDER)
}

/// A step that appends to a list, which may be absent.
fn appended(list: &str, is_present: bool, item: Value) -> Value {
    if is_present {
        json!({ "op": "add", "path": format!("{list}/-"), "value": item })
    } else {
        json!({ "op": "add", "path": list, "value": [item] })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn pod(secret: &str, containers: Value, volumes: Value) -> Value {
        let metadata = json!({ "name": "p", "annotations": { CHECKPOINT_SECRET: secret } });
        let mut spec = json!({ "containers": containers });
        if !volumes.is_null() {
            spec["volumes"] = volumes;
        }
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
    }

    fn parsed(pod: &Value) -> Pod {
        serde_json::from_value(pod.clone()).unwrap()
    }

    #[test]
    fn each_container_gets_what_it_lacks_once() {
        let other = json!([{ "configMapRef": { "name": "settings" } }]);
        let own = json!([{ "name": "data", "mountPath": "/data" }]);
        let containers = json!([{ "name": "a" }, { "name": "b", "envFrom": other, "volumeMounts": own }]);
        for volumes in [Value::Null, json!([{ "name": "data", "emptyDir": {} }])] {
            let mut object = pod("bucket", containers.clone(), volumes);
            assert!(checkpoint_obstacle(&parsed(&object)).unwrap().contains("container a"));
            let steps = checkpoint_steps(&parsed(&object), "bucket");
            json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(json!(steps)).unwrap())
                .unwrap();
            let changed = parsed(&object);
            assert_eq!(checkpoint_steps(&changed, "bucket"), Vec::<Value>::new());
            assert_eq!(checkpoint_obstacle(&changed), None);
            let notice = &changed.spec.as_ref().unwrap().volumes.as_ref().unwrap().last().unwrap().downward_api;
            let item = &notice.as_ref().unwrap().items.as_ref().unwrap()[0];
            assert_eq!(item.path, "reclaim-at");
            let field = &item.field_ref.as_ref().unwrap().field_path;
            assert_eq!(field, "metadata.annotations['comity.dev/reclaim-at']");
            let second = &changed.spec.as_ref().unwrap().containers[1];
            assert_eq!((second.env_from.as_ref().unwrap().len(), second.volume_mounts.as_ref().unwrap().len()), (2, 2));
        }
    }

    #[test]
    fn a_container_without_its_store_or_its_notice_stays_here() {
        let secret = json!([{ "secretRef": { "name": "bucket" } }]);
        let notice = json!([{ "name": NOTICE_VOLUME, "mountPath": NOTICE_FOLDER }]);
        let of = |container: Value| checkpoint_obstacle(&parsed(&pod("bucket", json!([container]), Value::Null)));
        assert!(of(json!({ "name": "c", "envFrom": secret })).is_some());
        assert!(of(json!({ "name": "c", "volumeMounts": notice })).is_some());
        assert_eq!(of(json!({ "name": "c", "envFrom": secret, "volumeMounts": notice })), None);
    }

    #[test]
    fn an_invalid_name_is_named() {
        for name in ["", "Bucket", "-bucket", "a b", "a/b", &"a".repeat(254)] {
            let problem = checkpoint_obstacle(&parsed(&pod(name, json!([{ "name": "c" }]), Value::Null))).unwrap();
            assert!(problem.contains(CHECKPOINT_SECRET) && problem.contains(&format!("{name:?}")), "{problem}");
        }
        assert_eq!(checkpoint_secret(&BTreeMap::new()), Ok(None));
    }
}
