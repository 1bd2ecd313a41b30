//! Who leads.

use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::heard::Heard;
use super::raft_types::Raft;

/// Who leads, as one broker knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leadership {
    /// This broker leads.
    Leader {
        /// Since this term.
        term: u64,
    },
    /// Another does, or nobody.
    Follower {
        /// Who, where one is known.
        leader: Option<u64>,
    },
}

impl Leadership {
    /// Whether this broker leads.
    pub const fn is_leader(self) -> bool {
        matches!(self, Self::Leader { .. })
    }
}

fn now(raft: &Raft) -> Leadership {
    let metrics = raft.server_metrics();
    let metrics = metrics.borrow_watched();
    if metrics.state == ServerState::Leader {
        Leadership::Leader { term: metrics.vote.leader_id.term }
    } else {
        // A broker that was the leader until now may still name itself.
        Leadership::Follower { leader: metrics.current_leader.filter(|leader| *leader != metrics.id) }
    }
}

/// Starts the task that watches. What was heard belongs to one term of leadership, so it is forgotten here.
pub(super) fn watch(
    raft: &Raft,
    heard: Heard,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> watch::Receiver<Leadership> {
    let (sender, receiver) = watch::channel(now(raft));
    let (raft, stop) = (raft.clone(), stop.clone());
    tasks.spawn(async move {
        let mut metrics = raft.server_metrics();
        let mut before = *sender.borrow();
        heard.set_leader(before.is_leader());
        loop {
            let next = now(&raft);
            if next != before {
                info!(leadership = ?next, "leadership changed");
                heard.set_leader(next.is_leader());
                before = next;
                sender.send_replace(next);
            }
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { break },
                () = stop.cancelled() => break,
            }
        }
        heard.set_leader(false);
        sender.send_replace(Leadership::Follower { leader: None });
    });
    receiver
}

/// Waits until consensus ended.
pub(super) async fn stopped(raft: &Raft) -> String {
    let mut metrics = raft.metrics();
    loop {
        let ended = {
            let metrics = metrics.borrow_watched();
            match &metrics.running_state {
                Err(error) => Some(error.to_string()),
                Ok(()) if metrics.state == ServerState::Shutdown => Some("it was shut down".to_owned()),
                Ok(()) => None,
            }
        };
        if let Some(reason) = ended {
            return reason;
        }
        if metrics.changed().await.is_err() {
            return "it ended".to_owned();
        }
    }
}
