//! Step `accept-credential`: the origin connects a lease. For a namespace it opens a local port into the tunnel and
//! writes a kubeconfig for it; a virtual node is requested from the donor's Liqo.

use std::net::SocketAddr;

use comity_agent_delivery::{ApiCredential, Credential, OriginLease};
use comity_agent_fabric::{FabricError, LocalForward, PeerHandle, forward_local};
use comity_agent_liqo::LiqoPeer;
use comity_agent_model::delivery_error::DeliveryError;
use comity_proto::v1;

use super::{Borrowed, Connected, Context, StepError, lease_report, liqo};
use crate::reconcile::plan::LiveLease;

pub(super) async fn run(context: &Context, lease: &v1::Lease) -> Result<(), StepError> {
    let (credential, held) = context.held_credential(&lease.id)?;
    let handle = context.fabric.peer(&lease.peering).ok_or(StepError::Gone("the tunnel"))?;
    let tunnel_epoch = u32::try_from(handle.epoch()).unwrap_or(u32::MAX);
    let kept = {
        let mut running = context.running();
        // A forward into an older tunnel is dropped; its port is bound again below.
        running.connected.remove(&lease.id).filter(|connected| connected.lease.tunnel_epoch == tunnel_epoch)
    };
    let kept = kept.map(|connected| connected.borrowed);
    let borrowed = match &credential {
        Credential::Api(credential) => connect(context, lease, credential, &handle, kept).await,
        Credential::VirtualNode(grant) => {
            let peer = peer(context, &lease.peering)?;
            let nodes = liqo::virtual_nodes(context)?;
            match nodes.origin.accept(&peer, &origin_lease(lease), grant).await {
                Ok(node) => {
                    // The reachability of the tunnel depends on it.
                    let (id, kept) = (lease.id.clone(), Some(node.clone()));
                    context.store.update(move |change| change.change_origin(&id, |record| record.node = kept)).await?;
                    Ok(Borrowed::VirtualNode { node })
                }
                Err(error) => Err(error.into()),
            }
        }
    };
    match borrowed {
        Ok(borrowed) => {
            let connected = Connected { lease: LiveLease { tunnel_epoch, ..held }, borrowed };
            context.running().connected.insert(lease.id.clone(), connected);
            Ok(())
        }
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await
        }
        Err(error) => Err(error),
    }
}

async fn connect(
    context: &Context,
    lease: &v1::Lease,
    credential: &ApiCredential,
    handle: &PeerHandle,
    kept: Option<Borrowed>,
) -> Result<Borrowed, StepError> {
    let forward = match kept {
        Some(Borrowed::Namespace { forward, .. }) => forward,
        _ => open_forward(context, &lease.id, handle, credential.server_port).await?,
    };
    let local_api = forward.local_addr();
    let server = context.access.server(local_api);
    let accepted = context.origin.accept(&origin_lease(lease), credential, &server).await?;
    let id = lease.id.clone();
    let port = local_api.port();
    context.store.update(move |change| change.change_origin(&id, |record| record.local_port = Some(port))).await?;
    Ok(Borrowed::Namespace { forward, kubeconfig: accepted.kubeconfig })
}

/// The donor of a peering, as Liqo knows it.
pub(super) fn peer(context: &Context, peering: &str) -> Result<LiqoPeer, StepError> {
    let records = context.store.records();
    records.liqo.get(peering).map(|record| record.peer()).ok_or(StepError::Gone("the key exchange of Liqo"))
}

/// Binds the port used before, so that copied kubeconfigs stay valid; another one if it is taken.
async fn open_forward(
    context: &Context,
    lease: &str,
    handle: &PeerHandle,
    server_port: u16,
) -> Result<LocalForward, FabricError> {
    let port = context.store.records().origins.get(lease).and_then(|record| record.local_port).unwrap_or(0);
    let bind = |port| SocketAddr::from((context.access.listen, port));
    match forward_local(handle, bind(port), server_port).await {
        Err(FabricError::LocalBind { source, .. }) if port != 0 => {
            tracing::warn!(lease, port, %source, "the lease's port is taken; it gets another one");
            forward_local(handle, bind(0), server_port).await
        }
        other => other,
    }
}

pub(super) fn origin_lease(lease: &v1::Lease) -> OriginLease {
    OriginLease {
        lease_id: lease.id.clone(),
        tenant: lease.tenant.clone(),
        donor: lease.placement.as_ref().map(|placement| placement.donor.clone()).unwrap_or_default(),
        target_namespace: lease.target_namespace.clone(),
        expires_at_ms: lease.expires_at_ms,
    }
}
