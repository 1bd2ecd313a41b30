//! Labels by which a donor marks namespaces of guests.

use std::collections::BTreeMap;

/// Label of namespaces on the donor whose pods run under this RuntimeClass.
pub const RUNTIME_CLASS_LABEL: &str = "comity.dev/runtime-class";
/// Label of namespaces on the donor, with the value "true": containers that request no NVIDIA GPU have
/// `NVIDIA_VISIBLE_DEVICES=void`.
pub const VOID_DEVICES_LABEL: &str = "comity.dev/void-devices";
/// Label of namespaces on the donor, with the value "true": containers have `imagePullPolicy: Always`.
pub const ALWAYS_PULL_LABEL: &str = "comity.dev/always-pull";

/// Labels of guests' namespaces, from which admission policies read the rules for their pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GuestLabels {
    /// RuntimeClass of the pods; `None`: the container runtime's own.
    pub runtime_class: Option<String>,
    /// Whether containers that request no NVIDIA GPU have `NVIDIA_VISIBLE_DEVICES=void`.
    pub void_devices: bool,
    /// Whether containers have `imagePullPolicy: Always`, so that none runs an image of the donor's that its node keeps.
    pub always_pull: bool,
}

impl GuestLabels {
    /// The labels.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<&'static str, &str> {
        let class = self.runtime_class.as_deref().map(|class| (RUNTIME_CLASS_LABEL, class));
        class
            .into_iter()
            .chain(self.switches().into_iter().filter(|(_, on)| *on).map(|(label, _)| (label, "true")))
            .collect()
    }

    /// The labels that are "true" or not, and whether they are.
    #[must_use]
    pub const fn switches(&self) -> [(&'static str, bool); 2] {
        [(VOID_DEVICES_LABEL, self.void_devices), (ALWAYS_PULL_LABEL, self.always_pull)]
    }
}
