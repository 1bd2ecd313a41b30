//! Ids of the objects in a desired state.

/// A lease or a peering, by its id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectId {
    /// "lease-N".
    Lease(String),
    /// "peer-N".
    Peering(String),
}
