//! Actions that a compromised agent must not be able to take.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::burst::{namespace, pods};
use crate::cluster::{Cluster, eventually, pod, refusal};

pub(crate) async fn the_agent_is_held_to_the_namespaces_of_leases(cluster: &Cluster) {
    let agent = cluster.agent.client();
    let apply = PatchParams::apply("comity-agent").force();
    let namespaces = Api::<Namespace>::all(agent.clone());
    let dry = DeleteParams { dry_run: true, ..DeleteParams::default() };
    // The API server needs a moment to apply a new policy.
    eventually("the admission policy is in force", || async { namespaces.delete("research", &dry).await.is_err() })
        .await;
    let (code, message) = refusal(namespaces.delete("research", &dry).await);
    assert!((code == 403 || code == 422) && message.contains("only the namespaces of leases"), "{code} {message}");
    let relabel = json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "privileged" } } });
    assert!(namespaces.patch("research", &PatchParams::default(), &Patch::Merge(&relabel)).await.is_err());

    // It may evict pods of leases, and no others.
    let evict = async |namespace: &str| {
        let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "training" } });
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let pods = Api::<Pod>::namespaced(agent.clone(), namespace);
        refusal(pods.create_subresource::<_, serde_json::Value>("eviction", "training", &dry, &eviction).await)
    };
    let research = Api::<Pod>::namespaced(cluster.admin(), "research");
    research.create(&PostParams::default(), &pod("training", "nvidia.com/gpu", 0)).await.unwrap();
    let (code, message) = evict("research").await;
    assert!((code == 403 || code == 422) && message.contains("only objects in the namespaces of leases"), "{message}");
    research.delete("training", &DeleteParams::default().grace_period(0)).await.unwrap();

    // The role that it may bind, in a namespace where it may not.
    let binding = |name: &str, role: &str| {
        serde_json::from_value::<RoleBinding>(json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": "comity-agent", "namespace": "comity-system" }],
        }))
        .unwrap()
    };
    let bind = async |namespace: &str, name: &str, role: &str| {
        Api::<RoleBinding>::namespaced(agent.clone(), namespace)
            .patch(name, &apply, &Patch::Apply(binding(name, role)))
            .await
    };
    assert!(bind("kube-system", "comity-tenant", "comity-tenant").await.is_err());
    assert!(bind("comity-lease-90", "comity-tenant", "cluster-admin").await.is_err());
    assert!(bind("comity-lease-90", "another", "comity-tenant").await.is_err());

    assert_eq!(
        refusal(Api::<Secret>::namespaced(agent.clone(), "kube-system").list(&ListParams::default()).await).0,
        403
    );
    assert_eq!(refusal(Api::<Secret>::namespaced(agent.clone(), "research").get("comity-lease-1").await).0, 403);
    let accounts = Api::<ServiceAccount>::namespaced(agent, "comity-system");
    assert_eq!(
        refusal(accounts.create_token_request("default", &PostParams::default(), &TokenRequest::default()).await).0,
        403
    );
}

/// No admission policy applies to registrations of webhooks, so whoever may write one has every right in the cluster.
pub(crate) async fn the_agent_registers_no_webhooks(cluster: &Cluster) {
    let agent = cluster.agent.client();
    let registrations = Api::<MutatingWebhookConfiguration>::all(agent.clone());
    let (dry, apply) = (PostParams { dry_run: true, ..PostParams::default() }, PatchParams::apply("comity-agent"));
    for name in ["comity-burst", "comity-lease-pods", "comity-remapped-addresses", "another"] {
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": name }, "webhooks": [],
        });
        let refused = [
            refusal(registrations.create(&dry, &serde_json::from_value(object.clone()).unwrap()).await),
            refusal(registrations.patch(name, &apply.clone().dry_run(), &Patch::Apply(object)).await),
            refusal(registrations.patch(name, &PatchParams::default(), &Patch::Merge(json!({}))).await),
            refusal(registrations.delete(name, &DeleteParams::default().dry_run()).await),
        ];
        assert_eq!(refused.map(|(code, _)| code), [403; 4], "{name}");
    }
    // The certificate is the owner's, too: the agent only reads it.
    let secrets = Api::<Secret>::namespaced(agent, "comity-system");
    let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    assert_eq!(refusal(secrets.patch("comity-agent-webhook", &PatchParams::default(), &label).await).0, 403);
    assert_eq!(refusal(secrets.delete("comity-agent-webhook", &DeleteParams::default()).await).0, 403);
    assert!(secrets.get_opt("comity-agent-webhook").await.is_ok());
}

pub(crate) async fn the_agent_may_change_only_what_a_burst_needs(cluster: &Cluster) {
    namespace(cluster, "team-e", json!({})).await;
    for name in ["research", "team-e"] {
        pods(cluster, name).create(&PostParams::default(), &pod("victim", "nvidia.com/gpu", 1)).await.unwrap();
    }
    let agent = |namespace: &str| Api::<Pod>::namespaced(cluster.agent.client(), namespace);
    let merge = PatchParams::default();
    let note = Patch::Merge(json!({ "metadata": { "annotations": { "comity.dev/request": "req-1" } } }));
    let (code, message) = refusal(agent("research").patch("victim", &merge, &note).await);
    assert!((code == 403 || code == 422) && message.contains("comity.dev/offload"), "{code} {message}");
    agent("team-e").patch("victim", &merge, &note).await.unwrap();
    let image = json!({ "spec": { "containers": [{ "name": "work", "image": "example.invalid/evil:1" }] } });
    let (_, message) = refusal(agent("team-e").patch("victim", &merge, &Patch::Strategic(image)).await);
    assert!(message.contains("may not change what a pod runs"), "{message}");
    let label = Patch::Merge(json!({ "metadata": { "labels": { "app": "service" } } }));
    let (_, message) = refusal(agent("team-e").patch("victim", &merge, &label).await);
    assert!(message.contains("labels"), "{message}");
    let (_, message) = refusal(agent("team-e").delete("victim", &DeleteParams::default()).await);
    assert!(message.contains("only pods that wait for a lease"), "{message}");
    let webhooks = Api::<MutatingWebhookConfiguration>::all(cluster.agent.client());
    assert_eq!(refusal(webhooks.get("another").await).0, 403);
    for name in ["research", "team-e"] {
        pods(cluster, name).delete("victim", &DeleteParams::default().grace_period(0)).await.unwrap();
    }
}
