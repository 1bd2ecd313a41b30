//! The policy of the stores; requests stay queued because no donor joins.

use std::path::Path;

use anyhow::Result;

use super::numbered_requests::{SILENT_ORIGIN, TENANTS, tenant};
use crate::federation::policy_documents::{
    BORROWERS, CLASS, LENDERS, agreement, document, donor, federation, gpu_class, institution, write,
};

/// A cluster that never joins.
const ABSENT_DONOR: &str = "donor";

/// Users who submit beside alice: a broker group lets each have a few commands under way.
pub(crate) const WRITERS: usize = 8;

/// The name of a user who submits.
pub(crate) fn writer(number: usize) -> String {
    format!("writer-{number}")
}

/// Writes the policy into a directory.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write_policy(dir: &Path) -> Result<()> {
    let origins = [SILENT_ORIGIN.to_owned()];
    let mut documents = vec![
        federation(
            "stores",
            "  limits: {maxQueuedRequests: 50000, maxQueuedRequestsPerInstitution: 50000, \
             maxQueuedRequestsPerTenant: 10000}\n",
        ),
        gpu_class(),
        institution(BORROWERS, &origins),
        institution(LENDERS, &[ABSENT_DONOR.to_owned()]),
        agreement(&[BORROWERS.to_owned()], &[LENDERS.to_owned()]),
        donor(ABSENT_DONOR, LENDERS),
    ];
    let users = (0..WRITERS).map(writer).chain(["alice".to_owned()]);
    let members = users.map(|user| format!("{{id: 'spiffe://comity.example/user/{user}', role: submitter}}"));
    let spec = format!(
        "  institution: {BORROWERS}\n  members: [{}]\n  classes: [{CLASS}]\n  clusters: [{SILENT_ORIGIN}]\n",
        members.collect::<Vec<_>>().join(", ")
    );
    documents.extend((0..TENANTS).map(|number| document("Tenant", &tenant(number), &spec)));
    write(dir, &documents)
}
