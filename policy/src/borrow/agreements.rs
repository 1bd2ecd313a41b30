//! The agreement a lease is granted under.

use super::decide::{Checked, deny, exhausted};
use super::{BorrowFacts, DenyCode};
use crate::amounts::{show_duration, show_moment};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Document};

/// The first agreement by name that lets `borrower` borrow from `lender` as asked; `None` within one institution.
///
/// If none does, the denial is that of the agreement that came furthest: one that has not begun says more than one that
/// has ended.
pub(super) fn find_agreement<'b>(
    bundle: &'b Bundle,
    facts: &BorrowFacts<'_>,
    borrower: &str,
    lender: &str,
) -> Checked<Option<&'b Document<Agreement>>> {
    if borrower == lender {
        return Ok(None);
    }
    let names = bundle.agreements_of.get(borrower).map_or(&[][..], Vec::as_slice);
    let mut nearest = None;
    let mut other_classes = Vec::new();
    for agreement in names.iter().filter_map(|name| bundle.agreements.get(name)) {
        if !agreement.spec.covers(borrower, lender) {
            continue;
        }
        if !agreement.spec.classes.contains(facts.class) {
            other_classes.push(agreement.at("classes"));
            continue;
        }
        match check_agreement(facts, agreement) {
            Ok(()) => return Ok(Some(agreement)),
            Err(denial) => {
                nearest = match nearest {
                    Some((rank, kept)) if rank >= nearness(denial.code) => Some((rank, kept)),
                    _ => Some((nearness(denial.code), denial)),
                };
            }
        }
    }
    if let Some((_, denial)) = nearest {
        return Err(denial);
    }
    let message = format!("no agreement lets `{borrower}` borrow class `{}` from `{lender}`", facts.class);
    let unblock = match other_classes.first() {
        Some(by) => format!("the two institutions can add `{}` to `classes` of {by}", facts.class),
        None => "the two institutions can add an Agreement document".to_owned(),
    };
    deny(DenyCode::NoAgreement, message, unblock, other_classes)
}

const fn nearness(code: DenyCode) -> u8 {
    match code {
        DenyCode::AgreementExhausted => 4,
        DenyCode::AgreementEndsTooSoon => 3,
        DenyCode::AgreementNotBegun => 2,
        _ => 1,
    }
}

fn check_agreement(facts: &BorrowFacts<'_>, agreement: &Document<Agreement>) -> Checked<()> {
    let name = &agreement.name;
    if let Some(from) = agreement.spec.from_ms
        && facts.now_ms < from
    {
        let by = agreement.at("from");
        let message = format!("agreement `{name}` begins on {}", show_moment(from));
        let unblock = format!("wait {}, or change {by}", show_duration(from - facts.now_ms));
        return deny(DenyCode::AgreementNotBegun, message, unblock, vec![by]);
    }
    if let Some(until) = agreement.spec.until_ms {
        let by = agreement.at("until");
        if facts.now_ms > until {
            let message = format!("agreement `{name}` ended on {}", show_moment(until));
            return deny(DenyCode::AgreementEnded, message, format!("the institutions can extend {by}"), vec![by]);
        }
        if facts.now_ms.saturating_add(facts.duration_ms) > until {
            let left = until - facts.now_ms;
            let message = format!("agreement `{name}` ends on {}, before the lease would", show_moment(until));
            let unblock = format!("ask for at most {}, or extend {by}", show_duration(left));
            return deny(DenyCode::AgreementEndsTooSoon, message, unblock, vec![by]);
        }
    }
    let Some(most) = agreement.spec.max_gpus_milli else {
        return Ok(());
    };
    let used = facts.in_use.lent_under_agreement_milli(name);
    let what = format!("agreement `{name}`");
    exhausted(DenyCode::AgreementExhausted, &what, facts.gpus_milli, used, most, agreement.at("maxGpus"))
}
