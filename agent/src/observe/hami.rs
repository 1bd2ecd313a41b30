//! GPUs that HAMi shares.

pub(super) mod hami_annotations;
pub(super) mod hami_devices;
pub(super) mod hami_handshakes;
