//! The audit log, as brokers write it, agents anchor it and the CLI verifies it.
//!
//! Each [`AuditRecord`] names the hash of the one before it, and all hashes are the leaves of a Merkle tree (RFC 9162).
//! The chain shows an edit, a gap or a swap; the tree gives short proofs that one history continues another.
//!
//! ```text
//!   AuditRecord ──▶ one line of JSON ──▶ leaf hash ──▶ Head (append) ──▶ TreeHead{size, root}
//!                                           └──▶ `previous` of the next record
//! ```
//!
//! - [`Head`]: what a broker's state holds of the log; about log2(n) hashes
//! - [`consistency_proof`], [`verify_consistency`]: RFC 9162, section 2.1.4
//! - [`Verifier`]: checks a log line by line
//!
//! This crate reads no clock and no file.

mod consistency;
mod entry;
mod hash;
mod head;
mod nonce;
mod record;
mod tree;
mod verifier;

pub use consistency::{Inconsistent, verify_consistency};
pub use entry::{Entry, UnreadableEntry};
pub use hash::{Hash, NotAHash};
pub use head::{Head, TreeHead};
pub use nonce::{NonceKey, NotANonceKey};
pub use record::{ACTS, AuditRecord, Citation, DONE, SealedRecord, Subject};
pub use tree::{MemoryTree, Subtrees, consistency_proof, root_of};
pub use verifier::{Fault, Verifier};
