//! The origin's side: the Secret, and the access that it gives.

use comity_agent_delivery::{DonorDelivery as _, OriginDelivery as _, OriginLease, OriginSecret};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::cluster::{Cluster, lease, refusal};

fn origin_lease(id: &str, namespace: &str) -> OriginLease {
    OriginLease {
        lease_id: id.parse().unwrap(),
        tenant: "vision".into(),
        donor: "donor".into(),
        target_namespace: namespace.into(),
        expires_at_ms: 0,
    }
}

pub(crate) async fn a_kubeconfig_secret_opens_the_lease(cluster: &Cluster) {
    let donor = cluster.donor();
    donor.prepare(&lease("lease-4")).await.unwrap();
    let credential = donor.credential(&lease("lease-4")).await.unwrap();
    let state = cluster.dir.path().join("origin");
    std::fs::create_dir(&state).unwrap();
    let origin = OriginSecret::open(cluster.agent.clone(), &state, "").unwrap();
    let wanted = origin_lease("lease-4", "comity-leases");
    let server = cluster.api_address().to_string();

    let accepted = origin.accept(&wanted, &credential, &server).await.unwrap();
    assert_eq!(accepted.secret_name, "comity-lease-4");
    origin.accept(&wanted, &credential, &server).await.unwrap();
    origin.probe(&wanted, &credential, cluster.api_address()).await.unwrap();

    let secrets = Api::<Secret>::namespaced(cluster.admin(), "comity-leases");
    let secret = secrets.get("comity-lease-4").await.unwrap();
    let kubeconfig = &secret.data.unwrap()["kubeconfig"].0;
    let path = cluster.dir.path().join("tenant.kubeconfig");
    std::fs::write(&path, kubeconfig).unwrap();
    let quota = cluster
        .plane()
        .kubectl_as(&path, &["get", "resourcequota", "gpus", "-o", "jsonpath={.metadata.namespace}"], "")
        .await
        .unwrap();
    assert_eq!(quota, "comity-lease-4");
    assert!(cluster.plane().kubectl_as(&path, &["get", "pods", "-n", "default"], "").await.is_err());

    let refused = async |namespace: &str| {
        let refused = origin.accept(&origin_lease("lease-5", namespace), &credential, &server).await.unwrap_err();
        match refused {
            DeliveryError::Permanent { code, message } => (code, message),
            other => panic!("{other}"),
        }
    };
    // A namespace of nobody, then of another tenant.
    assert_eq!(refused("elsewhere").await.0, "no-target-namespace");
    assert_eq!(refused("research").await.0, "foreign-target-namespace");
    let label = async |label: &str| {
        cluster.plane().kubectl(&["label", "--overwrite", "namespace", "research", label]).await.unwrap();
    };
    label("comity.dev/tenant=speech").await;
    assert_eq!(refused("research").await.0, "foreign-target-namespace");

    // A namespace in which the agent has no rights: one clear sentence.
    label("comity.dev/tenant=vision").await;
    let (code, message) = refused("research").await;
    assert!(code == "kubernetes-forbidden" && message.contains("deploy/agent/rbac.yaml"), "{code} {message}");
    // Whoever has the agent's token can write no other tenant's kubeconfig there, even with the right to Secrets.
    let kubectl = async |args: &[&str]| cluster.plane().kubectl(args).await.unwrap();
    let role = ["-n", "research", "create", "role", "secrets", "--verb=get,create,patch", "--resource=secrets"];
    kubectl(&role).await;
    let account = "--serviceaccount=comity-system:comity-agent";
    kubectl(&["-n", "research", "create", "rolebinding", "secrets", "--role=secrets", account]).await;
    let of_tenant = |tenant: &str| {
        let metadata = json!({ "name": "comity-lease-5", "labels": { "comity.dev/tenant": tenant } });
        serde_json::from_value::<Secret>(json!({ "metadata": metadata })).unwrap()
    };
    let there = Api::<Secret>::namespaced(cluster.agent.client(), "research");
    let (code, message) = refusal(there.create(&PostParams::default(), &of_tenant("speech")).await);
    assert!(
        (code == 403 || code == 422) && message.contains("only into namespaces of the lease's tenant"),
        "{code} {message}"
    );
    there.create(&PostParams::default(), &of_tenant("vision")).await.unwrap();
    for args in [["secret", "comity-lease-5"], ["rolebinding", "secrets"], ["role", "secrets"]] {
        kubectl(&["-n", "research", "delete", args[0], args[1]]).await;
    }
    label("comity.dev/tenant-").await;

    donor.remove(LeaseId(4)).await.unwrap();
    let error = origin.probe(&wanted, &credential, cluster.api_address()).await.unwrap_err().to_string();
    assert!(error.contains("401") || error.contains("403"), "{error}");

    // After a restart it still knows its own objects.
    let again = OriginSecret::open(cluster.agent.clone(), &state, "").unwrap();
    assert_eq!(again.list().await.unwrap().into_iter().collect::<Vec<_>>(), [LeaseId(4)]);
    again.remove(LeaseId(4)).await.unwrap();
    again.remove(LeaseId(4)).await.unwrap();
    assert!(again.list().await.unwrap().is_empty());
    assert_eq!(refusal(secrets.get("comity-lease-4").await).0, 404);
}
