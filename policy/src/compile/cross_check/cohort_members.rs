//! Members of a cohort count the same kind of GPUs, and each lease once.

use std::collections::BTreeMap;

use super::super::draft::Draft;
use crate::documents::{Document, Quota, QuotaSubject};
use crate::problem::{ProblemCode, Problems};

pub(super) fn check(draft: &Draft, problems: &mut Problems<'_>) {
    let mut cohorts: BTreeMap<&str, Vec<&Document<Quota>>> = BTreeMap::new();
    for quota in draft.quotas.values() {
        if let Some(cohort) = &quota.spec.cohort {
            cohorts.entry(&cohort.name).or_default().push(quota);
        }
    }
    for (cohort, members) in cohorts {
        check_classes(cohort, &members, problems);
        check_subjects(draft, cohort, &members, problems);
    }
}

/// A quota of one class cannot lend to a quota of another.
fn check_classes(cohort: &str, members: &[&Document<Quota>], problems: &mut Problems<'_>) {
    let Some((first, others)) = members.split_first() else { return };
    let shown = |quota: &Document<Quota>| match quota.spec.classes.iter().cloned().collect::<Vec<_>>().as_slice() {
        [] => "all classes".to_owned(),
        classes => format!("`{}`", classes.join("`, `")),
    };
    for quota in others.iter().filter(|quota| quota.spec.classes != first.spec.classes) {
        let message = format!(
            "Quota `{}` of cohort `{cohort}` is about {}, and Quota `{}` about {}",
            quota.name,
            shown(quota),
            first.name,
            shown(first)
        );
        let remedy = "give all quotas of a cohort the same `classes`, or use one cohort for each set of classes";
        let field = if quota.spec.classes.is_empty() { "cohort" } else { "classes" };
        problems.at(quota.place_of(field), ProblemCode::Contradiction, message, remedy);
    }
}

/// A lease that two members counted would take twice its GPUs of the shared quota.
fn check_subjects(draft: &Draft, cohort: &str, members: &[&Document<Quota>], problems: &mut Problems<'_>) {
    let mut seen: BTreeMap<&QuotaSubject, &str> = BTreeMap::new();
    for quota in members {
        if let Some(other) = seen.insert(&quota.spec.subject, &quota.name) {
            report_twice(quota, other, cohort, problems);
        }
    }
    for quota in members {
        let QuotaSubject::Tenant(tenant) = &quota.spec.subject else { continue };
        let Some(tenant) = draft.tenants.get(tenant) else { continue };
        let whole = QuotaSubject::Institution(tenant.spec.institution.clone());
        if let Some(other) = seen.get(&whole) {
            report_twice(quota, other, cohort, problems);
        }
    }
}

fn report_twice(quota: &Document<Quota>, other: &str, cohort: &str, problems: &mut Problems<'_>) {
    let message = format!("Quota `{}` and Quota `{other}` of cohort `{cohort}` count the same leases", quota.name);
    let remedy = "take one of them out of the cohort: its members limit different tenants";
    problems.at(quota.place_of("cohort"), ProblemCode::Contradiction, message, remedy);
}
