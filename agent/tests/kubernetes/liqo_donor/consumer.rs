//! A consumer: its key, the certificates that Liqo signs for it, and its actions.

use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_agent_liqo::donor::slice_user;
use comity_agent_liqo::{Challenge, TenantRequest, namespace_map, resource_slice, shadow_pod};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, Client, Config};
use rcgen::SigningKey as _;
use serde_json::{Value, json};

use super::lab::{Lab, OTHER_NAMESPACE, POD_NAMESPACE, TENANT_NAMESPACE, node_selector, resources};
use crate::cluster::eventually;

pub(crate) struct Key(rcgen::KeyPair);

impl Key {
    pub(crate) fn generate() -> Self {
        Self(rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap())
    }

    pub(crate) fn tenant_request(&self, challenge: &Challenge) -> TenantRequest {
        let nonce = STANDARD.decode(&challenge.nonce).unwrap();
        TenantRequest {
            public_key: STANDARD.encode(self.0.public_key_pem()),
            csr: self.csr(&["liqo.io"], "origin"),
            signature: STANDARD.encode(self.0.sign(&nonce).unwrap()),
        }
    }

    /// Base64 of a PEM certificate request, byte by byte as Go writes it; rcgen does not accept two organisations.
    pub(crate) fn csr(&self, organisations: &[&str], name: &str) -> String {
        let attribute = |kind: u8, value: &str| {
            let text = wrap(0x13, value.as_bytes());
            wrap(0x31, &wrap(0x30, &[&[0x06, 0x03, 0x55, 0x04, kind][..], &text].concat()))
        };
        let mut names: Vec<u8> = organisations.iter().flat_map(|organisation| attribute(0x0a, organisation)).collect();
        names.extend(attribute(0x03, name));
        let public = rcgen::PublicKeyData::subject_public_key_info(&self.0);
        let info = wrap(0x30, &[&[0x02, 0x01, 0x00][..], &wrap(0x30, &names), &public, &[0xa0, 0x00]].concat());
        let signature = [&[0x00][..], &self.0.sign(&info).unwrap()].concat();
        let algorithm = [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];
        let der = wrap(0x30, &[&info[..], &algorithm, &wrap(0x03, &signature)].concat());
        let body = STANDARD.encode(der);
        let lines: Vec<&str> = body.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
        let pem =
            format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", lines.join("\n"));
        STANDARD.encode(pem)
    }
}

fn wrap(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let header = match length {
        0..=0x7f => vec![tag, u8::try_from(length).unwrap()],
        0x80..=0xff => vec![tag, 0x81, u8::try_from(length).unwrap()],
        _ => [&[tag, 0x82][..], &u16::try_from(length).unwrap().to_be_bytes()].concat(),
    };
    [&header[..], content].concat()
}

pub(crate) struct Consumer {
    pub(crate) key: Key,
    config: Config,
    /// A client with the credential of its control plane.
    pub(crate) control_plane: Client,
    /// A client with the credential of its slice lease-7.
    slice: OnceLock<Client>,
}

impl Consumer {
    pub(crate) fn new(key: Key, config: Config, certificate: &str) -> Self {
        let control_plane = client(&key, &config, certificate);
        Self { key, config, control_plane, slice: OnceLock::new() }
    }

    /// A consumer that authenticates by token. Its slices use certificates nevertheless.
    pub(crate) fn by_token(config: Config, token: &str) -> Self {
        let mut with_token = config.clone();
        with_token.auth_info =
            kube::config::AuthInfo { token: Some(token.to_owned().into()), ..kube::config::AuthInfo::default() };
        let control_plane = Client::try_from(with_token).unwrap();
        Self { key: Key::generate(), config, control_plane, slice: OnceLock::new() }
    }

