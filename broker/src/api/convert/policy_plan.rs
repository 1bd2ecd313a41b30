//! Converts the plans of policy bundles.

use comity_core::explain::{
    BorrowingEffect, CapacityEffect, CohortEffect, InstitutionEffect, LeaseEffect, NextInQueue, PolicyPlan, Prospect,
    RequestEffect,
};
use comity_policy::{CohortTerms, Difference, DocumentChange, FieldChange};
use comity_proto::v1;
use comity_types::{ClusterId, LeaseTreatment};

use crate::api::convert::count;

/// Converts to the API message.
#[must_use]
pub fn to_proto(plan: PolicyPlan) -> v1::PolicyPlan {
    let PolicyPlan { replaces: _, documents, leases, requests, borrowing, capacities, institutions, cohorts, queue } =
        plan;
    v1::PolicyPlan {
        documents: documents.documents.into_iter().map(document).collect(),
        documents_added: count(documents.added),
        documents_changed: count(documents.changed),
        documents_removed: count(documents.removed),
        time_zones: documents.zones,
        lease_count: count(leases.count),
        leases_unexamined: count(leases.unexamined),
        leases: leases.named.into_iter().map(lease).collect(),
        request_count: count(requests.count),
        requests_unexamined: count(requests.unexamined),
        requests: requests.named.into_iter().map(request).collect(),
        borrowing_count: count(borrowing.count),
        tenants_unexamined: count(borrowing.unexamined),
        borrowing: borrowing.named.into_iter().map(borrower).collect(),
        capacity_count: count(capacities.count),
        capacities: capacities.named.into_iter().map(capacity).collect(),
        institution_count: count(institutions.count),
        institutions_unexamined: count(institutions.unexamined),
        institutions: institutions.named.into_iter().map(institution).collect(),
        cohort_count: count(cohorts.count),
        cohorts: cohorts.named.into_iter().map(cohort).collect(),
        queue_count: count(queue.count),
        queue: queue.named.into_iter().map(place).collect(),
    }
}

fn document(change: DocumentChange) -> v1::PolicyDocumentChange {
    let DocumentChange { document, difference } = change;
    let (difference, fields, more) = match difference {
        Difference::Added => (v1::PolicyDifference::Added, Vec::new(), 0),
        Difference::Changed { fields, more } => (v1::PolicyDifference::Changed, fields, more),
        Difference::Removed => (v1::PolicyDifference::Removed, Vec::new(), 0),
    };
    let field = |FieldChange { path, before, after }| v1::PolicyFieldChange { path, before, after };
    v1::PolicyDocumentChange {
        difference: difference.into(),
        kind: document.kind.as_str().to_owned(),
        name: document.name,
        file: document.file,
        line: document.line,
        fields: fields.into_iter().map(field).collect(),
        more_fields: count(more),
    }
}

fn lease(effect: LeaseEffect) -> v1::PolicyLeaseEffect {
    let treatment = match effect.treatment {
        LeaseTreatment::Finish => v1::LeaseTreatment::Finish,
        LeaseTreatment::Drain => v1::LeaseTreatment::Drain,
        LeaseTreatment::Stop => v1::LeaseTreatment::Stop,
    };
    v1::PolicyLeaseEffect {
        lease: effect.lease.to_string(),
        tenant: effect.tenant.to_string(),
        donor: effect.donor.to_string(),
        gpus_milli: effect.gpu_milli,
        treatment: treatment.into(),
        code: effect.code,
        reason: effect.reason,
        until_ms: effect.until.0,
    }
}

fn request(effect: RequestEffect) -> v1::PolicyRequestEffect {
    let (prospect, reason, donors) = match effect.prospect {
        Prospect::Denied(reason) => (v1::PolicyProspect::Denied, reason, Vec::new()),
        Prospect::Allowed => (v1::PolicyProspect::Allowed, String::new(), Vec::new()),
        Prospect::Starts(donors) => (v1::PolicyProspect::Starts, String::new(), donors),
        Prospect::Waits(reason) => (v1::PolicyProspect::Waits, reason, Vec::new()),
    };
    v1::PolicyRequestEffect {
        request: effect.request.to_string(),
        tenant: effect.tenant.to_string(),
        prospect: prospect.into(),
        reason,
        donors: names(&donors),
    }
}

fn borrower(effect: BorrowingEffect) -> v1::PolicyBorrowingEffect {
    v1::PolicyBorrowingEffect {
        tenant: effect.tenant,
        donor: effect.donor,
        classes: effect.classes,
        denied: effect.denied.unwrap_or_default(),
    }
}

fn capacity(effect: CapacityEffect) -> v1::PolicyCapacityEffect {
    v1::PolicyCapacityEffect {
        cluster: effect.cluster.to_string(),
        before_milli: effect.before_milli,
        after_milli: effect.after_milli,
    }
}

fn institution(effect: InstitutionEffect) -> v1::PolicyInstitutionEffect {
    let InstitutionEffect { institution, lends_milli, borrows_milli } = effect;
    v1::PolicyInstitutionEffect {
        institution,
        lends_before_milli: lends_milli[0],
        lends_after_milli: lends_milli[1],
        borrows_before_milli: borrows_milli[0],
        borrows_after_milli: borrows_milli[1],
    }
}

fn cohort(effect: CohortEffect) -> v1::PolicyCohortEffect {
    let CohortEffect { quota, before, after, used_milli } = effect;
    let terms = |terms: CohortTerms| {
        let CohortTerms { cohort, nominal_milli, borrows_milli, lends_milli } = terms;
        v1::PolicyCohortTerms { cohort, nominal_milli, borrows_milli, lends_milli }
    };
    v1::PolicyCohortEffect { quota, before: before.map(terms), after: after.map(terms), used_milli }
}

fn place(next: NextInQueue) -> v1::PolicyQueuePlace {
    v1::PolicyQueuePlace {
        request: next.request.to_string(),
        tenant: next.tenant.to_string(),
        place_before: count(next.place_before.unwrap_or(0)),
        starts_at: names(&next.starts_at),
    }
}

fn names(donors: &[ClusterId]) -> Vec<String> {
    donors.iter().map(ToString::to_string).collect()
}
