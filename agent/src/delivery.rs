//! How a lease reaches the origin: what the donor's agent makes on its own cluster, and what the origin's agent does with
//! the credential that it gets for it.
//!
//! Two traits, one a side; the rest of the agent knows nothing of Kubernetes. Implementations live beside this file.
//! What no implementation ever does: give a credential that reaches beyond its lease's namespace, or tear down what the
//! caller did not name.

pub(crate) mod call;
pub mod echo;
mod https;
mod kubeconfig;
pub mod namespace;
pub mod origin_file;
pub mod origin_secret;
mod probe;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use comity_proto::v1;
use comity_runtime::SecretString;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::fabric::ForwardTarget;

pub use echo::EchoDelivery;
pub use namespace::NamespaceDelivery;
pub use origin_file::OriginFile;
pub use origin_secret::OriginSecret;

/// Label of everything that is made for a lease; its value is the lease's id.
pub const LEASE_LABEL: &str = "comity.dev/lease";
/// Label with the tenant.
pub(crate) const TENANT_LABEL: &str = "comity.dev/tenant";
/// Port inside the tunnel that leads to the donor's API.
pub const API_PORT: u16 = 6443;

/// The namespace of a lease on the donor, and the name of its Secret on the origin.
#[must_use]
pub fn namespace_name(lease_id: &str) -> String {
    format!("comity-{lease_id}")
}

/// Longest credential in bytes: what an envelope carries, less its JSON and its seal.
pub const MAX_CREDENTIAL_BYTES: usize = 60 << 10;

/// What the donor's agent must know to deliver a lease.
#[derive(Clone, Debug, PartialEq)]
pub struct DonorLease {
    /// "lease-N".
    pub lease_id: String,
    /// Tenant that is accounted for it.
    pub tenant: String,
    /// Cluster that borrows.
    pub origin: String,
    /// Nodes (salted hashes, as in this cluster's own offer) and devices, resource name and count.
    pub placement: v1::Placement,
    /// What was asked for: amounts per share and the topology.
    pub gpus: v1::GpuDemand,
    /// Fencing token, already checked by the caller.
    pub fencing_token: u64,
    /// Latest time, in milliseconds since 1970, up to which a credential for it may be good.
    pub ends_at_ms: u64,
}

/// What the origin's agent must know to hand a lease on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginLease {
    /// "lease-N".
    pub lease_id: String,
    /// Tenant that may use it.
    pub tenant: String,
    /// Cluster that lends.
    pub donor: String,
    /// Namespace on the origin for the kubeconfig Secret.
    pub target_namespace: String,
    /// When the lease ends unless renewed, in milliseconds since 1970; 0 before it is active.
    pub expires_at_ms: u64,
}

/// The donor's side is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Namespace on the donor.
    pub namespace: String,
}

/// The origin's side is there.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// Name of the Secret (or file) that holds the kubeconfig.
    pub secret_name: String,
    /// The kubeconfig itself, for the agent's local API.
    pub kubeconfig: SecretString,
}

/// What a credential opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialKind {
    /// A namespace of a Kubernetes API server.
    Kubernetes,
    /// The echo API of a donor without Kubernetes.
    Echo,
}

/// What the origin needs to use a lease. Travels sealed, and is never printed.
#[derive(Clone, Debug)]
pub struct Credential {
    /// What it opens.
    pub kind: CredentialKind,
    /// CA that the API server's certificate chains to, PEM.
    pub ca_pem: String,
    /// Name that the API server's certificate carries; the connection itself goes to a loopback port.
    pub tls_server_name: String,
    /// Bearer token.
    pub token: SecretString,
    /// Namespace on the donor.
    pub namespace: String,
    /// When the token ends, in milliseconds since 1970.
    pub expires_at_ms: u64,
    /// Port inside the tunnel that leads to the API.
    pub server_port: u16,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire {
    kind: CredentialKind,
    ca_pem: String,
    tls_server_name: String,
    token: String,
    namespace: String,
    expires_at_ms: u64,
    server_port: u16,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

impl Credential {
    /// The form that is sealed and stored; wiped when dropped.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let wire = Wire {
            kind: self.kind,
            ca_pem: self.ca_pem.clone(),
            tls_server_name: self.tls_server_name.clone(),
            token: self.token.expose().clone(),
            namespace: self.namespace.clone(),
            expires_at_ms: self.expires_at_ms,
            server_port: self.server_port,
        };
        Zeroizing::new(serde_json::to_vec(&wire).expect("strings and numbers always serialise"))
    }