    pub(crate) fn slices(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.control_plane.clone(), TENANT_NAMESPACE, &resource_slice())
    }

    pub(crate) fn slice_client(&self) -> Client {
        self.slice.get().expect("lease-7 is borrowed first").clone()
    }

    pub(crate) fn with_certificate(&self, certificate: &str) -> Client {
        client(&self.key, &self.config, certificate)
    }

    pub(crate) async fn create_slice(&self, lease: &str) -> Result<DynamicObject, kube::Error> {
        let csr = self.key.csr(&["origin"], &slice_user(lease, "origin"));
        let slice = serde_json::from_value(slice(lease, &csr, |_| ())).unwrap();
        self.slices().create(&PostParams::default(), &slice).await
    }

    /// Makes a slice as the consumer's replicator would, and waits for its certificate.
    pub(crate) async fn borrow(&self, lab: &Lab, lease: &str) {
        self.create_slice(lease).await.unwrap();
        let slices = lab.slices();
        eventually("the slice is granted and signed", || async {
            let slice = slices.get(lease).await.unwrap();
            let signed = slice.data.pointer("/status/authParams/signedCRT").and_then(Value::as_str);
            if let (Some(certificate), "lease-7") = (signed, lease) {
                let _ = self.slice.set(self.with_certificate(certificate));
            }
            signed.is_some() && slice.data["status"]["resources"] == json!(resources())
        })
        .await;
        eventually("Liqo has a quota for it", || async {
            lab.quotas().get_opt(&slice_user(lease, "origin")).await.unwrap().is_some()
        })
        .await;
    }

    /// Makes the NamespaceMap of its namespaces, the lease's among them, and waits until it is applied.
    pub(crate) async fn offload_namespace(&self, lab: &Lab) {
        let maps = Api::namespaced_with(self.control_plane.clone(), TENANT_NAMESPACE, &namespace_map());
        let map: DynamicObject = serde_json::from_value(namespace_map_of(
            "donor",
            json!({ "team-a": POD_NAMESPACE, "team-b": OTHER_NAMESPACE }),
        ))
        .unwrap();
        maps.create(&PostParams::default(), &map).await.unwrap();
        let namespaces = Api::<Namespace>::all(lab.admin.clone());
        for name in [POD_NAMESPACE, OTHER_NAMESPACE] {
            eventually("the remote namespace is under Pod Security", || async {
                let labels = namespaces.get_opt(name).await.unwrap().and_then(|found| found.metadata.labels);
                labels.is_some_and(|labels| {
                    labels.get("pod-security.kubernetes.io/enforce").is_some_and(|level| level == "baseline")
                })
            })
            .await;
            let pods = Api::<DynamicObject>::namespaced_with(self.slice_client(), name, &shadow_pod());
            let may_list = || async { pods.list(&Default::default()).await.is_ok() };
            eventually("Liqo gives it its rights there", may_list).await;
        }
    }

    pub(crate) async fn shadow_pod(
        &self,
        name: &str,
        change: impl FnOnce(&mut Value),
    ) -> Result<DynamicObject, kube::Error> {
        let pods = Api::namespaced_with(self.slice_client(), POD_NAMESPACE, &shadow_pod());
        let object = serde_json::from_value(shadow_pod_of(name, change)).unwrap();
        pods.create(&PostParams::default(), &object).await
    }
}

fn client(key: &Key, config: &Config, certificate: &str) -> Client {
    let mut config = config.clone();
    config.auth_info = kube::config::AuthInfo {
        client_certificate_data: Some(certificate.to_owned()),
        client_key_data: Some(STANDARD.encode(key.0.serialize_pem()).into()),
        ..Default::default()
    };
    Client::try_from(config).unwrap()
}

fn replica_labels() -> Value {
    json!({
        "liqo.io/replicated": "true", "liqo.io/replication": "false", "liqo.io/originID": "origin",
        "liqo.io/remoteID": "donor", "liqo.io/remote-cluster-id": "origin",
    })
}

pub(crate) fn slice(name: &str, csr: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut slice = json!({
        "apiVersion": "authentication.liqo.io/v1beta1", "kind": "ResourceSlice",
        "metadata": { "name": name, "namespace": TENANT_NAMESPACE, "labels": replica_labels() },
        "spec": {
            "class": "comity", "consumerClusterID": "origin", "providerClusterID": "donor", "csr": csr,
            "resources": { "nvidia.com/gpu": "2" },
        },
    });
    change(&mut slice);
    slice
}

pub(crate) fn namespace_map_of(name: &str, mapping: Value) -> Value {
    json!({
        "apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceMap",
        "metadata": { "name": name, "namespace": TENANT_NAMESPACE, "labels": replica_labels() },
        "spec": { "desiredMapping": mapping },
    })
}

pub(crate) fn shadow_pod_of(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut object = json!({
        "apiVersion": "offloading.liqo.io/v1beta1", "kind": "ShadowPod",
        "metadata": { "name": name, "namespace": POD_NAMESPACE, "labels": { "offloading.liqo.io/origin": "origin" } },
        "spec": { "pod": {
            "nodeSelector": node_selector(),
            "tolerations": [{ "key": "comity.dev/lease", "operator": "Equal", "value": "lease-7", "effect": "NoSchedule" }],
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "example.invalid/work:1",
                "resources": {
                    "requests": { "cpu": "10m", "memory": "16Mi", "nvidia.com/gpu": "1" },
                    "limits": { "cpu": "10m", "memory": "16Mi", "nvidia.com/gpu": "1" },
                },
            }],
        } },
    });
    change(&mut object);
    object
}
