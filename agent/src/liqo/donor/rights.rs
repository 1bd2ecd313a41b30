//! What a call says that the donor's side has no rights for.

use crate::model::delivery_error::DeliveryError;

/// The manifest that gives the rights used here.
const MANIFEST: &str = "deploy/agent/liqo-donor.yaml";

/// Names the manifest that has the rights, where rights are missing.
pub(super) fn rights<T>(result: Result<T, DeliveryError>) -> Result<T, DeliveryError> {
    result.map_err(|error| match error {
        DeliveryError::Permanent { code: "kubernetes-forbidden", message } => {
            DeliveryError::permanent("kubernetes-forbidden", message.replace("deploy/agent/rbac.yaml", MANIFEST))
        }
        other => other,
    })
}
