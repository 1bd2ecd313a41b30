//! Checks documents against each other: references, owners, trust domains, keys and defaults.

mod cohort_members;
mod commit_keys;
mod request_templates;
mod reservation_count;

use std::collections::{BTreeMap, BTreeSet};

use super::draft::Draft;
use crate::amounts::show_duration;
use crate::kind::Kind;
use crate::limits::MAX_RULES;
use crate::problem::nearest;
use crate::problem::{ProblemCode, Problems};
use crate::reading::fields::{Reference, Target};

/// Reports every contradiction between documents.
pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) {
    check_federation(draft, problems);
    check_owners(draft, problems);
    check_references(draft, problems);
    check_trust_domains(draft, problems);
    check_signing_keys(draft, problems);
    commit_keys::check(draft, problems);
    cohort_members::check(draft, problems);
    check_default_priority(draft, problems);
    check_number_of_rules(draft, problems);
    request_templates::check(draft, problems);
    reservation_count::check(draft, problems);
}

pub(super) fn report_missing_federation(problems: &mut Problems<'_>) {
    problems.whole(
        "",
        ProblemCode::NoFederation,
        "the bundle has no Federation document",
        "add one: it names the trust domain and the maintainers",
    );
}

fn check_federation(draft: &Draft, problems: &mut Problems<'_>) {
    let mut declared = draft.declared.iter().filter(|((kind, _), _)| *kind == Kind::Federation);
    let first = declared.next();
    if first.is_none() && !draft.unreadable.contains(&Kind::Federation) && draft.federations.is_empty() {
        report_missing_federation(problems);
    }
    for ((_, name), place) in declared {
        let message = format!("Federation `{name}` is the second one of this bundle");
        problems.at(
            *place,
            ProblemCode::DuplicateName,
            message,
            "a bundle describes one federation; remove one of them",
        );
    }
    for federation in &draft.federations {
        let (term, longest) = (federation.spec.defaults.lease_term_ms, federation.spec.limits.max_lease_duration_ms);
        if term > longest {
            let message = format!(
                "`defaults.leaseTerm` ({}) is longer than `limits.maxLeaseDuration` ({})",
                show_duration(term),
                show_duration(longest)
            );
            problems.at(
                federation.place_of("defaults.leaseTerm"),
                ProblemCode::Contradiction,
                message,
                "shorten the first or lengthen the second",
            );
        }
    }
}

/// A cluster belongs to one institution, and its Cluster document names that institution.
fn check_owners(draft: &Draft, problems: &mut Problems<'_>) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for institution in draft.institutions.values() {
        for cluster in &institution.spec.clusters {
            if let Some(other) = owners.insert(cluster, &institution.name) {
                let message =
                    format!("cluster `{cluster}` is enrolled by Institution `{}` and by `{other}`", institution.name);
                problems.at(
                    institution.place_of("clusters"),
                    ProblemCode::Contradiction,
                    message,
                    "a cluster belongs to one institution",
                );
            }
        }
    }
    for cluster in draft.clusters.values() {
        let Some(institution) = draft.institutions.get(&cluster.spec.institution) else {
            continue;
        };
        if !institution.spec.clusters.contains(&cluster.name) {
            let message = format!("Institution `{}` does not enrol cluster `{}`", institution.name, cluster.name);
            let remedy = format!(
                "add `{}` to its `clusters` ({}:{}), or correct the name",
                cluster.name,
                institution.location.file,
                institution.place_of("clusters").line
            );
            problems.at(cluster.place, ProblemCode::UnknownReference, message, remedy);
        }
    }
}

