//! Checks the scheduler's plan again and carries it out.

use comity_types::{InstitutionId, LeaseId, LeaseState, PeeringState, RequestId, RequestState};
use serde::{Deserialize, Serialize};

use crate::apply::consequences::handshakes::failed_handshake;
use crate::feasibility::Grant;
use crate::feasibility::check::check_proposed;
use crate::model::demand::{GpuDemand, RequestSpec};
use crate::model::lease::{Lease, SideState, WAITS_FOR_DONOR};
use crate::model::limits::{MAX_LEASES, MAX_LEASES_PER_COMMAND, MAX_PLACEMENTS_PER_COMMAND};
use crate::model::meter::Meter;
use crate::model::placement::Placement;
use crate::model::proposal::ProposedPlacement;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::request::Request;
use crate::model::time::Millis;
use crate::state::State;
use crate::state::gang::{self, Role};
use crate::state::gpu_time::{KeptEnd, kept_end};
use crate::state::transition::Transition;

/// Makes leases from placements that are still valid: for waiting requests, for leases under reclaim, and for gangs
/// that lack members. The reply lists the invalid placements; they create no lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequests {
    /// Placements in plan order.
    pub placements: Vec<ProposedPlacement>,
}

impl PlaceRequests {
    /// Splits a plan into commands of bounded size, in plan order.
    pub fn of_plan(placements: Vec<ProposedPlacement>) -> impl Iterator<Item = Self> {
        let mut left = placements.into_iter().peekable();
        std::iter::from_fn(move || {
            let (mut placements, mut leases) = (Vec::new(), 0);
            while placements.len() < MAX_PLACEMENTS_PER_COMMAND
                && let Some(next) = left.next_if(|next| leases + next.parts().count() <= MAX_LEASES_PER_COMMAND)
            {
                leases += next.parts().count();
                placements.push(next);
            }
            (!placements.is_empty()).then_some(Self { placements })
        })
    }

    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        if self.placements.len() > MAX_PLACEMENTS_PER_COMMAND {
            return Err(Refusal::invalid(
                "placements",
                self.placements.len(),
                "are too many for one command",
                format!("propose at most {MAX_PLACEMENTS_PER_COMMAND}"),
            ));
        }
        let asked: usize = self.placements.iter().map(|proposed| proposed.parts().count()).sum();
        if asked > MAX_LEASES_PER_COMMAND {
            return Err(Refusal::invalid(
                "leases",
                asked,
                "are too many for one command",
                format!("propose placements with at most {MAX_LEASES_PER_COMMAND} leases in all"),
            ));
        }
        let (mut leases, mut refused) = (Vec::new(), Vec::new());
        for proposed in &self.placements {
            match place(transition, proposed) {
                Ok(made) => leases.extend(made),
                Err(refusal) => refused.push((proposed.request, refusal)),
            }
        }
        Ok(ReplyBody::Placed { leases, refused })
    }
}

fn place(transition: &mut Transition<'_>, proposed: &ProposedPlacement) -> Result<Vec<LeaseId>, Refusal> {
    let state = transition.state();
    let request = state
        .requests
        .get(&proposed.request)
        .ok_or_else(|| Refusal::not_found("request", proposed.request, "request"))?;
    let role = gang::role(state, request, proposed)?;
    if state.derived.live_leases.len() + proposed.more.len() >= MAX_LEASES {
        return Err(Refusal::new(
            Code::LimitReached,
            format!("{MAX_LEASES} leases are in force"),
            "wait until some end",
        ));
    }
    let grants = check_proposed(state, proposed, role)?;
    let institution = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.tenants.get(request.spec.tenant.as_str()))
        .map(|tenant| InstitutionId::parse(&tenant.spec.institution, "institution"))
        .transpose()?
        .ok_or_else(Refusal::no_policy)?;
    let request = request.clone();
    let kept = kept_end(state, &request, role);
    let made = proposed.parts().zip(grants);
    let made: Vec<LeaseId> = made
        .map(|(part, grant)| {
            make_lease(transition, (proposed.request, &request), (role, kept), &institution, part, grant)
        })
        .collect();
    link_leases(transition, proposed.request, role, &made);
    if proposed.overdue {
        transition.note_overdue();
    }
    Ok(made)
}

