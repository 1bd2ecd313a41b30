//! The matcher's plan is checked once more and carried out.

use serde::{Deserialize, Serialize};

use crate::demand::GpuDemand;
use crate::id::{InstitutionId, LeaseId, RequestId};
use crate::lease::{Lease, LeaseState, SideState};
use crate::limits::{MAX_LEASES, MAX_PLACEMENTS_PER_COMMAND};
use crate::log::{Reply, ReplyBody};
use crate::matcher;
use crate::peering::PeeringState;
use crate::placement::Placement;
use crate::refusal::{Code, Refusal};
use crate::request::RequestState;
use crate::transition::Transition;

/// One placement of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedPlacement {
    /// Request it is for.
    pub request: RequestId,
    /// Where.
    pub placement: Placement,
    /// Whether it waited so long that it was served before its turn.
    #[serde(default)]
    pub overdue: bool,
}

/// Makes leases from placements that still hold, for requests that wait and for those whose lease is called back; the others are named in the reply and their requests stay queued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequests {
    /// In the order of the plan.
    pub placements: Vec<ProposedPlacement>,
}

impl PlaceRequests {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        if self.placements.len() > MAX_PLACEMENTS_PER_COMMAND {
            return Err(Refusal::invalid(
                "placements",
                self.placements.len(),
                "are too many for one command",
                format!("propose at most {MAX_PLACEMENTS_PER_COMMAND}"),
            ));
        }
        let (mut leases, mut refused) = (Vec::new(), Vec::new());
        for proposed in &self.placements {
            match place(transition, proposed) {
                Ok(lease) => leases.push(lease),
                Err(refusal) => refused.push((proposed.request, refusal)),
            }
        }
        Ok(ReplyBody::Placed { leases, refused })
    }
}

fn place(transition: &mut Transition<'_>, proposed: &ProposedPlacement) -> Result<LeaseId, Refusal> {
    let state = &*transition.state;
    let request = state
        .requests
        .get(&proposed.request)
        .ok_or_else(|| Refusal::not_found("request", proposed.request, "request"))?;
    let replaces = request.replaces(state);
    if request.state != RequestState::Queued && replaces.is_none() {
        return Err(Refusal::new(
            Code::WrongState,
            format!("{} neither waits nor has to move", proposed.request),
            "plan again",
        ));
    }
    if state.derived.live_leases.len() >= MAX_LEASES {
        return Err(Refusal::new(
            Code::LimitReached,
            format!("{MAX_LEASES} leases are in force"),
            "wait until some end",
        ));
    }
    let grant = matcher::check(state, proposed.request, &proposed.placement)?;
    let institution = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.tenants.get(request.spec.tenant.as_str()))
        .map(|tenant| InstitutionId::parse(&tenant.spec.institution, "institution"))
        .transpose()?
        .ok_or_else(crate::command::no_policy)?;

    // What it has in all, over members.
    let count = u32::try_from(proposed.placement.units()).unwrap_or(request.spec.gpus.count);
    let (spec, placement, now) = (request.spec.clone(), proposed.placement.clone(), transition.now);
    let traceparent = request.traceparent.clone();
    let mut fencing_token = 0;
    transition.change_cluster(&placement.donor, |donor| {
        donor.last_fencing_token += 1;
        fencing_token = donor.last_fencing_token;
    });
    let peering = transition.peering_for(&spec.origin, &placement.donor);
    let shaking = transition
        .state
        .peerings
        .get(&peering)
        .is_some_and(|peering| !matches!(peering.state, PeeringState::Proposed | PeeringState::Failed));
    let lease = transition.insert_lease(Lease {
        request: proposed.request,
        tenant: spec.tenant,
        origin: spec.origin,
        placement,
        peering,
        class: grant.class,
        institution,
        agreement: grant.agreement,
        gpus: GpuDemand { count, ..spec.gpus },
        topology: spec.topology,
        delivery: spec.delivery,
        term: spec.duration,
        state: if shaking { LeaseState::Connecting } else { LeaseState::Placed },
        end_reason: None,
        fencing_token,
        placed_at: now,
        hold_until: now.after(transition.settings.hold),
        active_at: None,
        expires_at: None,
        ended_at: None,
        donor_side: SideState::Pending,
        origin_side: SideState::Pending,
        donor_namespace: String::new(),
        target_namespace: spec.target_namespace,
        secret_name: String::new(),
        traceparent,
        reclaim: None,
        checkpointed_at: None,
        moved_from: replaces,
        moved_to: None,
        ending_at: None,
        message: "waiting for the clusters to connect".to_owned(),
        revision: 0,
    });
    transition.change_request(proposed.request, |request| {
        request.attempts = request.attempts.saturating_add(1);
        request.room_at = None;
        if let Some(old) = replaces {
            request.message = format!("{lease} is to replace {old}, which is called back");
        } else {
            request.state = RequestState::Matched;
            request.lease = Some(lease);
            request.message = format!("placed as {lease}");
        }
    });
    if let Some(old) = replaces {
        transition.change_lease(old, |old| old.moved_to = Some(lease));
    }
    if proposed.overdue {
        transition.state.last_overdue = now;
    }
    Ok(lease)
}
