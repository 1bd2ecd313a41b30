//! Relays a sealed message from one agent to another.

use comity_types::Side;
use serde::{Deserialize, Serialize};

use crate::apply::command::peerings::report_peering::peering_of;
use crate::model::envelope::{Envelope, EnvelopeKey};
use crate::model::limits::MAX_ENVELOPES_PER_CLUSTER;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// Longest time that an envelope may wait.
const LONGEST_WAIT: Millis = Millis::from_hours(24);

/// Stores an envelope until its receiver acknowledges it. A higher sequence number replaces earlier envelopes of the
/// same step.
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
        let receiver = match key.step.sender() {
            Side::Donor => &peering.origin,
            Side::Origin => &peering.donor,
        };
        if side != key.step.sender() || key.to != *receiver {
            return Err(Refusal::invalid(
                "envelope.to",
                &key.to,
                "is not who this step goes to",
                "send it to the other side",
            ));
        }
        if !key.step.fits(peering.state) {
            return Err(Refusal::new(
                Code::WrongState,
                format!("{} is not at a step that takes {} envelopes", key.peering, key.step.as_str()),
                "wait for the next directive",
            )
            .at("envelope.step", key.step.as_str()));
        }
        let belongs = match key.lease {
            Some(lease) => key.step.is_of_a_lease() && peering.leases.contains(&lease),
            None => !key.step.is_of_a_lease(),
        };
        if !belongs {
            let lease = key.lease.map_or_else(String::new, |lease| lease.to_string());
            return Err(Refusal::invalid(
                "envelope.lease",
                lease,
                "does not belong to this step",
                "name the lease of a credential, and none otherwise",
            ));
        }
        let same_kind = |other: &EnvelopeKey| {
            other.to == key.to
                && other.peering == key.peering
                && other.epoch == key.epoch
                && other.lease == key.lease
                && other.step == key.step
        };
        let waiting = transition.state().envelopes_for(&key.to);
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
        envelope.expires_at = envelope.expires_at.min(transition.now().after(LONGEST_WAIT));
        transition.insert_envelope(envelope);
        Ok(ReplyBody::Done)
    }
}
