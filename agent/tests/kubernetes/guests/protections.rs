//! Each protection of a donor against its guests, on a real API server: with it a tenant's attempt is refused by name,
//! without it the same attempt passes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comity_agent::config::{Config, KubernetesConfig};
use comity_agent::metrics::Metrics;
use comity_agent::services::lending::{self, POLICY_REASON, PolicyLook};
use comity_agent_delivery::{
    ApiCredential, DonorDelivery as _, DonorLease, GuestPolicies, NamespaceDelivery, PolicyProblems,
};
use comity_agent_kubernetes::api::{KubernetesApi, KubernetesSource};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::guest_labels::GuestLabels;
use comity_runtime::{Clock, Shutdown, SystemClock};
use comity_testkit::{AttackedLease, Attempt, KubectlError, Protection};
use comity_types::LeaseId;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::{Cluster, PATIENCE, SALT, eventually, guest_policies, lease};

const NAMESPACE: &str = "comity-lease-85";
/// The node of another card; it has none of the lease's GPUs.
const OTHER_NODE: &str = "gpu-2";

pub(crate) async fn each_holds_and_is_needed(cluster: &Cluster) {
    let began = Instant::now();
    let (donor, lease) = (cluster.donor(), lease("lease-85"));
    donor.prepare(&lease).await.unwrap();
    let kubeconfig = tenants_kubeconfig(cluster, &donor.credential(&lease).await.unwrap());
    let tenant = async |args: &[&str], input: &str| cluster.plane().kubectl_as(&kubeconfig, args, input).await;
    let attacked = AttackedLease {
        lease: "lease-85".to_owned(),
        resource: "nvidia.com/gpu".to_owned(),
        holder: "holder".to_owned(),
        other_resource: "nvidia.com/mig-3g.40gb".to_owned(),
        other_node: OTHER_NODE.to_owned(),
        other_lease: "lease-86".to_owned(),
        image: "example.invalid/work:1".to_owned(),
    };
    let holder = attacked.pod(&attacked.holder, &json!({ "nvidia.com/gpu": "3" })).to_string();
    for pod in [holder, attacked.parked_pod()] {
        tenant(&["create", "-f", "-"], &pod).await.unwrap();
    }
    tenant(&["wait", "--for=condition=Ready", "pod/holder", "--timeout=60s"], "").await.unwrap();

    an_agent_that_no_policy_restricts_lends_nothing(cluster, &lease).await;
    volumes_are_new_and_of_listed_classes(cluster, &attacked, &tenant).await;
    rule_of_a_policy_is_removed_while_a_lease_runs(&lease, cluster).await;
    let attempts = Attempt::all(&attacked);
    assert!(attempts.len() >= 15);
    let mut other = Vec::new();
    for attempt in &attempts {
        if let Err(instead) = attempt.is_refused(&tenant).await {
            other.push(format!("{}: {instead}", attempt.name));
        }
    }
    assert!(other.is_empty(), "{other:#?}");
    use Protection::{Limits, NodeResource, PodSecurity, Policy, Quota, QuotaAndPolicy, Role};
    for protection in [Quota, Limits, NodeResource, PodSecurity, QuotaAndPolicy, Policy, Role] {
        remove(cluster, protection).await;
        let protected: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.protection == protection).collect();
        assert!(!protected.is_empty(), "{protection:?}");
        for attempt in &protected {
            passes_soon(attempt, &tenant).await;
        }
        if protection == Policy {
            no_lease_is_prepared_without_it(cluster, &lease).await;
        }
        restore(cluster, protection).await;
        donor.prepare(&lease).await.unwrap();
        if protection == Policy {
            // Other parts of this test rely on it.
            eventually("the policy is back", || async { protected[0].passes(&tenant).await.is_err() }).await;
        }
    }
    donor.remove(LeaseId(85)).await.unwrap();
    image_asks_for_all_gpus_where_no_webhook_is(&attacked, cluster).await;
    println!("{} attempts, with and without their protections: {:.1} s", attempts.len(), began.elapsed().as_secs_f32());
}

/// The policies name one ServiceAccount: an agent with an administrator's kubeconfig would not be held.
async fn an_agent_that_no_policy_restricts_lends_nothing(cluster: &Cluster, lease: &DonorLease) {
    let path = cluster.plane().admin_kubeconfig_path();
    let admin = KubernetesApi::connect(&KubernetesSource::Kubeconfig { path, context: None }).await.unwrap();
    let donor = NamespaceDelivery::new(admin, Arc::new(SystemClock::new()), SALT);
    let error = donor.prepare(lease).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Permanent { code: "agent-unrestricted", .. }), "{error}");
    donor.with_unrestricted_agent(true).prepare(lease).await.unwrap();
}

async fn no_lease_is_prepared_without_it(cluster: &Cluster, lease: &DonorLease) {
    let error = cluster.donor().prepare(lease).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Permanent { code: "admission-policy", .. }), "{error}");
    let said = error.to_string();
    assert!(said.ends_with("its binding is absent; apply deploy/agent/admission.yaml"), "{said}");
}

