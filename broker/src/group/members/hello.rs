//! How a broker joins its group, at each start and after it lost its log.
//!
//! ```text
//!   named in its own log, in this life ── no ──▶ says hello to every broker that it knows, until the leader admits it
//!            │ yes
//!   confirmed by a majority of the voters ── no ──▶ says hello to them; stops if one knows a longer log of its own
//!            │ yes
//!   votes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use comity_core::broker_record::BrokerRole;
use comity_proto::raft::v1::hello_response::Verdict;
use comity_proto::raft::v1::{GroupMember, HelloRequest, HelloResponse};
use openraft::async_runtime::WatchReceiver as _;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tracing::{debug, error, info};

use crate::eligibility::Halt;
use crate::group::elections::election_gate::Reason;
use crate::group::members::{HELLO_TIMEOUT, admission};
use crate::group::{Group, Inner, Leadership};
use crate::replication::identity::{GroupId, Incarnation, StartId};
use crate::replication::member::MemberAddress;
use crate::storage::{self, LogPosition};

/// Interval of rounds while this broker has no vote.
const HELLO_INTERVAL: Duration = Duration::from_millis(150);
/// Interval afterwards; a membership change wakes it at once.
const SETTLED_HELLO_INTERVAL: Duration = Duration::from_secs(10);
/// How long a broker knows no other before it tells the operator.
const ALONE_FOR: Duration = Duration::from_secs(5);
/// Leases for which a leader must claim to be behind this broker before it is believed.
const LEASES: u32 = 3;

/// Verdict on one answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The peer, of this incarnation, knows of nothing that this broker lacks.
    Fine(Incarnation),
    /// No usable answer.
    Nothing,
    /// The peer claims to lead with a log that ends before what this broker has applied.
    Behind(Halt),
    /// This broker must stop.
    Halt(Halt),
}

/// State between two rounds.
#[derive(Default)]
struct Search {
    /// Known brokers.
    known: BTreeMap<u64, MemberAddress>,
    /// Since when each leader has claimed to be behind this broker.
    behind: BTreeMap<u64, Instant>,
    /// Whether the missing vote was logged.
    said: bool,
    /// Since when this broker has had no log and known no other broker, although it was in a group.
    alone: Option<Instant>,
    /// Whether that was logged.
    told: bool,
}

/// Runs until the group stops or its last handle is gone.
pub(crate) async fn run(group: Weak<Inner>, stop: CancellationToken) {
    let mut search = Search::default();
    // Consensus answers once it has read the members from disk.
    let Some(raft) = group.upgrade().map(|inner| inner.raft.clone()) else { return };
    if raft.is_initialized().await.is_err() {
        return;
    }
    drop(raft);
    // One receiver for all rounds: a new one would treat the present members as a change.
    let Some(mut members) = group.upgrade().map(|inner| inner.raft.server_metrics()) else { return };
    loop {
        let Some(inner) = group.upgrade() else { return };
        let settled = inner.find_place(&mut search).await;
        // Held weakly while it waits.
        drop(inner);
        tokio::select! {
            changed = members.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(if settled { SETTLED_HELLO_INTERVAL } else { HELLO_INTERVAL }) => {}
            () = stop.cancelled() => return,
        }
    }
}

