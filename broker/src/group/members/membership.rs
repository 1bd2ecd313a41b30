//! Membership changes by a maintainer; followers forward them to the leader.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use comity_core::State;
use comity_core::broker_record::BrokerRole;
use comity_core::limits::MAX_VOTERS;
use comity_proto::raft::v1::HelloRequest;
use comity_runtime::tls::BrokerEndpoints;
use comity_types::ClusterId;
use openraft::async_runtime::WatchReceiver as _;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, Instant as _};
use tracing::info;

use crate::group::group_error::{GroupError, Unavailable};
use crate::group::propose::Deadline;
use crate::group::{Consistency, Group, Inner, Leadership};
use crate::replication::identity::{GroupId, Incarnation};
use crate::replication::member::{MemberAddress, MemberNode};
use crate::replication::membership_change::{MembershipChange, RequestedChange};
use crate::replication::types::RaftInstant;
use crate::transport::{CallError, ForwardReply, ForwardRequest};

/// Time for a new member to receive the log or a snapshot.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for a follower to take over from a stopping leader.
const HAND_OVER_TIMEOUT: Duration = Duration::from_millis(1_500);
/// Time for a requested leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the answer of a broker to add.
const NEW_MEMBER_HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Poll interval.
const MEMBERSHIP_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// A member that does not answer for this many of the longest election timeouts counts as down.
const DOWN_AFTER_ELECTIONS: u32 = 3;

/// Whether to wait until a new learner has the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CatchUp {
    /// Wait.
    Await,
    /// Return once the change is committed.
    InBackground,
}

