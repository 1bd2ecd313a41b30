//! The policy of the chaos test: one institution borrows, another lends, with timeouts short enough to expire.

use std::fs;
use std::path::Path;

use anyhow::Result;

use super::schedule::Shape;

/// The tenant that asks.
pub(super) const TENANT: &str = "chaos";
/// The class of all GPUs here.
pub(super) const CLASS: &str = "frontier";

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
pub(super) fn write(dir: &Path, shape: Shape) -> Result<()> {
    let donors = ids(shape, 0..shape.donors);
    let origins = ids(shape, shape.donors..shape.donors + shape.origins);
    let mut documents = vec![
        document(
            "Federation",
            "chaos",
            "  trustDomain: comity.example\n  maintainers: ['spiffe://comity.example/user/admin']\n  \
             defaults: {leaseTerm: 10m, hold: 90s, peeringIdle: 20s, peeringStep: 30s, outageGrace: 10m, \
             heartbeatTimeout: 10s}\n",
        ),
        document("GpuClass", CLASS, "  selector: device.memoryMiB >= 80000\n  rank: 300\n"),
        institution("borrowers", "AZ4j2yeTbEsuiTcsVm7X0hoin0VTAeESM9YOgIKdE+Y=", &origins),
        institution("lenders", "kjCufuHy8Ib0zOnXEOPr77bYgyhixGLJpBR/L7VmkgY=", &donors),
        document(
            "Tenant",
            TENANT,
            &format!(
                "  institution: borrowers\n  \
                 members: [{{id: 'spiffe://comity.example/user/alice', role: submitter}}]\n  \
                 classes: [{CLASS}]\n  clusters: [{}]\n",
                origins.join(", ")
            ),
        ),
        document(
            "Agreement",
            "all-lend-to-all",
            &format!("  borrowers: [borrowers]\n  lenders: [lenders]\n  classes: [{CLASS}]\n  purpose: chaos\n"),
        ),
    ];
    let lends = format!("  institution: lenders\n  lends: [{{classes: [{CLASS}]}}]\n  delivery: [namespace]\n");
    documents.extend(donors.iter().map(|donor| document("Cluster", donor, &lends)));
    fs::create_dir_all(dir)?;
    fs::write(dir.join("chaos.yaml"), documents.join("---\n"))?;
    Ok(())
}

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

fn institution(name: &str, key: &str, clusters: &[String]) -> String {
    let spec = format!(
        "  displayName: {name}\n  contact: chaos@comity.example\n  signingKeys: ['ed25519:{key}']\n  \
         clusters: [{}]\n  operators: ['spiffe://comity.example/user/admin']\n",
        clusters.join(", ")
    );
    document("Institution", name, &spec)
}
