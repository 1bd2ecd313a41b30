//! A quick election after the leader's process has ended.
//!
//! Each follower holds a stream to its leader open. When the stream ends, or cannot be opened, and the leader's port
//! refuses connections, the process is gone, not slow: nobody listens there. The follower then stands for election
//! without waiting for the leader's lease; its peers check the port themselves and grant the vote. Safety does not
//! depend on the lease: reads ask a majority ([`ReadPolicy::ReadIndex`](openraft::ReadPolicy)). A lost machine or
//! network refuses no connection; then the lease decides.

use std::io::ErrorKind;
use std::sync::Weak;
use std::time::{Duration, Instant};

use comity_proto::raft::v1::AttendResponse;
use openraft::async_runtime::WatchReceiver as _;
use openraft::raft::{TransferLeaderRequest, VoteRequest, VoteResponse};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;
use tracing::{debug, info};

use crate::group::{Inner, Leadership};
use crate::replication::types::{TypeConfig, Vote};

/// Interval of port checks: one refusal may be a full listen queue.
const PORT_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Connect timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the port to close after the stream: the kernel closes accepted sockets before the listener.
const PORT_CLOSES: Duration = Duration::from_millis(300);
/// Delay between candidates, so that they do not split the vote.
const STAGGER: Duration = Duration::from_millis(60);
/// Timeout of a peer's answer.
const VOTE_TIMEOUT: Duration = Duration::from_millis(250);
/// Timeout of one election.
const ELECTION_TIMEOUT: Duration = Duration::from_millis(300);
/// Elections per dead leader; the regular timers run in parallel.
const MAX_ELECTIONS: u32 = 5;
/// How long to wait for a leader while holding the group.
const LEADER_WAIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Pause after a stream failed or ended.
const ATTEND_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Attends each leader in turn, until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, stop: CancellationToken) {
    loop {
        let attending = async {
            let opened = {
                let inner = group.upgrade()?;
                inner.attend().await
            };
            if let Some((followed, opened)) = opened {
                let lost = match opened {
                    Ok(stream) => stream.hold().await,
                    Err(Unreachable) => Some(Instant::now()),
                };
                if let Some(since) = lost {
                    group.upgrade()?.stand_for_election(followed, since).await;
                }
            }
            tokio::time::sleep(ATTEND_RETRY_INTERVAL).await;
            Some(())
        };
        tokio::select! {
            attended = attending => if attended.is_none() { return },
            () = stop.cancelled() => return,
        }
    }
}

/// The leader that this broker follows, and the vote by which it leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Followed {
    pub(crate) leader: u64,
    pub(crate) vote: Vote,
}

/// No connection to the leader could be made.
struct Unreachable;

/// An open stream to a leader. It does not hold the group.
struct LeaderStream {
    leader: u64,
    stream: Streaming<AttendResponse>,
    leadership: watch::Receiver<Leadership>,
}

impl LeaderStream {
    /// Waits until the stream ends and returns when; `None` if leadership changed first.
    async fn hold(mut self) -> Option<Instant> {
        let same = Leadership::Follower { leader: Some(self.leader) };
        tokio::select! {
            // The peer never sends a message: any result means that the stream has ended.
            _ = self.stream.message() => Some(Instant::now()),
            _ = self.leadership.wait_for(|now| *now != same) => None,
        }
    }
}

impl Inner {
    /// Opens the stream to the current leader; `None` if there is none or it refuses.
    async fn attend(&self) -> Option<(Followed, Result<LeaderStream, Unreachable>)> {
        let mut leadership = self.leadership.clone();
        let following = leadership.wait_for(|now| matches!(now, Leadership::Follower { leader: Some(_) }));
        // Bounded, because waiting keeps the group alive.
        let following = *tokio::time::timeout(LEADER_WAIT_TIMEOUT, following).await.ok()?.ok()?;
        let Leadership::Follower { leader: Some(leader) } = following else { return None };
        let vote = self.raft.metrics().borrow_watched().vote;
        let node = self.node_of(leader).filter(|_| vote.committed && vote.leader_id.voted_for == leader)?;
        let followed = Followed { leader, vote };
        match self.peers.attend(leader, &node).await {
            Ok(stream) => Some((followed, Ok(LeaderStream { leader, stream, leadership }))),
            Err(error) => {
                debug!(leader, %error, "the leader cannot be attended");
                (!error.may_have_arrived).then_some((followed, Err(Unreachable)))
            }
        }
    }

