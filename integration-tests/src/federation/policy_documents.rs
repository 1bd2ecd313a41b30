//! Builds the documents of test policies.

use std::fs;
use std::path::Path;

use anyhow::Result;
use comity_runtime::{IdentityKey, SystemEntropy};

/// The class of all GPUs.
pub(crate) const CLASS: &str = "frontier";
/// The institution that borrows, where there is only one.
pub(crate) const BORROWERS: &str = "borrowers";
/// The institution that lends, where there is only one.
pub(crate) const LENDERS: &str = "lenders";

/// A document of any kind; `spec` is indented YAML.
pub(crate) fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata:\n  name: {name}\nspec:\n{spec}")
}

/// The federation, with further lines of its spec.
pub(crate) fn federation(name: &str, more: &str) -> String {
    let spec = format!("  trustDomain: comity.example\n  maintainers: ['spiffe://comity.example/user/admin']\n{more}");
    document("Federation", name, &spec)
}

/// The class of all GPUs.
pub(crate) fn gpu_class() -> String {
    document("GpuClass", CLASS, "  selector: device.memoryMiB >= 80000\n  rank: 300\n")
}

/// An institution with these clusters.
pub(crate) fn institution(name: &str, clusters: &[String]) -> String {
    let key = IdentityKey::generate(&SystemEntropy).public();
    let spec = format!(
        "  displayName: {name}\n  contact: ops@comity.example\n  signingKeys: ['{key}']\n  clusters: [{}]\n  \
         operators: ['spiffe://comity.example/user/admin']\n",
        clusters.join(", ")
    );
    document("Institution", name, &spec)
}

/// An agreement of institutions.
pub(crate) fn agreement(borrowers: &[String], lenders: &[String]) -> String {
    let spec = format!(
        "  borrowers: [{}]\n  lenders: [{}]\n  classes: [{CLASS}]\n  description: tests\n",
        borrowers.join(", "),
        lenders.join(", ")
    );
    document("Agreement", "all-lend-to-all", &spec)
}

/// A cluster that lends all its GPUs.
pub(crate) fn donor(name: &str, institution: &str) -> String {
    let spec = format!("  institution: {institution}\n  lends: [{{classes: [{CLASS}]}}]\n  delivery: [namespace]\n");
    document("Cluster", name, &spec)
}

/// A tenant for which alice submits requests.
pub(crate) fn tenant(name: &str, institution: &str, clusters: &[String]) -> String {
    let spec = format!(
        "  institution: {institution}\n  members: [{{id: 'spiffe://comity.example/user/alice', role: submitter}}]\n  \
         classes: [{CLASS}]\n  clusters: [{}]\n",
        clusters.join(", ")
    );
    document("Tenant", name, &spec)
}

/// Writes the documents into a directory.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn write(dir: &Path, documents: &[String]) -> Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("policy.yaml"), documents.join("---\n"))?;
    Ok(())
}