/// Makes one lease of the request.
fn make_lease(
    transition: &mut Transition<'_>,
    (id, request): (RequestId, &Request),
    (role, kept): (Role, Option<KeptEnd>),
    institution: &InstitutionId,
    placement: &Placement,
    grant: Grant,
) -> LeaseId {
    let counted_milli = kept.map_or(0, |kept| kept.counted_milli);
    let meter = Meter::Waits { reserved_milli: placement.milli().saturating_sub(counted_milli) };
    let (spec, placement, now) = (request.spec.clone(), placement.clone(), transition.now());
    // Shares in all, over all members.
    let count = u32::try_from(placement.units()).unwrap_or(spec.gpus.count);
    let release_idle = release_idle(transition.state(), &spec, grant.class.as_str());
    let mut fencing_token = 0;
    transition.change_cluster(&placement.donor, |donor| {
        donor.last_fencing_token += 1;
        fencing_token = donor.last_fencing_token;
    });
    let peering = transition.peering_for(&spec.origin, &placement.donor);
    let relation = transition.state().peerings.get(&peering);
    let shaking = relation.is_some_and(|it| !matches!(it.state, PeeringState::Proposed | PeeringState::Failed));
    let message = match relation {
        Some(it) if it.state == PeeringState::Failed => failed_handshake(peering, &it.message),
        Some(it) if it.state == PeeringState::Established => WAITS_FOR_DONOR.to_owned(),
        _ => "waiting for the clusters to connect".to_owned(),
    };
    let lease = Lease {
        request: id,
        tenant: spec.tenant,
        submitted_by: spec.submitted_by,
        origin: spec.origin,
        placement,
        peering,
        class: grant.class,
        institution: institution.clone(),
        agreement: grant.agreement,
        gpus: GpuDemand { count, ..spec.gpus },
        topology: spec.topology,
        data: spec.data,
        purpose: spec.purpose,
        delivery: spec.delivery,
        term: spec.duration,
        state: if shaking { LeaseState::Connecting } else { LeaseState::Placed },
        end_reason: None,
        fencing_token,
        placed_at: now,
        hold_until: now.after(transition.settings().hold),
        ends_by: kept.map(|kept| kept.until),
        meter,
        active_at: None,
        expires_at: None,
        ended_at: None,
        donor_side: SideState::Pending,
        origin_side: SideState::Pending,
        donor_namespace: String::new(),
        target_namespace: spec.target_namespace,
        secret_name: String::new(),
        traceparent: request.traceparent.clone(),
        reclaim: None,
        checkpointed_at: None,
        moved_from: if let Role::Replaces(old) = role { Some(old) } else { None },
        moved_to: None,
        joins: role == Role::Joins,
        release_idle,
        idle_since: None,
        ending_at: None,
        message,
        revision: 0,
    };
    transition.insert_lease(lease, grant.because)
}

/// Idle time after which a lease is released: the shorter of the request's and policy's.
fn release_idle(state: &State, spec: &RequestSpec, class: &str) -> Option<Millis> {
    let policy = state.policy.as_ref().and_then(|record| record.bundle.idle_release_ms(spec.tenant.as_str(), class));
    spec.release_idle.into_iter().chain(policy.map(Millis)).min()
}

/// Records the new leases in the request and in the lease they replace.
fn link_leases(transition: &mut Transition<'_>, id: RequestId, role: Role, made: &[LeaseId]) {
    let names: Vec<String> = made.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    transition.change_request(id, |request| {
        request.room_at = None;
        match role {
            Role::Starts => {
                request.attempts = request.attempts.saturating_add(1);
                request.state = RequestState::Placed;
                request.lease = made.first().copied();
                request.parts = made.iter().skip(1).copied().collect();
                request.message = format!("served by {names}");
            }
            Role::Replaces(old) => {
                request.attempts = request.attempts.saturating_add(1);
                request.message = format!("{names} is to replace {old}, which is being reclaimed");
            }
            Role::Joins => {
                request.parts.extend(made);
                request.message = format!("more members are to join as {names}");
            }
        }
    });
    if let Role::Replaces(old) = role {
        transition.change_lease(old, |old| old.moved_to = made.first().copied());
    }
}
