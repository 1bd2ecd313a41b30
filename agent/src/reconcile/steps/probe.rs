//! Step `probe`: the origin sees that what it leased works, and reports it. A namespace: its credential is used once
//! through the tunnel. A virtual node: it is ready, and has what was granted.

use comity_proto::v1;

use super::{Access, Context, StepError, accept_credential, lease_report, liqo};
use crate::delivery::Credential;
use crate::model::delivery_error::DeliveryError;

/// What the report names: where the lease is, and in which Secret its kubeconfig.
struct Works {
    namespace: String,
    secret_name: String,
}

pub(super) async fn run(context: &Context, lease: &v1::Lease) -> Result<(), StepError> {
    let works = match probe(context, lease).await {
        Ok(works) => works,
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            return lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await;
        }
        Err(error) => return Err(error),
    };
    let (id, token) = (lease.id.clone(), lease.fencing_token);
    let report = move |change: &mut crate::state::store::Change<'_>| {
        lease_report::send_ready(change, &id, token, works.namespace, works.secret_name);
    };
    Ok(context.store.update(report).await?)
}

async fn probe(context: &Context, lease: &v1::Lease) -> Result<Works, StepError> {
    let (credential, _) = context.held_credential(&lease.id)?;
    let wanted = accept_credential::origin_lease(lease);
    match (&credential, context.access(&lease.id)) {
        (Credential::Api(credential), Some(Access::Kubeconfig(local_api, _))) => {
            context.origin.probe(&wanted, credential, local_api).await?;
            // Idempotent, and the only place that knows the name for certain.
            let server = context.access.server(local_api);
            let secret_name = context.origin.accept(&wanted, credential, &server).await?.secret_name;
            Ok(Works { namespace: String::new(), secret_name })
        }
        (Credential::VirtualNode(grant), Some(Access::VirtualNode(node))) => {
            let peer = accept_credential::peer(context, &lease.peering)?;
            liqo::virtual_nodes(context)?.origin.probe(&peer, &wanted, grant).await?;
            Ok(Works { namespace: node, secret_name: String::new() })
        }
        _ => Err(StepError::Gone("what was made for the credential")),
    }
}
