//! The one TLS provider of every Comity process: ring.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

/// Installs ring as the process's TLS provider. Every binary and test calls it first; calling it
/// again does nothing. A provider installed before by somebody else stays.
pub fn install_crypto_provider() {
    // The error only says that a provider is there already, which is the wished-for state.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The provider that this crate's own configurations use, whatever the process default is.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
