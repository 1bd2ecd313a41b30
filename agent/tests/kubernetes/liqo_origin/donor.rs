//! The donor's half, done by the test.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_liqo::{Challenge, IdentityParams, PeerCredential, TenantRequest, resource_slice, tenant};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

const TENANT: &str = "liqo-tenant-origin";

pub(crate) struct Donor {
    client: Client,
}

impl Donor {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    pub(crate) async fn challenge(&self) -> Challenge {
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": {
            "name": TENANT, "labels": { "liqo.io/remote-cluster-id": "origin", "liqo.io/tenant-namespace": "true" },
        } }))
        .unwrap();
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        let secrets = Api::<Secret>::namespaced(self.client.clone(), TENANT);
        let secret = serde_json::from_value(json!({ "metadata": {
            "name": "liqo-nonce", "labels": { "liqo.io/nonce": "true", "liqo.io/remote-cluster-id": "origin" },
        } }))
        .unwrap();
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        for _ in 0..600 {
            let data = secrets.get("liqo-nonce").await.unwrap().data.unwrap_or_default();
            if let Some(nonce) = data.get("nonce") {
                return Challenge { nonce: STANDARD.encode(&nonce.0) };
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("Liqo made no nonce");
    }

    pub(crate) async fn admit(&self, request: &TenantRequest) -> IdentityParams {
        let tenants = Api::<DynamicObject>::namespaced_with(self.client.clone(), TENANT, &tenant());
        let mut wanted = DynamicObject::new("origin", &tenant()).data(json!({ "spec": {
            "clusterID": "origin", "publicKey": request.public_key, "csr": request.csr, "signature": request.signature,
        } }));
        wanted.metadata.labels = Some([("liqo.io/remote-cluster-id".to_owned(), "origin".to_owned())].into());
        tenants.create(&PostParams::default(), &wanted).await.unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for _ in 0..600 {
            let status = tenants.get("origin").await.unwrap().data["status"].clone();
            let params = &status["authParams"];
            if params["signedCRT"].is_string() {
                return IdentityParams {
                    ca: text(&params["ca"]),
                    credential: PeerCredential::Certificate(text(&params["signedCRT"])),
                    api_server: text(&params["apiServer"]),
                    tenant_namespace: text(&status["tenantNamespace"]),
                };
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("Liqo signed nothing for the origin");
    }

    /// Grants every slice its requested resources, until the handle is aborted.
    pub(crate) fn grant_everything(&self) -> tokio::task::AbortHandle {
        let slices = Api::<DynamicObject>::all_with(self.client.clone(), &resource_slice());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let Ok(list) = slices.list(&ListParams::default()).await else { continue };
                for slice in list {
                    let api = Api::<DynamicObject>::namespaced_with(
                        slices.clone().into_client(),
                        &slice.namespace().unwrap_or_default(),
                        &resource_slice(),
                    );
                    drop(grant(&api, &slice).await);
                }
            }
        })
        .abort_handle()
    }
}

/// `Ok` also if it was granted before, or Liqo has not finished with it.
async fn grant(api: &Api<DynamicObject>, slice: &DynamicObject) -> Result<(), kube::Error> {
    let mut conditions = slice.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let has = |kind: &str| conditions.iter().any(|condition| condition["type"] == kind);
    if !has("Authentication") || has("Resources") {
        return Ok(());
    }
    let now = k8s_openapi::jiff::Timestamp::now().to_string();
    conditions.push(json!({ "type": "Resources", "status": "Accepted", "reason": "ByHand", "message": "", "lastTransitionTime": now }));
    let patch = json!({
        "metadata": { "resourceVersion": slice.metadata.resource_version },
        "status": { "resources": slice.data["spec"]["resources"], "conditions": conditions },
    });
    api.patch_status(&slice.name_any(), &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
}
