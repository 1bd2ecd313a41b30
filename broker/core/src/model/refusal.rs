//! Refusals. A refusal is a reply, never an error.

use std::fmt;

use comity_types::{InvalidId, shorten};
use serde::{Deserialize, Serialize};

/// Stable codes of refusals. Each has a paragraph in the book, "Error codes".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// A field has an invalid value.
    InvalidField,
    /// The named object does not exist.
    NotFound,
    /// The object's state does not allow the operation.
    WrongState,
    /// Policy denies it.
    PolicyDenied,
    /// No policy bundle is in force yet.
    NoPolicy,
    /// The policy in force requires signed commits.
    UnsignedPolicy,
    /// Another policy bundle is in force than the caller expects.
    PolicyChanged,
    /// The caller may not do this.
    PermissionDenied,
    /// The certificate is void, the cluster was evicted, or its institution is suspended.
    Revoked,
    /// The same idempotency key was used with another body.
    IdempotencyConflict,
    /// The offer is older than the current one.
    StaleGeneration,
    /// The fencing token does not match the lease's.
    StaleFencingToken,
    /// The join token is unknown, used or expired.
    InvalidToken,
    /// The capacity is no longer available.
    NoCapacity,
    /// No donor could ever serve the request as things are.
    Unservable,
    /// A hard limit was reached.
    LimitReached,
    /// The message belongs to another epoch or step.
    StaleEpoch,
}

impl Code {
    /// The text form, as in "invalid-field".
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidField => "invalid-field",
            Self::NotFound => "not-found",
            Self::WrongState => "wrong-state",
            Self::PolicyDenied => "policy-denied",
            Self::NoPolicy => "no-policy",
            Self::UnsignedPolicy => "unsigned-policy",
            Self::PolicyChanged => "policy-changed",
            Self::PermissionDenied => "permission-denied",
            Self::Revoked => "revoked",
            Self::IdempotencyConflict => "idempotency-conflict",
            Self::StaleGeneration => "stale-generation",
            Self::StaleFencingToken => "stale-fencing-token",
            Self::InvalidToken => "invalid-token",
            Self::NoCapacity => "no-capacity",
            Self::Unservable => "unservable",
            Self::LimitReached => "limit-reached",
            Self::StaleEpoch => "stale-epoch",
        }
    }
}

/// Why the broker refused an operation, and how to fix the cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Stable code.
    pub code: Code,
    /// One sentence for people, in lower case and without a full stop.
    pub reason: String,
    /// Path of the field at fault, as in "spec.gpus.count"; empty if none.
    pub field: String,
    /// The refused value, shortened to 80 characters; never a secret.
    pub value: String,
    /// How to fix the cause.
    pub remedy: String,
}

impl Refusal {
    /// No policy bundle is in force, so nothing can be decided.
    #[must_use]
    pub fn no_policy() -> Self {
        Self::new(Code::NoPolicy, "no policy bundle is in force", "apply one with `comity policy apply DIRECTORY`")
    }

    /// A refusal that concerns no single field.
    #[must_use]
    pub fn new(code: Code, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, reason: reason.into(), field: String::new(), value: String::new(), remedy: remedy.into() }
    }

    /// A refusal of an invalid field; reads "`field` `value` `why`".
    #[must_use]
    pub fn invalid(field: &str, value: impl fmt::Display, why: &str, remedy: impl Into<String>) -> Self {
        let value = shorten(&value.to_string());
        Self {
            code: Code::InvalidField,
            reason: format!("{field} \"{value}\" {why}"),
            field: field.to_owned(),
            value,
            remedy: remedy.into(),
        }
    }

    /// A refusal of an invalid field whose value helps nobody, such as a signature; reads "`field` `why`".
    #[must_use]
    pub fn invalid_bytes(field: &str, why: &str, remedy: impl Into<String>) -> Self {
        Self::new(Code::InvalidField, format!("{field} {why}"), remedy).at(field, "")
    }

    /// A refusal because `what` does not exist.
    #[must_use]
    pub fn not_found(field: &str, value: impl fmt::Display, what: &str) -> Self {
        let value = shorten(&value.to_string());
        Self {
            code: Code::NotFound,
            reason: format!("no {what} \"{value}\""),
            field: field.to_owned(),
            value,
            remedy: match what {
                // Policy documents define these.
                "class" | "priority class" | "tenant" | "institution" => {
                    format!(
                        "name one of the {} that the policy in force defines: comity policy show --text",
                        plural(what)
                    )
                }
                "request template" => "`comity request templates` shows those that your tenants are offered".to_owned(),
                "lease" => "`comity lease list --all` shows the leases that you may see".to_owned(),
                "request" => "`comity request list --all` shows the requests that you may see".to_owned(),
                "peering" => "`comity peering list --all` shows the peerings that you may see".to_owned(),
                "cluster" | "member cluster" => "`comity cluster list` shows the clusters that you may see".to_owned(),
                "invitation" => "`comity invitation list` shows the invitations that you may see".to_owned(),
                "offer" => "`comity offers` shows the offers that you may see".to_owned(),
                _ => format!("name one of the {} that exist", plural(what)),
            },
        }
    }

    /// The same refusal, attributed to `field`.
    #[must_use]
    pub fn at(mut self, field: &str, value: impl fmt::Display) -> Self {
        field.clone_into(&mut self.field);
        self.value = shorten(&value.to_string());
        self
    }
}

/// "classes" for "class".
fn plural(what: &str) -> String {
    if what.ends_with('s') { format!("{what}es") } else { format!("{what}s") }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}); {}", self.reason, self.code.as_str(), self.remedy)
    }
}

impl std::error::Error for Refusal {}

impl From<InvalidId> for Refusal {
    fn from(invalid: InvalidId) -> Self {
        Self::invalid(&invalid.field, invalid.value, invalid.reason, invalid.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn not_found_remedies_name_a_command() {
        for (what, remedy) in [
            ("lease", "`comity lease list --all` shows the leases that you may see"),
            ("class", "name one of the classes that the policy in force defines: comity policy show --text"),
            (
                "priority class",
                "name one of the priority classes that the policy in force defines: comity policy show --text",
            ),
        ] {
            assert_eq!(Refusal::not_found("field", "x", what).remedy, remedy);
        }
    }
}
