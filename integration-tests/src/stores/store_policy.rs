//! The policy of the stores; requests stay queued because no donor joins.

use std::path::Path;

use anyhow::Result;

use super::numbered_requests::{SILENT_ORIGIN, TENANTS, tenant};
use crate::federation::policy_documents::{
    self, BORROWERS, LENDERS, agreement, donor, federation, gpu_class, institution, write,
};

/// A cluster that never joins.
const ABSENT_DONOR: &str = "donor";

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
    documents.extend((0..TENANTS).map(|number| policy_documents::tenant(&tenant(number), BORROWERS, &origins)));
    write(dir, &documents)
}
