//! Step `accept-credential`: the origin's loopback port leads into the tunnel, and the kubeconfig says so.

use std::net::{Ipv4Addr, SocketAddr};

use comity_proto::v1;

use super::{Connected, Context, StepError, lease_report};
use crate::delivery::{DeliveryError, OriginLease};
use crate::fabric::{FabricError, LocalForward, PeerHandle, forward_local};
use crate::plan::LiveLease;

pub(super) async fn run(context: &Context, lease: &v1::Lease) -> Result<(), StepError> {
    let (credential, held) = context.held_credential(&lease.id)?;
    let handle = context.fabric.peer(&lease.peering).ok_or(StepError::Gone("the tunnel"))?;
    let tunnel_epoch = u32::try_from(handle.epoch()).unwrap_or(u32::MAX);
    let kept = {
        let mut running = context.running();
        // A forward into an older tunnel leads nowhere; its port is taken again below.
        running.connected.remove(&lease.id).filter(|connected| connected.lease.tunnel_epoch == tunnel_epoch)
    };
    let forward = match kept {
        Some(connected) => connected.forward,
        None => open_forward(context, &lease.id, &handle, credential.server_port).await?,
    };
    let local_api = forward.local_addr();
    let accepted = match context.origin.accept(&origin_lease(lease), &credential, local_api).await {
        Ok(accepted) => accepted,
        Err(DeliveryError::Permanent { code, message }) => {
            return lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await;
        }
        Err(error) => return Err(error.into()),
    };
    let id = lease.id.clone();
    let port = local_api.port();
    context.store.update(move |change| change.change_origin(&id, |record| record.local_port = Some(port))).await?;
    let connected = Connected { forward, lease: LiveLease { tunnel_epoch, ..held }, kubeconfig: accepted.kubeconfig };
    context.running().connected.insert(lease.id.clone(), connected);
    Ok(())
}

/// The port of before, so that kubeconfigs that were copied stay good; another one where somebody else has it now.
async fn open_forward(
    context: &Context,
    lease: &str,
    handle: &PeerHandle,
    server_port: u16,
) -> Result<LocalForward, FabricError> {
    let port = context.store.records().origins.get(lease).and_then(|record| record.local_port).unwrap_or(0);
    let bind = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match forward_local(handle, bind(port), server_port).await {
        Err(FabricError::LocalBind { source, .. }) if port != 0 => {
            tracing::warn!(lease, port, %source, "the lease's loopback port is taken; it gets another one");
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
