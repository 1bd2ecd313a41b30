//! Errors of calls for which the donor's side lacks rights.

use comity_agent_model::delivery_error::DeliveryError;

/// The manifest that gives the rights used here.
pub(super) const DONOR_MANIFEST: &str = "deploy/agent/liqo-donor.yaml";

/// Adds to an error about missing rights the manifest that grants them.
pub(super) fn rights<T>(result: Result<T, DeliveryError>) -> Result<T, DeliveryError> {
    result.map_err(|error| match error {
        DeliveryError::Permanent { code: "kubernetes-forbidden", message } => {
            DeliveryError::permanent("kubernetes-forbidden", message.replace("deploy/agent/rbac.yaml", DONOR_MANIFEST))
        }
        other => other,
    })
}
