//! Nodes are cleaned after a lease by the pod that the donor's template describes. There is no kubelet: the test says
//! how the pods end.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_agent_delivery::{CLEANING_NAMESPACE, NodeCleaner};
use comity_runtime::SystemClock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Pod, PodTemplate};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::cluster::{Cluster, SALT, eventually, refusal};

const TEMPLATE: &str = include_str!("../../../deploy/agent/clean.yaml");

pub(crate) async fn nodes_are_cleaned_after_a_lease(cluster: &Cluster) {
    let cleaner = Arc::new(NodeCleaner::new(cluster.agent.client(), SALT, Arc::new(SystemClock::new())));
    let nodes: BTreeSet<String> = ["gpu-1", "gpu-2", "gone"].map(|name| SALT.node_id(name)).into();
    let missing = cleaner.template().await.unwrap_err().to_string();
    assert!(missing.contains("deploy/agent/clean.yaml"), "{missing}");
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], TEMPLATE).await.unwrap();
    eventually("the template can be read", || async { cleaner.template().await.is_ok() }).await;
    cluster.plane().kubectl(&["-n", CLEANING_NAMESPACE.name, "create", "serviceaccount", "other"]).await.unwrap();
    let pods = Api::<Pod>::namespaced(cluster.admin(), CLEANING_NAMESPACE.name);
    let nobody_else_chooses = {
        let (first, agent) = (SALT.node_id("gpu-1"), cluster.agent.client());
        let template = cleaner.template().await.unwrap().template.unwrap();
        move |name: String| {
            assert!(name.ends_with(&first));
            another_pod_is_refused(agent, template.spec.unwrap())
        }
    };

    let clean = || {
        let (cleaner, nodes) = (Arc::clone(&cleaner), nodes.clone());
        tokio::spawn(async move { cleaner.clean(LeaseId(71), &nodes).await })
    };
    let first = clean();
    let bound = async || {
        let all = pods.list(&ListParams::default()).await.unwrap().items;
        all.into_iter().map(|pod| (pod.spec.clone().unwrap().node_name.unwrap(), pod)).collect::<Vec<_>>()
    };
    eventually("a pod on each node that is there", || async { bound().await.len() == 2 }).await;
    let made = bound().await;
    let (_, pod) = made.iter().find(|(node, _)| node == "gpu-1").unwrap();
    nobody_else_chooses(pod.name_any()).await;
    let spec = pod.spec.clone().unwrap();
    assert_eq!((spec.containers[0].name.as_str(), spec.restart_policy.as_deref()), ("clean", Some("Never")));

    // One fails: the call fails, the node says why, and the next call makes another.
    let ends = async |name: &str, status: serde_json::Value| {
        let patch = Patch::Merge(json!({ "status": status }));
        pods.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    };
    let left = json!({ "name": "clean", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 3, "message": "process 4711 holds a GPU" } } });
    ends(&pod.name_any(), json!({ "phase": "Failed", "containerStatuses": [left] })).await;
    let failed = first.await.unwrap().unwrap_err().to_string();
    assert!(failed.contains("gpu-1") && failed.contains("exit code 3: process 4711 holds a GPU"), "{failed}");
    let events = Api::<Event>::namespaced(cluster.admin(), "default").list(&ListParams::default()).await.unwrap();
    let about = events.items.iter().find(|event| event.reason.as_deref() == Some("ComityCleaningFailed")).unwrap();
    assert_eq!(about.regarding.clone().unwrap().name.as_deref(), Some("gpu-1"));
    assert!(about.note.clone().unwrap().contains("lease-71 ends once this node is clean"), "{about:?}");

    let second = clean();
    eventually("another pod on the node", || async {
        bound().await.iter().any(|(node, again)| node == "gpu-1" && again.uid() != pod.uid())
    })
    .await;
    for (_, pod) in bound().await {
        assert!(!second.is_finished(), "a node is not clean yet");
        ends(&pod.name_any(), json!({ "phase": "Succeeded" })).await;
    }
    second.await.unwrap().unwrap();
    assert!(bound().await.is_empty(), "nothing is left");
    cleaner.clean(LeaseId(72), &BTreeSet::new()).await.unwrap();
    let templates = Api::<PodTemplate>::namespaced(cluster.admin(), CLEANING_NAMESPACE.name);
    templates.delete("comity-clean", &DeleteParams::default()).await.unwrap();
}

/// Somebody who controls the agent gets no privileged pod of his choice.
async fn another_pod_is_refused(agent: kube::Client, spec: k8s_openapi::api::core::v1::PodSpec) {
    let own = Api::<Pod>::namespaced(agent, CLEANING_NAMESPACE.name);
    let mut pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "chosen" }, "spec": spec })).unwrap();
    let mut changes: Vec<(&str, Pod)> = Vec::new();
    let mut changed = |what, change: &dyn Fn(&mut k8s_openapi::api::core::v1::PodSpec)| {
        let mut other = pod.clone();
        change(other.spec.as_mut().unwrap());
        changes.push((what, other));
    };
    changed("the containers", &|spec| spec.containers[0].command = Some(vec!["mine".to_owned()]));
    changed("the containers", &|spec| spec.containers[0].image = Some("mine".to_owned()));
    changed("the containers", &|spec| spec.containers.push(spec.containers[0].clone()));
    changed("the containers", &|spec| spec.init_containers = Some(spec.containers.clone()));
    changed("the volumes", &|spec| {
        spec.volumes.as_mut().unwrap()[0].host_path.as_mut().unwrap().path = "/var/lib/kubelet".to_owned();
    });
    changed("the volumes", &|spec| spec.service_account_name = Some("other".to_owned()));
    // The API server would mount a token.
    changed("the containers", &|spec| spec.automount_service_account_token = None);
    changed("shares with its node", &|spec| spec.host_network = Some(true));
    // A new policy is in force after some seconds.
    let first = changes[0].1.clone();
    eventually("the policy is in force", || async {
        let admitted = own.create(&PostParams::default(), &first).await.is_ok();
        if admitted {
            own.delete("chosen", &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        !admitted
    })
    .await;
    for (named, other) in &mut changes {
        if other.spec.as_ref().unwrap().containers.len() > 1 {
            other.spec.as_mut().unwrap().containers[1].name = "second".to_owned();
        }
        for container in other.spec.as_mut().unwrap().init_containers.iter_mut().flatten() {
            container.name = "before".to_owned();
        }
        let (code, message) = refusal(own.create(&PostParams::default(), other).await);
        assert!((code == 403 || code == 422) && message.contains(*named), "{named}: {code} {message}");
    }
    // As the template says, it is admitted.
    pod.spec.as_mut().unwrap().node_name = Some("cpu-1".to_owned());
    own.create(&PostParams::default(), &pod).await.unwrap();
    own.delete("chosen", &DeleteParams::default().grace_period(0)).await.unwrap();
}