    /// Stands for election if the leader's process has ended; gives up if it is alive or another broker leads. `since`
    /// is when contact was lost.
    pub(crate) async fn stand_for_election(&self, followed: Followed, since: Instant) {
        let Followed { leader, vote } = followed;
        if !self.port_closes(leader, since).await {
            debug!(leader, "the leader was lost sight of, but somebody listens on its port");
            return;
        }
        tokio::time::sleep(PORT_CHECK_INTERVAL).await;
        let Some(rank) = self.rank_without(leader).filter(|_| self.elections.stands()) else { return };
        tokio::time::sleep(STAGGER * rank).await;
        for _ in 0..MAX_ELECTIONS {
            let still = self.raft.metrics().borrow_watched().vote == vote;
            if !still || self.contact.is_since(leader, since) || !self.is_gone(leader).await {
                return;
            }
            if self.would_win(leader, &vote).await {
                info!(leader, "the leader's process has ended; standing for election");
                self.peers.stand_after(leader, vote.leader_id.term + 1);
                // A leadership transfer is the only way to start an election before the lease ends. It does nothing if
                // the vote has changed.
                let request = TransferLeaderRequest::new(vote, self.config.id, None);
                if self.raft.handle_transfer_leader(request).await.is_err() {
                    return;
                }
            }
            let mut leadership = self.leadership.clone();
            let decided = leadership.wait_for(|now| match now {
                Leadership::Leader { .. } => true,
                Leadership::Follower { leader: next } => next.is_some_and(|next| next != leader),
            });
            if tokio::time::timeout(ELECTION_TIMEOUT, decided).await.is_ok() {
                return;
            }
        }
    }

    /// Whether the lost leader's port closes within `PORT_CLOSES`.
    async fn port_closes(&self, leader: u64, since: Instant) -> bool {
        loop {
            if self.is_gone(leader).await {
                return true;
            }
            if since.elapsed() > PORT_CLOSES || self.contact.is_since(leader, since) {
                return false;
            }
            tokio::time::sleep(PORT_CHECK_INTERVAL).await;
        }
    }

    /// This voter's rank among the remaining voters; `None` if it does not vote.
    fn rank_without(&self, leader: u64) -> Option<u32> {
        let metrics = self.raft.server_metrics();
        let voters: Vec<u64> = metrics.borrow_watched().membership_config.voter_ids().collect();
        let place = voters.iter().filter(|id| **id != leader).position(|id| *id == self.config.id)?;
        u32::try_from(place).ok()
    }

    /// Whether nobody listens on the Raft port of a broker.
    async fn is_gone(&self, broker: u64) -> bool {
        let Some(address) = self.node_of(broker).map(|node| node.address) else { return false };
        let refused = async {
            let Ok(found) = tokio::net::lookup_host(self.peers.dial_address(broker, &address)).await else {
                return false;
            };
            let mut refused = false;
            for address in found {
                match TcpStream::connect(address).await {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => refused = true,
                    Ok(_) | Err(_) => return false,
                }
            }
            refused
        };
        tokio::time::timeout(CONNECT_TIMEOUT, refused).await.unwrap_or(false)
    }

    /// Asks the remaining voters, without side effects, so that a lagging broker starts no election.
    async fn would_win(&self, leader: u64, vote: &Vote) -> bool {
        let Ok(last) = self.log.last() else { return false };
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let request = VoteRequest::<TypeConfig>::new(Vote::new(vote.leader_id.term + 1, self.config.id), last);
        let others = membership.voter_ids().filter(|id| *id != leader && *id != self.config.id);
        let asked = others.filter_map(|id| {
            let (node, request) = (membership.get_node(&id)?.clone(), request.clone());
            Some(async move { self.peers.ask_for_vote(id, &node, request, leader, VOTE_TIMEOUT).await })
        });
        let answers = futures::future::join_all(asked).await;
        let granted = 1 + answers.into_iter().flatten().filter(|answer| answer.vote_granted).count();
        granted > membership.voter_ids().count() / 2
    }

    /// Whether this broker follows `leader` and finds its process ended too.
    pub(crate) async fn finds_gone(&self, leader: u64) -> bool {
        let vote = self.raft.metrics().borrow_watched().vote;
        let followed = vote.leader_id.voted_for == leader && leader != self.config.id;
        followed && self.is_gone(leader).await
    }

    /// Answers [`would_win`](Self::would_win) of a peer.
    pub(crate) async fn would_grant(&self, request: &VoteRequest<TypeConfig>, leader: u64) -> VoteResponse<TypeConfig> {
        let last = self.log.last().ok().flatten();
        let vote = self.raft.metrics().borrow_watched().vote;
        let good = request.last_log_id >= last && request.vote.leader_id.term > vote.leader_id.term;
        let granted = good && self.finds_gone(leader).await;
        VoteResponse::new(vote, last, granted)
    }
}
