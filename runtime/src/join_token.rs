//! The join token: one line with everything that a cluster, user or broker needs to join, `comity-join-v1.` and a
//! base64url JSON object.
//!
//! It pins the federation's root certificate, which authenticates the first connection. Its secret is valid once, and
//! the broker stores only the SHA-256 of the secret.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;
use zeroize::Zeroize;

use crate::entropy::Entropy;
use crate::identity::RootHash;
use comity_types::JOIN_TOKEN_PREFIX;

use crate::secret::{Secret, SecretString};
use crate::spiffe::{ClusterName, SpiffeId, UserName};
use crate::tls::{BrokerEndpoints, EndpointError};

mod pending_key;
mod token_argument;

pub use pending_key::{PendingKey, PendingKeyError};
pub use token_argument::{TokenArgumentError, is_token};

/// Bytes of a token, at most.
pub const TOKEN_MAX_BYTES: usize = 8 * 1024;
/// Bytes of a token's secret.
pub const SECRET_BYTES: usize = 32;

/// Why a token is invalid. Never quotes the token.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JoinTokenError {
    /// There is no text.
    #[error("no join token is given: the text is empty; give the token, or ask a maintainer for one")]
    Empty,
    /// It does not begin with the prefix of a token.
    #[error("not a join token: it does not begin with '{JOIN_TOKEN_PREFIX}'; ask a maintainer for one")]
    Prefix,
    /// It is too long.
    #[error("not a join token: {bytes} bytes, at most {TOKEN_MAX_BYTES} are allowed")]
    TooLarge {
        /// Length of the text.
        bytes: usize,
    },
    /// It is truncated or changed.
    #[error(
        "join token is cut off or damaged ({problem}): copy the whole line again, or ask a maintainer for a new one"
    )]
    Damaged {
        /// The decoding error, without content.
        problem: &'static str,
    },
    /// A field is missing or has a wrong value.
    #[error("join token has a bad {field}: ask a maintainer for a new one")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
    /// A broker address is invalid.
    #[error("join token has bad brokers: {0}")]
    Brokers(#[from] EndpointError),
    /// It is for a subject of another kind.
    #[error("the join token is for {found}, not for a {wanted}: make one with '{command}'")]
    OtherSubject {
        /// `cluster`, `user` or `broker`.
        wanted: &'static str,
        /// Id in the token.
        found: SpiffeId,
        /// The command that makes the wanted token.
        command: &'static str,
    },
}

/// An invitation of one cluster, user or broker to join, valid once.
#[derive(Clone)]
pub struct JoinToken {
    /// Brokers to join at.
    pub brokers: BrokerEndpoints,
    /// Hash of the federation's root certificate.
    pub ca_sha256: RootHash,
    /// Id that the invited cluster, user or broker gets.
    pub id: SpiffeId,
    /// Proof of the invitation.
    pub secret: Secret<[u8; SECRET_BYTES]>,
}

/// The JSON object of a token. Field order is wire order.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WireToken {
    brokers: Vec<String>,
    ca_sha256: String,
    id: String,
    secret: String,
}

impl Drop for WireToken {
    fn drop(&mut self) {
        self.secret.zeroize();
    }
}

impl JoinToken {
    /// Creates an invitation with a random secret.
    pub fn generate(brokers: BrokerEndpoints, ca_sha256: RootHash, id: SpiffeId, entropy: &dyn Entropy) -> Self {
        let mut secret = [0; SECRET_BYTES];
        entropy.fill(&mut secret);
        Self { brokers, ca_sha256, id, secret: Secret::new(secret) }
    }

