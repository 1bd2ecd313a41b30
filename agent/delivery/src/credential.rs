//! Credentials that the donor seals for the origin.

use std::collections::BTreeMap;

use comity_agent_model::delivery_error::DeliveryError;
use comity_runtime::SecretString;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

/// Largest credential in bytes: an envelope's capacity without JSON overhead and seal.
pub const MAX_CREDENTIAL_BYTES: usize = 60 << 10;

/// The API that a credential is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialKind {
    /// A namespace of a Kubernetes API server.
    Kubernetes,
    /// The API of a donor without Kubernetes.
    Site,
}

/// A credential for a namespace. Sent only sealed, and never printed.
#[derive(Clone, Debug)]
pub struct ApiCredential {
    /// The API that it is for.
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

/// The grant of a virtual node. It holds no secret: Liqo makes the node's certificates itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VirtualNodeGrant {
    /// Name of the ResourceSlice, which is the node's: the lease's id, or that of an earlier lease whose node is idle.
    pub slice: String,
    /// The origin's tenant namespace on the donor.
    pub tenant_namespace: String,
    /// Granted resources as Kubernetes quantities: the slice requests exactly these.
    pub resources: BTreeMap<String, String>,
    /// When the lease ends as the donor knows it, in milliseconds since 1970.
    pub expires_at_ms: u64,
}

/// A credential for a lease, by delivery.
#[derive(Clone, Debug)]
pub enum Credential {
    /// A namespace behind an API.
    Api(ApiCredential),
    /// A virtual node.
    VirtualNode(VirtualNodeGrant),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApiWire {
    kind: CredentialKind,
    ca_pem: String,
    tls_server_name: String,
    token: String,
    namespace: String,
    expires_at_ms: u64,
    server_port: u16,
}

impl Drop for ApiWire {
    fn drop(&mut self) {
        self.token.zeroize();
    }
}

/// Externally tagged, so that decoding copies no token into buffers that are not wiped.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Wire {
    Api(ApiWire),
    VirtualNode(VirtualNodeGrant),
}

impl Credential {
    /// When it ends, in milliseconds since 1970.
    #[must_use]
    pub fn expires_at_ms(&self) -> u64 {
        match self {
            Self::Api(api) => api.expires_at_ms,
            Self::VirtualNode(grant) => grant.expires_at_ms,
        }
    }

    /// The form that is sealed and stored; wiped when dropped.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let wire = match self {
            Self::Api(api) => Wire::Api(ApiWire {
                kind: api.kind,
                ca_pem: api.ca_pem.clone(),
                tls_server_name: api.tls_server_name.clone(),
                token: api.token.expose().clone(),
                namespace: api.namespace.clone(),
                expires_at_ms: api.expires_at_ms,
                server_port: api.server_port,
            }),
            Self::VirtualNode(grant) => Wire::VirtualNode(grant.clone()),
        };
        Zeroizing::new(serde_json::to_vec(&wire).expect("strings and numbers always serialise"))
    }

    /// Reads [`encode`](Self::encode)'s form.
    ///
    /// # Errors
    /// [`DeliveryError::Permanent`] with code `bad-credential`; no content is quoted.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeliveryError> {
        check_length(bytes)?;
        // The JSON error may quote the content, so it is dropped.
        match serde_json::from_slice(bytes).map_err(|_| unreadable())? {
            Wire::Api(wire) => Ok(Self::Api(api(wire)?)),
            Wire::VirtualNode(grant) => Ok(Self::VirtualNode(grant)),
        }
    }

    /// Reads a stored credential: the form of [`encode`](Self::encode), or the form of older agents, which knew only
    /// namespaces.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_stored(bytes: &[u8]) -> Result<Self, DeliveryError> {
        Self::decode(bytes).or_else(|error| {
            check_length(bytes)?;
            let wire: ApiWire = serde_json::from_slice(bytes).map_err(|_| error)?;
            Ok(Self::Api(api(wire)?))
        })
    }
}

fn api(mut wire: ApiWire) -> Result<ApiCredential, DeliveryError> {
    if wire.server_port == 0 {
        return Err(bad("names port 0"));
    }
    Ok(ApiCredential {
        kind: wire.kind,
        ca_pem: std::mem::take(&mut wire.ca_pem),
        tls_server_name: std::mem::take(&mut wire.tls_server_name),
        token: SecretString::new(std::mem::take(&mut wire.token)),
        namespace: std::mem::take(&mut wire.namespace),
        expires_at_ms: wire.expires_at_ms,
        server_port: wire.server_port,
    })
}

fn check_length(bytes: &[u8]) -> Result<(), DeliveryError> {
    if bytes.len() > MAX_CREDENTIAL_BYTES {
        return Err(bad(&format!("has {} bytes, at most {MAX_CREDENTIAL_BYTES} are read", bytes.len())));
    }
    Ok(())
}

fn unreadable() -> DeliveryError {
    bad("cannot be read; run the same version of the agent on both sides")
}

fn bad(reason: &str) -> DeliveryError {
    DeliveryError::permanent("bad-credential", format!("the donor's credential {reason}"))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn credential() -> Credential {
        Credential::Api(ApiCredential {
            kind: CredentialKind::Site,
            ca_pem: "ca".into(),
            tls_server_name: "kubernetes".into(),
            token: SecretString::new("very-secret".into()),
            namespace: "comity-lease-7".into(),
            expires_at_ms: 5,
            server_port: 6443,
        })
    }

    fn grant() -> VirtualNodeGrant {
        VirtualNodeGrant {
            slice: "lease-7".into(),
            tenant_namespace: "liqo-tenant-origin".into(),
            resources: BTreeMap::from([("nvidia.com/gpu".into(), "2".into())]),
            expires_at_ms: 9,
        }
    }

    #[test]
    fn a_credential_survives_its_wire_form_and_is_never_printed() {
        let Credential::Api(read) = Credential::decode(&credential().encode()).unwrap() else { panic!("another kind") };
        assert_eq!(read.token.expose(), "very-secret");
        assert_eq!((read.kind, read.server_port, read.expires_at_ms), (CredentialKind::Site, 6443, 5));
        assert!(!format!("{read:?}").contains("very-secret"));
        let sent = Credential::VirtualNode(grant());
        let Credential::VirtualNode(read) = Credential::decode(&sent.encode()).unwrap() else { panic!("another kind") };
        assert_eq!((read, sent.expires_at_ms()), (grant(), 9));
    }

    #[test]
    fn a_damaged_credential_is_refused_without_being_quoted() {
        let mut bytes = credential().encode().to_vec();
        bytes.truncate(bytes.len() - 1);
        let error = Credential::decode(&bytes).unwrap_err();
        assert!(!error.to_string().contains("very-secret"), "{error}");
        assert!(Credential::decode(&vec![b' '; MAX_CREDENTIAL_BYTES + 1]).is_err());
    }

    #[test]
    fn the_form_of_older_agents_is_read_from_disk_and_not_from_others() {
        let old = br#"{"kind":"site","ca_pem":"ca","tls_server_name":"k","token":"very-secret","namespace":"n","expires_at_ms":5,"server_port":6443}"#;
        assert!(matches!(Credential::decode_stored(old), Ok(Credential::Api(api)) if api.namespace == "n"));
        let error = Credential::decode(old).unwrap_err().to_string();
        assert!(error.contains("same version") && !error.contains("very-secret"), "{error}");
        assert!(Credential::decode_stored(br#"{"virtual-node":{"slice":"x","more":1}}"#).is_err());
    }
}
