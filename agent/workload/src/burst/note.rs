//! Events that burst writes on pods.

/// An event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Something has to be done by people.
    pub is_warning: bool,
    /// CamelCase, stable.
    pub reason: &'static str,
    /// One sentence.
    pub text: String,
}
