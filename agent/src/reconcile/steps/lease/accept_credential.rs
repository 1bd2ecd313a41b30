//! Step `accept-credential`: the origin connects a lease. For a namespace it opens a local port into the tunnel and
//! writes a kubeconfig for it; a virtual node is requested from the donor's Liqo.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_delivery::{ApiCredential, Credential, VirtualNodeGrant};
use comity_agent_fabric::{FabricError, LocalForward, PeerHandle, forward_local};
use comity_agent_model::forward_target::client_check::ClientCheck;
use comity_agent_model::lease::Lease;
use comity_agent_state::store::Store;

use super::report;
use super::terms::{held_credential, origin_lease};
use crate::reconcile::bound_peering::BoundPeering;
use crate::reconcile::live::LiveLease;
use crate::reconcile::parts::{Borrowed, Connected, Deliveries, Parts, PortClients};
use crate::reconcile::steps::epoch;
use crate::reconcile::steps::error::StepError;
use crate::reconcile::steps::kind::Kind;

/// Origin: opens the loopback port and writes the kubeconfig, or accepts the virtual node.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptCredential {
    /// The lease.
    pub lease: Box<Lease>,
    /// Its peering.
    pub bound: BoundPeering,
}

impl Kind for AcceptCredential {
    const NAME: &'static str = "accept-credential";

    fn object(&self) -> String {
        self.lease.id.to_string()
    }

    fn traceparent(&self) -> &str {
        &self.lease.traceparent
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs(60)
    }

    async fn run(&self, parts: &Parts) -> Result<(), StepError> {
        let Self { lease, bound } = self;
        let Parts { store, tunnels, deliveries, connections, .. } = parts;
        let (credential, held) = held_credential(store, lease.id)?;
        let handle = tunnels.peer(bound.peering()).ok_or(StepError::Gone("the tunnel"))?;
        let tunnel_epoch = u32::try_from(handle.epoch()).unwrap_or(u32::MAX);
        // A forward into an older tunnel is dropped; its port is bound again below.
        let kept = connections.remove(lease.id).filter(|connected| connected.lease.tunnel_epoch == tunnel_epoch);
        let kept = kept.map(|connected| connected.borrowed);
        let borrowed = match &credential {
            Credential::Api(credential) => self.connect(parts, credential, &handle, kept).await,
            Credential::VirtualNode(grant) => self.accept_node(store, deliveries, grant).await,
        };
        if let Some(borrowed) = report::or_fail(store, lease, borrowed).await? {
            connections.insert(lease.id, Connected { lease: LiveLease { tunnel_epoch, ..held }, borrowed });
        }
        Ok(())
    }
}

impl AcceptCredential {
    async fn accept_node(
        &self,
        store: &Store,
        deliveries: &Deliveries,
        grant: &VirtualNodeGrant,
    ) -> Result<Borrowed, StepError> {
        let peer = epoch::liqo_peer(store, self.bound.peering())?;
        let origin = &deliveries.virtual_nodes()?.origin;
        let is_new = store.records().origins.get(&self.lease.id).is_none_or(|record| record.node.is_none());
        if is_new {
            // A later epoch of the tunnel comes here again, and must not end a lease that runs.
            origin.check_policies().await?;
        }
        let node = origin.accept(&peer, &origin_lease(&self.lease), grant).await?;
        // The reachability of the tunnel depends on it.
        let (id, kept) = (self.lease.id, Some(node.clone()));
        store.update(move |change| change.change_origin(id, |record| record.node = kept)).await?;
        Ok(Borrowed::VirtualNode { node })
    }

    async fn connect(
        &self,
        parts: &Parts,
        credential: &ApiCredential,
        handle: &PeerHandle,
        kept: Option<Borrowed>,
    ) -> Result<Borrowed, StepError> {
        let Parts { store, deliveries, .. } = parts;
        let forward = match kept {
            Some(Borrowed::Namespace { forward, .. }) => forward,
            _ => self.open_forward(parts, handle, credential.server_port).await?,
        };
        let local_api = forward.local_addr();
        let server = deliveries.access.server(local_api);
        let accepted = deliveries.origin.accept(&origin_lease(&self.lease), credential, &server).await?;
        let (id, port) = (self.lease.id, local_api.port());
        store.update(move |change| change.change_origin(id, |record| record.local_port = Some(port))).await?;
        Ok(Borrowed::Namespace { forward, kubeconfig: accepted.kubeconfig })
    }

    /// Binds the port used before, so that copied kubeconfigs stay valid; another one if it is taken.
    async fn open_forward(
        &self,
        Parts { store, deliveries, revoked, .. }: &Parts,
        handle: &PeerHandle,
        server_port: u16,
    ) -> Result<LocalForward, FabricError> {
        let lease = self.lease.id;
        let port = store.records().origins.get(&lease).and_then(|record| record.local_port).unwrap_or(0);
        let bind = |port| SocketAddr::from((deliveries.access.listen, port));
        let clients: Arc<dyn ClientCheck> = Arc::new(PortClients {
            networks: deliveries.access.clients.clone(),
            pods: deliveries.origin.clients(&origin_lease(&self.lease)),
        });
        match forward_local(handle, bind(port), server_port, Arc::clone(&clients), revoked.subscribe()).await {
            Err(FabricError::LocalBind { source, .. }) if port != 0 => {
                tracing::warn!(%lease, port, %source, "the lease's port is in use; the lease gets another one");
                forward_local(handle, bind(0), server_port, clients, revoked.subscribe()).await
            }
            other => other,
        }
    }
}
