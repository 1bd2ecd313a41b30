//! Whether the signed policy permits a lease that this cluster would lend, as far as the agent can tell by itself.
//!
//! It knows what it lends, and not what a tenant borrows elsewhere: quotas on GPUs in use and on GPU-hours stay with the
//! brokers. That the tenant asked for the lease is the broker's word.

use comity_agent_model::lease::Lease;
use comity_policy::{
    BorrowFacts, Bundle, Decision, Denial, DocRef, HeldLease, InUse, LeaseUse, RemovedDocuments, UsageTable,
};
use comity_provenance::ObjectId;
use comity_types::LeaseId;

/// Code of the report that the signed policy does not permit a lease.
pub(crate) const SIGNED_POLICY: &str = "signed-policy";
/// Code of the report that no broker shows the signed policy.
pub(crate) const POLICY_UNVERIFIED: &str = "policy-unverified";
/// How much later than the longest term from now a lease may end: it is held before it begins, and clocks differ.
const END_SLACK_MS: u64 = 15 * 60 * 1_000;
/// Digits of a commit id in messages.
const SHOWN_DIGITS: usize = 12;

/// A lease that this cluster would lend, or lends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LentFacts<'f> {
    /// The lease, by the broker's word.
    pub(crate) lease: &'f Lease,
    /// This cluster.
    pub(crate) donor: &'f str,
    /// Institution of the origin: that of its voucher, or as the broker says; empty if it does not.
    pub(crate) institution: &'f str,
    /// Its GPUs by this cluster's own count, in milli-GPU.
    pub(crate) milli: u64,
    /// Wall-clock time in milliseconds since 1970.
    pub(crate) now_ms: u64,
}

impl<'f> LentFacts<'f> {
    fn borrow<'a>(&self, in_use: InUse<'a>) -> BorrowFacts<'a>
    where
        'f: 'a,
    {
        let lease = self.lease;
        BorrowFacts {
            tenant: &lease.tenant,
            user: "",
            origin_cluster: lease.origin.as_str(),
            donor_cluster: self.donor,
            class: class_of(lease),
            gpus_milli: self.milli,
            beside_milli: 0,
            delivery: lease.delivery,
            duration_ms: lease.term_ms,
            // Whether it is preemptible the broker knows; when a schedule ends, the permission does.
            notice_ms: Some(0),
            now_ms: self.now_ms,
            in_use,
        }
    }
}

/// The GPU class of a lease, by the broker's word.
pub(crate) fn class_of(lease: &Lease) -> &str {
    let asked = || lease.gpus.as_ref().map_or("", |gpus| gpus.class.as_str());
    if lease.class.is_empty() { asked() } else { &lease.class }
}

/// Sums what this cluster lends: `lent` are its leases, with their GPUs in milli-GPU.
pub(crate) fn lent_by<'l>(
    donor: &str,
    lent: impl Iterator<Item = (LeaseId, u64)>,
    told: impl Fn(LeaseId) -> Option<&'l Lease>,
) -> UsageTable {
    let mut table = UsageTable::default();
    for (id, gpus_milli) in lent {
        let lease = told(id);
        table.add(&LeaseUse {
            tenant: lease.map_or("", |lease| &lease.tenant),
            user: "",
            institution: "",
            donor,
            class: lease.map_or("", class_of),
            agreement: None,
            gpus_milli,
            // The limits of tenants and institutions count what they borrow elsewhere, too.
            replaced: true,
        });
    }
    table
}

/// Why the policy at a commit does not permit a new lease, with the documents and lines behind it; `None` if it does.
pub(crate) fn objection(bundle: &Bundle, commit: ObjectId, facts: &LentFacts<'_>, lent: &UsageTable) -> Option<String> {
    let origin = facts.lease.origin.as_str();
    let owner = bundle.institution_of_cluster(origin);
    if let Some(owner) = owner.filter(|owner| !facts.institution.is_empty() && *owner != facts.institution) {
        return Some(format!(
            "cluster {origin} is of institution {owner} by the signed policy (commit {}), and of {} by its voucher or the \
             broker",
            short(commit),
            facts.institution
        ));
    }
    let in_use = InUse { lent_by_donor: lent.in_use("", "", "", facts.donor).lent_by_donor, ..InUse::default() };
    match bundle.may_borrow(&facts.borrow(in_use)) {
        Decision::Allow(_) => None,
        Decision::Deny(denial) => Some(shown(commit, &denial)),
    }
}

/// Why the policy at a commit no longer permits a lease in force; `None` while it does. What removed documents said does
/// not matter: a lease that is no longer permitted is not prolonged, whatever becomes of it.
pub(crate) fn withdrawn(bundle: &Bundle, commit: ObjectId, facts: &LentFacts<'_>) -> Option<String> {
    let held = HeldLease { facts: facts.borrow(InUse::default()), institution: facts.institution, agreement: None };
    bundle.withdrawal(&held, &RemovedDocuments::default()).map(|found| shown(commit, &found.denial))
}

/// The latest end of a lease of a donor that is prolonged now, in milliseconds since 1970.
pub(crate) fn latest_end_ms(bundle: &Bundle, donor: &str, now_ms: u64) -> u64 {
    let own = bundle.clusters.get(donor).and_then(|cluster| cluster.spec.max_lease_duration_ms);
    let longest = bundle.federation.spec.limits.max_lease_duration_ms.min(own.unwrap_or(u64::MAX));
    now_ms.saturating_add(longest).saturating_add(END_SLACK_MS)
}

fn shown(commit: ObjectId, denial: &Denial) -> String {
    let by: Vec<String> = denial.by.iter().map(DocRef::to_string).collect();
    let cited = if by.is_empty() { String::new() } else { format!("; {}", by.join(", ")) };
    format!(
        "the signed policy (commit {}) does not permit it: {} ({}{cited})",
        short(commit),
        denial.message,
        denial.code
    )
}

fn short(commit: ObjectId) -> String {
    commit.to_string().chars().take(SHOWN_DIGITS).collect()
}
