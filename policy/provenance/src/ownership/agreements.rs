//! Agreements belong to all institutions that they name.

use std::collections::BTreeSet;

use comity_policy::{Agreement, AgreementSides};

use super::{Change, Owner, Requirement};
use crate::documents::DocumentSpec;

/// Parties of an agreement that one of them may end: with more, the others would lose what they have with each other.
const BILATERAL: usize = 2;

impl Change<'_> {
    pub(super) fn of_agreement(&self, old: Option<&DocumentSpec>, new: Option<&DocumentSpec>) -> Requirement {
        let agreement = |spec: Option<&DocumentSpec>| match spec {
            Some(DocumentSpec::Agreement(agreement)) => Some(agreement.clone()),
            _ => None,
        };
        let (old, new) = (agreement(old), agreement(new));
        let (had, has) = (old.as_ref().map(parties).unwrap_or_default(), new.as_ref().map(parties).unwrap_or_default());
        let mut needed = Requirement::all(had.union(&has).map(|name| self.owner(name)));
        let Some(old) = old else { return needed };
        let ends = new.as_ref().is_none_or(|new| is_narrower(&old, new));
        for party in &had {
            if had.len() <= BILATERAL && ends || without(&old, &BTreeSet::from([party.clone()])) == new {
                needed = needed.or(self.owner(party));
            }
        }
        let gone: BTreeSet<String> = had.into_iter().filter(|party| self.is_gone(party)).collect();
        if !gone.is_empty() && without(&old, &gone) == new {
            needed = needed.or(Owner::Maintainers(1));
        }
        needed
    }
}

fn parties(agreement: &Agreement) -> BTreeSet<String> {
    match &agreement.sides {
        AgreementSides::Mutual(parties) => parties.clone(),
        AgreementSides::OneWay { borrowers, lenders } => borrowers.union(lenders).cloned().collect(),
    }
}

/// The agreement without some parties; `None` if nobody could borrow from anybody then.
fn without(agreement: &Agreement, gone: &BTreeSet<String>) -> Option<Agreement> {
    let mut rest = agreement.clone();
    let lets_borrow = match &mut rest.sides {
        AgreementSides::Mutual(parties) => {
            parties.retain(|party| !gone.contains(party));
            parties.len() > 1
        }
        AgreementSides::OneWay { borrowers, lenders } => {
            borrowers.retain(|party| !gone.contains(party));
            lenders.retain(|party| !gone.contains(party));
            !borrowers.is_empty() && !lenders.is_empty()
        }
    };
    lets_borrow.then_some(rest)
}

/// Whether a change only takes away: fewer GPUs, classes or data, a later begin, an earlier end. What then becomes of leases
/// stays as all parties agreed.
fn is_narrower(old: &Agreement, new: &Agreement) -> bool {
    let Agreement { sides, classes, max_gpus_milli, from_ms, until_ms, data, on_withdrawal, description } = new;
    *sides == old.sides
        && *on_withdrawal == old.on_withdrawal
        && *description == old.description
        && classes.is_subset(&old.classes)
        && data.is_within(&old.data)
        && max_gpus_milli.unwrap_or(u64::MAX) <= old.max_gpus_milli.unwrap_or(u64::MAX)
        && until_ms.unwrap_or(u64::MAX) <= old.until_ms.unwrap_or(u64::MAX)
        && from_ms.unwrap_or(0) >= old.from_ms.unwrap_or(0)
}
