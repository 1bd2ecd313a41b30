//! Waiting requests within their nominal quotas come before those that borrow.

use super::cohort_standing::CohortStanding;
use super::{BorrowFacts, UsageTable, milli_of};
use crate::bundle::Bundle;
use crate::bundle::cohorts::CohortMember;

/// A waiting request, as quotas see it.
#[derive(Clone, Copy, Debug)]
pub struct WaitingClaim<'f> {
    /// Its tenant.
    pub tenant: &'f str,
    /// A class that it may get.
    pub class: &'f str,
    /// Its GPUs, in milli-GPU.
    pub gpus_milli: u64,
}

impl Bundle {
    /// Whether a lease borrows of a cohort, and leaves too little for the waiting requests that are within the nominal
    /// quotas of other members. `usage` is that of the facts.
    #[must_use]
    pub fn borrows_what_others_need(
        &self,
        facts: &BorrowFacts<'_>,
        usage: &UsageTable,
        waiting: &[WaitingClaim<'_>],
    ) -> bool {
        let quotas = self.quotas_of(facts.tenant).filter(|quota| quota.spec.covers_class(facts.class));
        let mut standings = quotas.filter_map(|quota| Some((quota, CohortStanding::of(self, facts, quota)?)));
        standings.any(|(quota, standing)| {
            if !standing.borrows(facts.gpus_milli) {
                return false;
            }
            let members = self.cohorts.members(&standing.cohort.name).into_iter();
            let others = members.filter(|member| *member.subject() != quota.spec.subject);
            let needed = others.map(|member| self.needed_of_shared(member, usage, waiting));
            needed.fold(0, u64::saturating_add) > standing.idle_after_milli(facts.gpus_milli)
        })
    }

    /// What a member needs of the shared quota for waiting requests, up to its nominal quota.
    fn needed_of_shared(&self, member: &CohortMember, usage: &UsageTable, waiting: &[WaitingClaim<'_>]) -> u64 {
        let counts = |claim: &&WaitingClaim<'_>| {
            let institution = self.institution_of_tenant(claim.tenant).unwrap_or_default();
            member.counts(claim.tenant, institution, claim.class)
        };
        let asked = waiting.iter().filter(counts).fold(0_u64, |sum, claim| sum.saturating_add(claim.gpus_milli));
        let used = milli_of(usage.by_class_of(member.subject()), |class| member.covers_class(class));
        let becomes = used.saturating_add(asked.min(member.left_of_nominal(used)));
        member.shared_part(becomes).saturating_sub(member.shared_part(used))
    }
}
