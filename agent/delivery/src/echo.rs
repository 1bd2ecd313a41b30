//! The donor's side on a host without Kubernetes: a small HTTPS API on loopback that takes the place of a
//! kube-apiserver.
//!
//! It lends nothing real: it lets scheduling, handshake, credentials, tunnels and release run without Kubernetes, and
//! says in every answer that it is a stand-in. `comity dev` uses it.
//!
//! ```text
//! GET  /version                                                 its version
//! GET  /api/v1/namespaces/{namespace}/resourcequotas[/gpus]     the leased GPUs
//! GET  /api, /apis, /api/v1                                     discovery, for `kubectl get resourcequota`
//! POST /echo                                                    the body, at most 64 KiB, back
//! ```
//! Every request needs the bearer token of a lease that has not ended: 401 otherwise, 403 for another lease's
//! namespace.

mod answers;
mod certificate;
mod leases;
mod quota_api;
mod server;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use comity_agent_model::api_port::API_PORT;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::lease::lease_id::namespace_name;
use comity_runtime::atomic_file;
use comity_runtime::clock::Clock;
use comity_runtime::entropy::Entropy;
use comity_types::LeaseId;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::leases::{LeaseRecord, Leases};
use crate::{ApiCredential, CredentialKind, DonorDelivery, DonorLease, Prepared};

/// A running echo API. Dropping it ends it; its leases are on disk.
#[derive(Debug)]
pub struct EchoDelivery {
    leases: Arc<Leases>,
    ca_pem: String,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl EchoDelivery {
    /// Serves on a free loopback port, with the CA and the leases of the folder `echo` in the agent's state folder.
    ///
    /// # Errors
    /// [`DeliveryError`] when the state cannot be read or no port is free.
    pub async fn start(
        state_dir: &Path,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, DeliveryError> {
        const OPERATION: &str = "start the echo API";
        let failed = |error: String| DeliveryError::temporary(OPERATION, error);
        let dir = state_dir.join("echo");
        atomic_file::create_private_dir(&dir).map_err(|error| failed(error.to_string()))?;
        let identity = certificate::open(&dir, clock.now()).map_err(|error| failed(error.to_string()))?;
        let leases = Arc::new(Leases::open(&dir, clock, entropy)?);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| failed(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let server = tokio::spawn(server::serve(listener, identity.tls, Arc::clone(&leases)));
        tracing::info!(%address, "serving the echo API, which stands in for a kube-apiserver on this host");
        Ok(Self { leases, ca_pem: identity.ca_pem, address, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EchoDelivery {
    fn drop(&mut self) {
        self.server.abort();
    }
}

// The state is one small file: blocking the caller for it is cheaper than a thread.
impl DonorDelivery for EchoDelivery {
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>> {
        Box::pin(async move {
            let namespace = namespace_name(lease.lease_id);
            self.leases.put(lease.lease_id, LeaseRecord::of(lease, &namespace))?;
            Ok(Prepared { namespace })
        })
    }

    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<ApiCredential, DeliveryError>> {
        Box::pin(async move {
            Ok(ApiCredential {
                kind: CredentialKind::Echo,
                ca_pem: self.ca_pem.clone(),
                tls_server_name: certificate::SERVER_NAME.to_owned(),
                token: self.leases.issue(lease.lease_id, lease.ends_at_ms)?,
                namespace: namespace_name(lease.lease_id),
                expires_at_ms: lease.ends_at_ms,
                server_port: API_PORT,
            })
        })
    }

    fn reopen<'a>(&'a self, _lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async { Ok(()) })
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(async move { self.leases.remove(lease_id) })
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(async move { Ok(self.leases.ids()) })
    }

    fn api_target(&self) -> ForwardTarget {
        self.address.into()
    }
}

#[cfg(test)]
mod tests;
