//! Names all brokers in the metadata of each answer to a caller with a certificate, so that clients learn of brokers that
//! joined later.

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
            // An address that is no header value cannot be dialled either.
            if let Some(list) = addresses.and_then(|addresses| HeaderValue::try_from(addresses.borrow().join(",")).ok())
                && !list.is_empty()
            {
                response.headers_mut().insert(BROKERS_HEADER, list);
            }
            Ok(response)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn callers_with_a_certificate_get_the_present_list() {
        let (sender, addresses) = watch::channel::<Arc<[String]>>(Arc::from(["b1:7443".to_owned()]));
        let layer = NameBrokersLayer { addresses };
        let asked = async |spiffe: Option<&str>| {
            let answer = |_: Request<()>| async { Ok::<_, Infallible>(Response::new(Body::empty())) };
            let mut request = Request::new(());
            let spiffe = spiffe.map(|id| id.parse().expect("an id"));
            let remote_addr = "192.0.2.1:9".parse().expect("an address");
            request.extensions_mut().insert(PeerInfo { spiffe, remote_addr, cert_not_after: None });
            let response = layer.layer(tower::service_fn(answer)).oneshot(request).await.expect("infallible");
            response.headers().get(BROKERS_METADATA).map(|list| list.to_str().expect("text").to_owned())
        };
        let alice = Some("spiffe://dev.test/user/alice");
        assert_eq!(asked(alice).await.as_deref(), Some("b1:7443"));
        assert_eq!(asked(None).await, None);
        sender.send_replace(Arc::from(["b1:7443".to_owned(), "b2:7443".to_owned()]));
        assert_eq!(asked(alice).await.as_deref(), Some("b1:7443,b2:7443"));
        sender.send_replace(Arc::from([]));
        assert_eq!(asked(alice).await, None);
    }
}
