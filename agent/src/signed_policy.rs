//! The policy as its owners signed it, verified by this agent: so that a stolen broker cannot change a donor's terms.
//!
//! ```text
//! desired state: commit in force ─▶ policy_follower ─▶ fetch (objects, from any broker) ─▶ verify (hashes, signatures) ─┐
//!      plan ◀── lease_permit ◀── SignedPolicy ◀── kept: commit in the store, documents in a file ◀─────────────┘
//! ```
//!
//! What is trusted is the id of one commit: pinned in the configuration, or of the first policy that a broker shows and
//! that requires signatures. Everything after it is judged by [`comity_provenance`], as the brokers' leader does. Only the
//! verified Federation document can say that signatures are no longer required.

mod device_class;
pub(crate) mod fetch;
pub(crate) mod lease_permit;
pub(crate) mod policy_anchor;
pub(crate) mod shown_objects;
pub(crate) mod verify;

use std::sync::Arc;

use comity_policy::Bundle;
use comity_provenance::ObjectId;

use self::policy_anchor::PolicyAnchor;

/// What this agent has verified. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedPolicy {
    /// The commit that is trusted; `None` while no policy that requires signatures was seen or pinned.
    pub(crate) anchor: Option<Arc<PolicyAnchor>>,
    /// The policy at that commit; `None` until a broker shows it.
    pub(crate) bundle: Option<Arc<Bundle>>,
    /// The newest commit of a broker that was judged: accepted or refused.
    pub(crate) judged: Option<String>,
    /// Why that commit was refused.
    pub(crate) refused: Option<String>,
    /// A commit of a broker that could not be judged, and why.
    pub(crate) unshown: Option<(String, String)>,
}

/// What the signed policy means for new leases.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing<'p> {
    /// It decides nothing: no signatures are required.
    Free,
    /// The broker's commit is being judged.
    Waits,
    /// The broker does not show what it must, for this reason.
    Unshown(&'p str),
    /// It decides.
    Verified {
        /// The policy.
        bundle: &'p Bundle,
        /// Its commit.
        commit: ObjectId,
    },
}

/// Reason where a broker names no commit.
pub(crate) const NO_COMMIT: &str =
    "the broker says that the policy comes from no repository; only a signed commit may say so";
/// Reason until the documents of the pinned or kept commit were shown.
const NO_DOCUMENTS: &str = "no broker has shown the documents of the trusted commit";

impl SignedPolicy {
    /// What it means for a lease of a broker that says that `announced` is the commit in force.
    pub(crate) fn standing(&self, announced: &str) -> Standing<'_> {
        let Some(anchor) = &self.anchor else { return Standing::Free };
        if self.bundle.as_ref().is_some_and(|bundle| !bundle.federation.spec.signatures.required) {
            return Standing::Free;
        }
        if announced.is_empty() {
            return Standing::Unshown(NO_COMMIT);
        }
        match &self.unshown {
            Some((commit, reason)) if commit == announced => return Standing::Unshown(reason),
            _ => {}
        }
        if !self.is_judged(announced) {
            return Standing::Waits;
        }
        match &self.bundle {
            Some(bundle) => Standing::Verified { bundle, commit: anchor.commit },
            None => Standing::Unshown(NO_DOCUMENTS),
        }
    }

    /// The policy that decides about leases in force, whatever a broker says now.
    pub(crate) fn verified(&self) -> Option<(&Bundle, ObjectId)> {
        let bundle = self.bundle.as_deref().filter(|bundle| bundle.federation.spec.signatures.required)?;
        Some((bundle, self.anchor.as_ref()?.commit))
    }

    /// Whether a commit is trusted whose documents no broker has shown to this process, and none are kept.
    pub(crate) fn lacks_documents(&self) -> bool {
        self.anchor.is_some() && self.bundle.is_none()
    }

    /// Whether the commit needs no further look.
    pub(crate) fn is_judged(&self, announced: &str) -> bool {
        let is_verified = || {
            let commit = self.anchor.as_ref().map(|anchor| anchor.commit.to_string());
            self.bundle.is_some() && commit.as_deref() == Some(announced)
        };
        self.judged.as_deref() == Some(announced) || is_verified()
    }

    /// The verified commit, and by what it is trusted, for people; `None` without trust.
    pub(crate) fn described(&self) -> Option<String> {
        let anchor = self.anchor.as_ref()?;
        let by = match anchor.pinned {
            Some(pinned) if pinned == anchor.commit => "pinned in the configuration".to_owned(),
            Some(pinned) => format!("descends from {pinned}, which the configuration pins"),
            None => "trusted on first use".to_owned(),
        };
        Some(format!("{} ({by})", anchor.commit))
    }

    /// Why the broker's policy is not the verified one, for people.
    pub(crate) fn objection(&self) -> Option<String> {
        let unshown = self.unshown.as_ref().map(|(commit, reason)| format!("commit {commit}: {reason}"));
        self.refused.clone().or(unshown)
    }

    #[cfg(test)]
    pub(crate) fn of(anchor: PolicyAnchor, bundle: Bundle) -> Self {
        Self { anchor: Some(Arc::new(anchor)), bundle: Some(Arc::new(bundle)), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
