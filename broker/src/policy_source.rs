//! The Git repository of the policy: fetches a branch, and gives its objects to who judges them.
//!
//! ```text
//!   path   ─▶ local_refs ─┐
//!                         ├─▶ head, object_database ─▶ comity-provenance ─▶ verdict
//!   https  ─▶ https ─▶ upload_pack ─▶ pack in DATA/policy-source ─┘
//! ```
//!
//! No git program runs, and no setting or hook of the repository counts. A fetch is bounded in time and bytes. Who judges
//! the objects hashes them again.

mod access;
mod credentials;
mod https;
mod local_refs;
mod object_database;
mod packet_lines;
mod pull_error;
mod pulled;
mod repository;
mod upload_pack;

#[cfg(test)]
mod tests;

pub use access::PolicyAccess;
pub(crate) use object_database::ObjectDatabase;
pub(crate) use pull_error::PullError;
pub(crate) use pulled::{PULL_DEADLINE, Pulled, objects_with, pull};
pub(crate) use repository::{Branch, Repository};
