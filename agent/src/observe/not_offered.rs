//! Resources that the offer leaves out.

/// A resource of a node that is not offered, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NotOffered {
    /// Node name; logged locally, never sent.
    pub(crate) node: String,
    /// The resource.
    pub(crate) resource: String,
    /// Why, and what to do.
    pub(crate) reason: String,
}