fn check_references(draft: &Draft, problems: &mut Problems<'_>) {
    let enrolled: BTreeSet<&str> = draft
        .institutions
        .values()
        .flat_map(|institution| institution.spec.clusters.iter().map(String::as_str))
        .collect();
    let purposes: BTreeSet<&str> = draft
        .federations
        .iter()
        .flat_map(|federation| federation.spec.data.purposes.iter().map(String::as_str))
        .collect();
    for reference in &draft.references {
        let found = match reference.target {
            Target::Document(kind) => draft.declared.contains_key(&(kind, reference.name.clone())),
            // The clusters of an unreadable Institution are unknown; its own problem must be fixed first.
            Target::EnrolledCluster => {
                enrolled.contains(reference.name.as_str()) || draft.unreadable.contains(&Kind::Institution)
            }
            Target::Purpose => {
                purposes.contains(reference.name.as_str()) || draft.unreadable.contains(&Kind::Federation)
            }
        };
        if found || problems.is_full() {
            continue;
        }
        let known: Vec<&str> = match reference.target {
            Target::Document(kind) => {
                draft.declared.keys().filter(|(of, _)| *of == kind).map(|(_, name)| name.as_str()).collect()
            }
            Target::EnrolledCluster => enrolled.iter().copied().collect(),
            Target::Purpose => purposes.iter().copied().collect(),
        };
        report_unknown(reference, known, problems);
    }
}

/// Reports a reference to a name that is none of `known`.
pub(crate) fn report_unknown(reference: &Reference, known: Vec<&str>, problems: &mut Problems<'_>) {
    let remedy = match (nearest(&reference.name, known), reference.target) {
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, Target::Document(kind)) => {
            format!("add a document of kind {kind} with this name, or remove the reference")
        }
        (None, Target::EnrolledCluster) => "add it to `clusters` of its Institution, or remove it here".to_owned(),
        (None, Target::Purpose) => "add it to `data.purposes` of the Federation, or remove it here".to_owned(),
    };
    let noun = match reference.target {
        Target::Document(kind) => kind.as_str(),
        Target::EnrolledCluster => "enrolled cluster",
        Target::Purpose => "purpose",
    };
    let message = format!("there is no {noun} `{}`", reference.name);
    problems.at(reference.place, ProblemCode::UnknownReference, message, remedy);
}

fn check_trust_domains(draft: &Draft, problems: &mut Problems<'_>) {
    let [federation] = draft.federations.as_slice() else {
        return;
    };
    let ours = &federation.spec.trust_domain;
    for used in draft.user_ids.iter().filter(|used| used.trust_domain != *ours) {
        let message = format!("the trust domain `{}` is not that of this federation", used.trust_domain);
        problems.at(used.place, ProblemCode::InvalidUserId, message, format!("write `spiffe://{ours}/user/<name>`"));
    }
}

/// A signing key belongs to one institution.
fn check_signing_keys(draft: &Draft, problems: &mut Problems<'_>) {
    let mut seen: BTreeMap<[u8; 32], &str> = BTreeMap::new();
    for institution in draft.institutions.values() {
        for (index, key) in institution.spec.signing_keys.iter().enumerate() {
            if let Some(other) = seen.insert(*key, &institution.name) {
                let message =
                    format!("this signing key is listed twice (Institution `{}` and `{other}`)", institution.name);
                let place = institution.place_of(&format!("signingKeys[{index}]"));
                problems.at(place, ProblemCode::DuplicateName, message, "give each institution its own keys");
            }
        }
    }
}

/// At most one priority class is the default.
fn check_default_priority(draft: &Draft, problems: &mut Problems<'_>) {
    let mut defaults = draft.priorities.values().filter(|class| class.spec.default);
    let Some(first) = defaults.next() else { return };
    for class in defaults {
        let message = format!("PriorityClass `{}` is a default, and so is `{}`", class.name, first.name);
        problems.at(class.place_of("default"), ProblemCode::Contradiction, message, "make one of them the default");
    }
}

fn check_number_of_rules(draft: &Draft, problems: &mut Problems<'_>) {
    if let Some(rule) = draft.rules.values().nth(MAX_RULES) {
        let message = format!("the bundle has {} Rules; at most {MAX_RULES} are allowed", draft.rules.len());
        problems.at(rule.place, ProblemCode::TooLarge, message, "combine conditions with `&&` and `||`");
    }
}
