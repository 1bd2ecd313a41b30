//! Judges what a broker shows. Pure.

use std::sync::Arc;

use comity_policy::Bundle;
use comity_provenance::{InForce, ObjectId, PolicyFolder, Verdict, judge_within, policy_at};

use super::policy_anchor::PolicyAnchor;
use super::shown_objects::ShownObjects;

/// Bytes of policy that one verdict compiles and holds: a broker could make an agent run out of memory.
const MAX_JUDGED_BYTES: usize = 32 << 20;

/// What is verified already.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownPolicy {
    pub(crate) anchor: Option<Arc<PolicyAnchor>>,
    pub(crate) bundle: Option<Arc<Bundle>>,
}

/// The commit that a broker names, and the objects that it shows.
#[derive(Debug)]
pub(crate) struct ShownHistory {
    pub(crate) head: ObjectId,
    pub(crate) folder: PolicyFolder,
    pub(crate) objects: ShownObjects,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PolicyFinding {
    /// All owners signed: the commit is the anchor.
    Verified,
    /// No commit is trusted yet, and this one requires no signatures.
    NotSigned,
    /// Not all owners signed, or it is no descendant: the anchor stays.
    Refused(String),
    /// The objects do not suffice for a verdict.
    Unshown(String),
}

/// Judges a history. Returns what is verified afterwards.
pub(crate) fn verify(known: KnownPolicy, shown: &ShownHistory, now_ms: u64) -> (KnownPolicy, PolicyFinding) {
    match known.anchor {
        None => first_use(shown),
        Some(ref anchor) => {
            let anchor = Arc::clone(anchor);
            go_on(known, &anchor, shown, now_ms)
        }
    }
}

fn first_use(shown: &ShownHistory) -> (KnownPolicy, PolicyFinding) {
    let ShownHistory { head, folder, objects } = shown;
    let bundle = match policy_at(objects, folder, *head) {
        Ok(Ok(bundle)) => bundle,
        Ok(Err(refused)) => return (KnownPolicy::default(), PolicyFinding::Unshown(refused.to_string())),
        Err(error) => return (KnownPolicy::default(), PolicyFinding::Unshown(error.to_string())),
    };
    if !bundle.federation.spec.signatures.required {
        return (KnownPolicy::default(), PolicyFinding::NotSigned);
    }
    let (folder, taken_names) = (folder.clone(), Default::default());
    let anchor = PolicyAnchor { commit: *head, folder, taken_names, pinned: None };
    (KnownPolicy { anchor: Some(Arc::new(anchor)), bundle: Some(Arc::new(bundle)) }, PolicyFinding::Verified)
}

fn go_on(
    mut known: KnownPolicy,
    anchor: &PolicyAnchor,
    shown: &ShownHistory,
    now_ms: u64,
) -> (KnownPolicy, PolicyFinding) {
    let ShownHistory { head, folder, objects } = shown;
    if *folder != anchor.folder {
        let reason = format!(
            "the broker shows the folder `{folder}` of the repository, and the verified policy is in `{}`; name the new \
             one in signedPolicy.folder, with a commit that you have checked",
            anchor.folder
        );
        return (known, PolicyFinding::Unshown(reason));
    }
    let bundle = match &known.bundle {
        Some(bundle) => Arc::clone(bundle),
        None => match policy_at(objects, folder, anchor.commit) {
            Ok(Ok(bundle)) => Arc::new(bundle),
            Ok(Err(refused)) => return (known, PolicyFinding::Unshown(refused.to_string())),
            Err(error) => return (known, PolicyFinding::Unshown(error.to_string())),
        },
    };
    if anchor.pinned == Some(anchor.commit) && !bundle.federation.spec.signatures.required {
        let reason = format!(
            "the pinned commit {} requires no signatures; pin one whose Federation has signatures.required",
            anchor.commit
        );
        return (known, PolicyFinding::Unshown(reason));
    }
    known.bundle = Some(Arc::clone(&bundle));
    // Branches may have been open before this cluster joined, and only brokers know when the history began.
    let in_force =
        InForce { bundle: &bundle, commit: Some(anchor.commit), began: None, taken_names: &anchor.taken_names };
    match judge_within(objects, folder, &in_force, *head, now_ms, MAX_JUDGED_BYTES) {
        Ok(Verdict::Unchanged) => (known, PolicyFinding::Verified),
        Ok(Verdict::Accepted(accepted)) => {
            let (commit, taken_names) = (accepted.commit, accepted.taken_names);
            let next = PolicyAnchor { commit, taken_names, ..anchor.clone() };
            (
                KnownPolicy { anchor: Some(Arc::new(next)), bundle: Some(Arc::new(accepted.bundle)) },
                PolicyFinding::Verified,
            )
        }
        Ok(Verdict::Refused(refused)) => {
            let finding = PolicyFinding::Refused(format!("{refused}; {}", refused.remedy()));
            (known, finding)
        }
        Err(error) => (known, PolicyFinding::Unshown(error.to_string())),
    }
}