    /// The token as one line of text.
    pub fn encode(&self) -> SecretString {
        let wire = WireToken {
            brokers: self.brokers.addresses().to_vec(),
            ca_sha256: self.ca_sha256.to_string(),
            id: self.id.to_string(),
            secret: URL_SAFE_NO_PAD.encode(self.secret.expose()),
        };
        let mut json = serde_json::to_vec(&wire).expect("strings always serialise");
        let token = SecretString::new(format!("{JOIN_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(&json)));
        json.zeroize();
        token
    }

    /// The invited cluster.
    ///
    /// # Errors
    /// [`JoinTokenError::OtherSubject`] if the token is for a user or broker.
    pub fn cluster(&self) -> Result<&ClusterName, JoinTokenError> {
        self.id.as_cluster().ok_or_else(|| self.other_subject("cluster", "comity cluster invite CLUSTER"))
    }

    /// The invited user.
    ///
    /// # Errors
    /// [`JoinTokenError::OtherSubject`] if the token is for a cluster or broker.
    pub fn user(&self) -> Result<&UserName, JoinTokenError> {
        self.id.as_user().ok_or_else(|| self.other_subject("user", "comity user add NAME"))
    }

    /// Number of the invited broker.
    ///
    /// # Errors
    /// [`JoinTokenError::OtherSubject`] if the token is for a cluster or user.
    pub fn broker(&self) -> Result<u64, JoinTokenError> {
        self.id.as_broker().ok_or_else(|| self.other_subject("broker", "comity raft invite"))
    }

    fn other_subject(&self, wanted: &'static str, command: &'static str) -> JoinTokenError {
        JoinTokenError::OtherSubject { wanted, found: self.id.clone(), command }
    }

    /// The hash that the broker stores instead of the secret.
    pub fn secret_hash(&self) -> [u8; 32] {
        hash_secret(self.secret.expose())
    }
}

impl FromStr for JoinToken {
    type Err = JoinTokenError;

    fn from_str(text: &str) -> Result<Self, JoinTokenError> {
        let text = text.trim();
        if text.is_empty() {
            return Err(JoinTokenError::Empty);
        }
        if text.len() > TOKEN_MAX_BYTES {
            return Err(JoinTokenError::TooLarge { bytes: text.len() });
        }
        let encoded = text.strip_prefix(JOIN_TOKEN_PREFIX).ok_or(JoinTokenError::Prefix)?;
        let mut json =
            URL_SAFE_NO_PAD.decode(encoded).map_err(|_| JoinTokenError::Damaged { problem: "it is not base64url" })?;
        // The JSON error may quote content, so only its category is reported.
        let wire = serde_json::from_slice::<WireToken>(&json).map_err(|error| {
            let problem = if error.is_data() { "a field is missing or unknown" } else { "it is not whole JSON" };
            JoinTokenError::Damaged { problem }
        });
        json.zeroize();
        wire?.parse()
    }
}

impl WireToken {
    fn parse(&self) -> Result<JoinToken, JoinTokenError> {
        let bad = |field| JoinTokenError::Field { field };
        let mut secret = [0; SECRET_BYTES];
        match URL_SAFE_NO_PAD.decode(&self.secret) {
            Ok(mut bytes) if bytes.len() == SECRET_BYTES => {
                secret.copy_from_slice(&bytes);
                bytes.zeroize();
            }
            _ => return Err(bad("secret")),
        }
        let secret = Secret::new(secret);
        Ok(JoinToken {
            brokers: BrokerEndpoints::new(&self.brokers)?,
            ca_sha256: self.ca_sha256.parse().map_err(|_| bad("ca_sha256"))?,
            id: self.id.parse().map_err(|_| bad("id"))?,
            secret,
        })
    }
}

impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinToken")
            .field("brokers", &self.brokers.addresses())
            .field("ca_sha256", &self.ca_sha256)
            .field("id", &self.id)
            .field("secret", &self.secret)
            .finish()
    }
}

/// SHA-256 of a secret, which the broker stores. 32 random bytes need no salt.
pub fn hash_secret(secret: &[u8]) -> [u8; 32] {
    Sha256::digest(secret).into()
}

