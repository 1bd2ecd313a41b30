//! Uses a join token for a broker.

use serde::{Deserialize, Serialize};

use crate::apply::command::brokers::assign_broker::AssignBroker;
use crate::apply::command::invitations::invite_broker::check_room;
use crate::apply::command::invitations::open_invitations::{check_invite, check_inviter_now};
use crate::model::actor::Actor;
use crate::model::broker_record::BrokerRole;
use crate::model::invite::InviteSubject;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::State;
use crate::state::transition::Transition;

/// Consumes a join token and records the broker as a voter. The leader admits it as a learner once it runs, and lets it
/// vote after it has caught up, as it does with a broker that lost its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinBroker {
    /// Broker number, as in the token.
    pub broker: u64,
    /// SHA-256 of the token's secret, in hex.
    pub secret_sha256: String,
    /// "host:port" for its peers.
    pub raft_address: String,
    /// "host:port" for agents and users.
    pub client_address: String,
}

impl JoinBroker {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let (state, subject) = (transition.state(), InviteSubject::Broker(self.broker));
        let invite = check_invite(state, transition.now(), &self.secret_sha256, &subject)?;
        let joined = ReplyBody::BrokerJoined { inviter: invite.inviter.clone(), generation: invite.generation };
        check_room(state, self.broker)?;
        let mut others = state.brokers.iter().filter(|(id, it)| **id != self.broker && it.role != BrokerRole::Removed);
        if let Some((other, _)) = others.find(|(_, record)| record.raft_address == self.raft_address) {
            let reason = format!("broker {other} is at {} already", self.raft_address);
            let remedy = "give the new broker an address of its own with --raft-listen or --address";
            return Err(Refusal::new(Code::InvalidField, reason, remedy).at("raft_address", &self.raft_address));
        }
        let assignment = AssignBroker {
            broker: self.broker,
            role: BrokerRole::Voter,
            raft_address: self.raft_address.clone(),
            client_address: self.client_address.clone(),
        };
        // Refuses before it changes anything.
        assignment.record(transition)?;
        transition.remove_invite(&self.secret_sha256);
        Ok(joined)
    }
}

/// Refuses the group's secrets to a broker that joined with a token of `inviter`, if it was removed since, or if the
/// inviter may not invite brokers any more.
///
/// # Errors
/// [`Code::InvalidToken`], and [`Code::WrongState`] for a removed broker.
pub fn check_joined(state: &State, broker: u64, inviter: &Actor, generation: u64) -> Result<(), Refusal> {
    if state.brokers.get(&broker).is_none_or(|record| record.role == BrokerRole::Removed) {
        let reason = format!("broker {broker} was removed from the group; numbers are never used again");
        let remedy = "invite a broker without a number, for the next free one";
        return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", broker));
    }
    check_inviter_now(state, inviter, generation, &InviteSubject::Broker(broker))
}
