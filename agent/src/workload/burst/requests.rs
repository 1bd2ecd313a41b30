//! What burst asks of the broker.

use comity_proto::v1;
use futures::future::BoxFuture;

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The broker said no; asking again with the same words is no use.
    #[error("{reason}")]
    Refused {
        /// Stable code, as in the book.
        code: String,
        /// Why, and what to do.
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
    /// Takes a request back; one that ended already is no error.
    fn cancel(&self, request: String, key: String) -> BoxFuture<'_, Result<(), RequestError>>;
    /// Gives a lease back; one that ended already is no error.
    fn release(&self, lease: String, key: String) -> BoxFuture<'_, Result<(), RequestError>>;
    /// One request.
    fn get(&self, request: String) -> BoxFuture<'_, Result<v1::Request, RequestError>>;
    /// Why a request waits.
    fn explain(&self, request: String) -> BoxFuture<'_, Result<v1::ExplainRequestResponse, RequestError>>;
    /// All requests of this cluster that have not ended.
    fn list(&self) -> BoxFuture<'_, Result<Vec<v1::Request>, RequestError>>;
}
