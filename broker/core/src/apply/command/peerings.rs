//! Commands about handshakes and envelopes.

pub(crate) mod ack_envelope;
pub(crate) mod offer_keys;
pub(crate) mod relay_envelope;
pub(crate) mod report_peering;
