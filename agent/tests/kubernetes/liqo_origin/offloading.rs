//! The policy `comity-offloading` on a real API server, with the definition of Liqo's NamespaceOffloading.

use comity_testkit::KubectlError;
use serde_json::{Value, json};

use crate::cluster::{Cluster, eventually};

const DEFINITION: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "namespaceoffloadings.offloading.liqo.io"},
    "spec": {"group": "offloading.liqo.io", "scope": "Namespaced",
      "names": {"plural": "namespaceoffloadings", "singular": "namespaceoffloading", "kind": "NamespaceOffloading", "listKind": "NamespaceOffloadingList"},
      "versions": [{"name": "v1beta1", "served": true, "storage": true,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;
const AGENT: &str = "--as=system:serviceaccount:comity-system:comity-agent";
const USER: &str = "--as=admin";

struct Offloads<'a> {
    cluster: &'a Cluster,
}

impl Offloads<'_> {
    /// Asks for an offload of a namespace, for the tenant vision.
    async fn ask(&self, user: &str, namespace: &str, selector: Value) -> Result<String, KubectlError> {
        let object = json!({
            "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": namespace, "labels": { "comity.dev/tenant": "vision" } },
            "spec": { "clusterSelector": { "nodeSelectorTerms": [{ "matchExpressions": [selector] }] } },
        });
        // Every right: of the manifest only the policy is applied here.
        let args = [user, "--as-group=system:masters", "create", "--dry-run=server", "-f", "-"];
        self.cluster.plane().kubectl_with_input(&args, &object.to_string()).await
    }
}

fn selects(key: &str, values: &[&str]) -> Value {
    json!({ "key": key, "operator": "In", "values": values })
}

/// As the agent selects the donors of a namespace.
fn donors() -> Value {
    selects("liqo.io/remote-cluster-id", &["north"])
}

pub(crate) async fn namespaces_go_to_leases_of_their_tenant(cluster: &Cluster) {
    let offloads = Offloads { cluster };
    let kubectl = async |args: &[&str]| cluster.plane().kubectl(args).await.unwrap();
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], DEFINITION).await.unwrap();
    kubectl(&["wait", "--for=condition=Established", "crd/namespaceoffloadings.offloading.liqo.io"]).await;
    let documents = include_str!("../../../../deploy/agent/liqo-origin.yaml").split("\n---\n");
    let of_policy: Vec<&str> = documents.filter(|text| text.contains("  name: comity-offloading\n")).collect();
    assert_eq!(of_policy.len(), 2);
    let manifest: &str = &of_policy.join("\n---\n");
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], manifest).await.unwrap();
    for (namespace, labels) in [
        ("off-vision", vec!["comity.dev/tenant=vision", "comity.dev/offload=true"]),
        ("off-speech", vec!["comity.dev/tenant=speech", "comity.dev/offload=true"]),
        ("off-nobody", vec!["comity.dev/offload=true"]),
        ("off-closed", vec!["comity.dev/tenant=vision"]),
    ] {
        kubectl(&["create", "namespace", namespace]).await;
        kubectl(&[&["label", "namespace", namespace], labels.as_slice()].concat()).await;
    }
    user_offloads_a_namespace_to_a_lease_by_hand(&offloads).await;
    // With the owner's default tenant a namespace without the label is that tenant's.
    let with_default = manifest.replace("expression: \"''\"", "expression: \"'vision'\"");
    assert_ne!(with_default, manifest);
    cluster.plane().kubectl_with_input(&["apply", "-f", "-"], &with_default).await.unwrap();
    eventually("the default tenant counts", || async { offloads.ask(AGENT, "off-nobody", donors()).await.is_ok() })
        .await;
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        kubectl(&["delete", kind, "comity-offloading"]).await;
    }
    kubectl(&["delete", "crd", "namespaceoffloadings.offloading.liqo.io"]).await;
}

async fn user_offloads_a_namespace_to_a_lease_by_hand(offloads: &Offloads<'_>) {
    let by_name = || selects("kubernetes.io/hostname", &["lease-7"]);
    eventually("the policy is in effect", || async { offloads.ask(AGENT, "off-closed", donors()).await.is_err() })
        .await;
    offloads.ask(AGENT, "off-vision", donors()).await.unwrap();
    for named in [
        by_name(),
        selects("comity.dev/lease", &["lease-7"]),
        json!({ "key": "comity.dev/lease", "operator": "Exists" }),
    ] {
        offloads.ask(USER, "off-vision", named.clone()).await.unwrap();
        for (namespace, reason) in [
            ("off-speech", "off-speech belongs to another tenant"),
            ("off-nobody", "off-nobody has no label comity.dev/tenant"),
            ("off-closed", "off-closed is not labelled comity.dev/offload=true"),
        ] {
            let refused = offloads.ask(USER, namespace, named.clone()).await.unwrap_err().to_string();
            assert!(refused.contains(reason), "{named}: {refused}");
        }
    }
    let refused = offloads.ask(AGENT, "off-nobody", donors()).await.unwrap_err().to_string();
    assert!(refused.contains("off-nobody has no label comity.dev/tenant"), "{refused}");
    let others = selects("comity.dev/target-namespace", &["off-speech"]);
    let refused = offloads.ask(USER, "off-vision", others).await.unwrap_err().to_string();
    assert!(refused.contains("nodes that are leased for another namespace"), "{refused}");
    // What names no node of a lease is the user's own affair.
    let elsewhere = json!({ "key": "comity.dev/lease", "operator": "DoesNotExist" });
    for own in [donors(), elsewhere] {
        offloads.ask(USER, "off-nobody", own).await.unwrap();
    }
}
