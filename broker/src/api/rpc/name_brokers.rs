//! Names all brokers in the metadata of each answer to a caller with a certificate, so that clients learn of brokers
//! that joined later.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use comity_runtime::tls::{BROKERS_METADATA, PeerInfo};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::http::{HeaderName, HeaderValue, Request, Response};
use tower::{Layer, Service};

const BROKERS_HEADER: HeaderName = HeaderName::from_static(BROKERS_METADATA);

/// Adds the brokers' client addresses to answers.
#[derive(Debug, Clone)]
pub struct NameBrokersLayer {
    /// Client addresses of all brokers.
    pub addresses: watch::Receiver<Arc<[String]>>,
}

impl<S> Layer<S> for NameBrokersLayer {
    type Service = NameBrokers<S>;
    fn layer(&self, inner: S) -> NameBrokers<S> {
        NameBrokers { inner, addresses: self.addresses.clone() }
    }
}

/// Service of [`NameBrokersLayer`].
#[derive(Debug, Clone)]
pub struct NameBrokers<S> {
    inner: S,
    addresses: watch::Receiver<Arc<[String]>>,
}

impl<S, B> Service<Request<B>> for NameBrokers<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let is_certified = request.extensions().get::<PeerInfo>().is_some_and(|peer| peer.spiffe.is_some());
        let addresses = is_certified.then(|| self.addresses.clone());
        let call = self.inner.call(request);
        Box::pin(async move {
            let mut response = call.await?;
            if let Some(list) = addresses.and_then(|addresses| metadata(&addresses.borrow())) {
                response.headers_mut().insert(BROKERS_HEADER, list);
            }
            Ok(response)
        })
    }
}

/// The list as metadata; `None` if it is empty.
fn metadata(addresses: &[String]) -> Option<HeaderValue> {
    // An address that is no header value cannot be dialled either.
    HeaderValue::try_from(addresses.join(",")).ok().filter(|list| !list.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_comma_separated_and_never_empty() {
        let list = |addresses: &[&str]| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            metadata(&addresses).map(|list| list.to_str().expect("text").to_owned())
        };
        assert_eq!(list(&["b1:7443"]).as_deref(), Some("b1:7443"));
        assert_eq!(list(&["b1:7443", "b2:7443"]).as_deref(), Some("b1:7443,b2:7443"));
        assert_eq!(list(&[]), None);
        assert_eq!(list(&["b1\n:7443"]), None);
    }
}
