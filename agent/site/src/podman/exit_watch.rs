//! Waits for the end of a process that is no child of ours, without polling.

use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::net::unix::pipe;

/// Pause where the kernel has no pidfd.
const UNWATCHED_PAUSE: Duration = Duration::from_millis(500);
/// podman records the end of a container shortly after its process has ended.
const RECORDED: Duration = Duration::from_millis(20);

/// A pidfd, which becomes readable when the process ends; nothing if it is gone. tokio's type for pipes waits for any
/// file.
pub(super) struct ExitWatch(Option<pipe::Receiver>);

impl ExitWatch {
    /// Watches the process that has this id now. The caller looks at the container's state afterwards: another process
    /// may have the id of one that is gone.
    pub(super) fn of(pid: i32) -> Self {
        let open = |pid| pidfd_open(pid, PidfdFlags::NONBLOCK).ok();
        let file = Pid::from_raw(pid).and_then(open);
        Self(file.and_then(|file| pipe::Receiver::from_owned_fd_unchecked(file).ok()))
    }

    /// Returns when the process has ended, or after a moment if it cannot be watched.
    pub(super) async fn exited(self) {
        match self.0 {
            Some(file) => {
                _ = file.readable().await;
                tokio::time::sleep(RECORDED).await;
            }
            None => tokio::time::sleep(UNWATCHED_PAUSE).await,
        }
    }
}
