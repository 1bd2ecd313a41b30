//! SPIFFE ids, the names of Comity processes: `spiffe://<trust domain>/broker/<n>`, `…/cluster/<cluster>` and
//! `…/user/<name>`.
//!
//! The parser accepts one spelling per id, so that ids can be compared as values.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of a trust domain, at most: the length of a DNS name.
pub const TRUST_DOMAIN_MAX_BYTES: usize = 253;
/// Bytes of a cluster name, at most: the length of a DNS label, because Kubernetes objects carry it.
pub const CLUSTER_NAME_MAX_BYTES: usize = 63;
/// Bytes of a user name, at most.
pub const USER_NAME_MAX_BYTES: usize = 63;

/// Why a name or SPIFFE id is invalid.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpiffeError {
    /// The text is not of the form `spiffe://<trust domain>/<kind>/<name>`.
    #[error(
        "'{value}' is not a SPIFFE id of a federation: want spiffe://<trust domain>/broker/<number>, \
         …/cluster/<name> or …/user/<name>"
    )]
    Form {
        /// The invalid text, shortened.
        value: String,
    },
    /// A part has the wrong length or characters.
    #[error("{field} '{value}' is refused: {rule}")]
    Part {
        /// Name of the part.
        field: &'static str,
        /// The invalid text, shortened.
        value: String,
        /// The rule that it breaks.
        rule: &'static str,
    },
}

/// Shortens untrusted text for an error message and escapes control characters.
fn shorten(value: &str) -> String {
    const MAX_CHARS: usize = 80;
    let mut out: String = value.chars().take(MAX_CHARS).flat_map(char::escape_debug).collect();
    if value.chars().nth(MAX_CHARS).is_some() {
        out.push('…');
    }
    out
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $field:literal, $max:expr, $rule:literal, $allowed:expr, $edge:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Validates a name.
            ///
            /// # Errors
            /// [`SpiffeError::Part`] if it is empty, too long, or has a forbidden character.
            pub fn new(value: impl Into<String>) -> Result<Self, SpiffeError> {
                let value: String = value.into();
                let bytes = value.as_bytes();
                let edges = bytes.first().into_iter().chain(bytes.last());
                let is_valid = !bytes.is_empty()
                    && bytes.len() <= $max
                    && bytes.iter().all($allowed)
                    && edges.copied().all(|b: u8| $edge(&b));
                if is_valid {
                    Ok(Self(value))
                } else {
                    Err(SpiffeError::Part { field: $field, value: shorten(&value), rule: $rule })
                }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = SpiffeError;
            fn from_str(value: &str) -> Result<Self, SpiffeError> {
                Self::new(value)
            }
        }

        impl TryFrom<String> for $name {
            type Error = SpiffeError;
            fn try_from(value: String) -> Result<Self, SpiffeError> {
                Self::new(value)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0.clone()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

fn lower_or_digit(b: &u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

name_type!(
    /// The name of a federation in its SPIFFE ids, such as `comity.example.org`.
    TrustDomain,
    "trust domain",
    TRUST_DOMAIN_MAX_BYTES,
    "want 1 to 253 of a-z, 0-9, '.', '-', beginning and ending with a letter or digit",
    |b| lower_or_digit(b) || matches!(b, b'.' | b'-'),
    lower_or_digit
);

name_type!(
    /// The id of a cluster in its federation, such as `ethz-k3s`.
    ClusterName,
    "cluster name",
    CLUSTER_NAME_MAX_BYTES,
    "want 1 to 63 of a-z, 0-9, '-', beginning and ending with a letter or digit",
    |b| lower_or_digit(b) || *b == b'-',
    lower_or_digit
);

name_type!(
    /// The name of a person or robot, such as `ada.lovelace`. Lower case only, so that no two names look alike.
    UserName,
    "user name",
    USER_NAME_MAX_BYTES,
    "want 1 to 63 of a-z, 0-9, '.', '-', '_', beginning and ending with a letter or digit",
    |b| lower_or_digit(b) || matches!(b, b'.' | b'-' | b'_'),
    lower_or_digit
);

/// The subject of a SPIFFE id within its trust domain.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpiffeKind {
    /// A broker, by Raft node id.
    Broker(u64),
    /// The agent of a cluster.
    Cluster(ClusterName),
    /// A person or robot at the CLI.
    User(UserName),
}

impl fmt::Display for SpiffeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Broker(node) => write!(f, "broker/{node}"),
            Self::Cluster(cluster) => write!(f, "cluster/{cluster}"),
            Self::User(user) => write!(f, "user/{user}"),
        }
    }
}

/// A SPIFFE id of a federation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SpiffeId {
    trust_domain: TrustDomain,
    kind: SpiffeKind,
}

impl SpiffeId {
    /// An id from its parts.
    pub const fn new(trust_domain: TrustDomain, kind: SpiffeKind) -> Self {
        Self { trust_domain, kind }
    }

