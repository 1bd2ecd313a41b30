//! Why a repository cannot be read.

use comity_types::{printable, redact_secrets};

use crate::policy_source::oci::ArtifactDigest;

/// Characters of what a server says.
const MAX_SAID_CHARS: usize = 200;

pub(super) const REACH: &str = "check the address, and whether the leader's machine reaches the server";
const SMALLER: &str = "keep the policy in a repository of its own";

/// Code of a source that cannot be read.
const UNREACHABLE: &str = "unreachable";
/// Code of an artifact that no key of the brokers signed.
const UNSIGNED_ARTIFACT: &str = "unsigned-artifact";

/// Why a repository cannot be read, and what to do about it. Names no credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct PullError {
    /// Stable code.
    pub code: &'static str,
    /// One sentence.
    pub reason: String,
    /// How to fix the cause.
    pub remedy: &'static str,
    /// The artifact that cannot be used, once its registry has named it.
    pub(crate) artifact: Option<ArtifactDigest>,
}

impl PullError {
    pub(crate) fn new(reason: impl Into<String>, remedy: &'static str) -> Self {
        Self { code: UNREACHABLE, reason: reason.into(), remedy, artifact: None }
    }

    /// The same about an artifact.
    pub(super) fn about(self, artifact: ArtifactDigest) -> Self {
        Self { artifact: Some(artifact), ..self }
    }

    /// An artifact that no key of the brokers vouches for.
    pub(super) fn unsigned_artifact(reason: String, remedy: &'static str) -> Self {
        Self { code: UNSIGNED_ARTIFACT, ..Self::new(reason, remedy) }
    }

    /// A server answers with more bytes than a bound.
    pub(super) fn too_long(host: &str, limit: usize) -> Self {
        Self::new(format!("the answer of {host} has more than {limit} bytes"), SMALLER)
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.remedy == SMALLER
    }

    /// With the text of an error or of a server, which must not spoil a terminal or show a secret.
    pub(crate) fn saying(what: &str, said: &dyn std::fmt::Display, remedy: &'static str) -> Self {
        let said: String = said.to_string().chars().take(MAX_SAID_CHARS).collect();
        Self::new(format!("{what}: {}", redact_secrets(&printable(said.trim()))), remedy)
    }
}
