//! Answers to reviews.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use comity_agent_kubernetes::https_server::{HttpsService, server_config};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use rustls_pki_types::CertificateDer;
use subtle::ConstantTimeEq as _;

use super::path_token::path_of;
use super::serving_secret::ServingSecret;
use super::{Review, Reviews};

/// Largest review: it carries one pod, and etcd accepts 1.5 MiB.
const MAX_REVIEW_BYTES: usize = 4 << 20;
const READ: Duration = Duration::from_secs(5);

/// The webhooks, with one certificate.
pub(super) struct Webhook {
    tls: Arc<rustls::ServerConfig>,
    chain_pem: String,
    /// The path of each review.
    paths: Vec<String>,
    reviews: Reviews,
}

impl Webhook {
    pub(super) fn new(secret: &ServingSecret, reviews: Reviews) -> Result<Self, String> {
        let paths = paths(&reviews, secret);
        let chain_pem = secret.certificates.chain_pem.clone();
        Ok(Self { tls: server_config(&secret.certificates, None)?, chain_pem, paths, reviews })
    }

    /// Whether it is served with this Secret.
    pub(super) fn shows(&self, secret: &ServingSecret) -> bool {
        self.chain_pem == secret.certificates.chain_pem && self.paths == paths(&self.reviews, secret)
    }
}

fn paths(reviews: &Reviews, secret: &ServingSecret) -> Vec<String> {
    reviews.iter().map(|review| path_of(review.registration().path, &secret.token)).collect()
}

impl HttpsService for Webhook {
    const NAME: &'static str = "the webhooks";

    fn tls(&self) -> &Arc<rustls::ServerConfig> {
        &self.tls
    }

    /// API servers have no client certificate by default: they know the paths instead.
    fn admits(&self, _client: Option<&CertificateDer<'_>>) -> bool {
        true
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, body) = match self.reviewed(request).await {
            Ok(body) => (StatusCode::OK, body),
            Err((status, reason)) => (status, reason.into()),
        };
        let kind = if status == StatusCode::OK { "application/json" } else { "text/plain; charset=utf-8" };
        let response = Response::builder().status(status).header(http::header::CONTENT_TYPE, kind);
        response.body(Full::new(body)).unwrap_or_default()
    }
}

impl Webhook {
    /// The review with this path. Compared in constant time: the path has a secret.
    fn review_at(&self, path: &str) -> Option<&dyn Review> {
        let is = |known: &String| bool::from(known.as_bytes().ct_eq(path.as_bytes()));
        let (review, _) = self.reviews.iter().zip(&self.paths).find(|(_, known)| is(known))?;
        Some(review.as_ref())
    }

    async fn reviewed(&self, request: Request<Incoming>) -> Result<Bytes, (StatusCode, String)> {
        if request.method() != Method::POST {
            return Err((StatusCode::METHOD_NOT_ALLOWED, "post a review".to_owned()));
        }
        let review = self.review_at(request.uri().path());
        let review = review.ok_or_else(|| (StatusCode::NOT_FOUND, "no review has this path".to_owned()))?;
        let reading = Limited::new(request.into_body(), MAX_REVIEW_BYTES).collect();
        let body = tokio::time::timeout(READ, reading)
            .await
            .map_err(|_| (StatusCode::REQUEST_TIMEOUT, "the review did not arrive".to_owned()))?
            .map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?
            .to_bytes();
        let answer = review.answer(&body).await.map_err(|reason| {
            tracing::warn!(webhook = review.registration().name, reason, "a review cannot be read");
            (StatusCode::BAD_REQUEST, reason)
        })?;
        serde_json::to_vec(&answer)
            .map(Bytes::from)
            .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::SystemTime;

    use comity_agent_model::node_service::NodeService;
    use tokio::sync::watch;

    use super::*;
    use crate::burst::{GateReview, RequestedStores};

    #[test]
    fn only_those_who_know_the_registration_are_answered() {
        let secret = || ServingSecret::make("10.0.0.1", None, SystemTime::now()).unwrap();
        let service = watch::channel(NodeService::none("")).1;
        let review = GateReview::new(service, watch::channel(RequestedStores::default()).1);
        let reviews: Reviews = Arc::new([Box::new(review) as Box<dyn Review>]);
        let (own, others) = (secret(), secret());
        let webhook = Webhook::new(&own, Arc::clone(&reviews)).unwrap();
        assert!(webhook.review_at(&path_of(reviews[0].registration().path, &own.token)).is_some());
        for path in ["/gate", "/gate/", "", &path_of(reviews[0].registration().path, &others.token)] {
            assert!(webhook.review_at(path).is_none(), "{path}");
        }
    }
}
