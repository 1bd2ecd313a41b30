//! The policy of the flood measurement: two institutions that borrow, one of which floods, and one that lends.

use std::path::Path;

use anyhow::Result;

use crate::federation::policy_documents::{
    self, CLASS, LENDERS, agreement, document, federation, gpu_class, institution, write,
};

/// The cluster, the tenant and the institution of alice.
pub(super) const QUIET: &str = "quiet";
/// The cluster, the tenant and the institution of mallory.
pub(super) const LOUD: &str = "loud";

/// Id of a donor.
pub(super) fn donor(number: usize) -> String {
    format!("donor-{number}")
}

/// Writes the documents into a directory.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write_policy(dir: &Path, donors: usize) -> Result<()> {
    let (quiet, loud) = ([QUIET.to_owned()], [LOUD.to_owned()]);
    let lenders: Vec<String> = (0..donors).map(donor).collect();
    let of_mallory = format!(
        "  institution: {LOUD}\n  members: [{{id: 'spiffe://comity.example/user/mallory', role: submitter}}]\n  \
         classes: [{CLASS}]\n  clusters: [{LOUD}]\n"
    );
    let mut documents = vec![
        federation("flood", "  limits: {maxQueuedRequests: 50000, maxQueuedRequestsPerTenant: 2000}\n"),
        gpu_class(),
        institution(QUIET, &quiet),
        institution(LOUD, &loud),
        institution(LENDERS, &lenders),
        agreement(&[QUIET.to_owned(), LOUD.to_owned()], &[LENDERS.to_owned()]),
        policy_documents::tenant(QUIET, QUIET, &quiet),
        document("Tenant", LOUD, &of_mallory),
        // A cluster that floods with offers lends as well.
        policy_documents::donor(LOUD, LOUD),
    ];
    documents.extend(lenders.iter().map(|name| policy_documents::donor(name, LENDERS)));
    write(dir, &documents)
}