    /// Reads [`encode`](Self::encode)'s form.
    ///
    /// # Errors
    /// [`DeliveryError::Permanent`] with code `bad-credential`; no content is quoted.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeliveryError> {
        let bad = |reason: &str| DeliveryError::permanent("bad-credential", format!("the donor's credential {reason}"));
        if bytes.len() > MAX_CREDENTIAL_BYTES {
            return Err(bad(&format!("has {} bytes, at most {MAX_CREDENTIAL_BYTES} are read", bytes.len())));
        }
        // The JSON error may quote content, so it is not told.
        let mut wire: Wire = serde_json::from_slice(bytes)
            .map_err(|_| bad("cannot be read; run the same version of the agent on both sides"))?;
        if wire.server_port == 0 {
            return Err(bad("names port 0"));
        }
        Ok(Self {
            kind: wire.kind,
            ca_pem: std::mem::take(&mut wire.ca_pem),
            tls_server_name: std::mem::take(&mut wire.tls_server_name),
            token: SecretString::new(std::mem::take(&mut wire.token)),
            namespace: std::mem::take(&mut wire.namespace),
            expires_at_ms: wire.expires_at_ms,
            server_port: wire.server_port,
        })
    }
}

/// Why a delivery could not be carried out. Never holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// May go away by itself: tried again with growing pauses until the lease's hold ends.
    #[error("cannot {operation}: {reason}")]
    Temporary {
        /// What was tried, as in "create namespace comity-lease-7".
        operation: String,
        /// What went wrong.
        reason: String,
    },
    /// Trying again is of no use: reported to the broker.
    #[error("{message}")]
    Permanent {
        /// Stable code, as in "quota-refused".
        code: &'static str,
        /// For people.
        message: String,
    },
}

impl DeliveryError {
    /// An error that may go away.
    pub fn temporary(operation: impl Into<String>, reason: impl ToString) -> Self {
        Self::Temporary { operation: operation.into(), reason: reason.to_string() }
    }

    /// An error that will not.
    pub fn permanent(code: &'static str, message: impl Into<String>) -> Self {
        Self::Permanent { code, message: message.into() }
    }
}

/// What the donor's agent does for a lease on its own cluster.
pub trait DonorDelivery: Send + Sync {
    /// Makes or repairs everything; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>>;

    /// A fresh credential that ends no later than the lease; called again before it ends, and when the lease was renewed.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Credential, DeliveryError>>;

    /// Removes everything and returns only when it is gone; idempotent; also for a lease that was never prepared.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(&'a self, lease_id: &'a str) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>>;

    /// Where the fabric's port for donors leads: the API server, or the echo API.
    fn api_target(&self) -> ForwardTarget;
}

/// What the origin's agent does with a credential.
pub trait OriginDelivery: Send + Sync {
    /// Writes the kubeconfig; idempotent. `local_api` is the loopback port that leads into the tunnel.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn accept<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a Credential,
        local_api: SocketAddr,
    ) -> BoxFuture<'a, Result<Accepted, DeliveryError>>;

    /// Checks that the donor's API answers through the fabric with this credential.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn probe<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a Credential,
        local_api: SocketAddr,
    ) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Removes everything and returns only when it is gone; idempotent.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn remove<'a>(&'a self, lease_id: &'a str) -> BoxFuture<'a, Result<(), DeliveryError>>;

    /// Ids of the leases of which something is here.
    ///
    /// # Errors
    /// [`DeliveryError`].
    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<String>, DeliveryError>>;
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn credential() -> Credential {
        Credential {
            kind: CredentialKind::Echo,
            ca_pem: "ca".into(),
            tls_server_name: "kubernetes".into(),
            token: SecretString::new("very-secret".into()),
            namespace: "comity-lease-7".into(),
            expires_at_ms: 5,
            server_port: 6443,
        }
    }

    #[test]
    fn a_credential_survives_its_wire_form_and_is_never_printed() {
        let read = Credential::decode(&credential().encode()).unwrap();
        assert_eq!(read.token.expose(), "very-secret");
        assert_eq!((read.kind, read.server_port, read.expires_at_ms), (CredentialKind::Echo, 6443, 5));
        assert!(!format!("{read:?}").contains("very-secret"));
    }

    #[test]
    fn a_damaged_credential_is_refused_without_being_quoted() {
        let mut bytes = credential().encode().to_vec();
        bytes.truncate(bytes.len() - 1);
        let error = Credential::decode(&bytes).unwrap_err();
        assert!(!error.to_string().contains("very-secret"), "{error}");
        assert!(Credential::decode(&vec![b' '; MAX_CREDENTIAL_BYTES + 1]).is_err());
    }
}
