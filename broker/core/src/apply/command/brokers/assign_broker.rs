//! Assigns a role to a broker of the group.

use serde::{Deserialize, Serialize};

use crate::model::broker_record::{BrokerRecord, BrokerRole};
use crate::model::idempotency;
use crate::model::limits::MAX_BROKERS;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Records a broker's role in its group; the leader then changes Raft's membership to match. A removed broker stays
/// removed, and a broker keeps its addresses.
///
/// Does not increment the revision: watchers and agents do not depend on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignBroker {
    /// Broker number, from 1.
    pub broker: u64,
    /// Its role from now on.
    pub role: BrokerRole,
    /// "host:port" for its peers.
    pub raft_address: String,
    /// "host:port" for agents and users.
    pub client_address: String,
}

impl AssignBroker {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        transition.state().check_group_change(transition.actor(), transition.generation())?;
        self.record(transition)
    }

    /// Records the role, whoever the actor is.
    pub(crate) fn record(&self, transition: &mut Transition<'_>) -> Reply {
        let brokers = &transition.state().brokers;
        if self.broker == 0 {
            return Err(Refusal::invalid("broker", 0, "is not a broker number", "count brokers from 1"));
        }
        let known = brokers.get(&self.broker);
        match known {
            None if brokers.len() >= MAX_BROKERS => {
                let reason = format!("the group has had {MAX_BROKERS} brokers, and no more are allowed");
                return Err(Refusal::new(Code::LimitReached, reason, "found a new group").at("broker", self.broker));
            }
            Some(known) if known.role == BrokerRole::Removed && self.role != BrokerRole::Removed => {
                let reason = format!("broker {} was removed from the group; numbers are never used again", self.broker);
                let remedy = "give the broker a new number with `comity-broker add-identity`";
                return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", self.broker));
            }
            Some(known)
                if self.role != BrokerRole::Removed
                    && (&known.raft_address, &known.client_address) != (&self.raft_address, &self.client_address) =>
            {
                let reason = format!(
                    "broker {} is at {} (clients: {}) already",
                    self.broker, known.raft_address, known.client_address
                );
                let remedy = "give the broker at the other address a new number";
                return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", self.broker));
            }
            _ => {}
        }
        let is_new = known.is_none_or(|known| known.role != self.role);
        // Whoever joined under this number before gets no answer again.
        transition.forget_replies_to(&idempotency::joining_broker(self.broker));
        if !is_new {
            return Ok(ReplyBody::Done);
        }
        let record = BrokerRecord {
            role: self.role,
            raft_address: self.raft_address.clone(),
            client_address: self.client_address.clone(),
            since: transition.now(),
        };
        transition.set_broker(self.broker, record);
        Ok(ReplyBody::Done)
    }
}
