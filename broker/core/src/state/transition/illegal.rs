//! The error of a transition that must not happen.

/// An entry made a change that the state's rules forbid. The broker must stop: its state is no longer trustworthy, and
/// every replica that applies the entry stops at the same place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("revision {revision} would break the state: {what}")]
pub struct IllegalChange {
    /// The revision that the entry would have made.
    pub revision: u64,
    /// The forbidden change.
    pub what: String,
}
