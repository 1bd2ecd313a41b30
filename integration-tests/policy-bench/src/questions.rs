//! Leases in use, and requests to decide.

use comity_policy::{BorrowFacts, InUse, LeaseUse, UsageTable};
use comity_simulation::random::Random;
use comity_types::Delivery;

use crate::federation::{INSTITUTIONS, Size, classes_of, institution_of, parties_of};

/// 2026-09-01, within every agreement.
const NOW_MS: u64 = 1_788_220_800_000;

/// May a tenant borrow GPUs of a class from a donor?
#[derive(Debug, Clone)]
pub struct Question {
    /// The tenant.
    pub tenant: String,
    /// Its institution.
    pub institution: String,
    /// The cluster of the request.
    pub origin: String,
    /// The cluster that would lend.
    pub donor: String,
    /// The class of the GPUs.
    pub class: String,
    /// GPUs of the lease in milli-GPU.
    pub gpus_milli: u64,
    /// GPUs of other leases of the request in milli-GPU.
    pub beside_milli: u64,
    /// Duration in seconds.
    pub duration_s: u64,
    /// Delivery of the lease.
    pub delivery: Delivery,
}

impl Question {
    /// The facts that the broker's planner asks with.
    #[must_use]
    pub fn facts<'q>(&'q self, in_use: InUse<'q>) -> BorrowFacts<'q> {
        BorrowFacts {
            tenant: &self.tenant,
            user: "",
            origin_cluster: &self.origin,
            donor_cluster: &self.donor,
            class: &self.class,
            gpus_milli: self.gpus_milli,
            beside_milli: self.beside_milli,
            delivery: self.delivery,
            duration_ms: self.duration_s * 1_000,
            notice_ms: None,
            now_ms: NOW_MS,
            data: &[],
            purpose: "",
            in_use,
        }
    }

    /// What the leases in use are for this question.
    #[must_use]
    pub fn in_use<'u>(&self, usage: &'u UsageTable) -> InUse<'u> {
        usage.in_use(&self.tenant, &self.institution, "", &self.donor)
    }
}

/// Requests: nine in ten ask a donor that lends the class to the tenant under some agreement.
#[must_use]
pub fn questions(size: Size, count: usize, draw: &mut Random) -> Vec<Question> {
    (0..count).map(|_| question(size, draw)).collect()
}

fn question(size: Size, draw: &mut Random) -> Question {
    let tenant = draw.below(size.tenants);
    let institution = institution_of(tenant);
    let classes: Vec<usize> = classes_of(tenant).collect();
    let mut class = classes[draw.below(classes.len())];
    let mut lender = draw.below(INSTITUTIONS);
    if draw.below(10) > 0 {
        for _ in 0..50 {
            // Every fiftieth agreement, and the one before it, has this borrower.
            let turn = draw.below(size.agreements / INSTITUTIONS) * INSTITUTIONS;
            let agreement = (turn + institution + INSTITUTIONS - draw.below(2)) % size.agreements;
            let (borrowers, lenders, agreed) = parties_of(agreement);
            if let Some(common) = agreed.iter().find(|agreed| classes.contains(agreed))
                && borrowers.contains(&institution)
            {
                (class, lender) = (*common, lenders[draw.below(2)]);
                break;
            }
        }
    }
    Question {
        tenant: format!("t-{tenant}"),
        institution: format!("inst-{institution}"),
        origin: format!("site-{}", institution * 2 + draw.below(2)),
        donor: format!("site-{}", lender * 2 + draw.below(2)),
        class: format!("c-{class}"),
        gpus_milli: [50, 250, 500, 1_000, 1_000, 2_000, 4_000, 8_000][draw.below(8)],
        beside_milli: [0, 0, 0, 4_000][draw.below(4)],
        duration_s: [600, 3_600, 14_400, 86_400, 172_800][draw.below(5)],
        delivery: [Delivery::Namespace, Delivery::VirtualNode][draw.below(2)],
    }
}

/// A lease in use, under an agreement.
#[must_use]
pub fn lease_use<'q>(lease: &'q Question, agreement: Option<&'q str>) -> LeaseUse<'q> {
    LeaseUse {
        tenant: &lease.tenant,
        user: "",
        institution: &lease.institution,
        donor: &lease.donor,
        class: &lease.class,
        agreement,
        gpus_milli: lease.gpus_milli,
        replaced: false,
    }
}
