//! How one broker sees its group.

use std::collections::BTreeMap;

use comity_core::member_certificate::RootUse;
use comity_core::{State, invariants, snapshot};
use openraft::ServerState;
use openraft::async_runtime::WatchReceiver as _;

use crate::group::{ClockStatus, Group, Leadership};
use crate::replication::identity::{GroupId, Incarnation};
use crate::replication::member::MemberAddress;

/// Maximum violations in a status: one proves a fault, and further ones help to find its cause.
const MAX_VIOLATIONS: usize = 32;

/// Maximum requests, leases and nodes for which a status copies and checks derived data too. Nothing is applied
/// meanwhile; up to this number it takes a few milliseconds.
const CHECKED_AT_HAND: usize = 5_000;

/// Role of a broker in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows and votes.
    Follower,
    /// It stands for election.
    Candidate,
    /// It follows and does not vote.
    Learner,
    /// It stopped.
    Stopped,
}

impl Role {
    /// The text form, as in "leader".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Follower => "follower",
            Self::Candidate => "candidate",
            Self::Learner => "learner",
            Self::Stopped => "stopped",
        }
    }
}

/// One broker's view of its group.
#[derive(Debug, Clone)]
pub struct GroupStatus {
    /// This broker.
    pub id: u64,
    /// Its role.
    pub role: Role,
    /// The leader, if known.
    pub leader: Option<u64>,
    /// The term.
    pub term: u64,
    /// Last log index on disk.
    pub last_log_index: u64,
    /// Last index applied.
    pub applied_index: u64,
    /// Index up to which the newest snapshot goes; 0 if there is none.
    pub snapshot_index: u64,
    /// Revision of the state.
    pub revision: u64,
    /// SHA-256 of the state at `applied_index` in its canonical form, in hex.
    pub state_sha256: String,
    /// Broken invariants, at most 32. Derived data is checked only up to a few thousand objects.
    pub violations: Vec<String>,
    /// Envelopes in transit.
    pub envelopes: u64,
    /// Valid certificates of members, by the SHA-256 of the root that they are under.
    pub root_uses: BTreeMap<String, RootUse>,
    /// Its group, if any.
    pub group: Option<GroupId>,
    /// Incarnation of its disk.
    pub incarnation: Incarnation,
    /// Whether it votes and may lead.
    pub may_vote: bool,
    /// Members, by number.
    pub members: Vec<MemberStatus>,
    /// Why consensus stopped, if it did.
    pub stopped: Option<String>,
    /// Status of its clocks.
    pub clocks: ClockStatus,
}

/// One member.
#[derive(Debug, Clone)]
pub struct MemberStatus {
    /// Its number.
    pub id: u64,
    /// Where it is.
    pub address: MemberAddress,
    /// Admitted incarnation.
    pub incarnation: Incarnation,
    /// Whether it votes.
    pub voter: bool,
    /// Last log index known to be on it; only the leader knows.
    pub matched_index: Option<u64>,
}

/// Results of examining the whole state.
#[derive(Debug, Default)]
struct Examined {
    revision: u64,
    sha256: String,
    violations: Vec<String>,
    envelopes: u64,
    root_uses: BTreeMap<String, RootUse>,
}

/// A copy of the state to examine.
enum StateCopy {
    /// With derived data, so that the examination checks it.
    Complete(State),
    /// Without derived data, because copying that would hold the lock for too long.
    RecordsOnly(State),
}

impl StateCopy {
    fn of(state: &State) -> Self {
        let nodes = state.clusters.values().filter_map(|cluster| cluster.offer.as_ref()).map(|offer| offer.nodes.len());
        if state.requests.len() + state.leases.len() + nodes.sum::<usize>() <= CHECKED_AT_HAND {
            Self::Complete(state.clone())
        } else {
            Self::RecordsOnly(snapshot::copy(state))
        }
    }

    fn complete(self) -> State {
        match self {
            Self::Complete(state) => state,
            Self::RecordsOnly(state) => snapshot::with_derived(state),
        }
    }
}

fn examine(state: &State) -> Examined {
    let mut violations = invariants::violations(state);
    violations.truncate(MAX_VIOLATIONS);
    let root_uses = state.certificates.by_root(state.log_time).into_iter();
    Examined {
        revision: state.revision,
        sha256: snapshot::digest(state).unwrap_or_default(),
        violations,
        envelopes: state.envelopes.len() as u64,
        root_uses: root_uses.map(|(root, used)| (root.to_owned(), used)).collect(),
    }
}

impl Group {
    /// Status of the group, as this broker knows it. Encodes and checks a copy of the state, so do not call it in a
    /// loop.
    pub async fn status(&self) -> GroupStatus {
        let replica = self.inner.replica.clone();
        let examined = tokio::task::spawn_blocking(move || {
            let (copy, applied) =
                replica.read(|replicated| (StateCopy::of(&replicated.state), replicated.last_applied));
            (examine(&copy.complete()), applied.map_or(0, |id| id.index))
        });
        let (state, applied_index) = examined.await.unwrap_or_default();

        let (members, clocks) = (self.members(), self.clocks());
        let stopped = self.inner.stop_reason();
        let leadership = *self.inner.leadership.borrow();
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        GroupStatus {
            id: metrics.id,
            role: match metrics.state {
                ServerState::Leader if leadership.is_leader() => Role::Leader,
                // It won the election, but no majority answers it.
                ServerState::Leader | ServerState::Follower => Role::Follower,
                ServerState::Candidate => Role::Candidate,
                ServerState::Learner => Role::Learner,
                ServerState::Shutdown => Role::Stopped,
            },
            leader: match leadership {
                Leadership::Leader { .. } => Some(metrics.id),
                Leadership::Follower { leader } => leader,
            },
            term: metrics.current_term,
            last_log_index: metrics.last_log_index.unwrap_or(0),
            applied_index,
            snapshot_index: metrics.snapshot.map_or(0, |id| id.index),
            revision: state.revision,
            state_sha256: state.sha256,
            violations: state.violations,
            envelopes: state.envelopes,
            root_uses: state.root_uses,
            group: self.inner.eligibility.group(),
            incarnation: self.inner.eligibility.incarnation(),
            may_vote: self.inner.eligibility.may_vote(),
            members,
            stopped,
            clocks,
        }
    }

    /// Members, by number.
    pub fn members(&self) -> Vec<MemberStatus> {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = &metrics.membership_config;
        let members = membership.nodes().map(|(id, node)| MemberStatus {
            id: *id,
            address: node.address.clone(),
            incarnation: node.incarnation.clone(),
            voter: membership.voter_ids().any(|voter| voter == *id),
            matched_index: metrics.replication.as_ref().and_then(|all| all.get(id)?.map(|at| at.index)),
        });
        members.collect()
    }
}

#[cfg(test)]
mod tests {
    use comity_core::Records;
    use comity_types::ClusterId;

    use super::*;

    #[test]
    fn a_state_that_breaks_an_invariant_is_told() {
        assert!(examine(&State::default()).violations.is_empty());
        let mut records = Records::default();
        let cluster = serde_json::json!({
            "institution": "polytechnic", "identity_key": "", "joined_at": 0, "certificate_not_after": 0,
            "connected": false, "since": 0, "offer": null, "last_fencing_token": 0, "revision": 7,
        });
        let id = ClusterId::parse("campus", "cluster").expect("a label");
        records.clusters.insert(id, serde_json::from_value(cluster).expect("a cluster"));
        let violations = examine(&State::from(records)).violations;
        assert!(violations.len() == 1 && violations[0].contains("campus"), "{violations:?}");
    }
}