/// Somebody removes one rule, and leaves the rest: the agent offers nothing, and tells its owner.
async fn rule_of_a_policy_is_removed_while_a_lease_runs(lease: &DonorLease, cluster: &Cluster) {
    let labels = GuestLabels { void_devices: true, ..GuestLabels::default() };
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let (publish, mut problems) = watch::channel(PolicyProblems::new());
    let (clock, shutdown): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::new()), Shutdown::new());
    let look = PolicyLook {
        policies: GuestPolicies::new(cluster.agent.client(), Arc::clone(&clock)),
        labels,
        client: cluster.agent.client(),
        missing: metrics.missing_policies.clone(),
        publish,
    };
    lending::follow(look, &clock, &shutdown).await;
    assert_eq!(*problems.borrow(), PolicyProblems::new(), "the shipped policies are those that the API server has");
    let patch = r#"[{"op": "remove", "path": "/spec/validations/0"}]"#;
    let rule = ["patch", "validatingadmissionpolicy", "comity-tenant", "--type=json", "-p", patch];
    cluster.plane().kubectl(&rule).await.unwrap();
    let altered = problems.wait_for(|problems| !problems.is_empty());
    let told = tokio::time::timeout(PATIENCE, altered).await.unwrap().unwrap()["comity-tenant"].clone();
    assert!(told.contains("spec.validations[0]") && told.ends_with("apply deploy/agent/admission.yaml"), "{told}");
    assert_eq!(metrics.missing_policies.get(), 1);
    let error = cluster.donor().prepare(lease).await.unwrap_err();
    assert!(matches!(error, DeliveryError::Permanent { code: "admission-policy", .. }), "{error}");
    let events = async || {
        let listed =
            ["get", "events", "-n", "default", "--field-selector", &format!("reason={POLICY_REASON}"), "-o", "name"];
        cluster.plane().kubectl(&listed).await.unwrap()
    };
    eventually("an event names the policy", || async { events().await.contains("comity-tenant") }).await;
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], guest_policies()).await.unwrap();
    let restored = problems.wait_for(|problems| problems.is_empty());
    tokio::time::timeout(PATIENCE, restored).await.unwrap().unwrap();
    assert_eq!(metrics.missing_policies.get(), 0);
    let _ = shutdown.drain(PATIENCE).await;
}

/// An agent without the section `webhook`: nothing completes pods, and the policy refuses those that do not say it.
async fn image_asks_for_all_gpus_where_no_webhook_is(attacked: &AttackedLease, cluster: &Cluster) {
    let mut config = Config { kubernetes: Some(KubernetesConfig::default()), ..Config::default() };
    config.sharing.always_pull_images = false;
    assert!(config.webhook.is_none());
    let (donor, lease) = (cluster.donor().with_guest_labels(config.guest_labels()), lease("lease-87"));
    donor.prepare(&lease).await.unwrap();
    let kubeconfig = tenants_kubeconfig(cluster, &donor.credential(&lease).await.unwrap());
    let create = async |pod: &Value| {
        let args = ["create", "--dry-run=server", "-f", "-"];
        cluster.plane().kubectl_as(&kubeconfig, &args, &pod.to_string()).await
    };
    let mut pod = attacked.pod("plain", &json!({}));
    eventually("a pod that states void is admitted", || async { create(&pod).await.is_ok() }).await;
    pod["spec"]["containers"][0]["env"] = json!([]);
    let refused = create(&pod).await.unwrap_err().to_string();
    assert!(refused.contains("comity-void-devices") && refused.contains("with value void"), "{refused}");
    donor.remove(LeaseId(87)).await.unwrap();
}

