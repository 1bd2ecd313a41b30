//! Answers the API server, and nobody else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use comity_agent_kubernetes::api::{CallError, within_limit};
use comity_agent_kubernetes::https_server::{Certificates, HttpsService, server_config};
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tokio::sync::watch;

use super::super::Grants;
use super::caller::{Question, Refusal, SCRAPE, question};
use super::counters::{Counters, Sample, samples};
use super::front_proxy::FrontProxy;
use crate::{CREATOR_LABEL, REMOTE_CLUSTER_LABEL};

/// Liqo's annotation with the name that a remote namespace has on the origin.
const ORIGINAL_NAME: &str = "liqo.io/original-name";

/// Sources of the answers.
pub(super) struct Answers {
    pub(super) client: Client,
    pub(super) grants: watch::Receiver<Arc<Grants>>,
    pub(super) counters: Mutex<Counters>,
}

/// The API with one certificate, for the users that this front proxy names.
pub(super) struct MetricsApi {
    tls: Arc<rustls::ServerConfig>,
    front_proxy: FrontProxy,
    answers: Arc<Answers>,
}

impl MetricsApi {
    pub(super) fn new(
        certificates: &Certificates,
        front_proxy: FrontProxy,
        answers: Arc<Answers>,
    ) -> Result<Self, String> {
        Ok(Self { tls: server_config(certificates, Some(front_proxy.verifier()?))?, front_proxy, answers })
    }
}

impl HttpsService for MetricsApi {
    const NAME: &'static str = "the API of pods' metrics";

    fn tls(&self) -> &Arc<rustls::ServerConfig> {
        &self.tls
    }

    fn admits(&self, client: Option<&CertificateDer<'_>>) -> bool {
        client.is_some_and(|certificate| self.front_proxy.is_api_server(certificate))
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let user = user(request.headers(), &self.front_proxy);
        let (status, kind, body) = self.answers.answer(request.method(), request.uri().path(), &user).await;
        let response = Response::builder().status(status).header(header::CONTENT_TYPE, kind);
        response.body(Full::new(Bytes::from(body))).unwrap_or_default()
    }
}

/// The user for whom the API server forwards a call.
fn user(headers: &HeaderMap, front_proxy: &FrontProxy) -> String {
    let named = front_proxy.user_headers.iter().find_map(|name| headers.get(name.as_str()));
    named.and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

impl Answers {
    async fn answer(&self, method: &Method, path: &str, user: &str) -> (StatusCode, &'static str, String) {
        if method != Method::GET {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "metrics are read".to_owned());
        }
        if !path.starts_with(SCRAPE) {
            return discovery(path).map_or_else(
                || (StatusCode::NOT_FOUND, TEXT, "no such path".to_owned()),
                |body| (StatusCode::OK, JSON, body),
            );
        }
        let grants = Arc::clone(&self.grants.borrow());
        let question = match question(path, user, &grants) {
            Ok(question) => question,
            Err(Refusal::NotFound) => return (StatusCode::NOT_FOUND, TEXT, "ask for metrics/resource".to_owned()),
            Err(Refusal::NotYours) => {
                return (StatusCode::FORBIDDEN, TEXT, "no lease in force is this user's".to_owned());
            }
        };
        match self.measured(&question).await {
            Ok((samples, home)) => {
                let mut counters = self.counters.lock().unwrap_or_else(PoisonError::into_inner);
                (StatusCode::OK, TEXT, counters.exposition(&samples, &home))
            }
            Err(error) => {
                tracing::debug!(%error, "metrics of offloaded pods cannot be read");
                let text = format!("this cluster has no metrics of pods to give: {error}");
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
            }
        }
    }

    /// Samples of the slice's pods from this cluster's metrics-server, and the consumer's names of their namespaces.
    async fn measured(&self, question: &Question) -> Result<(Vec<Sample>, BTreeMap<String, String>), CallError> {
        let kind = GroupVersionKind::gvk("metrics.k8s.io", "v1beta1", "PodMetrics");
        let kind = ApiResource::from_gvk_with_plural(&kind, "pods");
        let metrics = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let of_slice = ListParams::default().labels(&format!("{CREATOR_LABEL}={}", question.user));
        let of_consumer = ListParams::default().labels(&format!("{REMOTE_CLUSTER_LABEL}={}", question.consumer));
        let (metrics, namespaces) = tokio::try_join!(
            within_limit(metrics.list(&of_slice)),
            within_limit(namespaces.list_metadata(&of_consumer))
        )?;
        let home = namespaces.items.iter().filter_map(|namespace| {
            let original = namespace.annotations().get(ORIGINAL_NAME)?;
            Some((namespace.name_any(), original.clone()))
        });
        let measured = metrics.items.iter().flat_map(|object| {
            let at: Option<Timestamp> = object.data["timestamp"].as_str().and_then(|text| text.parse().ok());
            let at_ms = at.and_then(|at| u64::try_from(at.as_millisecond()).ok());
            let object = json!({
                "metadata": { "name": object.name_any(), "namespace": object.namespace() },
                "containers": object.data["containers"],
            });
            at_ms.map(|at_ms| samples(&object, at_ms)).unwrap_or_default()
        });
        Ok((measured.collect(), home.collect()))
    }
}

/// Answers the API server's discovery requests: one API, without listable resources.
fn discovery(path: &str) -> Option<String> {
    let version = json!({ "groupVersion": "metrics.liqo.io/v1beta1", "version": "v1beta1" });
    let group = json!({ "name": "metrics.liqo.io", "versions": [version], "preferredVersion": version });
    let mut object = match path {
        "/apis" => json!({ "kind": "APIGroupList", "groups": [group] }),
        "/apis/metrics.liqo.io" => {
            let mut group = group;
            group["kind"] = json!("APIGroup");
            group
        }
        "/apis/metrics.liqo.io/v1beta1" => {
            json!({ "kind": "APIResourceList", "groupVersion": "metrics.liqo.io/v1beta1", "resources": [] })
        }
        _ => return None,
    };
    object["apiVersion"] = json!("v1");
    Some(object.to_string())
}
