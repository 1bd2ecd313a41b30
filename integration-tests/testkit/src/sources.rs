//! Where policy and images come from: a registry, and a Git repository with signed commits.

pub(crate) mod oci_registry;
pub(crate) mod signed_git;
