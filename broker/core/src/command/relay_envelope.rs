//! A sealed message goes from one agent to the other.

use serde::{Deserialize, Serialize};

use super::report_peering::peering_of;
use crate::envelope::{Envelope, EnvelopeKey, Step};
use crate::keys::Side;
use crate::limits::MAX_ENVELOPES_PER_CLUSTER;
use crate::log::{Reply, ReplyBody};
use crate::peering::PeeringState;
use crate::refusal::{Code, Refusal};
use crate::time::Millis;
use crate::transition::Transition;

/// How long an envelope may wait at most.
const LONGEST_WAIT: Millis = Millis::from_hours(24);

/// Keeps an envelope until its receiver acknowledges it. A later sequence replaces earlier ones of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayEnvelope {
    /// The message.
    pub envelope: Envelope,
}

impl RelayEnvelope {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let envelope = &self.envelope;
        envelope.check()?;
        let key = &envelope.key;
        let (peering, side) = peering_of(transition, key.peering, key.epoch, &envelope.from)?;
        let (sender, receiver) = match key.step {
            Step::Psk | Step::Credential => (Side::Donor, &peering.origin),
            Step::Proof => (Side::Origin, &peering.donor),
        };
        if side != sender || key.to != *receiver {
            return Err(Refusal::invalid(
                "envelope.to",
                &key.to,
                "is not who this step goes to",
                "send it to the other side",
            ));
        }
        let in_time = match key.step {
            Step::Psk | Step::Proof => peering.state == PeeringState::Authenticating,
            Step::Credential => matches!(peering.state, PeeringState::Establishing | PeeringState::Established),
        };
        if !in_time {
            return Err(Refusal::new(
                Code::WrongState,
                format!("{} is not at a step that takes {} envelopes", key.peering, key.step.as_str()),
                "wait for the next directive",
            )
            .at("envelope.step", key.step.as_str()));
        }
        match (key.step, key.lease) {
            (Step::Credential, Some(lease)) if peering.leases.contains(&lease) => {}
            (Step::Psk | Step::Proof, None) => {}
            (_, lease) => {
                let lease = lease.map_or_else(String::new, |lease| lease.to_string());
                return Err(Refusal::invalid(
                    "envelope.lease",
                    lease,
                    "does not belong to this step",
                    "name the lease of a credential, and none otherwise",
                ));
            }
        }
        let same_kind = |other: &EnvelopeKey| {
            other.to == key.to
                && other.peering == key.peering
                && other.epoch == key.epoch
                && other.lease == key.lease
                && other.step == key.step
        };
        let waiting = transition.state.envelopes_for(&key.to);
        let (mut older, mut count) = (Vec::new(), 0_usize);
        for held in waiting {
            count += 1;
            if same_kind(&held.key) {
                if held.key.sequence >= key.sequence {
                    return Ok(ReplyBody::Done);
                }
                older.push(held.key.clone());
            }
        }
        if count >= MAX_ENVELOPES_PER_CLUSTER + older.len() {
            return Err(Refusal::new(
                Code::LimitReached,
                format!("{MAX_ENVELOPES_PER_CLUSTER} envelopes wait for {}", key.to),
                "wait until its agent has read some",
            ));
        }
        for old in &older {
            transition.remove_envelope(old);
        }
        let mut envelope = envelope.clone();
        envelope.expires_at = envelope.expires_at.min(transition.now.after(LONGEST_WAIT));
        transition.insert_envelope(envelope);
        Ok(ReplyBody::Done)
    }
}
