//! Open invitations: join tokens that are neither used nor expired.

use std::fmt;

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

use crate::model::actor::Actor;
use crate::model::refusal::Refusal;
use crate::model::time::Timestamp;

/// Who may join with a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InviteSubject {
    /// A cluster.
    Cluster(ClusterId),
    /// A user, by name.
    User(String),
    /// A broker, by number.
    Broker(u64),
}

impl InviteSubject {
    /// Its kind, as in "cluster"; also the field of a call that names it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "cluster",
            Self::User(_) => "user",
            Self::Broker(_) => "broker",
        }
    }

    /// The remedy for an invalid token.
    #[must_use]
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Cluster(_) => "ask for a new one with `comity cluster invite CLUSTER`",
            Self::User(_) => "ask for a new one with `comity user add NAME`",
            Self::Broker(_) => "ask for a new one with `comity raft invite`",
        }
    }
}

impl fmt::Display for InviteSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(cluster) => write!(f, "{cluster}"),
            Self::User(user) => write!(f, "{user}"),
            Self::Broker(broker) => write!(f, "{broker}"),
        }
    }
}

/// Hex digits of an invitation's id.
const ID_DIGITS: usize = 12;

/// The id of an invitation: the end of its secret's hash, which is as random as the secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InvitationId(String);

impl InvitationId {
    /// The id of the invitation whose secret has a hash.
    #[must_use]
    pub fn of(secret_sha256: &str) -> Self {
        let end = secret_sha256.get(secret_sha256.len().saturating_sub(ID_DIGITS)..);
        Self(end.unwrap_or(secret_sha256).to_owned())
    }

    /// Reads the id in `field`.
    ///
    /// # Errors
    /// It is not 12 hex digits. The refusal does not repeat it: it may be the token itself.
    pub fn parse(text: &str, field: &str) -> Result<Self, Refusal> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != ID_DIGITS || !text.bytes().all(is_digit) {
            let remedy = "give one of the ids of `comity invitation list`";
            return Err(Refusal::invalid_bytes(
                field,
                "is not the id of an invitation, which is 12 hex digits",
                remedy,
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An open invitation: a single-use join token. The state keeps only the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invite {
    /// Who may join.
    pub subject: InviteSubject,
    /// Who invited. The token works only while policy lets them invite the subject.
    pub inviter: Actor,
    /// Generation of the inviter's certificate. The token works only while that one is not void.
    pub generation: u64,
    /// When it expires.
    pub expires_at: Timestamp,
}
