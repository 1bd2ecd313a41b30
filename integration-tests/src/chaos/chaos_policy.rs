//! The policy of the chaos test: one institution borrows, another lends, with timeouts short enough to expire.

use std::path::Path;

use anyhow::Result;

use super::federation_faults::Shape;
use crate::federation::policy_documents::{
    BORROWERS, LENDERS, agreement, donor, federation, gpu_class, institution, tenant, write,
};

/// The tenant that asks.
pub(super) const TENANT: &str = "chaos";

/// Id of a cluster: donors first.
pub(super) fn cluster_id(shape: Shape, number: usize) -> String {
    match number.checked_sub(shape.donors) {
        None => format!("donor-{}", number + 1),
        Some(origin) => format!("origin-{}", origin + 1),
    }
}

fn ids(shape: Shape, numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|number| cluster_id(shape, number)).collect()
}

/// Writes the documents into a directory.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write_policy(dir: &Path, shape: Shape) -> Result<()> {
    let donors = ids(shape, 0..shape.donors);
    let origins = ids(shape, shape.donors..shape.donors + shape.origins);
    let mut documents = vec![
        federation(
            "chaos",
            "  defaults: {leaseTerm: 10m, hold: 90s, peeringIdle: 20s, peeringStep: 30s, outageGrace: 10m, \
             heartbeatTimeout: 10s}\n",
        ),
        gpu_class(),
        institution(BORROWERS, &origins),
        institution(LENDERS, &donors),
        tenant(TENANT, BORROWERS, &origins),
        agreement(&[BORROWERS.to_owned()], &[LENDERS.to_owned()]),
    ];
    documents.extend(donors.iter().map(|name| donor(name, LENDERS)));
    write(dir, &documents)
}
