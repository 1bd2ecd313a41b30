//! # comity-provenance
//!
//! Judges a Git history of the policy: whether the owners of all changed documents signed their changes.
//!
//! ```text
//! Git objects ──▶ commit, tree (parsed, hashed again) ──▶ history ──▶ judge ──▶ Verdict
//!                                    bundle in force ──▶ keys ────────┘  │
//!                                    documents before and after ──▶ ownership
//! ```
//!
//! [`judge`] walks the commits from the one in force to the head of the branch. The owner of each changed document must
//! have signed the change, with a key that the policy accepted so far names: a commit cannot vouch for itself. What the store
//! returns is hashed again, so that a verdict depends on the head's id and not on the store.
//!
//! No clock, no network, no disk: objects come through [`ObjectStore`], and the time arrives as data.

mod commit;
mod commit_signatures;
mod documents;
mod history;
mod judge;
pub mod limits;
mod object_id;
mod object_kind;
mod object_store;
mod objects_read;
mod ownership;
mod pending;
mod policy_folder;
mod signature;
mod signer;
mod taken_names;
mod verdict;
mod versions;

pub use commit::{Commit, MalformedCommit};
pub use documents::{DocumentKey, DocumentSpec, Documents};
pub use judge::{InForce, judge, judge_within, policy_at};
pub use object_id::{InvalidObjectId, ObjectId};
pub use object_kind::ObjectKind;
pub use object_store::{ObjectStore, StoreError};
pub use objects_read::{Visit, visit_objects};
pub use ownership::{Owner, Requirement, requirement};
pub use policy_folder::{InvalidFolder, PolicyFolder};
pub use signer::Signer;
pub use taken_names::taken_after;
pub use verdict::{Accepted, Reason, Refused, UnsignedChange, Verdict};
