//! The source of the policy: fetches a branch, and gives its objects to who judges them.
//!
//! ```text
//!   path   ─▶ local_refs ─┐
//!                         ├─▶ head, object_database ─▶ comity-provenance ─▶ verdict
//!   https  ─▶ https ─┬─▶ upload_pack ─┬─▶ pack in DATA/policy-source ─┘
//!   ssh    ─▶ ssh   ─┘                │
//!   oci    ─▶ oci ────────────────────┘
//! ```
//!
//! No git program runs, and no setting or hook of the repository counts. A fetch is bounded in time and bytes. Who judges
//! the objects hashes them again.

mod access;
mod address_text;
mod blocking;
mod credentials;
mod http_host;
mod https;
mod local_refs;
mod object_database;
mod oci;
mod packet_lines;
mod pull;
mod pull_error;
mod pulled;
mod repository;
mod ssh;
mod upload_pack;

#[cfg(test)]
mod tests;

pub(crate) use access::PULL_DEADLINE;
pub use access::PolicyAccess;
pub use object_database::ObjectDatabase;
pub(crate) use oci::ArtifactDigest;
pub use oci::{ArtifactPush, PushedArtifact};
pub(crate) use pull::{Wanted, objects_with, pull};
pub use pull_error::PullError;
pub(crate) use pulled::{Pulled, PulledBranch, PulledDocuments};
pub(crate) use repository::{Branch, Repository};
