//! Keys of commits: whose they are, and whether enough maintainers have one.

use std::collections::{BTreeMap, BTreeSet};

use super::super::draft::Draft;
use crate::problem::{Place, ProblemCode, Problems};

/// A key belongs to one signer: otherwise one person could sign for two. Enough maintainers have a key, or nobody could
/// change the maintainers.
pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) {
    let mut seen: BTreeMap<&str, String> = BTreeMap::new();
    for federation in &draft.federations {
        let spec = &federation.spec;
        for (index, entry) in spec.commit_keys.iter().enumerate() {
            let place = federation.place_of(&format!("commitKeys[{index}]"));
            if !spec.maintainers.contains(&entry.maintainer) {
                let message = format!("`commitKeys[{index}].maintainer: {}` is no maintainer", entry.maintainer);
                let remedy = "add the user to `maintainers`, or remove the key";
                problems.at(place, ProblemCode::UnknownReference, message, remedy);
            }
            claim(&mut seen, &entry.key.key, format!("maintainer {}", entry.maintainer), place, problems);
        }
        let with_keys: BTreeSet<&str> = spec.commit_keys.iter().map(|entry| entry.maintainer.as_str()).collect();
        let needed = spec.signatures.maintainers_needed as usize;
        if spec.signatures.required && with_keys.len() < needed {
            let message = format!(
                "`signatures.maintainersNeeded: {needed}`, but {} maintainers have a key in `commitKeys`: nobody could \
                 change the maintainers",
                with_keys.len()
            );
            let remedy = "add the keys of more maintainers, or write a smaller `maintainersNeeded`";
            problems.at(federation.place_of("signatures"), ProblemCode::Contradiction, message, remedy);
        }
    }
    for institution in draft.institutions.values() {
        for (index, key) in institution.spec.commit_keys.iter().enumerate() {
            let place = institution.place_of(&format!("commitKeys[{index}]"));
            claim(&mut seen, &key.key, format!("Institution `{}`", institution.name), place, problems);
        }
    }
}

fn claim<'d>(
    seen: &mut BTreeMap<&'d str, String>,
    key: &'d str,
    signer: String,
    place: Place,
    problems: &mut Problems<'_>,
) {
    if let Some(other) = seen.get(key) {
        let message = format!("this commit key is listed twice ({signer} and {other})");
        problems.at(place, ProblemCode::DuplicateName, message, "give each signer a key of their own");
        return;
    }
    seen.insert(key, signer);
}