impl Inner {
    /// Runs one round; true once this broker may vote.
    async fn find_place(self: &Arc<Self>, search: &mut Search) -> bool {
        let (eligibility, me) = (&self.eligibility, self.config.id);
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let admitted = membership.get_node(&me).is_some_and(|node| node.incarnation == eligibility.incarnation());
        eligibility.set_admitted(admitted);
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        if !(admitted && eligibility.is_confirmed()) {
            // Addresses of founding members, of members in the log, and of members that peers named.
            search.known.extend(self.config.members.clone());
            search.known.extend(membership.nodes().map(|(id, node)| (*id, node.address.clone())));
            search.known.remove(&me);
            let answers = self.say_hello(&mut search.known).await;
            let mut confirming: BTreeSet<u64> = voters.iter().copied().filter(|id| *id == me).collect();
            let since = std::mem::take(&mut search.behind);
            for (id, answer) in answers {
                match answer {
                    // A replaced leader may not know it yet; it steps down within its lease.
                    Answer::Behind(halt) => {
                        let first = since.get(&id).copied().unwrap_or_else(Instant::now);
                        search.behind.insert(id, first);
                        if first.elapsed() > self.config.timing.election_max * LEASES {
                            eligibility.halt(halt);
                        }
                    }
                    // A voter that lost its log cannot confirm this broker.
                    Answer::Fine(peer) if membership.get_node(&id).is_some_and(|node| node.incarnation == peer) => {
                        confirming.insert(id);
                    }
                    Answer::Fine(_) | Answer::Nothing => {}
                    Answer::Halt(Halt::LogLost(reason)) => eligibility.lost(reason).await,
                    Answer::Halt(halt) => eligibility.halt(halt),
                }
            }
            // A leader that lacks entries applied here may be right. This broker acknowledges nothing to it meanwhile.
            if admitted
                && search.behind.is_empty()
                && eligibility.halted().is_none()
                && is_majority(&confirming, &voters)
            {
                eligibility.confirm();
                info!(broker = me, incarnation = %eligibility.incarnation(), "this broker has its place in the group");
            } else if !search.said {
                search.said = true;
                let is_member = self.config.members.contains_key(&me) || membership.get_node(&me).is_some();
                let next = if is_member { "it looks for the others" } else { "add it by `comity raft add-learner`" };
                info!(broker = me, admitted, "this broker does not vote yet: {next}");
            }
            // A sole member without a group founds one within a round, unless it did so on a disk that is gone.
            let was_in_a_group = eligibility.group().is_some() || self.config.members.contains_key(&me);
            let is_alone = voters.is_empty() && search.known.is_empty() && was_in_a_group;
            search.alone = is_alone.then(|| search.alone.unwrap_or_else(Instant::now));
            let waits = search.alone.is_some_and(|since| since.elapsed() > ALONE_FOR);
            if waits && !std::mem::replace(&mut search.told, true) {
                self.say_what_a_sole_broker_needs();
            }
        }
        self.elections.set(Reason::MayNotVote, !eligibility.may_vote());
        eligibility.may_vote()
    }

    fn say_what_a_sole_broker_needs(&self) {
        let data = self.config.data.parent().unwrap_or(&self.config.data).display();
        let (lost, remedy) = if storage::has_remains(&self.config.data) {
            let command = format!(
                "stop it, and run `comity-broker recover --from {data}`, which finds what is left of the log and \
                 describes it"
            );
            ("its log or the end of it", command)
        } else {
            let nothing_left = "nothing is left of the group: make a new one by `comity-broker init` with another data \
                directory";
            ("its whole log", nothing_left.to_owned())
        };
        error!(
            broker = self.config.id, data = %self.config.data.display(),
            "this broker has lost {lost}, and knows no other broker that could send it. In a group of one, put a backup \
             of its data directory back; without one, {remedy}. In a larger group, start the others: they find this one"
        );
    }

    async fn say_hello(&self, known: &mut BTreeMap<u64, MemberAddress>) -> Vec<(u64, Answer)> {
        let (last, applied) = (self.last_position(), self.applied_position());
        let hello = HelloRequest {
            broker: self.config.id,
            incarnation: self.eligibility.incarnation().as_str().to_owned(),
            group: self.eligibility.group().map(|group| group.as_str().to_owned()).unwrap_or_default(),
            last_term: last.map_or(0, |last| last.term),
            last_index: last.map_or(0, |last| last.index),
            only_asks: false,
            starts: self.eligibility.starts().iter().map(|start| start.as_str().to_owned()).collect(),
        };
        let asked = known.iter().map(|(id, address)| {
            let hello = hello.clone();
            async move { (*id, self.peers.hello(*id, address, hello, HELLO_TIMEOUT).await) }
        });
        let mut answers = Vec::new();
        let mut told = Vec::new();
        for (id, answered) in futures::future::join_all(asked).await {
            let answer = match answered {
                Ok(answer) => {
                    told.extend(answer.members.iter().map(|member| (member.id, address_of(member))));
                    self.judge(id, &answer, applied)
                }
                Err(error) => {
                    debug!(peer = id, %error, "no hello");
                    Answer::Nothing
                }
            };
            answers.push((id, answer));
        }
        known.extend(told);
        answers
    }

