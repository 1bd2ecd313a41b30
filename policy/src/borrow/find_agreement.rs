//! Finds the agreement that permits a lease.

use super::datasets::check_agreement_allows_data;
use super::denials::{CheckResult, Headroom, deny};
use super::{BorrowFacts, Denial, DenyCode};
use crate::amounts::{show_duration, show_time};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Document};

/// The first agreement by name that permits the lease between two institutions; `None` within one institution.
///
/// If none does, returns the most useful denial: an agreement that is only exhausted says more than one that has ended.
pub(super) fn find_agreement<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    borrower: &str,
    lender: &str,
) -> CheckResult<Option<&'b Document<Agreement>>> {
    if borrower == lender {
        return Ok(None);
    }
    let agreements = bundle.agreements_by_borrower.get(borrower).map_or(&[][..], Vec::as_slice);
    let number = bundle.institution_numbers.get(lender).copied();
    let lent = agreements.iter().filter(|agreement| number.is_some_and(|number| agreement.has_lender(number)));
    let mut best: Option<Box<Denial>> = None;
    let mut other_classes = Vec::new();
    for agreement in lent.filter_map(|agreement| bundle.agreements.get(&agreement.name)) {
        if !agreement.spec.classes.contains(facts.class) {
            other_classes.push(agreement.cite("classes"));
            continue;
        }
        match check_agreement(bundle, facts, agreement) {
            Ok(()) => return Ok(Some(agreement)),
            Err(denial) => {
                if best.as_ref().is_none_or(|best| usefulness(denial.code) > usefulness(best.code)) {
                    best = Some(denial);
                }
            }
        }
    }
    if let Some(denial) = best {
        return Err(denial);
    }
    let message = format!("no agreement lets `{borrower}` borrow class `{}` from `{lender}`", facts.class);
    let unblock = match other_classes.first() {
        Some(by) => format!("the two institutions can add `{}` to `classes` of {by}", facts.class),
        None => "the two institutions can add an Agreement document".to_owned(),
    };
    deny(DenyCode::NoAgreement, message, unblock, other_classes)
}

/// Orders denials by how close the agreement came to permitting the lease; those that pass by themselves come first.
const fn usefulness(code: DenyCode) -> u8 {
    match code {
        DenyCode::AgreementExhausted => 6,
        DenyCode::AgreementNotBegun => 5,
        DenyCode::RequestTooLarge => 4,
        DenyCode::AgreementEndsTooSoon => 3,
        DenyCode::AgreementExcludesData => 2,
        _ => 1,
    }
}

fn check_agreement(bundle: &Bundle, facts: &BorrowFacts<'_>, agreement: &Document<Agreement>) -> CheckResult<()> {
    // What never passes comes first: nobody should wait for an agreement to begin that excludes the data.
    check_agreement_allows_data(bundle, facts, agreement)?;
    let name = &agreement.name;
    if let Some(from) = agreement.spec.from_ms
        && facts.now_ms < from
    {
        let by = agreement.cite("from");
        let message = format!("agreement `{name}` begins on {}", show_time(from));
        let unblock = format!("wait {}, or change {by}", show_duration(from - facts.now_ms));
        return deny(DenyCode::AgreementNotBegun, message, unblock, vec![by]);
    }
    if let Some(until) = agreement.spec.until_ms {
        if facts.now_ms > until {
            let by = agreement.cite("until");
            let message = format!("agreement `{name}` ended on {}", show_time(until));
            return deny(DenyCode::AgreementEnded, message, format!("the institutions can extend {by}"), vec![by]);
        }
        if facts.now_ms.saturating_add(facts.duration_ms) > until {
            let (by, left) = (agreement.cite("until"), until - facts.now_ms);
            let message = format!("agreement `{name}` ends on {}, before the lease would", show_time(until));
            let unblock = format!("ask for at most {}, or extend {by}", show_duration(left));
            return deny(DenyCode::AgreementEndsTooSoon, message, unblock, vec![by]);
        }
    }
    let Some(max_milli) = agreement.spec.max_gpus_milli else {
        return Ok(());
    };
    let used_milli = facts.in_use.lent_under_agreement_milli(name);
    let headroom = Headroom { max_milli, used_milli, requested_milli: facts.gpus_milli };
    if headroom.fits() {
        return Ok(());
    }
    headroom.deny(DenyCode::AgreementExhausted, &format!("agreement `{name}`"), agreement.cite("maxGpus"))
}
