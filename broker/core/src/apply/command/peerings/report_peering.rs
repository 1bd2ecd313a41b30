//! Records one side's progress in a handshake.

use comity_types::{ClusterId, DONOR_REFUSED, EndReason, LOCAL_POLICY, LeaseId, PeeringId, PeeringState, Side};
use serde::{Deserialize, Serialize};

use crate::model::peering::Peering;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;

/// One side's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PeeringOutcome {
    /// The donor checked the origin's proof that it holds the pre-shared key.
    Authenticated,
    /// The tunnel is up.
    Established {
        /// Round-trip time in microseconds; zero if unknown.
        rtt_us: u64,
    },
    /// The handshake failed.
    Failed {
        /// Stable error code.
        code: String,
        /// Message for people.
        message: String,
    },
    /// The side has removed everything.
    Closed,
}

/// A report from one of a peering's two clusters. Reports of another epoch are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportPeering {
    /// The reporting cluster.
    pub cluster: ClusterId,
    /// The peering.
    pub peering: PeeringId,
    /// The peering's epoch.
    pub epoch: u32,
    /// The report.
    pub outcome: PeeringOutcome,
}

impl ReportPeering {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let (peering, side) = peering_of(transition, self.peering, self.epoch, &self.cluster)?;
        let (state, donor) = (peering.state, peering.donor.clone());
        match &self.outcome {
            PeeringOutcome::Authenticated => {
                if side != Side::Donor {
                    return Err(Refusal::new(
                        Code::PermissionDenied,
                        "only the donor can say that the origin proved itself",
                        "send the proof in an envelope",
                    ));
                }
                if state == PeeringState::Authenticating {
                    transition.advance_peering(self.peering, PeeringState::Establishing, "waiting for the tunnel");
                }
            }
            PeeringOutcome::Established { rtt_us } => {
                if !matches!(state, PeeringState::Establishing | PeeringState::Established) {
                    return Err(Refusal::new(
                        Code::WrongState,
                        format!("{} is not being established", self.peering),
                        "wait for the next directive",
                    ));
                }
                if peering.established.contains(&side) && side == Side::Donor {
                    return Ok(ReplyBody::Done);
                }
                transition.change_peering(self.peering, |peering| {
                    peering.established.insert(side);
                    if side == Side::Origin {
                        peering.rtt_us = *rtt_us;
                    }
                });
                let both = transition.state().peerings.get(&self.peering).is_some_and(|p| p.established.len() == 2);
                if both && state == PeeringState::Establishing {
                    transition.advance_peering(self.peering, PeeringState::Established, "");
                }
            }
            PeeringOutcome::Failed { code, message } => {
                let why = format!("{}: {message} ({code})", self.cluster);
                transition.fail_peering(self.peering, &why);
                if let Some(reason) = refusal(side, code) {
                    if reason == EndReason::OriginRefused {
                        transition.note_refused_donor(&self.cluster, &donor);
                    }
                    end_held_leases(transition, self.peering, reason, &why);
                }
            }
            PeeringOutcome::Closed => {
                if state == PeeringState::Closed {
                    return Ok(ReplyBody::Done);
                }
                if state != PeeringState::Draining {
                    return Err(Refusal::new(
                        Code::WrongState,
                        format!("{} is not draining", self.peering),
                        "report a failure instead",
                    ));
                }
                transition.close_side(self.peering, side);
            }
        }
        Ok(ReplyBody::Done)
    }
}

/// Why leases that wait for the peering end, if a side's own policy refuses it: another handshake would fail as well.
fn refusal(side: Side, code: &str) -> Option<EndReason> {
    match (side, code) {
        (Side::Origin, DONOR_REFUSED) => Some(EndReason::OriginRefused),
        (Side::Origin, LOCAL_POLICY) => Some(EndReason::OriginFailed),
        (Side::Donor, LOCAL_POLICY) => Some(EndReason::DonorFailed),
        _ => None,
    }
}

fn end_held_leases(transition: &mut Transition<'_>, peering: PeeringId, reason: EndReason, message: &str) {
    let state = transition.state();
    let leases = state.peerings.get(&peering).into_iter().flat_map(|peering| &peering.leases);
    let is_held = |id: &LeaseId| state.leases.get(id).is_some_and(|lease| lease.state.is_held());
    let held: Vec<LeaseId> = leases.copied().filter(is_held).collect();
    held.into_iter().for_each(|lease| transition.end_lease(lease, reason, message));
}

/// The peering of a message from `cluster`, and that cluster's side of it. Refuses messages of another epoch, and those
/// of a cluster that is not a side as if the peering did not exist.
pub(crate) fn peering_of<'a>(
    transition: &'a Transition<'_>,
    id: PeeringId,
    epoch: u32,
    cluster: &ClusterId,
) -> Result<(&'a Peering, Side), Refusal> {
    let peering = transition.state().peerings.get(&id);
    let side = peering.and_then(|peering| peering.side_of(cluster));
    // The peerings of others are none of its business, not even whether they exist.
    let (peering, side) = peering.zip(side).ok_or_else(|| Refusal::not_found("peering", id, "peering"))?;
    if peering.epoch != epoch {
        return Err(Refusal::new(
            Code::StaleEpoch,
            format!("{id} is in epoch {}", peering.epoch),
            "read the desired state again",
        )
        .at("epoch", epoch));
    }
    Ok((peering, side))
}