    /// Judges an answer. `applied` was read before the hello was sent: the leader's log must reach that far, but may
    /// lack what was committed here since.
    pub(crate) fn judge(&self, peer: u64, answer: &HelloResponse, applied: Option<LogPosition>) -> Answer {
        // Read now, and not when the hello was sent: entries may have come since, and been acknowledged.
        let (me, last) = (self.config.id, self.last_position());
        match answer.verdict() {
            Verdict::Removed => {
                return Answer::Halt(Halt::removed(me));
            }
            Verdict::OtherGroup => {
                let own = self.eligibility.group();
                let is_replaced = own.is_some_and(|own| answer.replaces.iter().any(|old| old == own.as_str()));
                return if is_replaced { Answer::Halt(Halt::replaced_by(me, peer)) } else { Answer::Nothing };
            }
            Verdict::Unspecified | Verdict::Member | Verdict::Unknown | Verdict::Pending => {}
        }
        let acknowledged = (answer.acknowledged_index > 0)
            .then_some(LogPosition { term: answer.acknowledged_term, index: answer.acknowledged_index });
        if acknowledged > last {
            let (had, has) = (answer.acknowledged_index, last.map_or(0, |last| last.index));
            return Answer::Halt(Halt::LogLost(format!(
                "broker {me} had acknowledged log entry {had} to broker {peer}, but its log ends at entry {has}"
            )));
        }
        if answer.knows_later_start {
            return Answer::Halt(Halt::LogLost(format!(
                "broker {me} runs on an older copy of its data: broker {peer} knows a later start of it, which the copy \
                 lacks with whatever was acknowledged since"
            )));
        }
        if self.is_replaced_by(answer, last) {
            let later = answer.member_incarnation.get(..8).unwrap_or_default();
            return Answer::Halt(Halt::LogLost(format!(
                "broker {me} runs on an older copy of its data: broker {peer} knows it as a member with the later \
                 incarnation {later}, and the copy lacks whatever was acknowledged with that"
            )));
        }
        let leads_to = (answer.leader_last_index > 0)
            .then_some(LogPosition { term: answer.leader_last_term, index: answer.leader_last_index });
        // A leader has everything that was ever committed.
        if let (Some(leads_to), Some(applied)) = (leads_to, applied)
            && leads_to < applied
        {
            let what = format!("has a log that ends at entry {}", leads_to.index);
            return Answer::Behind(self.ahead_of(peer, applied.index, &what));
        }
        Incarnation::from_wire(&answer.incarnation).map_or(Answer::Nothing, Answer::Fine)
    }

    /// Whether this broker was admitted with another disk after the end of its log. Only if it is a member by its own
    /// log: a disk that is about to be admitted has part of a log, too, and members that lag name the disk before it.
    fn is_replaced_by(&self, answer: &HelloResponse, last: Option<LogPosition>) -> bool {
        let own = self.eligibility.incarnation();
        let membership = self.raft.server_metrics().borrow_watched().membership_config.clone();
        let is_member = membership.get_node(&self.config.id).is_some_and(|node| node.incarnation == own);
        let named = LogPosition { term: answer.members_term, index: answer.members_index };
        let is_another = !answer.member_incarnation.is_empty() && answer.member_incarnation != own.as_str();
        is_member && is_another && Some(named) > last
    }

    /// The last entry that this broker has applied.
    pub(crate) fn applied_position(&self) -> Option<LogPosition> {
        let applied = self.replica.read(|it| it.last_applied);
        applied.map(|id| LogPosition { term: id.leader_id.term, index: id.index })
    }

    /// The last entry of this broker's log.
    pub(crate) fn last_position(&self) -> Option<LogPosition> {
        self.log.last_position()
    }
}

