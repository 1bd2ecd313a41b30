//! A donor with a real kubelet whose GPUs a DRA driver publishes: the tenant's container sees exactly the devices of its
//! lease. The driver is a stand-in, because NVIDIA's needs GPUs; its attributes are those of NVIDIA's.

use std::path::Path;
use std::sync::Arc;

use comity_scenarios::burst::place;
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{Binaries, Needs, RealClusters, RealClustersConfig, Where, requirements};
use serde_json::{Value, json};

use crate::OrLogs as _;
use crate::agents_account::agents_account;

const DONOR: &str = "ncc-main";
const ORIGIN: &str = "polytech-campus";
/// DeviceClasses as the chart of NVIDIA's driver brings them.
const DEVICE_CLASSES: &str = r#"
{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"}, "spec": {"selectors": [
  {"cel": {"expression": "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"}}]}}
"#;

/// A claim of the GPU of this number, as the donor's own users write it.
fn own_claim(name: &str, number: u32) -> Value {
    let expression = format!("device.attributes['gpu.nvidia.com'].uuid == 'GPU-00000000-0000-4000-8000-{number:012}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name },
        "spec": { "devices": { "requests": [{ "name": "gpu", "exactly": {
            "deviceClassName": "gpu.nvidia.com", "selectors": [{ "cel": { "expression": expression } }],
        } }] } },
    })
}

/// A pod that Pod Security `restricted` admits, with these entries of `resourceClaims` and these limits.
fn pod(name: &str, claims: &[Value], limits: &Value) -> Value {
    let used: Vec<Value> = claims.iter().map(|claim| json!({ "name": claim["name"] })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "resourceClaims": claims,
            "containers": [{
                "name": "work", "image": PROBE_IMAGE, "imagePullPolicy": "Never",
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "resources": { "claims": used, "limits": limits },
                // The agent here has no webhook that adds it.
                "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }],
            }],
        },
    })
}

