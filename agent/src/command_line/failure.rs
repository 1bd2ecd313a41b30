//! Why the process ends, and its exit code.

use comity_agent_kubernetes::api::KubernetesApiError;
use comity_runtime::telemetry::TelemetryError;

use crate::app::AgentError;
use crate::config::ConfigError;
use crate::enrollment::join_error::JoinError;
use crate::services::nodes::follower::FollowerError;

/// `sysexits.h`: the command was used wrongly.
pub(super) const USAGE: u8 = 64;
/// A check failed before joining.
const NOT_JOINED: u8 = 3;

/// Why the process ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Agent(#[from] Box<AgentError>),
    #[error("checks failed: {failed}; nothing was changed in the federation, and the join token was not used")]
    NotJoined { failed: usize },
    #[error("checks failed: {failed}")]
    Unhealthy { failed: usize },
    #[error("{0}")]
    System(String),
}

impl From<AgentError> for Failure {
    fn from(error: AgentError) -> Self {
        Self::Agent(Box::new(error))
    }
}

impl From<FollowerError> for Failure {
    fn from(error: FollowerError) -> Self {
        Self::from(match error {
            FollowerError::Kubernetes(error) => AgentError::from(error),
            FollowerError::Fabric(error) => AgentError::from(error),
            FollowerError::Admin(error) => AgentError::from(error),
            FollowerError::Metrics(error) => AgentError::from(error),
        })
    }
}

impl Failure {
    pub(super) fn code(&self) -> u8 {
        let usage = match self {
            Self::Config(_) | Self::Telemetry(_) => true,
            Self::Agent(error) => matches!(
                **error,
                AgentError::Config(_)
                    | AgentError::NotPrivate(_)
                    | AgentError::CrashPoint(_)
                    | AgentError::Inventory(_)
                    | AgentError::Kubernetes(KubernetesApiError::Unusable { .. })
                    | AgentError::Join(
                        JoinError::NoToken { .. } | JoinError::Token { .. } | JoinError::SomebodyElse { .. }
                    )
            ),
            Self::NotJoined { .. } => return NOT_JOINED,
            Self::Unhealthy { .. } | Self::System(_) => false,
        };
        if usage { USAGE } else { 1 }
    }
}
