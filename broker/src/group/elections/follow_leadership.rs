//! Watches consensus and tells the rest of the broker who leads.

use std::time::{Duration, Instant};

use openraft::async_runtime::WatchReceiver as _;
use openraft::{Instant as _, ServerState};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::group::consensus::Raft;
use crate::group::elections::contact::Contact;
use crate::group::elections::leadership::{Leadership, Tenure};
use crate::group::heard::Heard;

/// Poll interval for contact that may have ended.
const CONTACT_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Poll interval while a majority's answer is awaited: no write is accepted meanwhile.
const QUORUM_CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Decides who leads, from consensus metrics and leader contact.
pub(crate) struct Judge {
    pub(crate) raft: Raft,
    /// Time for which contact counts. A leader without a majority's answer for this long no longer leads, and a
    /// follower that did not hear its leader for this long knows none. Equals openraft's leader lease.
    pub(crate) lease: Duration,
    pub(crate) contact: Contact,
}

impl Judge {
    /// The current leadership. Consensus alone does not know it: leaders never step down by themselves, and followers
    /// forget a leader only when they learn of another.
    fn leadership(&self, before: Leadership, tenures: &mut u64) -> Leadership {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state == ServerState::Leader {
            let alone = metrics.membership_config.voter_ids().all(|voter| voter == metrics.id);
            let acknowledged = metrics.last_quorum_acked.is_some_and(|at| at.elapsed() < self.lease);
            let term = metrics.vote.leader_id.term;
            return match before {
                _ if !alone && !acknowledged => Leadership::Follower { leader: None },
                Leadership::Leader(tenure) if tenure.term == term => before,
                _ => {
                    *tenures += 1;
                    Leadership::Leader(Tenure { term, number: *tenures })
                }
            };
        }
        // A broker that led until now may still name itself.
        let leader = metrics.current_leader.filter(|leader| *leader != metrics.id);
        Leadership::Follower { leader: leader.filter(|leader| self.contact.is_within(*leader, self.lease)) }
    }

    fn is_waiting_for_quorum(&self, now: Leadership) -> bool {
        !now.is_leader() && self.raft.server_metrics().borrow_watched().state == ServerState::Leader
    }

    /// Logs a change.
    fn log_change(&self, before: Leadership, next: Leadership) {
        match next {
            Leadership::Leader(Tenure { term, .. }) => {
                info!(term, "this broker leads: a majority of the voters answers");
            }
            Leadership::Follower { leader: Some(leader) } => info!(leader, "following"),
            Leadership::Follower { leader: None } if before.is_leader() && self.is_waiting_for_quorum(next) => {
                warn!(
                    "this broker leads no more: no majority of the voters answers; look at the other brokers and the \
                    network"
                );
            }
            Leadership::Follower { leader: None } => warn!("no leader is known"),
        }
    }
}

/// Starts the task that tracks the leader, and since when none is known. Contact belongs to one term of leadership, so
/// a new leader resets it.
pub(crate) fn watch(
    judge: Judge,
    heard: Heard,
    stop: &CancellationToken,
    tasks: &TaskTracker,
) -> (watch::Receiver<Leadership>, watch::Receiver<Option<Instant>>) {
    let (none, mut tenures) = (Leadership::Follower { leader: None }, 0);
    let (sender, receiver) = watch::channel(judge.leadership(none, &mut tenures));
    let (leaderless, without) = watch::channel((*sender.borrow() == none).then(Instant::now));
    let stop = stop.clone();
    tasks.spawn(async move {
        let mut metrics = judge.raft.server_metrics();
        let mut before = *sender.borrow();
        heard.set_leading(before.is_leader());
        loop {
            let next = judge.leadership(before, &mut tenures);
            if next != before {
                judge.log_change(before, next);
                heard.set_leading(next.is_leader());
                before = next;
                leaderless.send_replace((next == none).then(Instant::now));
                sender.send_replace(next);
            }
            // Contact ends without an event, so there is a timer as well.
            let again = if judge.is_waiting_for_quorum(next) { QUORUM_CHECK_INTERVAL } else { CONTACT_CHECK_INTERVAL };
            tokio::select! {
                changed = metrics.changed() => if changed.is_err() { break },
                () = judge.contact.with_another() => {}
                () = tokio::time::sleep(again) => {}
                () = stop.cancelled() => break,
            }
        }
        heard.set_leading(false);
        sender.send_replace(Leadership::Follower { leader: None });
    });
    (receiver, without)
}