fn by_name(claim: &str) -> Value {
    json!({ "name": claim, "resourceClaimName": claim })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_sees_exactly_the_devices_of_its_claims() {
    if !requirements::met("a container sees exactly the devices of its claims", &RealClusters::missing()) {
        return;
    }
    let binaries = Binaries::ensure(Needs::RealNodes).await.unwrap();
    let config = RealClustersConfig { donor_gpus: 0, donor_dra_gpus: 6, ..RealClustersConfig::default() };
    let clusters = Arc::new(RealClusters::start(&binaries, config).await.unwrap());
    let donor = &clusters.donor;
    let folder = tempfile::tempdir().unwrap();
    let account = agents_account(donor, folder.path(), &["dra.yaml"]).await;
    donor.kubectl_with_input(&["apply", "-f", "-"], DEVICE_CLASSES).await.unwrap();
    // The donor's own work has the first GPU.
    donor.kubectl_with_input(&["apply", "-f", "-"], &own_claim("mine", 0).to_string()).await.unwrap();
    let mine = pod("mine", &[by_name("mine")], &json!({})).to_string();
    donor.kubectl_with_input(&["apply", "-f", "-"], &mine).await.unwrap();
    donor.kubectl(&["wait", "--for=condition=Ready", "pod/mine", "--timeout=60s"]).await.unwrap();

    let mut federation = Federation::start(FederationConfig {
        place: place(&clusters, Where::Router, clusters.router_address(Where::Origin)),
        ..FederationConfig::with_example_policy()
    })
    .await
    .unwrap();
    for (cluster, real, at, kubeconfig) in [
        (ORIGIN, &clusters.origin, Where::Origin, clusters.origin.admin_kubeconfig_path()),
        (DONOR, donor, Where::Donor, account),
    ] {
        let inventory = InventorySource::Kubernetes(kubeconfig);
        let spec = AgentSpec { place: place(&clusters, at, real.node_ip()), ..AgentSpec::new(cluster, inventory) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let request = federation.submit(2, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let leased = federation.kubeconfig(&lease, ORIGIN).await.or_logs(&federation);

    let tenant = async |args: &[&str], input: &str| clusters.origin.kubectl_as(&leased, args, input).await;
    let both = pod("both", &[by_name("gpu-0"), by_name("gpu-1")], &json!({})).to_string();
    tenant(&["apply", "-f", "-"], &both).await.or_logs(&federation);
    until("the container to run", PATIENCE, async || {
        let phase = tenant(&["get", "pod", "both", "-o", "jsonpath={.status.phase}"], "").await?;
        Ok((phase == "Running").then_some(()))
    })
    .await
    .or_logs(&federation);
    let devices = tenant(&["exec", "both", "--", "/probe", "ls", "/dev"], "").await.or_logs(&federation);
    let seen: Vec<&str> = devices.split_whitespace().filter(|name| name.starts_with("nvidia")).collect();
    assert_eq!(seen, ["nvidia1", "nvidia2"], "of six: the first is the donor's, and the others are free");

    every_other_device_is_refused(&clusters, &leased, &lease).await;

    federation.comity(&["lease", "release", "--yes", &lease]).await.or_logs(&federation);
    federation.lease_in(&lease, "ended", PATIENCE).await.or_logs(&federation);
    let left = donor.kubectl(&["get", "resourceclaims", "-A", "-o", "name"]).await.unwrap();
    assert_eq!(left.trim(), "resourceclaim.resource.k8s.io/mine");
    drop(federation);
    if let Some(clusters) = Arc::into_inner(clusters) {
        clusters.stop().await.unwrap();
    }
}

/// Attempts of a tenant to get a device that it did not lease. Each part of an answer names what refused it.
async fn every_other_device_is_refused(clusters: &RealClusters, leased: &Path, lease: &str) {
    let refused = async |args: &[&str], input: &str, part: &str| {
        let error = clusters.origin.kubectl_as(leased, args, input).await.unwrap_err().to_string();
        assert!(error.contains(part), "{args:?} {input}: {error}");
    };
    let none = json!({});
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": { "name": "more" },
        "spec": { "spec": own_claim("more", 3)["spec"] },
    });
    let by_template = pod("template", &[json!({ "name": "gpu", "resourceClaimTemplateName": "more" })], &none);
    let by_other_name = pod("another", &[by_name("mine")], &none);
    let by_plugin = pod("plugin", &[], &json!({ "nvidia.com/gpu": "1" }));
    let by_class = pod("class", &[], &json!({ "deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1" }));
    let create = ["create", "-f", "-"];
    for (wanted, part) in [
        (&template, "cannot create resource \"resourceclaimtemplates\""),
        (&own_claim("gpu-2", 3), "cannot create resource \"resourceclaims\""),
        (&by_template, "only the claims gpu-N"),
        (&by_other_name, "only the claims gpu-N"),
        (&by_plugin, "devices by the claims gpu-N, and no other resource"),
        (&by_class, "not by the name of a DeviceClass"),
    ] {
        refused(&create, &wanted.to_string(), part).await;
    }
    let status = r#"{"status": {"allocation": null, "reservedFor": null}}"#;
    let patch = ["patch", "resourceclaim", "gpu-0", "--type=merge"];
    refused(&[&patch[..], &["-p", r#"{"metadata": {"labels": {"a": "b"}}}"#]].concat(), "", "cannot patch").await;
    refused(&[&patch[..], &["--subresource=status", "-p", status]].concat(), "", "resource \"resourceclaims/status\"")
        .await;
    refused(&["delete", "resourceclaim", "gpu-1"], "", "cannot delete").await;

    // A role that somebody binds to the tenant by mistake opens nothing.
    let namespace = format!("comity-{lease}");
    let donor = &clusters.donor;
    let all = "--resource=resourceclaims.resource.k8s.io,resourceclaims.resource.k8s.io/status,\
               resourceclaimtemplates.resource.k8s.io";
    donor.kubectl(&["-n", &namespace, "create", "role", "claims", "--verb=*", all]).await.unwrap();
    let account = format!("--serviceaccount={namespace}:comity-tenant");
    donor.kubectl(&["-n", &namespace, "create", "rolebinding", "claims", "--role=claims", &account]).await.unwrap();
    for wanted in [&template, &own_claim("gpu-2", 3)] {
        refused(&create, &wanted.to_string(), "may not make, change or delete claims").await;
    }
    refused(&[&patch[..], &["--subresource=status", "-p", status]].concat(), "", "may not make, change").await;
    refused(&["delete", "resourceclaim", "gpu-1"], "", "may not make, change").await;
}
