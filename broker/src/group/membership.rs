//! Who belongs to the group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use comity_core::ClusterId;
use comity_runtime::tls::BrokerEndpoints;
use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use tracing::info;

use super::error::{GroupError, Unavailable};
use super::propose::Deadline;
use super::serve_peer::{ForwardReply, ForwardRequest};
use super::{Group, Inner, Leadership, MemberAddress};
use crate::transport::CallError;

/// More voters make every write slower and the group hardly safer.
const MAX_VOTERS: usize = 7;
/// A new voter first gets the whole log or a snapshot.
const ADD_VOTER_TIMEOUT: Duration = Duration::from_secs(120);
/// For a follower to take over from a leader that leaves.
const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1_500);

impl Group {
    /// Makes a new group of these members. Call it on one of them, or on all with the same list; on a broker that is in a
    /// group already it does nothing.
    ///
    /// # Errors
    /// [`GroupError::Members`] for a list that cannot be.
    pub async fn bootstrap(&self, members: BTreeMap<u64, MemberAddress>) -> Result<(), GroupError> {
        let inner = &self.inner;
        if !members.contains_key(&inner.config.id) {
            return Err(GroupError::Members(format!("broker {} is not among them; name it as well", inner.config.id)));
        }
        if members.len().is_multiple_of(2) || members.len() > MAX_VOTERS {
            let reason = format!("{} voters; want an odd number up to {MAX_VOTERS}, best 1 or 3", members.len());
            return Err(GroupError::Members(reason));
        }
        for (id, address) in &members {
            check(*id, address)?;
        }
        match inner.raft.initialize(members).await {
            Ok(()) => {
                info!(broker = inner.config.id, "a new group was made");
                Ok(())
            }
            Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(error) => Err(GroupError::Raft(error.to_string())),
        }
    }

    /// Adds a voter, once it has caught up; does nothing where it is one already. Brokers that do not lead hand this to
    /// the leader.
    ///
    /// # Errors
    /// [`GroupError::Members`] where it is refused, [`GroupError::Unavailable`] where there is no leader or it takes
    /// longer than two minutes, most often because the new broker does not run or cannot be reached.
    pub async fn add_voter(&self, id: u64, address: MemberAddress) -> Result<(), GroupError> {
        check(id, &address)?;
        let inner = &self.inner;
        let deadline = Deadline::within(ADD_VOTER_TIMEOUT);
        while deadline.left() > Duration::ZERO {
            let leadership = *inner.leadership.borrow();
            let done = match leadership {
                Leadership::Leader { .. } => inner.add_voter_here(id, address.clone()).await?,
                Leadership::Follower { leader: Some(leader) } => {
                    inner.add_voter_there(leader, id, address.clone(), deadline.left()).await?
                }
                Leadership::Follower { leader: None } => false,
            };
            if done {
                return Ok(());
            }
            inner.leadership_may_change(leadership, deadline.left()).await;
        }
        Err(Unavailable::NoLeader { broker: inner.config.id }.into())
    }
}

impl Inner {
    /// Where a member is, as the newest membership says.
    pub(super) fn address_of(&self, id: u64) -> Option<MemberAddress> {
        self.raft.server_metrics().borrow_watched().membership_config.get_node(&id).cloned()
    }

    /// Adds a voter; false where this broker does not lead.
    pub(super) async fn add_voter_here(&self, id: u64, address: MemberAddress) -> Result<bool, GroupError> {
        check(id, &address)?;
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        match membership.get_node(&id) {
            Some(known) if *known != address => {
                let reason =
                    format!("broker {id} is at {known} already, not at {address}; give the new broker a new number");
                return Err(GroupError::Members(reason));
            }
            Some(_) if membership.voter_ids().any(|voter| voter == id) => return Ok(true),
            _ if membership.voter_ids().count() >= MAX_VOTERS => {
                return Err(GroupError::Members(format!(
                    "there are {MAX_VOTERS} voters already, and no more are allowed"
                )));
            }
            _ => {}
        }
        let change = async {
            self.raft.add_learner(id, address, true).await?;
            self.raft.change_membership(ChangeMembers::AddVoterIds(BTreeSet::from([id])), false).await
        };
        match tokio::time::timeout(ADD_VOTER_TIMEOUT, change).await {
            Ok(Ok(_)) => {
                info!(broker = id, "a voter was added");
                Ok(true)
            }
            Ok(Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_)))) => Ok(false),
            Ok(Err(RaftError::APIError(error @ ClientWriteError::ChangeMembershipError(_)))) => {
                Err(GroupError::Members(error.to_string()))
            }
            Ok(Err(error)) => Err(GroupError::Raft(error.to_string())),
            Err(_) => {
                let seconds = ADD_VOTER_TIMEOUT.as_secs();
                let reason =
                    format!("broker {id} did not catch up within {seconds} s; is it running, and can it be reached?");
                Err(Unavailable::Unknown { reason }.into())
            }
        }
    }

    async fn add_voter_there(
        &self,
        leader: u64,
        id: u64,
        address: MemberAddress,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        let Some(at) = self.address_of(leader) else { return Ok(false) };
        match self.peers.forward(leader, &at, &ForwardRequest::AddVoter { id, address }, timeout).await {
            Ok(ForwardReply::MembersChanged) => Ok(true),
            Ok(ForwardReply::NotAppended) => Ok(false),
            Ok(ForwardReply::MembersRefused(reason)) => Err(GroupError::Members(reason)),
            Ok(ForwardReply::Unknown(reason)) => Err(Unavailable::Unknown { reason }.into()),
            Ok(ForwardReply::Applied(_)) => Err(GroupError::Raft(format!("broker {leader} answered another question"))),
            // Adding a voter twice is harmless.
            Err(_) => Ok(false),
        }
    }

    /// Tells the leader which agents were heard here.
    pub(super) async fn report_heard(
        &self,
        leader: u64,
        clusters: &[ClusterId],
        timeout: Duration,
    ) -> Result<(), CallError> {
        let Some(address) = self.address_of(leader) else { return Ok(()) };
        let clusters = clusters.iter().map(ToString::to_string).collect();
        self.peers.report_seen(leader, &address, clusters, timeout).await
    }

    /// Hands leadership to the follower that is furthest, and waits for it a little: a planned stop then costs no
    /// election timeout.
    pub(super) async fn hand_over(&self) {
        let heir = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
            let progress = metrics.replication.iter().flatten();
            let others = progress.filter(|(id, _)| **id != self.config.id && voters.contains(id));
            others.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
        };
        let (true, Some(heir)) = (self.leadership.borrow().is_leader(), heir) else { return };
        if self.raft.trigger().transfer_leader(heir).await.is_err() {
            return;
        }
        let mut leadership = self.leadership.clone();
        let handed_over = leadership.wait_for(|now| !now.is_leader());
        // Where it does not work out, the others elect a leader as after a crash.
        let _ = tokio::time::timeout(HAND_OVER_TIMEOUT, handed_over).await;
    }
}

fn check(id: u64, address: &MemberAddress) -> Result<(), GroupError> {
    if id == 0 {
        return Err(GroupError::Members("broker id 0; brokers are numbered from 1".to_owned()));
    }
    BrokerEndpoints::new([&address.raft, &address.client])
        .map(drop)
        .map_err(|error| GroupError::Members(format!("broker {id}: {error}")))
}
