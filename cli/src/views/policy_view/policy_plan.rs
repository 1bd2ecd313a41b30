//! The plan of a policy bundle: what it would change.

use comity_proto::v1;
use serde::Serialize;

use super::PolicyProblem;
use crate::views::value::non_empty;

/// Answer of `comity policy plan`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPlanned {
    /// Whether the bundle has no problems.
    pub ok: bool,
    /// All problems; with any, there is no plan.
    pub problems: Vec<PolicyProblem>,
    /// SHA-256 of the bundle.
    pub hash: Option<String>,
    /// SHA-256 of the bundle in force, with which the plan compares; empty if none is in force.
    pub in_force_hash: String,
    /// Whether applying the bundle would replace the one in force, if only in comments, layout or commit.
    pub replaces: bool,
    /// What would change.
    pub plan: PolicyPlan,
}

/// What a bundle would change. The lists hold the first ones; the counts cover all.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPlan {
    /// Documents whose meaning would change.
    pub documents: Vec<DocumentChange>,
    /// Number of new documents.
    pub documents_added: u32,
    /// Number of documents that say something else.
    pub documents_changed: u32,
    /// Number of documents that are no longer there.
    pub documents_removed: u32,
    /// Time zones with other offsets.
    pub time_zones: Vec<String>,
    /// Leases that would end, or could no longer be renewed.
    pub leases: Vec<LeaseEffect>,
    /// Number of those leases.
    pub lease_count: u32,
    /// Leases whose renewal was not examined.
    pub leases_unexamined: u32,
    /// Waiting requests that would become possible or impossible.
    pub requests: Vec<RequestEffect>,
    /// Number of those requests.
    pub request_count: u32,
    /// Waiting requests that were not examined.
    pub requests_unexamined: u32,
    /// Classes that tenants could borrow, or no longer.
    pub borrowing: Vec<BorrowingEffect>,
    /// Number of those pairs of tenant and donor.
    pub borrowing_count: u32,
    /// Tenants that were not examined.
    pub tenants_unexamined: u32,
    /// Clusters that would lend more or less.
    pub capacities: Vec<CapacityEffect>,
    /// Number of those clusters.
    pub capacity_count: u32,
    /// Institutions that would lend, or could borrow, more or less.
    pub institutions: Vec<InstitutionEffect>,
    /// Number of those institutions.
    pub institution_count: u32,
    /// Institutions that were not examined.
    pub institutions_unexamined: u32,
    /// Quotas whose part in a cohort would change.
    pub cohorts: Vec<CohortEffect>,
    /// Number of those quotas.
    pub cohort_count: u32,
    /// The waiting requests that would be served next, in order.
    pub queue: Vec<QueuePlace>,
    /// Number of waiting requests.
    pub queue_count: u32,
}

/// A document that would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DocumentChange {
    /// `added`, `changed` or `removed`.
    pub change: &'static str,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its file; of a removed document, in the bundle in force.
    pub file: String,
    /// Line in the file.
    pub line: u32,
    /// Fields that differ.
    pub fields: Vec<FieldChange>,
    /// Number of further fields that differ.
    pub more_fields: u32,
}

/// A field that would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FieldChange {
    /// Path within `spec`.
    pub path: String,
    /// The value in force; none for a new field.
    pub before: Option<String>,
    /// The new value; none for a removed field.
    pub after: Option<String>,
}

/// A lease that would end, or could no longer be renewed.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LeaseEffect {
    /// Its id.
    pub lease: String,
    /// Its tenant.
    pub tenant: String,
    /// Its donor.
    pub donor: String,
    /// Thousandths of GPUs that it holds.
    pub gpus_milli: u64,
    /// `finish` (it runs to the end of its term and is not renewed), `drain` (it is reclaimed with notice) or `stop`.
    pub treatment: &'static str,
    /// Code of the denial, or name of another reason.
    pub code: String,
    /// The reason in words.
    pub reason: Option<String>,
    /// Its latest end, if the bundle were applied now.
    pub until_ms: u64,
}

/// A waiting request whose prospects would change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestEffect {
    /// Its id.
    pub request: String,
    /// Its tenant.
    pub tenant: String,
    /// `denied` or `allowed` by policy; `starts` at once, or no longer: `waits`.
    pub prospect: &'static str,
    /// Why it is denied or waits.
    pub reason: Option<String>,
    /// Where it starts.
    pub donors: Vec<String>,
}

