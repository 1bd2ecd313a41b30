//! Admits callers with a token of the agent.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use comity_agent_kubernetes::token_review::user_of_token;
use comity_runtime::SecretString;
use kube::Client;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// Audience of the tokens that device readers accept; the API server accepts no such token.
pub const DEVICE_READERS_AUDIENCE: &str = "comity-device-readers";
/// How long an accepted token is not reviewed again: a token that is withdrawn serves that much longer.
const ACCEPTED_FOR: Duration = Duration::from_secs(60);
/// Pause between two reviews of unknown tokens, so that a stranger cannot make this program flood the API server.
const REVIEW_INTERVAL: Duration = Duration::from_millis(200);
/// Accepted tokens that are kept: the replicas of the agent have one each, and the kubelet replaces it every hour.
const MAX_ACCEPTED: usize = 16;

/// SHA-256 of a token: the token itself is not kept.
type TokenHash = [u8; 32];

/// Why a caller is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("show a token of the agent's ServiceAccount for the audience {DEVICE_READERS_AUDIENCE}")]
    NoToken,
    #[error("the token is invalid, has ended, or is not for the audience {DEVICE_READERS_AUDIENCE}")]
    InvalidToken,
    #[error("the token belongs to {user:?}; only {expected:?} may read devices (--agent-user)")]
    OtherUser { user: String, expected: String },
    #[error("another token is being reviewed; try again")]
    Busy,
    #[error("the token cannot be reviewed: {0}")]
    NotReviewed(String),
}

/// The agent's tokens, as the API server reviewed them.
pub(super) struct AgentTokens {
    client: Client,
    agent_user: String,
    /// When each token was last accepted.
    accepted: Mutex<BTreeMap<TokenHash, Instant>>,
    /// Held during a review of an unknown token; when the next may begin.
    next_review: tokio::sync::Mutex<Option<Instant>>,
}

impl AgentTokens {
    pub(super) fn new(client: Client, agent_user: String) -> Self {
        Self { client, agent_user, accepted: Mutex::default(), next_review: tokio::sync::Mutex::new(None) }
    }

    /// Admits a caller whose token is the agent's.
    pub(super) async fn admit(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = value.and_then(|value| value.strip_prefix("Bearer ")).ok_or(Refused::NoToken)?;
        let token = SecretString::new(token.to_owned());
        let hash: TokenHash = Sha256::digest(token.expose()).into();
        let accepted_at = self.accepted_tokens().get(&hash).copied();
        match accepted_at {
            Some(at) if at.elapsed() < ACCEPTED_FOR => Ok(()),
            // Strangers who occupy the reviews cannot keep out an agent that was accepted before.
            Some(_) => self.review(&token, hash).await,
            None => {
                let mut next_review = self.next_review.try_lock().map_err(|_| Refused::Busy)?;
                if next_review.is_some_and(|next| Instant::now() < next) {
                    return Err(Refused::Busy);
                }
                let outcome = self.review(&token, hash).await;
                *next_review = Some(Instant::now() + REVIEW_INTERVAL);
                outcome
            }
        }
    }

    async fn review(&self, token: &SecretString, hash: TokenHash) -> Result<(), Refused> {
        let user = user_of_token(&self.client, token, DEVICE_READERS_AUDIENCE)
            .await
            .map_err(|error| Refused::NotReviewed(error.to_string()))?;
        let mut accepted = self.accepted_tokens();
        accepted.remove(&hash);
        let user = user.ok_or(Refused::InvalidToken)?;
        if user != self.agent_user {
            return Err(Refused::OtherUser { user, expected: self.agent_user.clone() });
        }
        if accepted.len() >= MAX_ACCEPTED {
            let oldest = accepted.iter().min_by_key(|(_, at)| **at).map(|(hash, _)| *hash);
            if let Some(oldest) = oldest {
                accepted.remove(&oldest);
            }
        }
        accepted.insert(hash, Instant::now());
        Ok(())
    }

    fn accepted_tokens(&self) -> std::sync::MutexGuard<'_, BTreeMap<TokenHash, Instant>> {
        self.accepted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
