//! The broker's API as burst uses it.

use comity_proto::v1;
use futures::future::BoxFuture;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The broker refused; repeating the same call does not help.
    #[error("{reason}")]
    Refused {
        /// Stable code, as in docs/errors.md.
        code: String,
        /// Reason and remedy.
        reason: String,
    },
    /// There is no such request or lease.
    #[error("{0}")]
    NotFound(String),
    /// The broker did not answer.
    #[error("the broker does not answer: {0}")]
    Unavailable(String),
}

/// Requests and leases of this agent's own cluster.
pub trait Requests: Send + Sync {
    /// Submits; the same key and body give the same request.
    fn submit(&self, spec: v1::RequestSpec, key: String) -> BoxFuture<'_, Result<v1::Request, RequestError>>;
    /// Cancels a request; no error if it already ended.
    fn cancel(&self, request: String, key: String) -> BoxFuture<'_, Result<(), RequestError>>;
    /// Releases a lease; no error if it already ended.
    fn release(&self, lease: String, key: String) -> BoxFuture<'_, Result<(), RequestError>>;
    /// Starts a new term of a lease, of the same length.
    fn renew(&self, lease: String, key: String) -> BoxFuture<'_, Result<(), RequestError>>;
    /// One request.
    fn get(&self, request: String) -> BoxFuture<'_, Result<v1::Request, RequestError>>;
    /// Explains why a request waits.
    fn explain(&self, request: String) -> BoxFuture<'_, Result<v1::ExplainRequestResponse, RequestError>>;
    /// All requests of this cluster that have not ended.
    fn list(&self) -> BoxFuture<'_, Result<Vec<v1::Request>, RequestError>>;
}
