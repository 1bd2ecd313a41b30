//! Mode `tun`: WireGuard over a network device of this node, so that pods of
//! both clusters reach each other.
//!
//! `checksum`, `vnet`, `segment`, `coalesce`, `translation`, `allowed`, `placement`, `ruleset` and `layout` are pure;
//! `tun_device`, `udp`, `netlink`, `firewall`, `sysctl` and `sockets` are thin over the kernel; `threads` moves
//! packets.
//!
//! It never forwards a packet that no `Reach` covers, never accepts a packet whose source is not the peering's, and
//! leaves nothing behind. A run that was killed leaves its firewall table, which the next run replaces.

mod allowed;
mod checksum;
mod coalesce;
mod firewall;
pub(super) mod kernel_side;
mod layout;
mod netlink;
mod overlay;
#[cfg(test)]
mod packets;
mod placement;
mod ruleset;
mod segment;
pub(super) mod sockets;
mod sysctl;
pub(super) mod tcp_header;
mod threads;
mod translation;
mod tun_device;
mod udp;
mod vnet;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::Notify;

pub use overlay::{ApiRoute, ClusterNode, MAX_NODES, NodeOverlay, Published, PublishedError, overlay_device};
pub use placement::PlacementRequest;
pub(super) use udp::UdpLink;

use super::PodNetwork;
use super::error::FabricError;
use super::mode::{Reach, TunSettings};
use super::peer::Peer;
use super::peer::config::{PeerConfig, Role};
use super::registry::{Added, SharedRegistry};
use allowed::{RouteTable, SharedRouteTable};
use layout::Layout;
use netlink::Netlink;
use overlay::{GatewayOverlay, MAX_API_ROUTES};
use placement::Busy;
use ruleset::{OverlayRules, PeerRules, Rules};
use threads::Shared;
use tun_device::TunDevice;

/// Entries that each set of a `Reach` may have.
const MAX_REACH: usize = 4096;

/// The network device with all that belongs to it.
pub(super) struct TunEngine {
    link: Arc<UdpLink>,
    settings: TunSettings,
    index: u32,
    table: SharedRouteTable<Arc<Peer>>,
    stop: Arc<OwnedFd>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stopped: AtomicBool,
    changed: Arc<Notify>,
    state: Mutex<State>,
    /// The last field, so that it is dropped last.
    _device: Arc<TunDevice>,
}

struct State {
    netlink: Netlink,
    layout: Layout,
    rules: Rules,
    peers: BTreeMap<String, Arc<Peer>>,
    /// The overlay to the cluster's other nodes, if it has any.
    overlay: Option<GatewayOverlay>,
}

fn network(what: impl Into<String>) -> impl FnOnce(io::Error) -> FabricError {
    let what = what.into();
    move |source| FabricError::Network { what, source }
}

