//! Events that burst writes on pods.

/// An event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether somebody must act.
    pub is_warning: bool,
    /// CamelCase, stable.
    pub reason: &'static str,
    /// One sentence.
    pub text: String,
}
