//! Keeps Raft's membership in line with the recorded roles: the leader admits brokers that say hello, promotes voters
//! that have caught up, and removes members.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use comity_core::broker_record::{BrokerRecord, BrokerRole};
use comity_core::command::{AdmitBroker, AssignBroker};
use comity_core::{Actor, Command, Millis};
use openraft::ChangeMembers;
use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::group::group_error::GroupError;
use crate::group::members::membership::CatchUp;
use crate::group::{Group, Inner};
use crate::replication::identity::Incarnation;
use crate::replication::member::{MemberAddress, MemberNode};
use crate::replication::membership_change::RequestedChange;
use crate::replication::proposal::Proposal;

/// Check interval.
const ADMISSION_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of one membership change; it is retried.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(20);
/// A learner that lacks at most this many entries is promoted: it receives them while the change is committed.
const CLOSE_BEHIND: u64 = 256;

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(ADMISSION_CHECK_INTERVAL) => {}
            () = stop.cancelled() => return,
        }
        let Some(inner) = group.upgrade() else { return };
        if !inner.leadership.borrow().is_leader() {
            continue;
        }
        let Ok(_turn) = Arc::clone(&inner.changing).try_lock_owned() else { continue };
        let brokers = inner.replica.read(|it| it.state.brokers.clone());
        let change = async {
            if brokers.is_empty() {
                return record_founders(&Group { inner: Arc::clone(&inner) }).await;
            }
            inner.take_out_removed(&brokers).await?;
            inner.promote_caught_up(&brokers).await?;
            inner.end_founding_if_complete(&brokers);
            Ok(())
        };
        let changed = tokio::select! {
            changed = tokio::time::timeout(CHANGE_TIMEOUT, change) => changed,
            () = stop.cancelled() => return,
        };
        match changed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "members do not have their roles yet"),
            Err(_) => warn!(seconds = CHANGE_TIMEOUT.as_secs(), "members do not have their roles in time"),
        }
    }
}

/// Begins the first term, so that no record of the audit log has a nonce without a secret key, and records the founding
/// members as the group's first voters.
async fn record_founders(group: &Group) -> Result<(), GroupError> {
    let begins = Proposal::begins_term(group.inner.config.id, Millis(0));
    group.propose(begins).await?.reply.map_err(GroupError::Refused)?;
    for (id, address) in &group.inner.config.members {
        let leader = (Actor::Leader(group.inner.config.id), 0);
        group.record(leader, assignment(*id, BrokerRole::Voter, address)).await?;
    }
    Ok(())
}

/// Admits this incarnation of a broker in the background, unless another change is in progress.
pub(crate) fn admit(inner: &Arc<Inner>, id: u64, incarnation: Incarnation) {
    let Ok(turn) = Arc::clone(&inner.changing).try_lock_owned() else { return };
    let inner = Arc::clone(inner);
    let tasks = inner.tasks.clone();
    tasks.spawn(async move {
        let _turn = turn;
        let admitted = tokio::select! {
            admitted = tokio::time::timeout(CHANGE_TIMEOUT, inner.admit_here(id, incarnation.clone())) => admitted,
            () = inner.stop.cancelled() => return,
        };
        match admitted {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(broker = id, %incarnation, %error, "not admitted yet"),
            Err(_) => warn!(broker = id, %incarnation, seconds = CHANGE_TIMEOUT.as_secs(), "not admitted in time"),
        }
    });
}

impl Inner {
    /// Replaces the earlier incarnation of a broker that lost its log by this one, as a learner.
    async fn admit_here(self: &Arc<Self>, id: u64, incarnation: Incarnation) -> Result<(), GroupError> {
        let Some(record) = self.replica.read(|it| it.state.brokers.get(&id).cloned()) else { return Ok(()) };
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        if membership.get_node(&id).is_some_and(|node| node.incarnation == incarnation) {
            return Ok(());
        }
        if membership.voter_ids().any(|voter| voter == id) {
            self.others_are_enough(id).await?;
        }
        let admit = Command::AdmitBroker(AdmitBroker { broker: id });
        Group { inner: Arc::clone(self) }.record((Actor::Leader(self.config.id), 0), admit).await?;
        self.take_out(id).await?;
        let address = MemberAddress { raft: record.raft_address, client: record.client_address };
        info!(broker = id, %incarnation, %address, "admitted; it gets the log, and does not vote yet");
        self.add_learner(id, MemberNode { address, incarnation }, CatchUp::InBackground).await
    }

