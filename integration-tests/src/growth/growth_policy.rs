//! The policy of the growth measurement: one institution per donor and per origin; each origin has some tenants.

use std::path::Path;
use std::slice::from_ref;

use anyhow::Result;

use crate::federation::policy_documents::{self, agreement, federation, gpu_class, institution, write};

/// Tenants of each origin's institution.
pub(super) const TENANTS_PER_ORIGIN: usize = 5;

/// Id of a donor, and of its institution.
pub(super) fn donor(number: usize) -> String {
    format!("donor-{number:03}")
}

/// Id of an origin, and of its institution.
pub(super) fn origin(number: usize) -> String {
    format!("origin-{number:03}")
}

/// Id of a tenant of an origin's institution.
pub(super) fn tenant(origin: usize, number: usize) -> String {
    format!("tenant-{origin:03}-{number}")
}

/// Writes the documents into a directory.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write_policy(dir: &Path, donors: usize, origins: usize) -> Result<()> {
    let lenders: Vec<String> = (0..donors).map(donor).collect();
    let borrowers: Vec<String> = (0..origins).map(origin).collect();
    let mut documents = vec![
        federation(
            "growth",
            "  defaults: {leaseTerm: 24h, hold: 1h, peeringIdle: 1h, peeringStep: 10m, outageGrace: 24h, \
             heartbeatTimeout: 10m}\n  \
             limits: {maxQueuedRequests: 50000, maxQueuedRequestsPerTenant: 10000}\n",
        ),
        gpu_class(),
        agreement(&borrowers, &lenders),
    ];
    documents.extend(lenders.iter().chain(&borrowers).map(|name| institution(name, from_ref(name))));
    documents.extend(lenders.iter().map(|name| policy_documents::donor(name, name)));
    for (number, name) in borrowers.iter().enumerate() {
        let tenants = (0..TENANTS_PER_ORIGIN).map(|of| tenant(number, of));
        documents.extend(tenants.map(|tenant| policy_documents::tenant(&tenant, name, from_ref(name))));
    }
    write(dir, &documents)
}
