//! The TLS provider of all Comity processes: ring.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

/// Installs ring as the default TLS provider of the process. Every binary and test calls it first. Does nothing if a
/// provider is installed.
pub fn install_crypto_provider() {
    // The only error is that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The provider of this crate's TLS configurations, whatever the default of the process is.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::ring::default_provider())))
}
