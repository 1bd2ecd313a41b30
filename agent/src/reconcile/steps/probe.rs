//! Step `probe`: the origin tests a lease and reports it ready. For a namespace it uses the credential once through the
//! tunnel; a virtual node must be ready and have the granted resources.

use comity_agent_delivery::Credential;
use comity_agent_model::delivery_error::DeliveryError;
use comity_proto::v1;

use super::{Access, Context, StepError, accept_credential, lease_report, liqo};

/// Names for the report: the lease's namespace or node, and the Secret with its kubeconfig.
struct ProbedLease {
    namespace: String,
    secret_name: String,
}

pub(super) async fn run(context: &Context, lease: &v1::Lease) -> Result<(), StepError> {
    let probed = match probe(context, lease).await {
        Ok(probed) => probed,
        Err(StepError::Delivery(DeliveryError::Permanent { code, message })) => {
            return lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await;
        }
        Err(error) => return Err(error),
    };
    let (id, token) = (lease.id.clone(), lease.fencing_token);
    let report = move |change: &mut comity_agent_state::store::Change<'_>| {
        lease_report::send_ready(change, &id, token, probed.namespace, probed.secret_name);
    };
    Ok(context.store.update(report).await?)
}

async fn probe(context: &Context, lease: &v1::Lease) -> Result<ProbedLease, StepError> {
    let (credential, _) = context.held_credential(&lease.id)?;
    let wanted = accept_credential::origin_lease(lease);
    match (&credential, context.access(&lease.id)) {
        (Credential::Api(credential), Some(Access::Kubeconfig(local_api, _))) => {
            context.origin.probe(&wanted, credential, local_api).await?;
            // Idempotent; it returns the Secret's name.
            let server = context.access.server(local_api);
            let secret_name = context.origin.accept(&wanted, credential, &server).await?.secret_name;
            Ok(ProbedLease { namespace: String::new(), secret_name })
        }
        (Credential::VirtualNode(grant), Some(Access::VirtualNode(node))) => {
            let peer = accept_credential::peer(context, &lease.peering)?;
            liqo::virtual_nodes(context)?.origin.probe(&peer, &wanted, grant).await?;
            Ok(ProbedLease { namespace: node, secret_name: String::new() })
        }
        _ => Err(StepError::Gone("what was made for the credential")),
    }
}