impl Group {
    /// Answers a hello; as the leader, also admits a peer that belongs to the group.
    pub(crate) async fn serve_hello(&self, hello: &HelloRequest) -> Result<HelloResponse, Status> {
        let inner = &self.inner;
        // Before it has read the members from disk it would answer that there are none.
        if inner.raft.is_initialized().await.is_err() {
            return Err(Status::unavailable("this broker stops"));
        }
        let incarnation = Incarnation::from_wire(&hello.incarnation)
            .ok_or_else(|| Status::invalid_argument("incarnation: it is empty; update the broker that calls"))?;
        let membership = inner.raft.server_metrics().borrow_watched().membership_config.clone();
        let role = inner.replica.read(|it| it.state.brokers.get(&hello.broker).map(|record| record.role));
        let group = inner.eligibility.group();
        let other_group = matches!((&group, GroupId::from_wire(&hello.group)), (Some(a), Some(b)) if *a != b);
        let is_member = membership.get_node(&hello.broker).is_some_and(|node| node.incarnation == incarnation);
        let leads = inner.leadership.borrow().is_leader();
        let verdict = match role {
            _ if other_group => Verdict::OtherGroup,
            Some(BrokerRole::Removed) => Verdict::Removed,
            _ if is_member => Verdict::Member,
            Some(_) => {
                if leads && !hello.only_asks {
                    admission::admit(inner, hello.broker, incarnation.clone());
                }
                Verdict::Pending
            }
            None => Verdict::Unknown,
        };
        let knows_later_start = if hello.only_asks || verdict == Verdict::OtherGroup {
            false
        } else {
            let starts = hello.starts.iter().filter_map(|start| StartId::from_wire(start)).collect();
            let goes_on = inner.eligibility.meet(hello.broker, incarnation.clone(), starts).await;
            !goes_on.map_err(|error| Status::internal(error.to_string()))?
        };
        let acknowledged = inner.eligibility.acknowledged_by(hello.broker, &incarnation);
        let leader = match *inner.leadership.borrow() {
            Leadership::Leader { .. } => inner.config.id,
            Leadership::Follower { leader } => leader.unwrap_or(0),
        };
        let leader_last = if leads { inner.last_position() } else { None };
        let (known_as, named_at) = (membership.get_node(&hello.broker), membership.log_id().as_ref());
        let mut response = HelloResponse {
            member_incarnation: known_as.map(|node| node.incarnation.as_str().to_owned()).unwrap_or_default(),
            members_term: named_at.map_or(0, |id| id.leader_id.term),
            members_index: named_at.map_or(0, |id| id.index),
            leader_last_term: leader_last.map_or(0, |place| place.term),
            leader_last_index: leader_last.map_or(0, |place| place.index),
            group: group.map(|group| group.as_str().to_owned()).unwrap_or_default(),
            incarnation: inner.eligibility.incarnation().as_str().to_owned(),
            has_log: inner.last_position().is_some(),
            leader,
            knows_later_start,
            replaces: inner.eligibility.replaced().iter().map(|group| group.as_str().to_owned()).collect(),
            acknowledged_term: acknowledged.map_or(0, |place| place.term),
            acknowledged_index: acknowledged.map_or(0, |place| place.index),
            members: membership
                .nodes()
                .map(|(id, node)| GroupMember {
                    id: *id,
                    raft_address: node.address.raft.clone(),
                    client_address: node.address.client.clone(),
                    voter: membership.voter_ids().any(|voter| voter == *id),
                })
                .collect(),
            ..HelloResponse::default()
        };
        response.set_verdict(verdict);
        Ok(response)
    }
}

/// Address of a member in a hello response.
pub(crate) fn address_of(member: &GroupMember) -> MemberAddress {
    MemberAddress { raft: member.raft_address.clone(), client: member.client_address.clone() }
}

fn is_majority(some: &BTreeSet<u64>, voters: &BTreeSet<u64>) -> bool {
    some.intersection(voters).count() * 2 > voters.len()
}
