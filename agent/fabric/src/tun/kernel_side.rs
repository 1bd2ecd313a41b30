//! State of a peering whose packets use the kernel's TCP stack.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::allowed::Allowed;
use super::translation::Translation;
use crate::netstack::MAX_CONNECTIONS;
use crate::peer::config::{PeerConfig, Role};

/// State of a peering that uses the kernel's TCP stack.
pub(crate) struct KernelSide {
    pub(super) allowed: Allowed,
    /// Present if pod networks of the other side are remapped.
    pub(super) translation: Option<Translation>,
    role: Role,
    /// Connections opened by this side.
    pub(super) opened: Arc<Semaphore>,
    /// Connections accepted by this side.
    pub(super) accepted: Arc<Semaphore>,
    pub(super) ended: CancellationToken,
}

impl KernelSide {
    pub(crate) fn new(config: &PeerConfig) -> Self {
        let allowed = Allowed::of(config);
        Self {
            translation: Translation::of(&allowed.routes),
            allowed,
            role: config.role,
            opened: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            accepted: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            ended: CancellationToken::new(),
        }
    }

    pub(crate) fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// This process's connections through the tunnel, without those of pods. Connections that an origin accepts come
    /// from its own cluster and do not count.
    pub(crate) fn connections(&self) -> usize {
        let accepted = if self.role == Role::Donor { self.accepted.available_permits() } else { MAX_CONNECTIONS };
        2 * MAX_CONNECTIONS - self.opened.available_permits() - accepted
    }

    /// Resets the connections and wakes their waiters.
    pub(crate) fn end(&self) {
        self.ended.cancel();
    }
}
