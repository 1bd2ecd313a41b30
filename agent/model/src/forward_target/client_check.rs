//! Who may use a port of this agent.

use std::net::IpAddr;
use std::pin::Pin;

/// Decides whether clients may use a port.
pub trait ClientCheck: Send + Sync {
    /// Whether a client at this address may connect. Bounded in time; without an answer it may not.
    fn admits(&self, client: IpAddr) -> Pin<Box<dyn Future<Output = bool> + Send + '_>>;
}