/// Classes that a tenant could borrow from a donor, or no longer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BorrowingEffect {
    /// The tenant.
    pub tenant: String,
    /// The donor.
    pub donor: String,
    /// The classes.
    pub classes: Vec<String>,
    /// Why it could no longer borrow the first of them; none if it could now.
    pub denied: Option<String>,
}

/// A cluster that would lend more or less.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CapacityEffect {
    /// Its id.
    pub cluster: String,
    /// Thousandths of GPUs that it may lend in all under the bundle in force.
    pub before_milli: u64,
    /// The same under the new bundle.
    pub after_milli: u64,
}

/// A quota whose part in a cohort would change, if only because another member's does.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CohortEffect {
    /// Its name.
    pub quota: String,
    /// Its terms under the bundle in force; none if it is in no cohort.
    pub before: Option<CohortTerms>,
    /// The same under the new bundle.
    pub after: Option<CohortTerms>,
    /// Thousandths of GPUs that it counts now.
    pub used_milli: u64,
}

/// What a quota brings into its cohort, and what it may take; thousandths of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CohortTerms {
    /// The cohort.
    pub cohort: String,
    /// Its nominal quota, `maxConcurrentGpus`.
    pub nominal_milli: u64,
    /// The most that it may borrow, if the other members use nothing.
    pub borrows_milli: u64,
    /// The most of its nominal quota that others may borrow.
    pub lends_milli: u64,
}

/// An institution that would lend, or could borrow, more or less; thousandths of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstitutionEffect {
    /// Its name.
    pub institution: String,
    /// What its clusters may lend in all under the bundle in force.
    pub lends_before_milli: u64,
    /// The same under the new bundle.
    pub lends_after_milli: u64,
    /// What its tenants may hold together under the bundle in force if nothing else is lent.
    pub borrows_before_milli: u64,
    /// The same under the new bundle.
    pub borrows_after_milli: u64,
}

/// A request that would be served next.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct QueuePlace {
    /// Its id.
    pub request: String,
    /// Its tenant.
    pub tenant: String,
    /// Its place under the bundle in force; none if it is far back, or no bundle is in force.
    pub place_before: Option<u32>,
    /// Where it would start at once; empty if it would wait.
    pub starts_at: Vec<String>,
}

impl From<v1::PlanPolicyResponse> for PolicyPlanned {
    fn from(response: v1::PlanPolicyResponse) -> Self {
        Self {
            ok: response.problems.is_empty(),
            problems: response.problems.into_iter().map(PolicyProblem::from).collect(),
            hash: non_empty(response.hash),
            in_force_hash: response.in_force_hash,
            replaces: response.replaces,
            plan: response.plan.map(PolicyPlan::from).unwrap_or_default(),
        }
    }
}

impl From<v1::PolicyPlan> for PolicyPlan {
    fn from(plan: v1::PolicyPlan) -> Self {
        Self {
            documents: plan.documents.into_iter().map(DocumentChange::from).collect(),
            documents_added: plan.documents_added,
            documents_changed: plan.documents_changed,
            documents_removed: plan.documents_removed,
            time_zones: plan.time_zones,
            leases: plan.leases.into_iter().map(LeaseEffect::from).collect(),
            lease_count: plan.lease_count,
            leases_unexamined: plan.leases_unexamined,
            requests: plan.requests.into_iter().map(RequestEffect::from).collect(),
            request_count: plan.request_count,
            requests_unexamined: plan.requests_unexamined,
            borrowing: plan.borrowing.into_iter().map(BorrowingEffect::from).collect(),
            borrowing_count: plan.borrowing_count,
            tenants_unexamined: plan.tenants_unexamined,
            capacities: plan.capacities.into_iter().map(CapacityEffect::from).collect(),
            capacity_count: plan.capacity_count,
            institutions: plan.institutions.into_iter().map(InstitutionEffect::from).collect(),
            institution_count: plan.institution_count,
            institutions_unexamined: plan.institutions_unexamined,
            cohorts: plan.cohorts.into_iter().map(CohortEffect::from).collect(),
            cohort_count: plan.cohort_count,
            queue: plan.queue.into_iter().map(QueuePlace::from).collect(),
            queue_count: plan.queue_count,
        }
    }
}

