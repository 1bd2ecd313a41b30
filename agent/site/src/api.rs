//! The API of a lease: the part of Kubernetes' that `kubectl`, client libraries and the origin's agent need to run pods.

mod authenticate;
mod delete_options;
mod discovery;
mod lease_call;
mod object_body;
mod pod_exec;
mod pod_list;
mod pod_log;
mod pod_selector;
mod pod_table;
mod pod_watch;
mod pods;
mod quota;
mod stored_objects;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension};
use axum::http::StatusCode;
use axum::middleware;
use axum::routing::get;

use crate::answers::Refusal;
use crate::lease_seats::LeaseSeats;
use crate::leases::Leases;
use crate::objects::ObjectKind;
use crate::running::PodHost;

/// Largest body: a ConfigMap of 1 MiB in base64.
const MAX_BODY: usize = 2 << 20;

/// What the handlers work with.
#[derive(Clone)]
pub(crate) struct Site {
    pub(crate) leases: Arc<Leases>,
    /// Absent where the owner has not set `site`: leases then show their quota and run nothing.
    pub(crate) host: Option<Arc<PodHost>>,
    /// Each lease's share of this API.
    pub(crate) seats: Arc<LeaseSeats>,
}

/// All paths.
pub(crate) fn router(site: Site) -> Router {
    let mut router = Router::new()
        .route("/version", get(discovery::version))
        .route("/api", get(discovery::versions))
        .route("/apis", get(discovery::groups))
        .route("/api/v1", get(discovery::resources))
        .route("/openapi/v3", get(discovery::openapi))
        .route("/openapi/v3/api/v1", get(discovery::openapi_v1))
        .route("/api/v1/namespaces/{namespace}", get(discovery::namespace))
        .route("/api/v1/namespaces/{namespace}/resourcequotas", get(quota::list))
        .route("/api/v1/namespaces/{namespace}/resourcequotas/gpus", get(quota::get))
        .route("/api/v1/namespaces/{namespace}/pods", get(pod_list::list).post(pods::create))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", get(pods::get).delete(pods::delete))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/log", get(pod_log::get))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/exec", get(pod_exec::get));
    for kind in [ObjectKind::ConfigMap, ObjectKind::Secret] {
        let path = format!("/api/v1/namespaces/{{namespace}}/{}", kind.resource());
        let one = get(stored_objects::get)
            .put(stored_objects::replace)
            .patch(stored_objects::patch)
            .delete(stored_objects::delete);
        router = router
            .route(&path, get(stored_objects::list).post(stored_objects::create).layer(Extension(kind)))
            .route(&format!("{path}/{{name}}"), one.layer(Extension(kind)));
    }
    router
        .fallback(|| async { Refusal::new(StatusCode::NOT_FOUND, "this host has no such path") })
        .method_not_allowed_fallback(|| async {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "this host does not do that with this object")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(site.clone(), authenticate::authenticate))
        .with_state(site)
}
