//! Limits concurrent calls per peer, so that one client cannot starve others.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context as TaskContext, Poll};

use comity_runtime::tls::PeerInfo;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::{Layer, Service};

use crate::api::rpc_error::RpcError;

/// Maximum concurrent calls per peer. A stream counts until it has begun; streams have limits of their own.
pub const MAX_CALLS_PER_PEER: usize = 64;

type UnderWay = Arc<Mutex<BTreeMap<String, usize>>>;

/// Limits each peer: by SPIFFE id, or by address where there is no certificate.
#[derive(Debug, Clone, Default)]
pub struct PeerLimitLayer {
    under_way: UnderWay,
}

impl<S> Layer<S> for PeerLimitLayer {
    type Service = PeerLimit<S>;
    fn layer(&self, inner: S) -> PeerLimit<S> {
        PeerLimit { inner, under_way: Arc::clone(&self.under_way) }
    }
}

/// Service of [`PeerLimitLayer`].
#[derive(Debug, Clone)]
pub struct PeerLimit<S> {
    inner: S,
    under_way: UnderWay,
}

/// A call in progress; released on drop.
struct Slot {
    under_way: UnderWay,
    peer: String,
}

impl Slot {
    fn take(under_way: &UnderWay, peer: String) -> Option<Self> {
        let mut counts = lock(under_way);
        let count = counts.entry(peer.clone()).or_default();
        if *count >= MAX_CALLS_PER_PEER {
            return None;
        }
        *count += 1;
        Some(Self { under_way: Arc::clone(under_way), peer })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut counts = lock(&self.under_way);
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

fn lock(under_way: &UnderWay) -> MutexGuard<'_, BTreeMap<String, usize>> {
    // Each change is one number, so a panic elsewhere leaves nothing half done.
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S, B> Service<Request<B>> for PeerLimit<S>
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
        let peer = request.extensions().get::<PeerInfo>();
        let name = peer.map_or_else(String::new, |peer| {
            peer.spiffe.as_ref().map_or_else(|| peer.remote_addr.ip().to_string(), ToString::to_string)
        });
        match Slot::take(&self.under_way, name) {
            Some(slot) => {
                let call = self.inner.call(request);
                Box::pin(async move {
                    let _slot = slot;
                    call.await
                })
            }
            None => {
                let error = RpcError::TooMany { what: format!("{MAX_CALLS_PER_PEER} calls are under way") };
                let response = Status::from(error).into_http();
                Box::pin(async move { Ok(response) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_back() {
        let under_way = UnderWay::default();
        let slots: Vec<_> = (0..MAX_CALLS_PER_PEER).filter_map(|_| Slot::take(&under_way, "a".to_owned())).collect();
        assert_eq!(slots.len(), MAX_CALLS_PER_PEER);
        assert!(Slot::take(&under_way, "a".to_owned()).is_none());
        assert!(Slot::take(&under_way, "b".to_owned()).is_some());
        drop(slots);
        assert!(lock(&under_way).is_empty());
    }
}
