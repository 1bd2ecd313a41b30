//! Kueue in a cluster: its manager in a pod, with the CustomResourceDefinitions and webhooks of its own module.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{RealCluster, RealClustersError};
use crate::binaries::Binaries;
use crate::image::{self, Image};
use crate::kubectl::KubectlError;
use crate::pki::Authority;

const MANAGER: &str = include_str!("../../kubernetes/kueue.yaml");
const IMAGE: &str = "comity.local/kueue:1";
const KUEUE_NAMESPACE: &str = "kueue-system";
const SERVICE: &str = "kueue-webhook-service";
/// The definitions with several versions, which Kueue's webhook converts.
const CONVERTED: [&str; 5] = ["clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads"];
/// API groups of the objects that its webhooks review here.
const REVIEWED: [&str; 2] = ["batch", "kueue.x-k8s.io"];

/// Why Kueue does not run.
#[derive(Debug, thiserror::Error)]
pub enum KueueError {
    /// A file of it cannot be used.
    #[error("{what} cannot be used: {why}")]
    Files {
        /// The file.
        what: String,
        /// The cause.
        why: String,
    },
    /// The image cannot be imported.
    #[error(transparent)]
    Cluster(#[from] RealClustersError),
    /// The API server refused an object, or the manager did not become ready.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
}

impl RealCluster {
    /// Installs Kueue and waits until it works. Needs [`Binaries::add_kueue`].
    ///
    /// # Errors
    ///
    /// [`KueueError`].
    pub async fn install_kueue(&self, binaries: &Binaries) -> Result<(), KueueError> {
        let folder = self.admin_kubeconfig_path().with_file_name("kueue");
        let unusable = |what: &dyn std::fmt::Display, why: &dyn std::fmt::Display| KueueError::Files {
            what: what.to_string(),
            why: why.to_string(),
        };
        let authority = Authority::open(&folder).map_err(|error| unusable(&folder.display(), &error))?;
        let identity = authority
            .service("webhook", &format!("{SERVICE}.{KUEUE_NAMESPACE}.svc"))
            .map_err(|error| unusable(&folder.display(), &error))?;
        let program = binaries.program("kueue");
        let archive = folder.join("kueue.tar");
        let image = Image { name: IMAGE, program: &program, path: "/kueue", user: "65532:65532", tmp: true };
        image::write(&image, &archive).map_err(|error| unusable(&program.display(), &error))?;
        self.import_image(&archive).await?;

        let read = |name: &str| {
            let path = binaries.program(name);
            let text = std::fs::read_to_string(&path).map_err(|error| unusable(&path.display(), &error))?;
            serde_saphyr::from_multiple::<Value>(&text).map_err(|error| unusable(&path.display(), &error))
        };
        let ca = STANDARD.encode(authority.ca_pem());
        let definitions: Vec<Value> =
            read("kueue-crds.yaml")?.into_iter().map(|object| converted(object, &ca)).collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kueue-webhook", "namespace": KUEUE_NAMESPACE},
            "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": identity.certificate_pem, "tls.key": identity.key_pem},
        });
        self.kubectl(&["create", "namespace", KUEUE_NAMESPACE]).await?;
        for list in [definitions, vec![secret]] {
            self.apply(&list).await?;
        }
        let manager = MANAGER.replace("@IMAGE@", IMAGE);
        self.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &manager).await?;
        self.kubectl(&["-n", KUEUE_NAMESPACE, "rollout", "status", "deployment/kueue", "--timeout=180s"]).await?;
        // Afterwards: without it they refuse every Job of the cluster.
        let webhooks: Vec<Value> =
            read("kueue-webhooks.yaml")?.into_iter().map(|object| reviewing(object, &ca)).collect();
        self.apply(&webhooks).await?;
        Ok(())
    }

    async fn apply(&self, items: &[Value]) -> Result<(), KubectlError> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        self.kubectl_with_input(&["apply", "--server-side", "-f", "-"], &list).await.map(drop)
    }
}

fn service(path: &Value, ca: &str) -> Value {
    json!({"service": {"namespace": KUEUE_NAMESPACE, "name": SERVICE, "path": path}, "caBundle": ca})
}

/// A definition as Kueue's Kustomization patches it.
fn converted(mut object: Value, ca: &str) -> Value {
    if object["spec"]["names"]["plural"].as_str().is_some_and(|plural| CONVERTED.contains(&plural)) {
        object["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {"clientConfig": service(&json!("/convert"), ca), "conversionReviewVersions": ["v1"]},
        });
    }
    object
}

/// A configuration of webhooks with those for Jobs and Kueue's own objects.
fn reviewing(mut object: Value, ca: &str) -> Value {
    if let Some(webhooks) = object["webhooks"].as_array_mut() {
        webhooks.retain(|webhook| {
            let group = webhook["rules"][0]["apiGroups"][0].as_str();
            group.is_some_and(|group| REVIEWED.contains(&group))
        });
        for webhook in webhooks {
            webhook["clientConfig"] = service(&webhook["clientConfig"]["service"]["path"], ca);
        }
    }
    let name = object["metadata"]["name"].as_str().map(|name| format!("kueue-{name}"));
    object["metadata"]["name"] = json!(name);
    object
}
