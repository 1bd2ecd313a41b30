//! The policy of the growth measurement: one institution per donor and per origin; each origin has some tenants.

use std::fs;
use std::path::Path;

use anyhow::Result;
use comity_runtime::{IdentityKey, SystemEntropy};

/// The class of all GPUs here.
pub(super) const CLASS: &str = "frontier";
/// Tenants of each origin's institution.
pub(super) const TENANTS: usize = 5;

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
pub(super) fn write(dir: &Path, donors: usize, origins: usize) -> Result<()> {
    let lenders: Vec<String> = (0..donors).map(donor).collect();
    let borrowers: Vec<String> = (0..origins).map(origin).collect();
    let mut documents = vec![
        document(
            "Federation",
            "growth",
            "  trustDomain: comity.example\n  maintainers: ['spiffe://comity.example/user/admin']\n  \
             defaults: {leaseTerm: 24h, hold: 1h, peeringIdle: 1h, peeringStep: 10m, outageGrace: 24h, \
             heartbeatTimeout: 10m}\n  \
             limits: {maxQueuedRequests: 50000, maxQueuedRequestsPerTenant: 10000}\n",
        ),
        document("GpuClass", CLASS, "  selector: device.memoryMiB >= 80000\n  rank: 300\n"),
        document(
            "Agreement",
            "all-lend-to-all",
            &format!(
                "  borrowers: [{}]\n  lenders: [{}]\n  classes: [{CLASS}]\n  purpose: growth\n",
                borrowers.join(", "),
                lenders.join(", ")
            ),
        ),
    ];
    documents.extend(lenders.iter().chain(&borrowers).map(|name| institution(name)));
    documents.extend(lenders.iter().map(|name| {
        let spec = format!("  institution: {name}\n  lends: [{{classes: [{CLASS}]}}]\n  delivery: [namespace]\n");
        document("Cluster", name, &spec)
    }));
    for (number, name) in borrowers.iter().enumerate() {
        documents.extend((0..TENANTS).map(|of| {
            let spec = format!(
                "  institution: {name}\n  members: [{{id: 'spiffe://comity.example/user/alice', role: submitter}}]\n  \
                 classes: [{CLASS}]\n  clusters: [{name}]\n"
            );
            document("Tenant", &tenant(number, of), &spec)
        }));
    }
    fs::create_dir_all(dir)?;
    fs::write(dir.join("growth.yaml"), documents.join("---\n"))?;
    Ok(())
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

/// An institution with one cluster of the same name.
fn institution(name: &str) -> String {
    let key = IdentityKey::generate(&SystemEntropy).public();
    let spec = format!(
        "  displayName: {name}\n  contact: growth@comity.example\n  signingKeys: ['{key}']\n  clusters: [{name}]\n  \
         operators: ['spiffe://comity.example/user/admin']\n"
    );
    document("Institution", name, &spec)
}
