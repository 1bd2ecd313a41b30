//! Bounds of this crate, with their reasons.

/// Bytes of a commit object. A signature has one KiB, and a message of a thousand lines fits.
pub const MAX_COMMIT_OBJECT_BYTES: usize = 256 * 1024;
/// Bytes of a tree object: some thousand files in one folder.
pub const MAX_TREE_BYTES: usize = 1024 * 1024;
/// Parents of a commit: an octopus merge of more branches is no review.
pub const MAX_PARENTS: usize = 16;
/// Commits between the one in force and the head. A thousand changes since the last poll fit; push more in portions.
pub const MAX_NEW_COMMITS: usize = 2_000;
/// Commits before the one in force, which are read to tell older commits from new ones.
pub const MAX_HISTORY: usize = 50_000;
/// Bytes of policy that one verdict compiles, over all versions between the commit in force and the head.
pub const MAX_COMPILED_BYTES: usize = 256 * 1024 * 1024;
/// Commits that one commit approves.
pub const MAX_APPROVALS: usize = 64;
/// Unsigned changes that a refusal names; the others are counted.
pub const MAX_NAMED_CHANGES: usize = 10;
/// Bytes of all objects of one history that a broker shows an agent, as of one fetch.
pub const MAX_SHOWN_BYTES: usize = 64 * 1024 * 1024;
/// Bytes that a shown object takes beside its content, so that a flood of empty ones is bounded too.
const SHOWN_OBJECT_BYTES: usize = 128;
/// Names that stay taken when institutions leave.
pub const MAX_TAKEN_NAMES: usize = 10_000;

/// Bytes of [`MAX_SHOWN_BYTES`] that an object takes.
#[must_use]
pub fn shown_bytes(content: &[u8]) -> usize {
    content.len().saturating_add(SHOWN_OBJECT_BYTES)
}
