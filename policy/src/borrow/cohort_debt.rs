//! What members of a cohort must give back before a lease fits that is within its nominal quotas.

use super::cohort_standing::CohortStanding;
use super::{BorrowFacts, LeaseUse, UsageTable, milli_of};
use crate::bundle::Bundle;
use crate::bundle::cohorts::CohortMember;

/// Borrowed quota that a lease within its nominal quotas needs.
#[derive(Clone, Debug)]
pub struct QuotaDebt<'b> {
    cohorts: Vec<CohortDebt<'b>>,
}

/// The debt in one cohort, in milli-GPU.
#[derive(Clone, Debug)]
struct CohortDebt<'b> {
    /// What the lease lacks of the shared quota.
    missing_milli: u64,
    /// The members that borrow, with what they use.
    borrowers: Vec<(&'b CohortMember, u64)>,
}

impl CohortDebt<'_> {
    /// What is missing still once `gone` have ended. A member owes what it borrows: that it would lose more by the end of a
    /// large lease does not count.
    fn left_milli(&self, gone: &[LeaseUse<'_>]) -> u64 {
        let returned = self.borrowers.iter().map(|(member, used)| {
            let leases = gone.iter().filter(|lease| member.counts(lease.tenant, lease.institution, lease.class));
            let lost = leases.fold(0_u64, |sum, lease| sum.saturating_add(lease.gpus_milli));
            let keeps = used.saturating_sub(lost.min(member.borrowed_part(*used)));
            member.shared_part(*used).saturating_sub(member.shared_part(keeps))
        });
        self.missing_milli.saturating_sub(returned.fold(0, u64::saturating_add))
    }
}

/// A member that borrows, and what leases take of it, in milli-GPU.
struct Borrower<'b> {
    member: &'b CohortMember,
    borrowed_milli: u64,
    taken_milli: u64,
}

impl Borrower<'_> {
    fn counts(&self, lease: &LeaseUse<'_>) -> bool {
        self.member.counts(lease.tenant, lease.institution, lease.class)
    }

    /// Whether the other leases would not reach what it borrows, without one of this size.
    fn needs(&self, gpus_milli: u64) -> bool {
        self.taken_milli.saturating_sub(gpus_milli) < self.borrowed_milli
    }
}

impl QuotaDebt<'_> {
    /// Positions of the first of these leases, at most `most`, that together take only what members borrow: each is needed
    /// for that, because without it the others of its member do not reach what the member borrows.
    #[must_use]
    pub fn only_borrowed(&self, leases: &[LeaseUse<'_>], most: usize) -> Vec<usize> {
        let mut borrowers = self.borrowers();
        let mut taken: Vec<(usize, u64, Vec<usize>)> = Vec::new();
        for (position, lease) in leases.iter().enumerate() {
            if taken.len() == most {
                break;
            }
            let milli = lease.gpus_milli;
            let of: Vec<usize> = (0..borrowers.len()).filter(|at| borrowers[*at].counts(lease)).collect();
            of.iter().for_each(|at| borrowers[*at].taken_milli += milli);
            taken.push((position, milli, of));
            if taken.iter().all(|(_, milli, of)| of.iter().any(|at| borrowers[*at].needs(*milli))) {
                continue;
            }
            for at in taken.pop().into_iter().flat_map(|(.., of)| of) {
                borrowers[at].taken_milli -= milli;
            }
        }
        taken.into_iter().map(|(position, ..)| position).collect()
    }

    /// Whether each of these leases is needed for what its member borrows.
    #[must_use]
    pub fn takes_only_borrowed(&self, leases: &[LeaseUse<'_>]) -> bool {
        self.only_borrowed(leases, leases.len()).len() == leases.len()
    }

    /// Whether `lease`, one of `leases`, is needed for what its member borrows.
    #[must_use]
    pub fn needs(&self, lease: &LeaseUse<'_>, leases: &[LeaseUse<'_>]) -> bool {
        let borrowers = self.borrowers().into_iter().filter(|borrower| borrower.counts(lease));
        borrowers.into_iter().any(|mut borrower| {
            let counted = leases.iter().filter(|other| borrower.counts(other));
            borrower.taken_milli = counted.map(|other| other.gpus_milli).fold(0, u64::saturating_add);
            borrower.needs(lease.gpus_milli)
        })
    }

    fn borrowers(&self) -> Vec<Borrower<'_>> {
        let members = self.cohorts.iter().flat_map(|debt| &debt.borrowers);
        let borrowers = members.map(|(member, used)| Borrower {
            member,
            borrowed_milli: member.borrowed_part(*used),
            taken_milli: 0,
        });
        borrowers.collect()
    }

    /// Whether a lease counts for a member that borrows what is missing.
    #[must_use]
    pub fn is_owed_by(&self, lease: &LeaseUse<'_>) -> bool {
        let counts = |(member, _): &(&CohortMember, u64)| member.counts(lease.tenant, lease.institution, lease.class);
        self.cohorts.iter().any(|debt| debt.borrowers.iter().any(counts))
    }

    /// What is missing still once these leases have ended, in milli-GPU over all cohorts.
    #[must_use]
    pub fn left_milli(&self, gone: &[LeaseUse<'_>]) -> u64 {
        self.cohorts.iter().fold(0, |sum, debt| sum.saturating_add(debt.left_milli(gone)))
    }
}

impl Bundle {
    /// What other members of its cohorts must give back before a lease fits; `None` if it is above a nominal quota, or if
    /// nothing is missing. `usage` is that of the facts.
    #[must_use]
    pub fn quota_debt(&self, facts: &BorrowFacts<'_>, usage: &UsageTable) -> Option<QuotaDebt<'_>> {
        let quotas = self.quotas_of(facts.tenant).filter(|quota| quota.spec.covers_class(facts.class));
        let mut cohorts = Vec::new();
        for standing in quotas.filter_map(|quota| CohortStanding::of(self, facts, quota)) {
            if standing.used_milli.saturating_add(facts.gpus_milli) > standing.nominal_milli {
                return None;
            }
            let missing_milli = facts.gpus_milli.saturating_sub(standing.available_milli());
            if missing_milli == 0 {
                continue;
            }
            let members = self.cohorts.members(&standing.cohort.name).into_iter();
            let borrowers = members.map(|member| {
                let by_class = usage.by_class_of(member.subject());
                (member, milli_of(by_class, |class| member.covers_class(class)))
            });
            let borrowers = borrowers.filter(|(member, used)| member.borrowed_part(*used) > 0);
            cohorts.push(CohortDebt { missing_milli, borrowers: borrowers.collect() });
        }
        (!cohorts.is_empty()).then_some(QuotaDebt { cohorts })
    }
}