/// The owner lists a class; the tenant still gets no volume of the owner's.
async fn volumes_are_new_and_of_listed_classes(
    cluster: &Cluster,
    of: &AttackedLease,
    tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>,
) {
    let policy = guest_policies();
    let listed = policy.replace("expression: \"[]\"", "expression: \"['fast']\"");
    assert_ne!(listed, policy);
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &listed).await.unwrap();
    let spec = |fields: Value| {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
        spec.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        spec
    };
    let claim = |fields: Value| {
        let metadata = json!({ "name": "claim" });
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec(fields) })
    };
    let pod = |fields: Value| {
        let template = json!({ "volumeClaimTemplate": { "spec": spec(fields) } });
        let mut pod = of.pod("with-volume", &json!({}));
        pod["spec"]["volumes"] = json!([{ "name": "data", "ephemeral": template }]);
        pod
    };
    cluster.donor().prepare(&lease("lease-85")).await.unwrap();
    let create = async |object: Value| tenant(&["create", "--dry-run=server", "-f", "-"], &object.to_string()).await;
    let fast = json!({ "storageClassName": "fast" });
    eventually("a claim of the listed class is admitted", || async { create(claim(fast.clone())).await.is_ok() }).await;
    create(pod(fast.clone())).await.unwrap();
    create(pod(json!({}))).await.unwrap();
    let selector = json!({ "matchLabels": { "of": "donor" } });
    for fields in [
        json!({ "storageClassName": "manual" }),
        json!({ "storageClassName": "" }),
        json!({ "storageClassName": "fast", "volumeName": "donor-data" }),
        json!({ "storageClassName": "fast", "selector": selector }),
    ] {
        for object in [claim(fields.clone()), pod(fields.clone())] {
            let refused = create(object).await.unwrap_err().to_string();
            assert!(refused.contains("claims of a lease get new volumes"), "{fields}: {refused}");
        }
    }
    // A claim without a class, as the controller of ephemeral volumes creates it; the tenant names a volume later.
    create(claim(json!({}))).await.unwrap_err();
    tenant(&["create", "-f", "-"], &claim(fast).to_string()).await.unwrap();
    let named = r#"{"spec":{"volumeName":"donor-data"}}"#;
    let refused = tenant(&["patch", "pvc", "claim", "--type=merge", "-p", named], "").await.unwrap_err().to_string();
    assert!(refused.contains("claims of a lease get new volumes"), "{refused}");
    // The controller that binds it may.
    cluster.plane().kubectl(&["-n", NAMESPACE, "patch", "pvc", "claim", "--type=merge", "-p", named]).await.unwrap();
    tenant(&["delete", "pvc", "claim", "--wait=false"], "").await.unwrap();
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], policy).await.unwrap();
    eventually("no class is listed any more", || async {
        create(claim(json!({ "storageClassName": "fast" }))).await.is_err()
    })
    .await;
}

/// A kubeconfig of the tenant for kubectl.
fn tenants_kubeconfig(cluster: &Cluster, credential: &ApiCredential) -> PathBuf {
    let (plane, path) = (cluster.plane(), cluster.dir.path().join(format!("{}.kubeconfig", credential.namespace)));
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "tenant",
        "clusters": [{
            "name": "c", "cluster": { "server": plane.server_url(), "certificate-authority": plane.ca_path() },
        }],
        "users": [{ "name": "tenant", "user": { "token": credential.token.expose() } }],
        "contexts": [{
            "name": "tenant", "context": { "cluster": "c", "user": "tenant", "namespace": credential.namespace },
        }],
    });
    std::fs::write(&path, text.to_string()).unwrap();
    path
}

async fn passes_soon(attempt: &Attempt, tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>) {
    let began = Instant::now();
    while let Err(refused) = attempt.passes(tenant).await {
        assert!(began.elapsed() < PATIENCE, "{} without {:?}: {refused}", attempt.name, attempt.protection);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn remove(cluster: &Cluster, protection: Protection) {
    let everywhere = json!({ "lease.comity.dev/lease-85": "64" });
    let status = json!({ "status": { "capacity": everywhere, "allocatable": everywhere } }).to_string();
    let account = format!("--serviceaccount={NAMESPACE}:comity-tenant");
    let policy: &[&str] = &["delete", "validatingadmissionpolicybinding", "comity-tenant"];
    let args: &[&str] = match protection {
        Protection::QuotaAndPolicy => {
            cluster.plane().kubectl(policy).await.unwrap();
            &["-n", NAMESPACE, "delete", "resourcequota", "gpus"]
        }
        Protection::Quota => &["-n", NAMESPACE, "delete", "resourcequota", "gpus"],
        Protection::Limits => &["-n", NAMESPACE, "delete", "limitrange", "defaults"],
        Protection::NodeResource => {
            &["patch", "node", OTHER_NODE, "--subresource=status", "--type=merge", "-p", &status]
        }
        Protection::PodSecurity => {
            &["label", "namespace", NAMESPACE, "--overwrite", "pod-security.kubernetes.io/enforce=privileged"]
        }
        Protection::Policy => policy,
        Protection::Role => &["create", "clusterrolebinding", "by-mistake", "--clusterrole=cluster-admin", &account],
    };
    cluster.plane().kubectl(args).await.unwrap();
}

/// Restores the protections that are not of the namespace; the agent's step restores the others.
async fn restore(cluster: &Cluster, protection: Protection) {
    let none = json!({ "lease.comity.dev/lease-85": null });
    let status = json!({ "status": { "capacity": none, "allocatable": none } }).to_string();
    let (args, input): (&[&str], &str) = match protection {
        Protection::Quota | Protection::Limits | Protection::PodSecurity => return,
        Protection::NodeResource => {
            (&["patch", "node", OTHER_NODE, "--subresource=status", "--type=merge", "-p", &status], "")
        }
        Protection::Policy | Protection::QuotaAndPolicy => (&["apply", "-f", "-"], guest_policies()),
        Protection::Role => (&["delete", "clusterrolebinding", "by-mistake"], ""),
    };
    cluster.plane().kubectl_with_input(args, input).await.unwrap();
}