impl TunEngine {
    /// Makes the device and the firewall's table, in place of what an earlier
    /// run left, and starts to move packets.
    pub(super) fn start(
        socket: UdpSocket,
        settings: TunSettings,
        registry: SharedRegistry,
    ) -> Result<Self, FabricError> {
        settings.check().map_err(|it| FabricError::Setting { field: it.field, value: it.value, reason: it.reason })?;
        let name = settings.name.clone();
        let failed = |source| FabricError::Device { device: name.clone(), source };
        let link = Arc::new(UdpLink::new(socket).map_err(failed)?);
        let mut netlink = Netlink::open().map_err(network("ask the kernel for its links"))?;
        // The socket is ours, so no other agent runs here: this is a leftover.
        netlink.remove_tun(&name).map_err(failed)?;
        let device = Arc::new(TunDevice::make(&name).map_err(failed)?);
        let index = netlink.link(&name).map_err(failed)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        sysctl::prepare(&name);
        netlink.raise_link(index, settings.mtu).map_err(failed)?;
        let rules = Rules { device: name.clone(), peers: BTreeMap::new(), overlay: None };
        firewall::load(&rules.script())?;
        if settings.overlay.enabled {
            GatewayOverlay::remove_leftovers(&mut netlink, &overlay_device(&name))?;
        }
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| failed(error.into()))?);
        let table = SharedRouteTable::default();
        let shared = Arc::new(Shared {
            device: Arc::clone(&device),
            link: Arc::clone(&link),
            table: Arc::clone(&table),
            registry,
            stop: Arc::clone(&stop),
        });
        let (layout, peers) = (Layout::default(), BTreeMap::new());
        let state = Mutex::new(State { netlink, layout, rules, peers, overlay: None });
        let threads = Mutex::new(Vec::new());
        let stopped = AtomicBool::new(false);
        let changed = Arc::default();
        let engine = Self { link, settings, index, table, stop, threads, stopped, changed, state, _device: device };
        for (name, run) in [("fabric-send", threads::send as fn(&Shared)), ("fabric-receive", threads::receive)] {
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared));
            let thread = thread.map_err(failed)?;
            engine.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        tracing::info!(device = engine.settings.name, mtu = engine.settings.mtu, "the fabric's network device is up");
        Ok(engine)
    }

    pub(super) fn link(&self) -> &Arc<UdpLink> {
        &self.link
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.link.local_addr()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that a peering's networks do not overlap with others, adds it by `register`, and sets its addresses,
    /// routes and rules.
    pub(super) fn add(
        &self,
        config: &PeerConfig,
        register: impl FnOnce() -> Result<Added, FabricError>,
    ) -> Result<Added, FabricError> {
        let mut state = self.lock();
        let own = self.own_networks(&mut state)?;
        allowed::check(config, &own, state.peers.values().map(|peer| peer.config()))?;
        let added = register()?;
        if let Added::New { peer, replaced } = &added {
            let slot = state.rules.peers.get(&config.peering).map(|rules| (rules.slot, rules.reach.clone()));
            let (slot, reach) = slot.unwrap_or_else(|| (state.rules.free_slot(), Reach::default()));
            let allowed = allowed::Allowed::of(config);
            let rules = PeerRules { slot, role: config.role, allowed, remote_api: config.remote_api, reach };
            state.rules.peers.insert(config.peering.clone(), rules);
            state.peers.insert(config.peering.clone(), Arc::clone(peer));
            if let Err(error) = self.settle(&mut state) {
                replaced.iter().for_each(|old| old.close());
                return Err(error);
            }
        }
        Ok(added)
    }

    /// Chooses the addresses at which this cluster sees another cluster's pod networks.
    pub(super) fn place(&self, request: &PlacementRequest<'_>) -> Result<Vec<PodNetwork>, FabricError> {
        let mut state = self.lock();
        let own = self.own_networks(&mut state)?;
        let is_other = |peer: &&Arc<Peer>| peer.config().remote_cluster != request.cluster;
        let others = state.peers.values().filter(is_other).flat_map(|peer| peer.config().routes.iter());
        let busy = Busy::of(request, own, others.map(|network| network.here));
        placement::place(request, &self.settings.remap, busy)
    }

    /// Takes a peering's addresses, routes and rules away.
    pub(super) fn remove(&self, peering: &str) {
        let mut state = self.lock();
        state.peers.remove(peering);
        if state.rules.peers.remove(peering).is_none() {
            return;
        }
        if let Err(error) = self.settle(&mut state) {
            tracing::warn!(%error, peering, "a peering's network is not removed completely");
        }
    }

    /// Sets which addresses may communicate through a peering's tunnel.
    pub(super) fn set_reachable(&self, peering: &str, reach: Reach) -> Result<(), FabricError> {
        let count = reach.remote.len().max(reach.local.len()).max(reach.api_clients.len());
        if count > MAX_REACH {
            let (peering, what) = (peering.to_owned(), "reachable networks");
            return Err(FabricError::TooMany { peering, what, count, limit: MAX_REACH });
        }
        let mut state = self.lock();
        let rules = state.rules.peers.get_mut(peering);
        let rules = rules.ok_or_else(|| FabricError::Removed { peering: peering.to_owned() })?;
        let Some(change) = rules.change(&reach) else { return Ok(()) };
        if rules.reach.api_clients != reach.api_clients {
            // Other nodes route these pods' packets to this one.
            self.changed.notify_one();
        }
        let old = std::mem::replace(&mut rules.reach, reach);
        let Err(error) = firewall::load(&change) else { return Ok(()) };
        tracing::warn!(%error, "the fabric's firewall table was changed; it is written again");
        let rewritten = firewall::load(&state.rules.script());
        if rewritten.is_err()
            && let Some(rules) = state.rules.peers.get_mut(peering)
        {
            rules.reach = old;
        }
        rewritten
    }

    /// Routes pods of the cluster's other nodes to the tunnels and back; `nodes` are all nodes, including this one.
    pub(super) fn set_nodes(&self, nodes: &[ClusterNode]) -> Result<(), FabricError> {
        if !self.settings.overlay.enabled {
            return Ok(());
        }
        let mut state = self.lock();
        let State { netlink, rules, overlay, .. } = &mut *state;
        let (own, others) = GatewayOverlay::find_own_node(netlink, nodes)?;
        let wanted = (!others.is_empty()).then(|| OverlayRules {
            device: overlay_device(&self.settings.name),
            port: self.settings.overlay.port,
            nodes: others.iter().map(|node| node.address).collect(),
        });
        let is_used = wanted.is_some();
        if rules.overlay != wanted {
            // The rules come first, so that no traffic passes without them.
            let changed = Rules { overlay: wanted, ..rules.clone() };
            firewall::load(&changed.script())?;
            *rules = changed;
        }
        if !is_used || overlay.as_ref().is_some_and(|overlay| overlay.own().0 != own) {
            overlay.take().into_iter().for_each(|overlay| overlay.stop(netlink));
        }
        if is_used {
            let mut running = match overlay.take() {
                Some(running) => running,
                None => GatewayOverlay::start(netlink, &self.settings, own)?,
            };
            let followed = running.follow(netlink, &self.settings.name, &others);
            *overlay = Some(running);
            followed?;
        }
        self.changed.notify_one();
        Ok(())
    }

    /// State for the cluster's other nodes; `None` if there are none.
    pub(super) fn published(&self) -> Option<Published> {
        let state = self.lock();
        let (gateway, mtu) = state.overlay.as_ref()?.own();
        let peers = || state.rules.peers.values();
        Some(Published {
            gateway,
            vni: self.settings.overlay.vni,
            port: self.settings.overlay.port,
            mtu,
            pod_networks: peers().flat_map(|peer| peer.allowed.routes.iter().map(|net| net.here)).collect(),
            api_routes: peers().flat_map(api_routes).take(MAX_API_ROUTES).collect(),
        })
    }

    /// Notified whenever the published state may have changed.
    pub(super) fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.changed)
    }

    fn own_networks(&self, state: &mut State) -> Result<Vec<allowed::OwnNetwork>, FabricError> {
        let mut own = state.netlink.own_networks(self.index).map_err(network("list this node's networks"))?;
        own.extend(self.settings.own_networks.iter().map(|net| allowed::OwnNetwork {
            net: (*net).into(),
            what: "fabric.tun.ownNetworks".to_owned(),
            is_address: true,
        }));
        Ok(own)
    }

    /// Sets rules, addresses, routes and the routing table as the peerings need them. The rules come first, so that no
    /// traffic passes without them.
    fn settle(&self, state: &mut State) -> Result<(), FabricError> {
        firewall::load(&state.rules.script())?;
        let wanted = Layout::of(state.rules.peers.values().map(|rules| &rules.allowed));
        let wanted = if sysctl::has_ipv6(&self.settings.name) { wanted } else { wanted.without_ipv6() };
        let State { netlink, layout, .. } = state;
        layout.change(wanted, netlink, self.index)?;
        let mut table = RouteTable::default();
        for peer in state.peers.values() {
            if let Some(kernel) = peer.kernel() {
                table.add(kernel.allowed(), peer);
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
        self.changed.notify_one();
        Ok(())
    }

    /// Ends the threads and removes the firewall table; dropping `self` removes the device.
    pub(super) fn stop(&self) {
        if self.stopped.swap(true, Ordering::Relaxed) {
            return;
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        // The first write to an eventfd never blocks.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        for thread in threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the fabric panicked");
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
        let mut state = self.lock();
        state.peers.clear();
        let State { netlink, overlay, .. } = &mut *state;
        overlay.take().into_iter().for_each(|overlay| overlay.stop(netlink));
        firewall::remove();
    }
}

/// Which pods reach an origin's donor through the tunnel, by IPv4.
fn api_routes(peer: &PeerRules) -> impl Iterator<Item = ApiRoute> {
    let server = peer.remote_api.filter(|_| peer.role == Role::Origin);
    let clients = peer.reach.api_clients.iter();
    clients.filter_map(move |client| match (server, client) {
        (Some(SocketAddr::V4(server)), IpAddr::V4(client)) => Some(ApiRoute { client: *client, server }),
        _ => None,
    })
}

impl Drop for TunEngine {
    fn drop(&mut self) {
        self.stop();
    }
}
