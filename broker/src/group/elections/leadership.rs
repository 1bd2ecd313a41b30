//! Who leads, as one broker knows it.

/// A tenure: one uninterrupted time of leading. A leader that loses its majority and reaches it again in the same term
/// begins a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tenure {
    /// Raft's term.
    pub term: u64,
    /// Counts this broker's tenures since it started.
    pub number: u64,
}

/// Who leads, as one broker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leadership {
    /// This broker leads, and a majority of the voters answered within the leader lease.
    Leader(Tenure),
    /// Another broker leads, or none; also the state of an elected leader without a majority.
    Follower {
        /// The leader, if known.
        leader: Option<u64>,
    },
}

impl Leadership {
    /// Whether this broker leads.
    pub const fn is_leader(self) -> bool {
        matches!(self, Self::Leader { .. })
    }
}
