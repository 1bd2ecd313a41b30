//! Policy decisions per second of a large federation, beside OPA's Rego (evaluated by regorus) on the same rules.
//!
//! [`federation`] makes the documents, [`rules`] the rules in both languages, [`questions`] the requests. [`opa`] is the
//! peer, which gets the documents as data with the same indexes. [`measure`] asks both, and fails if they disagree.

pub mod federation;
pub mod measure;
pub mod opa;
pub mod questions;
pub mod rules;
