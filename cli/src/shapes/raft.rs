//! The broker group.

use comity_proto::v1;
use serde::Serialize;

use crate::output::{Answer, columns};

/// How each broker sees the group.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftStatus {
    /// Each broker that was asked.
    pub brokers: Vec<RaftBroker>,
    /// Members, as the leader (or whoever answered) has them.
    pub members: Vec<RaftMember>,
}

/// The group after a change.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftMembers {
    /// Members.
    pub members: Vec<RaftMember>,
}

/// One broker.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftBroker {
    /// Address it was asked at.
    pub address: String,
    /// Why it did not answer.
    pub error: Option<String>,
    /// Number.
    pub id: u64,
    /// `leader`, `follower`, `learner`, `candidate`; empty if it did not answer.
    pub role: String,
    /// Leader that it knows; 0 if none.
    pub leader: u64,
    /// Term.
    pub term: u64,
    /// Last log index on disk.
    pub last_log_index: u64,
    /// Last index applied.
    pub applied_index: u64,
    /// Index of the last snapshot.
    pub snapshot_index: u64,
    /// Revision of the state.
    pub revision: u64,
    /// SHA-256 of the state; equal on brokers at the same applied index.
    pub state_sha256: String,
    /// Invariants that the state breaks; none as long as all is well.
    pub violations: Vec<String>,
    /// Envelopes that wait for their receivers.
    pub envelopes: u64,
    /// Name of the group; empty before it belongs to one.
    pub group: String,
    /// The life of its disk.
    pub incarnation: String,
    /// Whether it votes and may lead.
    pub may_vote: bool,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RaftMember {
    /// Number.
    pub id: u64,
    /// Raft endpoint.
    pub raft_address: String,
    /// gRPC endpoint.
    pub client_address: String,
    /// Whether it votes.
    pub voter: bool,
    /// Last log index known to be on it; only the leader knows.
    pub matched_index: u64,
    /// The life of its disk that the group admitted.
    pub incarnation: String,
}

impl RaftBroker {
    /// A broker that answered.
    #[must_use]
    pub fn answered(address: String, status: &v1::GetRaftStatusResponse) -> Self {
        Self {
            address,
            error: None,
            id: status.id,
            role: status.role.clone(),
            leader: status.leader,
            term: status.term,
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            revision: status.revision,
            state_sha256: status.state_sha256.clone(),
            violations: status.violations.clone(),
            envelopes: status.envelopes,
            group: status.group.clone(),
            incarnation: status.incarnation.clone(),
            may_vote: status.may_vote,
        }
    }

    /// A broker that did not.
    #[must_use]
    pub fn silent(address: String, error: String) -> Self {
        Self { address, error: Some(error), ..Self::default() }
    }
}

impl From<v1::RaftMember> for RaftMember {
    fn from(member: v1::RaftMember) -> Self {
        Self {
            id: member.id,
            raft_address: member.raft_address,
            client_address: member.client_address,
            voter: member.voter,
            matched_index: member.matched_index,
            incarnation: member.incarnation,
        }
    }
}

impl Answer for RaftStatus {
    fn table(&self, _now_ms: u64) -> String {
        let row = |broker: &RaftBroker| match &broker.error {
            Some(error) => {
                let mut row = vec!["-".to_owned(); 9];
                broker.address.clone_into(&mut row[1]);
                row[2] = format!("no answer: {error}");
                row
            }
            None => vec![
                broker.id.to_string(),
                broker.address.clone(),
                broker.role.clone(),
                if broker.leader == 0 { "none".to_owned() } else { broker.leader.to_string() },
                broker.term.to_string(),
                broker.last_log_index.to_string(),
                broker.applied_index.to_string(),
                broker.revision.to_string(),
                broker.state_sha256.chars().take(12).collect(),
            ],
        };
        let heads = ["broker", "address", "role", "leader", "term", "last log", "applied", "revision", "state"];
        let brokers = columns(&heads, self.brokers.iter().map(row).collect(), "no brokers");
        let broken: String = self
            .brokers
            .iter()
            .flat_map(|broker| {
                broker.violations.iter().map(|broken| format!("BROKEN on broker {}: {broken}\n", broker.id))
            })
            .collect();
        format!("{brokers}\n{broken}{}", members_table(&self.members))
    }
}

impl Answer for RaftMembers {
    fn table(&self, _now_ms: u64) -> String {
        members_table(&self.members)
    }
}

fn members_table(members: &[RaftMember]) -> String {
    let member = |member: &RaftMember| {
        vec![
            member.id.to_string(),
            member.client_address.clone(),
            member.raft_address.clone(),
            if member.voter { "voter".to_owned() } else { "learner".to_owned() },
            member.matched_index.to_string(),
            member.incarnation.chars().take(8).collect(),
        ]
    };
    let heads = ["member", "client address", "raft address", "vote", "matched", "incarnation"];
    columns(&heads, members.iter().map(member).collect(), "no members known")
}
