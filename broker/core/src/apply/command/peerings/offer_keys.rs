//! Records the keys of one side of a peering.

use comity_types::{LeaseState, PeeringState, Side};
use serde::{Deserialize, Serialize};

use crate::apply::command::peerings::report_peering::peering_of;
use crate::model::keys::KeyBundle;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// Step `keys` of the handshake. Repeating the same bundle is a no-op. A different bundle in the same epoch is refused,
/// so that nobody can swap keys after publishing them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferKeys {
    /// The signed keys.
    pub bundle: KeyBundle,
}

impl OfferKeys {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let bundle = &self.bundle;
        bundle.check()?;
        let (peering, side) = peering_of(transition, bundle.peering, bundle.epoch, &bundle.cluster)?;
        if side != bundle.side {
            return Err(Refusal::invalid(
                "key_bundle.side",
                format!("{:?}", bundle.side),
                "is the other side",
                "send the side that the directive says",
            ));
        }
        let held = match side {
            Side::Origin => &peering.origin_keys,
            Side::Donor => &peering.donor_keys,
        };
        if let Some(held) = held {
            if held == bundle {
                return Ok(ReplyBody::Done);
            }
            return Err(Refusal::new(
                Code::WrongState,
                format!("other keys were shown in epoch {} already", bundle.epoch),
                "report the peering as failed; the next epoch takes fresh keys",
            )
            .at("key_bundle.epoch", bundle.epoch));
        }
        if !matches!(peering.state, PeeringState::Proposed | PeeringState::Keys) {
            return Err(Refusal::new(
                Code::WrongState,
                format!("{} is not waiting for keys", bundle.peering),
                "wait for the next directive",
            ));
        }
        let leases: Vec<_> = peering.leases.iter().copied().collect();
        let both = peering.origin_keys.is_some() || peering.donor_keys.is_some();
        // A lease goes on saying why the last handshake failed until one succeeds.
        let is_first = peering.failures == 0;
        transition.change_peering(bundle.peering, |peering| match side {
            Side::Origin => peering.origin_keys = Some(bundle.clone()),
            Side::Donor => peering.donor_keys = Some(bundle.clone()),
        });
        if both {
            transition.advance_peering(
                bundle.peering,
                PeeringState::Authenticating,
                "waiting for the donor's pre-shared key and the origin's proof",
            );
        } else {
            transition.advance_peering(bundle.peering, PeeringState::Keys, "waiting for the other side's keys");
            for id in leases {
                transition.change_lease(id, |lease| {
                    if lease.state == LeaseState::Placed {
                        lease.state = LeaseState::Connecting;
                        if is_first {
                            "the clusters shake hands".clone_into(&mut lease.message);
                        }
                    }
                });
            }
        }
        Ok(ReplyBody::Done)
    }
}