impl Group {
    /// Carries out a change; a change already in effect is no error. The leader checks its requester again when the
    /// change begins.
    ///
    /// # Errors
    /// [`GroupError::Members`] and [`GroupError::Refused`] where it is refused, [`GroupError::Unavailable`] where no
    /// leader is known for a moment or it takes longer than two minutes.
    pub async fn change_members(&self, requested: RequestedChange) -> Result<(), GroupError> {
        let inner = &self.inner;
        let deadline = Deadline::within(CATCH_UP_TIMEOUT);
        while deadline.left() > Duration::ZERO && !inner.is_out_of_patience(&deadline) {
            if let Some(reason) = inner.stop_reason() {
                return Err(Unavailable::Stopped { broker: inner.config.id, reason }.into());
            }
            let leadership = *inner.leadership.borrow();
            let done = match leadership {
                Leadership::Leader { .. } => self.change_members_here(&requested).await?,
                Leadership::Follower { leader: Some(leader) } => {
                    inner.change_members_there(leader, &requested, deadline.left()).await?
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

    /// [`change_members`](Self::change_members) as the leader; false if this broker does not lead.
    pub(crate) async fn change_members_here(&self, requested: &RequestedChange) -> Result<bool, GroupError> {
        let inner = &self.inner;
        if let MembershipChange::TransferLeader { to } = requested.change {
            self.check_requester(requested).await?;
            return inner.transfer_leader(to).await.map(|()| true);
        }
        let changing = async {
            let _turn = Arc::clone(&inner.changing).lock_owned().await;
            if !inner.leadership.borrow().is_leader() {
                return Ok(false);
            }
            // Here, not before: it may have waited for minutes, and the broker that admitted it may lag.
            self.check_requester(requested).await?;
            match &requested.change {
                MembershipChange::AddLearner { id, address } => self.add_learner(*id, address, requested).await,
                MembershipChange::Promote { id } => self.promote(*id, requested).await,
                MembershipChange::Remove { id } => self.remove(*id, requested).await,
                MembershipChange::TransferLeader { .. } => Ok(true),
            }
        };
        let changed = tokio::select! {
            changed = tokio::time::timeout(CATCH_UP_TIMEOUT, changing) => changed,
            () = inner.leaderless_for(inner.config.patience) => {
                let reason = "this broker lost its majority before one had stored the change".to_owned();
                return Err(Unavailable::Repeatable { reason }.into());
            }
        };
        match changed {
            Ok(Err(GroupError::NotLeader)) => Ok(false),
            Ok(done) => done,
            Err(_) => {
                let seconds = CATCH_UP_TIMEOUT.as_secs();
                let reason =
                    format!("the change did not end within {seconds} s; does the broker run, and is it reachable?");
                Err(Unavailable::Unknown { reason }.into())
            }
        }
    }

    /// Refuses a change whose requester may not change the members any more.
    async fn check_requester(
        &self,
        RequestedChange { actor, generation, .. }: &RequestedChange,
    ) -> Result<(), GroupError> {
        let check = |state: &State| state.check_group_change(actor, *generation);
        self.read(Consistency::Linearizable, check).await?.map_err(GroupError::Refused)
    }

    async fn add_learner(
        &self,
        id: u64,
        address: &MemberAddress,
        requested: &RequestedChange,
    ) -> Result<bool, GroupError> {
        check_member(id, address)?;
        let inner = &self.inner;
        let hello = HelloRequest {
            broker: inner.config.id,
            incarnation: inner.eligibility.incarnation().as_str().to_owned(),
            only_asks: true,
            ..HelloRequest::default()
        };
        let answer = inner.peers.hello(id, address, hello, NEW_MEMBER_HELLO_TIMEOUT).await.map_err(|error| {
            GroupError::Members(format!("broker {id} does not answer at {}: {error}; start it first", address.raft))
        })?;
        if GroupId::from_wire(&answer.group).is_some_and(|group| Some(group) != inner.eligibility.group()) {
            let reason =
                format!("broker {id} at {} belongs to another group; make a new one for this group", address.raft);
            return Err(GroupError::Members(reason));
        }
        let incarnation = Incarnation::from_wire(&answer.incarnation)
            .ok_or_else(|| GroupError::Members(format!("broker {id} does not say which incarnation it is")))?;
        // A voter stays a voter; the state refuses a removed broker.
        let role = inner.replica.read(|it| it.state.brokers.get(&id).map(|record| record.role));
        let role = role.filter(|role| *role == BrokerRole::Voter).unwrap_or(BrokerRole::Learner);
        self.assign(id, role, address, requested).await?;
        let known = inner.raft.server_metrics().borrow_watched().membership_config.get_node(&id).cloned();
        if known.is_some_and(|node| node.incarnation == incarnation) {
            return Ok(true);
        }
        info!(broker = id, %incarnation, %address, "a learner is added");
        inner.add_learner(id, MemberNode { address: address.clone(), incarnation }, CatchUp::Await).await?;
        Ok(true)
    }

    async fn promote(&self, id: u64, requested: &RequestedChange) -> Result<bool, GroupError> {
        let inner = &self.inner;
        let membership = inner.raft.server_metrics().borrow_watched().membership_config.clone();
        let Some(node) = membership.get_node(&id).cloned() else {
            let reason = format!("broker {id} is no member; add it first, by `comity raft add-learner {id} …`");
            return Err(GroupError::Members(reason));
        };
        if !membership.voter_ids().any(|voter| voter == id) && membership.voter_ids().count() >= MAX_VOTERS {
            return Err(GroupError::Members(format!("there are {MAX_VOTERS} voters already, and no more are allowed")));
        }
        self.assign(id, BrokerRole::Voter, &node.address, requested).await?;
        if membership.voter_ids().any(|voter| voter == id) {
            return Ok(true);
        }
        while !inner.is_close_behind(id) {
            if !inner.leadership.borrow().is_leader() {
                return Ok(false);
            }
            tokio::time::sleep(MEMBERSHIP_POLL_INTERVAL).await;
        }
        inner.change(ChangeMembers::AddVoterIds(BTreeSet::from([id]))).await?;
        info!(broker = id, "votes");
        Ok(true)
    }

    async fn remove(&self, id: u64, requested: &RequestedChange) -> Result<bool, GroupError> {
        let inner = &self.inner;
        let Some(record) = inner.replica.read(|it| it.state.brokers.get(&id).cloned()) else {
            return Err(GroupError::Members(format!(
                "broker {id} is no member, and never was; see `comity raft status`"
            )));
        };
        let membership = inner.raft.server_metrics().borrow_watched().membership_config.clone();
        let votes = membership.voter_ids().any(|voter| voter == id);
        if votes {
            if membership.voter_ids().count() == 1 {
                let reason = format!("broker {id} is the only voter; promote another first");
                return Err(GroupError::Members(reason));
            }
            inner.others_are_enough(id).await?;
        }
        if id == inner.config.id {
            inner.transfer_leader(None).await?;
            // The next leader does the rest.
            return Ok(false);
        }
        let address = MemberAddress { raft: record.raft_address, client: record.client_address };
        self.assign(id, BrokerRole::Removed, &address, requested).await?;
        inner.take_out(id).await?;
        info!(broker = id, "was removed; its number is never used again");
        Ok(true)
    }
}

impl Inner {
    /// A member in the newest membership.
    pub(crate) fn node_of(&self, id: u64) -> Option<MemberNode> {
        self.raft.server_metrics().borrow_watched().membership_config.get_node(&id).cloned()
    }

    /// Changes Raft's membership.
    pub(crate) async fn change(&self, change: ChangeMembers<u64, MemberNode>) -> Result<(), GroupError> {
        self.raft.change_membership(change, false).await.map(drop).map_err(write_error)
    }

    /// Adds a learner.
    pub(crate) async fn add_learner(&self, id: u64, node: MemberNode, catch_up: CatchUp) -> Result<(), GroupError> {
        self.raft.add_learner(id, node, catch_up == CatchUp::Await).await.map(drop).map_err(write_error)
    }

    /// Refuses unless a majority of the voters other than `id` answers from now on: otherwise neither this change nor a
    /// later entry could be committed.
    pub(crate) async fn others_are_enough(&self, id: u64) -> Result<(), GroupError> {
        let began = RaftInstant::now();
        let deadline = Deadline::within(self.config.timing.election_max * DOWN_AFTER_ELECTIONS);
        loop {
            match self.others_answered(id, began) {
                Err(_) if deadline.left() > Duration::ZERO => tokio::time::sleep(MEMBERSHIP_POLL_INTERVAL).await,
                answer => return answer,
            }
        }
    }

    fn others_answered(&self, id: u64, began: RaftInstant) -> Result<(), GroupError> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let answers = |voter: &u64| {
            // Send time of the newest answered message.
            let sent = metrics.heartbeat.as_ref().and_then(|all| all.get(voter).copied().flatten());
            *voter == self.config.id || sent.is_some_and(|at| at.into_inner() >= began)
        };
        let others: BTreeSet<u64> = metrics.membership_config.voter_ids().filter(|voter| *voter != id).collect();
        let up: BTreeSet<u64> = others.iter().copied().filter(answers).collect();
        if up.len() * 2 > others.len() {
            return Ok(());
        }
        let want = others.len() / 2 + 1;
        Err(GroupError::Members(format!(
            "without broker {id} the voters are {}; only {} answer, but {want} must; start the others first",
            list(&others),
            list(&up)
        )))
    }

    async fn change_members_there(
        &self,
        leader: u64,
        requested: &RequestedChange,
        timeout: Duration,
    ) -> Result<bool, GroupError> {
        let Some(node) = self.node_of(leader) else { return Ok(false) };
        let message = ForwardRequest::ChangeMembers(requested.clone());
        let answer = tokio::select! {
            answer = self.peers.forward(leader, &node, &message, timeout) => answer,
            // A transfer to any voter is then complete.
            () = self.led_by_another(leader) => {
                return Ok(matches!(requested.change, MembershipChange::TransferLeader { to: None }));
            }
            () = self.leaderless_for(self.config.patience) => return Ok(false),
        };
        match answer {
            Ok(ForwardReply::MembersChanged) => Ok(true),
            Ok(ForwardReply::NotAppended) => Ok(false),
            Ok(ForwardReply::MembersRefused(reason)) => Err(GroupError::Members(reason)),
            Ok(ForwardReply::Refused(refusal)) => Err(GroupError::Refused(refusal)),
            Ok(ForwardReply::Unknown(reason)) => Err(Unavailable::Unknown { reason }.into()),
            Ok(ForwardReply::Applied(_)) => Err(GroupError::Raft(format!("broker {leader} answered another question"))),
            // Changes are idempotent.
            Err(_) => Ok(false),
        }
    }

    /// Reports the agents heard here to the leader.
    pub(crate) async fn report_heard(
        &self,
        leader: u64,
        clusters: &[ClusterId],
        timeout: Duration,
    ) -> Result<(), CallError> {
        let Some(node) = self.node_of(leader) else { return Ok(()) };
        let clusters = clusters.iter().map(ToString::to_string).collect();
        self.peers.report_seen(leader, &node, clusters, timeout).await
    }

    /// Transfers leadership to `to`, or to the most advanced voter, and waits until this broker no longer leads.
    async fn transfer_leader(&self, to: Option<u64>) -> Result<(), GroupError> {
        let me = self.config.id;
        let to = match to {
            Some(to) if to == me => return Ok(()),
            Some(to)
                if !self.raft.server_metrics().borrow_watched().membership_config.voter_ids().any(|id| id == to) =>
            {
                return Err(GroupError::Members(format!(
                    "broker {to} does not vote, so it cannot lead; promote it first"
                )));
            }
            Some(to) if let Some(offset) = self.wrong_clock_of(to) => {
                return Err(GroupError::Members(format!(
                    "the clock of broker {to} is {} s off the majority's, so it would hand leadership on at once; set its \
                     clock first",
                    offset / 1_000
                )));
            }
            Some(to) if !self.is_close_behind(to) => {
                return Err(GroupError::Members(format!("broker {to} lags behind; try again once it has caught up")));
            }
            Some(to) => to,
            None => self
                .successor()
                .ok_or_else(|| GroupError::Members(format!("no voter but broker {me} is up to date; none can lead")))?,
        };
        self.raft.trigger().transfer_leader(to).await.map_err(|error| GroupError::Raft(error.to_string()))?;
        let mut leadership = self.leadership.clone();
        let left = leadership.wait_for(|now| !now.is_leader());
        match tokio::time::timeout(TRANSFER_TIMEOUT, left).await {
            Ok(_) => Ok(()),
            Err(_) => Err(GroupError::Members(format!(
                "broker {to} did not take over within {} s; does it run, and can it reach the others?",
                TRANSFER_TIMEOUT.as_secs()
            ))),
        }
    }

    /// The other voter with the longest replicated log.
    fn successor(&self) -> Option<u64> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let progress = metrics.replication.iter().flatten();
        let others = progress.filter(|(id, _)| **id != self.config.id && voters.contains(id));
        others.max_by_key(|(_, matched)| **matched).map(|(id, _)| *id)
    }

    /// Transfers leadership to the most advanced voter, so that a planned stop costs no election timeout.
    pub(crate) async fn hand_over(&self) {
        let (true, Some(successor)) = (self.leadership.borrow().is_leader(), self.successor()) else { return };
        if self.raft.trigger().transfer_leader(successor).await.is_err() {
            return;
        }
        let mut leadership = self.leadership.clone();
        let handed_over = leadership.wait_for(|now| !now.is_leader());
        // On failure the others elect a leader as after a crash.
        let _ = tokio::time::timeout(HAND_OVER_TIMEOUT, handed_over).await;
    }
}

fn write_error(
    error: RaftError<crate::replication::types::TypeConfig, ClientWriteError<crate::replication::types::TypeConfig>>,
) -> GroupError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => GroupError::NotLeader,
        RaftError::APIError(error @ ClientWriteError::ChangeMembershipError(_)) => {
            GroupError::Members(error.to_string())
        }
        error => GroupError::Raft(error.to_string()),
    }
}

fn list(ids: &BTreeSet<u64>) -> String {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    if ids.is_empty() { "none".to_owned() } else { ids.join(", ") }
}

pub(crate) fn check_member(id: u64, address: &MemberAddress) -> Result<(), GroupError> {
    if id == 0 {
        return Err(GroupError::Members("broker id 0; brokers are numbered from 1".to_owned()));
    }
    BrokerEndpoints::new([&address.raft, &address.client])
        .map(drop)
        .map_err(|error| GroupError::Members(format!("broker {id}: {error}")))
}