    async fn promote_caught_up(&self, brokers: &BTreeMap<u64, BrokerRecord>) -> Result<(), GroupError> {
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let is_ready = |id: &u64, record: &BrokerRecord| {
            record.role == BrokerRole::Voter
                && membership.get_node(id).is_some()
                && !voters.contains(id)
                && self.is_close_behind(*id)
        };
        let ready: BTreeSet<u64> =
            brokers.iter().filter(|(id, record)| is_ready(id, record)).map(|(id, _)| *id).collect();
        if ready.is_empty() {
            return Ok(());
        }
        self.change(ChangeMembers::AddVoterIds(ready.clone())).await?;
        info!(brokers = ?ready, "have caught up, and vote");
        Ok(())
    }

    /// Ends the founding once every founding member votes.
    fn end_founding_if_complete(&self, brokers: &BTreeMap<u64, BrokerRecord>) {
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let all = brokers.iter().all(|(id, record)| record.role != BrokerRole::Voter || voters.contains(id));
        let is_settled = membership.membership().get_joint_config().len() == 1;
        if all && is_settled && self.forming.swap(false, Ordering::AcqRel) {
            info!(brokers = ?voters, "the group has all its founding members");
        }
    }

    /// Completes removals that an earlier leader recorded.
    async fn take_out_removed(&self, brokers: &BTreeMap<u64, BrokerRecord>) -> Result<(), GroupError> {
        let removed = brokers.iter().filter(|(_, record)| record.role == BrokerRole::Removed).map(|(id, _)| *id);
        for id in removed.filter(|id| *id != self.config.id) {
            self.take_out(id).await?;
        }
        Ok(())
    }

    /// Removes a broker from Raft's membership, if present.
    pub(crate) async fn take_out(&self, id: u64) -> Result<(), GroupError> {
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let ids = BTreeSet::from([id]);
        if membership.voter_ids().any(|voter| voter == id) {
            self.change(ChangeMembers::RemoveVoters(ids)).await
        } else if membership.get_node(&id).is_some() {
            self.change(ChangeMembers::RemoveNodes(ids)).await
        } else {
            Ok(())
        }
    }

    /// Whether a member lacks at most `CLOSE_BEHIND` entries on disk.
    pub(crate) fn is_close_behind(&self, id: u64) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = metrics.replication.as_ref().and_then(|all| all.get(&id).copied().flatten());
        let last = metrics.last_log_index.unwrap_or(0);
        matched.is_some_and(|matched| last.saturating_sub(matched.index) <= CLOSE_BEHIND)
    }
}

impl Group {
    /// Records the role of a broker, as its requester asked.
    pub(crate) async fn assign(
        &self,
        id: u64,
        role: BrokerRole,
        address: &MemberAddress,
        requested: &RequestedChange,
    ) -> Result<(), GroupError> {
        let actor = (requested.actor.clone(), requested.generation);
        self.record(actor, assignment(id, role, address)).await
    }

    async fn record(&self, (actor, generation): (Actor, u64), command: Command) -> Result<(), GroupError> {
        let proposal = Proposal { actor, generation, command, idempotency: None, traceparent: String::new() };
        self.propose(proposal).await?.reply.map(drop).map_err(GroupError::Refused)
    }
}

fn assignment(id: u64, role: BrokerRole, address: &MemberAddress) -> Command {
    Command::AssignBroker(AssignBroker {
        broker: id,
        role,
        raft_address: address.raft.clone(),
        client_address: address.client.clone(),
    })
}
