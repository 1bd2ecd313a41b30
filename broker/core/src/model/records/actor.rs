//! Proposers of commands.

use comity_types::ClusterId;
use serde::{Deserialize, Serialize};

/// Who proposed a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// A person or program, by SPIFFE id.
    User(String),
    /// A cluster's agent.
    Cluster(ClusterId),
    /// A leader task of the broker with this number.
    Leader(u64),
}

impl Actor {
    /// The SPIFFE id, or the number of a broker.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::User(id) => id.clone(),
            Self::Cluster(id) => id.to_string(),
            Self::Leader(id) => format!("broker {id}"),
        }
    }

    /// The name of a user, the last part of the SPIFFE id; `None` for clusters and brokers.
    #[must_use]
    pub fn user_name(&self) -> Option<&str> {
        let Self::User(id) = self else { return None };
        user_name(id)
    }
}

/// The name in a user's SPIFFE id.
#[must_use]
pub fn user_name(id: &str) -> Option<&str> {
    id.split_once("/user/").map(|(_, name)| name)
}
