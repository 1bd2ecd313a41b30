//! What a broker needs to read repositories.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::Mutex;
use tokio::time::Instant;

/// Files of this broker about repositories.
#[derive(Debug, Clone)]
pub struct PolicyAccess {
    /// Directory for what was fetched. What it holds can be fetched again.
    pub cache: PathBuf,
    /// File with credentials, one URL a line, as `git credential-store` keeps them.
    pub credentials: Option<PathBuf>,
    /// PEM file with further authorities of servers, beside those of this machine.
    pub authorities: Option<PathBuf>,
    /// Whose turn it is to fetch, and when the last fetch for an agent failed.
    pub fetching: Arc<Mutex<Option<Instant>>>,
}
