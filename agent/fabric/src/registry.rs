//! The peerings of a fabric, by name and by number.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use super::demux::{Demux, Message};
use super::error::FabricError;
use super::peer::Peer;
use super::peer::config::PeerConfig;
use super::peer::fence::Fence;

/// Peerings of one agent: a cluster peers with clusters, not with nodes.
pub const MAX_PEERINGS: usize = 1024;
/// Endpoint candidates of one peering.
const MAX_ENDPOINTS: usize = 16;
/// Peer numbers have 24 bits; boringtun keeps the other 8 of an index.
const NUMBER_MASK: u64 = 0x00ff_ffff;

/// The TCP stack that peers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TcpStack {
    /// Each peer's own, in this process.
    Netstack,
    /// The kernel's.
    Kernel,
}

struct Registry {
    demux: Demux<Arc<Peer>>,
    numbers: BTreeMap<String, u32>,
    stack: TcpStack,
    fence: Fence,
}

/// The peerings, shared by the receive loop and the fabric's owner.
#[derive(Clone)]
pub(super) struct SharedRegistry(Arc<RwLock<Registry>>);

/// The result of adding a peering.
pub(super) enum Added {
    /// The peering existed already.
    Known(Arc<Peer>),
    /// A new peer, which must be driven, and the peer that it replaces, which must be closed.
    New { peer: Arc<Peer>, replaced: Option<Arc<Peer>> },
}

impl SharedRegistry {
    pub(super) fn new(stack: TcpStack, fence: Fence) -> Self {
        Self(Arc::new(RwLock::new(Registry { demux: Demux::new(), numbers: BTreeMap::new(), stack, fence })))
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Registry> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer a datagram is for.
    pub(super) fn route(&self, datagram: &[u8]) -> Option<(Message, Arc<Peer>)> {
        let registry = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (message, peer) = registry.demux.route(datagram)?;
        Some((message, Arc::clone(peer)))
    }

    pub(super) fn get(&self, peering: &str) -> Option<Arc<Peer>> {
        let registry = self.0.read().unwrap_or_else(PoisonError::into_inner);
        registry.demux.get(*registry.numbers.get(peering)?).map(Arc::clone)
    }

    pub(super) fn add(&self, config: PeerConfig, now: Instant) -> Result<Added, FabricError> {
        if config.endpoints.len() > MAX_ENDPOINTS {
            let (peering, count) = (config.peering, config.endpoints.len());
            return Err(FabricError::TooManyEndpoints { peering, count, limit: MAX_ENDPOINTS });
        }
        let mut registry = self.write();
        let known = registry.numbers.get(&config.peering).copied();
        if let Some(peer) = known.and_then(|number| registry.demux.get(number)) {
            if let Some(peer) = keep(peer, &config, now) {
                return Ok(Added::Known(peer));
            }
        } else if registry.demux.len() >= MAX_PEERINGS {
            return Err(FabricError::TooManyPeerings { limit: MAX_PEERINGS });
        }
        registry.check_key(&config)?;
        let (number, seed) = registry.draw_number()?;
        let replaced = known.and_then(|number| registry.demux.remove(number));
        let (name, public) = (config.peering.clone(), config.local_secret.public());
        let seed = (registry.stack == TcpStack::Netstack).then_some(seed);
        let peer = Arc::new(Peer::new(config, number, seed, registry.fence.clone(), now));
        registry.demux.insert(number, public, Arc::clone(&peer));
        registry.numbers.insert(name, number);
        Ok(Added::New { peer, replaced })
    }

    pub(super) fn remove(&self, peering: &str) -> Option<Arc<Peer>> {
        let mut registry = self.write();
        let number = registry.numbers.remove(peering)?;
        registry.demux.remove(number)
    }

    pub(super) fn take_all(&self) -> Vec<Arc<Peer>> {
        let mut registry = self.write();
        registry.numbers.clear();
        let demux = std::mem::replace(&mut registry.demux, Demux::new());
        demux.iter().map(Arc::clone).collect()
    }
}

/// The existing peer, if the configuration describes the same tunnel; only its endpoint candidates may change.
fn keep(peer: &Arc<Peer>, config: &PeerConfig, now: Instant) -> Option<Arc<Peer>> {
    if !peer.config().is_same_tunnel(config) {
        return None;
    }
    peer.with(|tunnel| {
        if tunnel.path().candidates() != config.endpoints {
            tunnel.path().set_candidates(config.endpoints.clone(), now);
        }
    });
    Some(Arc::clone(peer))
}

impl Registry {
    fn check_key(&self, config: &PeerConfig) -> Result<(), FabricError> {
        let public = config.local_secret.public();
        let mut others = self.demux.iter().map(|peer| peer.config());
        let sharing = others.find(|other| other.peering != config.peering && other.local_secret.public() == public);
        sharing.map_or(Ok(()), |other| {
            Err(FabricError::KeyInUse { peering: config.peering.clone(), other: other.peering.clone() })
        })
    }

    /// A free random number, so that messages to an earlier process of this agent match no peer, and a random seed.
    fn draw_number(&self) -> Result<(u32, u64), FabricError> {
        loop {
            let number = (getrandom::u64().map_err(FabricError::Randomness)? & NUMBER_MASK) as u32;
            if !self.demux.contains(number) {
                return Ok((number, getrandom::u64().map_err(FabricError::Randomness)?));
            }
        }
    }
}
