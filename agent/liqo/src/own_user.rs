//! The agent's user name in its own cluster.

use comity_agent_kubernetes::call::call;
use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

/// The user name by which the API server knows this agent: policies trust it, and bindings name it.
///
/// # Errors
/// [`DeliveryError`].
pub async fn own_user_name(client: &Client) -> Result<String, DeliveryError> {
    let operation = "read this agent's user name from the API server";
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    let answer = call(operation, reviews.create(&PostParams::default(), &SelfSubjectReview::default())).await?;
    let user = answer.status.and_then(|status| status.user_info).and_then(|user| user.username);
    user.filter(|name| !name.is_empty()).ok_or_else(|| DeliveryError::temporary(operation, "it has no user name"))
}
