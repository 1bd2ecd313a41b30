//! Asks the API server whose token a caller shows.

use std::time::Duration;

use comity_runtime::SecretString;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::api::CallError;

/// How long a review may take: less than the caller waits for its own answer.
const REVIEW_WITHIN: Duration = Duration::from_secs(4);

/// The user of a token that was made for `audience`; `None` if it is invalid, has ended, or is for others.
///
/// # Errors
/// When the API server does not answer, or refuses the review.
pub async fn user_of_token(client: &Client, token: &SecretString, audience: &str) -> Result<Option<String>, CallError> {
    let spec = TokenReviewSpec { token: Some(token.expose().clone()), audiences: Some(vec![audience.to_owned()]) };
    let review = TokenReview { spec, ..TokenReview::default() };
    let api = Api::<TokenReview>::all(client.clone());
    let reviewed = tokio::time::timeout(REVIEW_WITHIN, api.create(&PostParams::default(), &review)).await;
    let late = |_| CallError::Connection(format!("no answer within {} s", REVIEW_WITHIN.as_secs()));
    let status = reviewed.map_err(late)??.status.unwrap_or_default();
    // An authenticator that knows no audiences names none, and has not checked them.
    let is_for_audience = status.audiences.is_some_and(|audiences| audiences.iter().any(|found| found == audience));
    let user = status.user.and_then(|user| user.username).filter(|_| status.authenticated == Some(true));
    Ok(user.filter(|_| is_for_audience))
}
