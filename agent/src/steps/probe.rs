//! Step `probe`: the origin uses its credential once through the tunnel, and reports that it works.

use comity_proto::v1;

use super::{Context, StepError, accept_credential, lease_report};
use crate::delivery::DeliveryError;

pub(super) async fn run(context: &Context, lease: &v1::Lease) -> Result<(), StepError> {
    let (credential, _) = context.held_credential(&lease.id)?;
    let (local_api, _) = context.kubeconfig(&lease.id).ok_or(StepError::Gone("the forward"))?;
    let wanted = accept_credential::origin_lease(lease);
    match context.origin.probe(&wanted, &credential, local_api).await {
        Ok(()) => {}
        Err(DeliveryError::Permanent { code, message }) => {
            return lease_report::fail(context, &lease.id, lease.fencing_token, code, &message).await;
        }
        Err(error) => return Err(error.into()),
    }
    // Idempotent, and the only place that knows the name for certain.
    let secret_name = context.origin.accept(&wanted, &credential, local_api).await?.secret_name;
    let (id, token) = (lease.id.clone(), lease.fencing_token);
    let report = move |change: &mut crate::store::Change<'_>| {
        lease_report::send_ready(change, &id, token, String::new(), secret_name);
    };
    Ok(context.store.update(report).await?)
}
