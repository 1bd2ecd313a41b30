//! Records a join token for a broker.

use serde::{Deserialize, Serialize};

use crate::apply::command::invitations::open_invitations::record_invite;
use crate::model::broker_record::BrokerRole;
use crate::model::invite::InviteSubject;
use crate::model::limits::{MAX_BROKERS, MAX_VOTERS};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::Reply;
use crate::model::time::Millis;
use crate::state::State;
use crate::state::transition::Transition;

/// Records the hash of a join token's secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InviteBroker {
    /// Broker number; `None` for the next one that no broker has had and no outstanding token has.
    pub broker: Option<u64>,
    /// SHA-256 of the secret, in hex.
    pub secret_sha256: String,
    /// How long the token is valid.
    pub ttl: Millis,
    /// Whether the broker may be a member already: the broker that joins takes its place.
    pub replace: bool,
}

impl InviteBroker {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let state = transition.state();
        if state.brokers.is_empty() {
            let reason = "the group has not recorded its founding members yet";
            return Err(Refusal::new(Code::WrongState, reason, "try again in a second"));
        }
        let broker = match self.broker {
            None => next_number(state),
            Some(0) => {
                return Err(Refusal::invalid("broker", 0, "is not a broker number", "count brokers from 1"));
            }
            Some(broker) => broker,
        };
        let role = state.brokers.get(&broker).map(|record| record.role);
        if role == Some(BrokerRole::Removed) {
            let reason = format!("broker {broker} was removed from the group; numbers are never used again");
            let remedy = "invite a broker without a number, for the next free one";
            return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", broker));
        }
        if role.is_some() && !self.replace {
            let reason = format!("broker {broker} is a member already; the broker that joins would take its place");
            let remedy =
                "invite a new broker without a number; if the member's disk is lost, stop it and invite with --replace";
            return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", broker));
        }
        check_room(state, broker)?;
        record_invite(transition, &self.secret_sha256, InviteSubject::Broker(broker), self.ttl)
    }
}

fn next_number(state: &State) -> u64 {
    let invited = state.invites.values().filter_map(|invite| match invite.subject {
        InviteSubject::Broker(broker) => Some(broker),
        InviteSubject::Cluster(_) | InviteSubject::User(_) => None,
    });
    state.brokers.keys().copied().chain(invited).max().unwrap_or(0).saturating_add(1)
}

/// Refuses one more voter, or one more broker, than a group may have.
pub(crate) fn check_room(state: &State, broker: u64) -> Result<(), Refusal> {
    let others = state.brokers.iter().filter(|(id, _)| **id != broker);
    let voters = others.filter(|(_, record)| record.role == BrokerRole::Voter).count();
    if voters >= MAX_VOTERS {
        let reason = format!("there are {MAX_VOTERS} voters already, and no more are allowed");
        let remedy = "remove one with `comity raft remove` first";
        return Err(Refusal::new(Code::LimitReached, reason, remedy).at("broker", broker));
    }
    if state.brokers.len() >= MAX_BROKERS && !state.brokers.contains_key(&broker) {
        let reason = format!("the group has had {MAX_BROKERS} brokers, and no more are allowed");
        return Err(Refusal::new(Code::LimitReached, reason, "found a new group").at("broker", broker));
    }
    Ok(())
}
