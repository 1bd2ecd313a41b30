//! Messages of Liqo's key exchange, by which the origin's Liqo may call the donor's API server. They are always sealed:
//! a token alone gives access.

use std::fmt;

use comity_agent_model::delivery_error::DeliveryError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Longest message in bytes: what an envelope carries, less its seal.
pub const MAX_MESSAGE_BYTES: usize = 60 << 10;

/// Donor → origin: the challenge to sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Challenge {
    /// Base64, as in `.data.nonce` of the Secret `liqo-nonce`.
    pub nonce: String,
}

/// Origin → donor: the origin's identity, and the proof that it holds the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TenantRequest {
    /// Base64 of the PEM public key, as in `Tenant.spec.publicKey`.
    pub public_key: String,
    /// Base64 of the PEM certificate request.
    pub csr: String,
    /// Base64, as in `.data.signedNonce` of the Secret `liqo-signed-nonce`.
    pub signature: String,
}

/// Donor → origin: parameters for calling the donor's API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IdentityParams {
    /// Base64 of the PEM CA of the donor's API server.
    pub ca: String,
    /// Credential of the origin.
    pub credential: PeerCredential,
    /// "https://HOST:PORT", by a name that the API server's certificate carries.
    pub api_server: String,
    /// The origin's tenant namespace on the donor.
    pub tenant_namespace: String,
}

/// Credential of the origin at the donor's API server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PeerCredential {
    /// Base64 of the PEM certificate that the donor signed; the origin has its key.
    Certificate(String),
    /// A bearer token of a ServiceAccount that the donor's agent made.
    Token(BearerToken),
}

/// A bearer token; wiped when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct BearerToken(Zeroizing<String>);

impl BearerToken {
    /// Takes a token.
    #[must_use]
    pub fn new(token: String) -> Self {
        Self(Zeroizing::new(token))
    }

    /// The token. Every caller may leak it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerToken(..)")
    }
}

impl Serialize for BearerToken {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for BearerToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::new)
    }
}

/// A message of the key exchange.
pub trait Message: Serialize + DeserializeOwned {
    /// Step of its envelope.
    const STEP: &'static str;

    /// The form that is sealed.
    #[must_use]
    fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings always serialise")
    }

    /// Reads [`encode`](Self::encode)'s form.
    ///
    /// # Errors
    /// [`DeliveryError::Permanent`] with code `bad-liqo-message`; no content is quoted.
    fn decode(bytes: &[u8]) -> Result<Self, DeliveryError> {
        decode(Self::STEP, bytes)
    }
}

/// Decodes a message; the error does not quote it.
pub(super) fn decode<M: DeserializeOwned>(step: &str, bytes: &[u8]) -> Result<M, DeliveryError> {
    let bad = |reason: &str| {
        let text = format!("the other side's {step} message {reason}");
        DeliveryError::permanent("bad-liqo-message", text)
    };
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(bad(&format!("has {} bytes, at most {MAX_MESSAGE_BYTES} are read", bytes.len())));
    }
    serde_json::from_slice(bytes).map_err(|_| bad("cannot be read; run the same version of the agent on both sides"))
}

impl Message for Challenge {
    const STEP: &'static str = "liqo-challenge";
}

impl Message for TenantRequest {
    const STEP: &'static str = "liqo-tenant";
}

impl Message for IdentityParams {
    const STEP: &'static str = "liqo-identity";
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_token_travels_and_is_not_printed() {
        let params = IdentityParams {
            ca: "Y2E=".into(),
            credential: PeerCredential::Token(BearerToken::new("very-secret".into())),
            api_server: "https://a:6443".into(),
            tenant_namespace: "liqo-tenant-origin".into(),
        };
        let encoded = params.encode();
        assert!(String::from_utf8(encoded.clone()).unwrap().contains(r#""credential":{"token":"very-secret"}"#));
        assert_eq!(IdentityParams::decode(&encoded).unwrap(), params);
        assert!(!format!("{params:?}").contains("very-secret"));
    }

    #[test]
    fn messages_survive_and_strange_ones_are_refused_without_being_quoted() {
        let challenge = Challenge { nonce: "bm9uY2U=".to_owned() };
        assert_eq!(Challenge::decode(&challenge.encode()).unwrap(), challenge);
        for strange in [&br#"{"nonce":"very-secret","more":1}"#[..], b"{", &vec![b' '; MAX_MESSAGE_BYTES + 1]] {
            let error = Challenge::decode(strange).unwrap_err().to_string();
            assert!(error.contains("liqo-challenge") && !error.contains("very-secret"), "{error}");
        }
    }
}