/// The word for a value that a newer broker may have.
const UNKNOWN: &str = "unknown";

impl From<v1::PolicyDocumentChange> for DocumentChange {
    fn from(change: v1::PolicyDocumentChange) -> Self {
        use v1::PolicyDifference::{Added, Changed, Removed, Unspecified};
        let word = match change.difference() {
            Added => "added",
            Changed => "changed",
            Removed => "removed",
            Unspecified => UNKNOWN,
        };
        let field = |v1::PolicyFieldChange { path, before, after }| FieldChange { path, before, after };
        Self {
            change: word,
            kind: change.kind,
            name: change.name,
            file: change.file,
            line: change.line,
            fields: change.fields.into_iter().map(field).collect(),
            more_fields: change.more_fields,
        }
    }
}

impl From<v1::PolicyLeaseEffect> for LeaseEffect {
    fn from(effect: v1::PolicyLeaseEffect) -> Self {
        let treatment = match effect.treatment() {
            v1::LeaseTreatment::Finish => "finish",
            v1::LeaseTreatment::Drain => "drain",
            v1::LeaseTreatment::Stop => "stop",
            v1::LeaseTreatment::Unspecified => UNKNOWN,
        };
        Self {
            lease: effect.lease,
            tenant: effect.tenant,
            donor: effect.donor,
            gpus_milli: effect.gpus_milli,
            treatment,
            code: effect.code,
            reason: non_empty(effect.reason),
            until_ms: effect.until_ms,
        }
    }
}

impl From<v1::PolicyRequestEffect> for RequestEffect {
    fn from(effect: v1::PolicyRequestEffect) -> Self {
        use v1::PolicyProspect::{Allowed, Denied, Starts, Unspecified, Waits};
        let prospect = match effect.prospect() {
            Denied => "denied",
            Allowed => "allowed",
            Starts => "starts",
            Waits => "waits",
            Unspecified => UNKNOWN,
        };
        let (request, tenant, reason) = (effect.request, effect.tenant, non_empty(effect.reason));
        Self { request, tenant, prospect, reason, donors: effect.donors }
    }
}

impl From<v1::PolicyBorrowingEffect> for BorrowingEffect {
    fn from(effect: v1::PolicyBorrowingEffect) -> Self {
        let v1::PolicyBorrowingEffect { tenant, donor, classes, denied } = effect;
        Self { tenant, donor, classes, denied: non_empty(denied) }
    }
}

impl From<v1::PolicyCapacityEffect> for CapacityEffect {
    fn from(effect: v1::PolicyCapacityEffect) -> Self {
        let v1::PolicyCapacityEffect { cluster, before_milli, after_milli } = effect;
        Self { cluster, before_milli, after_milli }
    }
}

impl From<v1::PolicyCohortEffect> for CohortEffect {
    fn from(effect: v1::PolicyCohortEffect) -> Self {
        let v1::PolicyCohortEffect { quota, before, after, used_milli } = effect;
        Self { quota, before: before.map(CohortTerms::from), after: after.map(CohortTerms::from), used_milli }
    }
}

impl From<v1::PolicyCohortTerms> for CohortTerms {
    fn from(terms: v1::PolicyCohortTerms) -> Self {
        let v1::PolicyCohortTerms { cohort, nominal_milli, borrows_milli, lends_milli } = terms;
        Self { cohort, nominal_milli, borrows_milli, lends_milli }
    }
}

impl From<v1::PolicyInstitutionEffect> for InstitutionEffect {
    fn from(effect: v1::PolicyInstitutionEffect) -> Self {
        Self {
            institution: effect.institution,
            lends_before_milli: effect.lends_before_milli,
            lends_after_milli: effect.lends_after_milli,
            borrows_before_milli: effect.borrows_before_milli,
            borrows_after_milli: effect.borrows_after_milli,
        }
    }
}

impl From<v1::PolicyQueuePlace> for QueuePlace {
    fn from(place: v1::PolicyQueuePlace) -> Self {
        let v1::PolicyQueuePlace { request, tenant, place_before, starts_at } = place;
        Self { request, tenant, place_before: (place_before > 0).then_some(place_before), starts_at }
    }
}
