//! What a broker needs to read repositories.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time of all calls of one pull. A server that hangs costs no more.
pub(crate) const PULL_DEADLINE: Duration = Duration::from_secs(60);

/// Files of this broker about repositories.
#[derive(Debug, Clone, Default)]
pub struct PolicyAccess {
    /// Directory for what was fetched. What it holds can be fetched again.
    pub cache: PathBuf,
    /// File with credentials, one URL a line, as `git credential-store` keeps them.
    pub credentials: Option<PathBuf>,
    /// PEM file with further authorities of servers, beside those of this machine.
    pub authorities: Option<PathBuf>,
    /// File with the private key for repositories over SSH.
    pub ssh_key: Option<PathBuf>,
    /// File with the keys of servers, as OpenSSH keeps them.
    pub known_hosts: Option<PathBuf>,
    /// File with credentials for registries, in the form of Docker's config.json.
    pub registry_config: Option<PathBuf>,
    /// PEM file with keys. With it an artifact counts only if one of them signed it.
    pub artifact_keys: Option<PathBuf>,
    /// Whose turn it is to fetch, and when the last fetch for an agent failed.
    pub fetching: Arc<Mutex<Option<Instant>>>,
}
