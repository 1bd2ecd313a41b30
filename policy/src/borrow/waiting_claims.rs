//! Waiting requests within their nominal quotas come before those that borrow.

use std::collections::BTreeMap;

use super::cohort_standing::CohortStanding;
use super::{BorrowFacts, UsageTable, milli_of};
use crate::bundle::Bundle;
use crate::bundle::cohorts::CohortMember;

/// What waiting requests ask for, in milli-GPU by tenant and class.
#[derive(Clone, Debug, Default)]
pub struct WaitingClaims<'f> {
    milli: BTreeMap<(&'f str, &'f str), u64>,
}

impl<'f> WaitingClaims<'f> {
    /// Adds a request of a tenant for GPUs of a class.
    pub fn add(&mut self, tenant: &'f str, class: &'f str, gpus_milli: u64) {
        let sum = self.milli.entry((tenant, class)).or_default();
        *sum = sum.saturating_add(gpus_milli);
    }

    /// Subtracts what [`add`](Self::add) added.
    pub fn remove(&mut self, tenant: &'f str, class: &'f str, gpus_milli: u64) {
        if let Some(sum) = self.milli.get_mut(&(tenant, class)) {
            *sum = sum.saturating_sub(gpus_milli);
        }
    }
}

impl Bundle {
    /// Whether a lease borrows of a cohort, and leaves too little for the waiting requests that are within the nominal
    /// quotas of other members. `usage` is that of the facts.
    #[must_use]
    pub fn borrows_what_others_need(
        &self,
        facts: &BorrowFacts<'_>,
        usage: &UsageTable,
        waiting: &WaitingClaims<'_>,
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
    fn needed_of_shared(&self, member: &CohortMember, usage: &UsageTable, waiting: &WaitingClaims<'_>) -> u64 {
        let counted = waiting.milli.iter().filter(|((tenant, class), _)| {
            let institution = self.institution_of_tenant(tenant).unwrap_or_default();
            member.counts(tenant, institution, class)
        });
        let asked = counted.fold(0_u64, |sum, (_, milli)| sum.saturating_add(*milli));
        let used = milli_of(usage.by_class_of(member.subject()), |class| member.covers_class(class));
        let becomes = used.saturating_add(asked.min(member.left_of_nominal(used)));
        member.shared_part(becomes).saturating_sub(member.shared_part(used))
    }
}