/// Whether a presented secret has the stored hash. Takes constant time.
pub fn secret_matches(presented: &[u8], stored_hash: &[u8]) -> bool {
    hash_secret(presented).ct_eq(stored_hash).into()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::entropy::SeededEntropy;

    fn token() -> JoinToken {
        JoinToken::generate(
            "127.0.0.1:7443,b.test:7443".parse().unwrap(),
            "ab".repeat(32).parse().unwrap(),
            "spiffe://dev.test/cluster/ethz".parse().unwrap(),
            &SeededEntropy::new(1),
        )
    }

    fn encode(json: &str) -> String {
        format!("{JOIN_TOKEN_PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    #[test]
    fn round_trips() {
        let line = token().encode();
        let back: JoinToken = format!("  {}\n", line.expose()).parse().unwrap();
        assert_eq!(back.brokers, token().brokers);
        assert_eq!(back.ca_sha256, token().ca_sha256);
        assert_eq!(back.id, token().id);
        assert!(secret_matches(back.secret.expose(), &token().secret_hash()));
        assert!(!secret_matches(&[0; 32], &token().secret_hash()));
        assert!(!secret_matches(back.secret.expose(), &[]));
    }

    #[test]
    fn a_token_is_for_one_kind_of_subject() {
        let of = |id: &str| JoinToken { id: id.parse().unwrap(), ..token() };
        assert_eq!(of("spiffe://dev.test/cluster/ethz").cluster().unwrap().as_str(), "ethz");
        assert_eq!(of("spiffe://dev.test/user/alice").user().unwrap().as_str(), "alice");
        assert_eq!(of("spiffe://dev.test/broker/2").broker().unwrap(), 2);
        let error = of("spiffe://dev.test/user/alice").broker().unwrap_err().to_string();
        assert!(error.contains("for spiffe://dev.test/user/alice, not for a broker"), "{error}");
        assert!(of("spiffe://dev.test/broker/2").user().is_err() && of("spiffe://dev.test/user/a").cluster().is_err());
    }

    #[test]
    fn every_truncation_is_refused_without_a_panic() {
        let line = token().encode();
        for end in 0..line.expose().len() {
            assert!(line.expose()[..end].parse::<JoinToken>().is_err(), "cut at {end} was accepted");
        }
    }

    #[test]
    fn garbage_is_refused_with_a_remedy() {
        let parse = |text: &str| text.parse::<JoinToken>().unwrap_err().to_string();
        assert!(parse("hello").contains("ask a maintainer for one"));
        assert!(parse(" \n").contains("the text is empty"));
        assert!(parse(&"x".repeat(9000)).contains("9000 bytes"));
        assert!(parse("comity-join-v1.***").contains("base64url"));
        assert!(parse(&encode("{}")).contains("missing or unknown"));
        let line = token().encode();
        let json = URL_SAFE_NO_PAD.decode(line.expose().strip_prefix(JOIN_TOKEN_PREFIX).unwrap()).unwrap();
        let json = String::from_utf8(json).unwrap();
        assert!(encode(&json).parse::<JoinToken>().is_ok());
        let changed = |from: &str, to: &str| parse(&encode(&json.replace(from, to)));
        assert!(changed("/ethz\"", "/ETHZ\"").contains("bad id"));
        assert!(changed("abab", "xyxy").contains("bad ca_sha256"));
        assert!(changed(":7443", "").contains("it has no port"));
        assert!(changed("{", "{\"extra\":1,").contains("missing or unknown"));
        assert!(changed("\"secret\":\"", "\"secret\":\"AA").contains("bad secret"));
    }

    #[test]
    fn debug_and_errors_hide_the_secret() {
        let token = token();
        let secret = URL_SAFE_NO_PAD.encode(token.secret.expose());
        let shown = format!("{token:?} {:?} {}", token.encode(), token.encode());
        assert!(shown.contains("[redacted]") && !shown.contains(&secret), "{shown}");
        let json = format!("{{\"brokers\":[],\"secret\":\"{secret}\",\"id\":7}}");
        let error = encode(&json).parse::<JoinToken>().unwrap_err().to_string();
        assert!(!error.contains(&secret), "{error}");
    }
}