    /// The id of a broker.
    pub const fn broker(trust_domain: TrustDomain, node: u64) -> Self {
        Self::new(trust_domain, SpiffeKind::Broker(node))
    }

    /// The id of a cluster's agent.
    pub const fn cluster(trust_domain: TrustDomain, cluster: ClusterName) -> Self {
        Self::new(trust_domain, SpiffeKind::Cluster(cluster))
    }

    /// The id of a user.
    pub const fn user(trust_domain: TrustDomain, user: UserName) -> Self {
        Self::new(trust_domain, SpiffeKind::User(user))
    }

    /// The federation of the subject.
    pub const fn trust_domain(&self) -> &TrustDomain {
        &self.trust_domain
    }

    /// The subject within its federation.
    pub const fn kind(&self) -> &SpiffeKind {
        &self.kind
    }

    /// The Raft node id of a broker; `None` for other subjects.
    pub const fn as_broker(&self) -> Option<u64> {
        match &self.kind {
            SpiffeKind::Broker(node) => Some(*node),
            SpiffeKind::Cluster(_) | SpiffeKind::User(_) => None,
        }
    }

    /// The cluster of an agent; `None` for other subjects.
    pub const fn as_cluster(&self) -> Option<&ClusterName> {
        match &self.kind {
            SpiffeKind::Cluster(cluster) => Some(cluster),
            SpiffeKind::Broker(_) | SpiffeKind::User(_) => None,
        }
    }

    /// The name of a user; `None` for other subjects.
    pub const fn as_user(&self) -> Option<&UserName> {
        match &self.kind {
            SpiffeKind::User(user) => Some(user),
            SpiffeKind::Broker(_) | SpiffeKind::Cluster(_) => None,
        }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/{}", self.trust_domain, self.kind)
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(value: &str) -> Result<Self, SpiffeError> {
        let form = || SpiffeError::Form { value: shorten(value) };
        let mut parts = value.strip_prefix("spiffe://").ok_or_else(form)?.split('/');
        let (Some(domain), Some(kind), Some(name), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(form());
        };
        let trust_domain = TrustDomain::new(domain)?;
        let kind = match kind {
            "broker" => SpiffeKind::Broker(parse_broker_number(name)?),
            "cluster" => SpiffeKind::Cluster(ClusterName::new(name)?),
            "user" => SpiffeKind::User(UserName::new(name)?),
            _ => return Err(form()),
        };
        Ok(Self { trust_domain, kind })
    }
}

/// Parses a broker number without sign or leading zeros.
fn parse_broker_number(text: &str) -> Result<u64, SpiffeError> {
    text.parse::<u64>().ok().filter(|n| n.to_string() == text).ok_or_else(|| SpiffeError::Part {
        field: "broker number",
        value: shorten(text),
        rule: "want a whole number without leading zeros",
    })
}

impl TryFrom<String> for SpiffeId {
    type Error = SpiffeError;
    fn try_from(value: String) -> Result<Self, SpiffeError> {
        value.parse()
    }
}

impl From<SpiffeId> for String {
    fn from(id: SpiffeId) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn round_trips_every_kind() {
        for text in [
            "spiffe://comity.example.org/broker/1",
            "spiffe://dev/broker/18446744073709551615",
            "spiffe://comity.example.org/cluster/ethz-k3s",
            "spiffe://comity.example.org/user/ada.lovelace_2",
        ] {
            assert_eq!(text.parse::<SpiffeId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_every_other_spelling() {
        for text in [
            "",
            "spiffe://",
            "https://td/broker/1",
            "spiffe://td/broker",
            "spiffe://td/broker/1/",
            "spiffe://td/broker/1/2",
            "spiffe://td/broker/01",
            "spiffe://td/broker/+1",
            "spiffe://td/broker/18446744073709551616",
            "spiffe://TD/broker/1",
            "spiffe://td:443/broker/1",
            "spiffe://user@td/broker/1",
            "spiffe://-td/broker/1",
            "spiffe:///broker/1",
            "spiffe://td/cluster/A",
            "spiffe://td/cluster/a_b",
            "spiffe://td/cluster/-a",
            "spiffe://td/cluster/%61",
            "spiffe://td/cluster/a?x=1",
            "spiffe://td/user/..",
            "spiffe://td/user/a@b",
            "spiffe://td/user/Ada",
            "spiffe://td/robot/a",
        ] {
            assert!(text.parse::<SpiffeId>().is_err(), "{text} was accepted");
        }
        assert!(ClusterName::new("a".repeat(63)).is_ok());
        assert!(ClusterName::new("a".repeat(64)).is_err());
    }

    #[test]
    fn errors_are_short_and_name_the_field() {
        let error = ClusterName::new("x\n".repeat(5000)).unwrap_err().to_string();
        assert!(error.starts_with("cluster name 'x\\n"), "{error}");
        assert!(error.len() < 400 && !error.contains('\n'), "{error}");
    }
}
