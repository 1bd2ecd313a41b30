//! Reads documents: YAML text to nodes, nodes to typed fields.

pub(crate) mod fields;
pub(crate) mod identifiers;
pub(crate) mod shapes;
pub(crate) mod yaml;
