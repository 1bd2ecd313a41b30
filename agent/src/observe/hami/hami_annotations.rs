//! HAMi's annotations of a node.

use comity_agent_kubernetes::hami::{CORDON_ANNOTATION, HANDSHAKE_ANNOTATIONS, REGISTER_ANNOTATION};

/// Annotations that HAMi, or its administrator, wrote on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HamiAnnotations {
    /// Its devices.
    pub(crate) register: String,
    /// The handshake of HAMi's scheduler and device plugin.
    pub(crate) handshake: String,
    /// UUIDs of devices that get no more pods, with commas between.
    pub(crate) cordoned: String,
    /// The device plugin has not answered the handshake in time.
    pub(crate) is_silent: bool,
}

impl HamiAnnotations {
    /// Reads a node's annotations; `None` if HAMi does not share its GPUs.
    pub(crate) fn read(annotation: impl Fn(&str) -> String) -> Option<Self> {
        let register = annotation(REGISTER_ANNOTATION);
        let handshakes = HANDSHAKE_ANNOTATIONS.into_iter().map(&annotation);
        (!register.is_empty()).then(|| Self {
            register,
            handshake: handshakes.into_iter().find(|text| !text.is_empty()).unwrap_or_default(),
            cordoned: annotation(CORDON_ANNOTATION),
            is_silent: false,
        })
    }

    /// Whether the scheduler waits for the device plugin's answer.
    pub(crate) fn is_asked(&self) -> bool {
        self.handshake.starts_with("Requesting")
    }
}
