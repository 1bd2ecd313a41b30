//! Records that a broker of the group is up.

use serde::{Deserialize, Serialize};

use crate::model::broker_record::BrokerRole;
use crate::model::idempotency;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// The leader is about to add a broker that runs to Raft's membership. It has the group's secrets, so the call by which
/// it joined gets no answer again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdmitBroker {
    /// Broker number.
    pub broker: u64,
}

impl AdmitBroker {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let broker = self.broker;
        if transition.state().brokers.get(&broker).is_none_or(|record| record.role == BrokerRole::Removed) {
            let reason = format!("broker {broker} is no member of the group");
            let remedy = "invite a broker with `comity raft invite`; numbers of removed ones are never used again";
            return Err(Refusal::new(Code::WrongState, reason, remedy).at("broker", broker));
        }
        transition.forget_replies_to(&idempotency::joining_broker(broker));
        Ok(ReplyBody::Done)
    }
}
