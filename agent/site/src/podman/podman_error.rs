//! Why podman did not do something.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use comity_types::printable_line;

/// Longest message of podman that is kept.
const MAX_MESSAGE_CHARS: usize = 500;

/// Why a container or an image is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodmanError {
    #[error("there is no {}; install podman, or name it in site.podman", .0.display())]
    Missing(PathBuf),
    #[error("podman cannot be started: {0}")]
    NotRun(io::Error),
    #[error("no pipe for podman: {0}")]
    Pipe(io::Error),
    #[error("{0}")]
    Files(String),
    #[error("the section site needs an agent that runs as root: only root can limit the containers of guests")]
    NotRoot,
    #[error("podman cannot limit {controller} here (cgroup controllers: {has}), so guests could take all of it")]
    Controller { controller: &'static str, has: String },
    #[error(
        "{file} has no line for \"containers\", from which guests get users of their own; add \
         containers:1000000000:1000000000 to it"
    )]
    NoSubordinateIds { file: &'static str },
    #[error("podman {operation} did not end within {} s", .limit.as_secs())]
    TimedOut { operation: String, limit: Duration },
    #[error("podman's output cannot be read: {0}")]
    Output(String),
    #[error("container {0} is gone")]
    Gone(String),
    #[error("{message}")]
    Failed { operation: String, message: String },
}

impl PodmanError {
    pub(super) fn failed(operation: String, stderr: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stderr);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("it says nothing");
        let last = last.strip_prefix("Error: ").unwrap_or(last);
        let message = printable_line(last).chars().take(MAX_MESSAGE_CHARS).collect();
        Self::Failed { operation, message }
    }

    /// What a guest may know of it: answers of registries, and paths of the host, are the owner's.
    pub(crate) fn of_pull(&self) -> &'static str {
        let says = |words: &[&str]| matches!(self, Self::Failed { message, .. } if words.iter().any(|word| message.contains(word)));
        if says(&["unauthorized", "denied", "authentication required"]) {
            "the registry denies it; name a Secret with its credentials in imagePullSecrets"
        } else if says(&["manifest unknown", "not found", "name unknown", "no such image", "image not known"]) {
            "there is no such image"
        } else {
            "it cannot be pulled now; the host's log has the reason"
        }
    }

    /// Whether it says that a container, an image or a secret does not exist.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Failed { message, .. }
            if message.contains("no such container") || message.contains("no such secret")
                || message.contains("no secret with name or id"))
    }
}
