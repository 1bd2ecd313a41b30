//! Locations of processes: this host, or a network namespace.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use tokio::process::Command;

/// Builds the command that starts a program with arguments in a place.
pub type Launcher = Arc<dyn Fn(&Path, &[String]) -> Command + Send + Sync>;

/// A location for processes, and its address.
#[derive(Clone)]
pub struct Place {
    /// Starts a process in this place.
    pub launch: Launcher,
    /// IP address of this place for other processes.
    pub address: String,
}

impl Place {
    /// This host, on loopback.
    #[must_use]
    pub fn here() -> Self {
        let launch: Launcher = Arc::new(|program: &Path, args: &[String]| {
            let mut command = Command::new(program);
            command.args(args);
            command
        });
        Self { launch, address: Ipv4Addr::LOCALHOST.to_string() }
    }
}
