//! Whether the signed policy permits a lease that this cluster would lend, as far as the agent can tell by itself.
//!
//! It knows what it lends, and not what a tenant borrows elsewhere: quotas on GPUs in use and on GPU-hours stay with the
//! brokers. That the tenant asked for the lease is the broker's word.

use comity_agent_model::lease::Lease;
use comity_agent_state::record::{AdmittedCapacity, DonorRecord};
use comity_policy::limits::MAX_NAME_CHARS;
use comity_policy::{
    BorrowFacts, Bundle, DataRead, Decision, Denial, DocRef, HeldLease, InUse, LeaseUse, RemovedDocuments, UsageTable,
};
use comity_proto::v1::Node;
use comity_provenance::ObjectId;
use comity_types::{DataNeed, Delivery};

use super::device_class::other_device;

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
    /// Its tenant: when it was admitted, once it is.
    pub(crate) tenant: &'f str,
    /// Its GPU class: when it was admitted, once it is.
    pub(crate) class: &'f str,
    /// The datasets that its work reads: when it was admitted, once it is.
    pub(crate) data: &'f [DataNeed],
    /// The purpose for which it reads them: when it was admitted, once it is.
    pub(crate) purpose: &'f str,
    /// Its delivery: when it was admitted, once it is.
    pub(crate) delivery: Delivery,
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
            tenant: self.tenant,
            user: "",
            origin_cluster: lease.origin.as_str(),
            donor_cluster: self.donor,
            class: self.class,
            gpus_milli: self.milli,
            beside_milli: 0,
            delivery: self.delivery,
            duration_ms: lease.term_ms,
            // Whether it is preemptible the broker knows; when a schedule ends, the permission does.
            notice_ms: Some(0),
            now_ms: self.now_ms,
            data: self.data,
            purpose: self.purpose,
            in_use,
        }
    }
}

/// The GPU class of a lease, by the broker's word.
pub(crate) fn class_of(lease: &Lease) -> &str {
    let asked = || lease.gpus.as_ref().map_or("", |gpus| gpus.class.as_str());
    if lease.class.is_empty() { asked() } else { &lease.class }
}

/// The name of a tenant, class or purpose in the record of a lease. No policy has a longer one.
pub(crate) fn recorded(name: &str) -> String {
    if name.len() > MAX_NAME_CHARS { String::new() } else { name.to_owned() }
}

/// Sums what this cluster lends, as it was admitted.
pub(crate) fn lent_by<'l>(donor: &str, lent: impl Iterator<Item = &'l DonorRecord>) -> UsageTable {
    let mut table = UsageTable::default();
    for record in lent {
        table.add(&LeaseUse {
            tenant: &record.tenant,
            user: "",
            institution: "",
            donor,
            class: &record.class,
            agreement: None,
            gpus_milli: record.capacity.milli(),
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

/// Why a new lease of a class may not have its devices by the policy at a commit; `None` if all are of the class.
pub(crate) fn class_objection(
    bundle: &Bundle,
    commit: ObjectId,
    class: &str,
    capacity: &AdmittedCapacity,
    nodes: &[Node],
) -> Option<String> {
    let (device, node, has) = other_device(bundle, class, capacity, nodes)?;
    let has = has.map_or_else(|| "no class".to_owned(), |has| format!("class `{has}`"));
    Some(format!(
        "by the signed policy (commit {}) device {device} of node {node} is of {has}, and the lease is of `{class}`",
        short(commit)
    ))
}

/// Why the policy at a commit does not let the data of a new lease go to its donor, with the documents and lines behind it;
/// `None` if it does. For the origin's agent, which knows what else permits a lease no better than the broker.
pub(crate) fn data_objection(
    bundle: &Bundle,
    commit: ObjectId,
    lease: &Lease,
    (origin, donor): (&str, &str),
    now_ms: u64,
) -> Option<String> {
    // The reason is logged, so that what the broker says must have a bound.
    let (tenant, class, purpose) = (recorded(&lease.tenant), recorded(class_of(lease)), recorded(&lease.purpose));
    let read = DataRead {
        tenant: &tenant,
        origin_cluster: origin,
        donor_cluster: donor,
        class: &class,
        data: &lease.data,
        purpose: &purpose,
        now_ms,
    };
    bundle.may_read(&read).err().map(|denial| shown(commit, &denial))
}

/// Why the policy at a commit no longer permits a lease in force; `None` while it does. The lease is not prolonged,
/// whatever its `onWithdrawal` says; so removed documents are not consulted.
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
