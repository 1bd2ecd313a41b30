//! The scheduler's plan is checked once more and carried out.

use serde::{Deserialize, Serialize};

use crate::demand::GpuDemand;
use crate::fairness::Amounts;
use crate::gang::{self, Role};
use crate::id::{InstitutionId, LeaseId, RequestId};
use crate::lease::{Lease, LeaseState, SideState};
use crate::limits::{MAX_LEASES, MAX_PLACEMENTS_PER_COMMAND};
use crate::log::{Reply, ReplyBody};
use crate::peering::PeeringState;
use crate::placement::Placement;
use crate::refusal::{Code, Refusal};
use crate::request::{Request, RequestState};
use crate::scheduler::{self, Grant};
use crate::transition::Transition;

/// One placement of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProposedPlacement {
    /// Request it is for.
    pub request: RequestId,
    /// Where.
    pub placement: Placement,
    /// Where else: of a gang that lies on several donors, its parts at the others. All of them are made, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more: Vec<Placement>,
    /// What it is for.
    #[serde(default)]
    pub aim: Aim,
    /// Whether it waited so long that it was served before its turn.
    #[serde(default)]
    pub overdue: bool,
}

/// What a placement is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    /// A request that waits; or, as before format 5, one whose lease is being reclaimed.
    #[default]
    Serve,
    /// A new place for this lease, which is being reclaimed.
    Replace(LeaseId),
    /// More members for a gang that runs.
    Join,
}

impl ProposedPlacement {
    /// All of a request in one place, in its turn.
    #[must_use]
    pub fn alone(request: RequestId, placement: Placement) -> Self {
        Self { request, placement, more: Vec::new(), aim: Aim::Serve, overdue: false }
    }

    /// All of its parts.
    pub fn parts(&self) -> impl Iterator<Item = &Placement> {
        std::iter::once(&self.placement).chain(&self.more)
    }

    /// What it takes in all.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.parts().map(Amounts::of).fold(Amounts::default(), Amounts::plus)
    }
}

/// Makes leases from placements that still hold: for requests that wait, for leases that are being reclaimed, and for
/// gangs that lack members. The others are named in the reply, and of them nothing is made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceRequests {
    /// In the order of the plan.
    pub placements: Vec<ProposedPlacement>,
}

impl PlaceRequests {
    /// A plan in as many commands as it takes, in its order.
    pub fn of_plan(placements: Vec<ProposedPlacement>) -> impl Iterator<Item = Self> {
        let mut left = placements.into_iter();
        std::iter::from_fn(move || {
            let placements: Vec<_> = left.by_ref().take(MAX_PLACEMENTS_PER_COMMAND).collect();
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
    let state = &*transition.state;
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
    let grants = scheduler::check_proposed(state, proposed, role)?;
    let institution = state
        .policy
        .as_ref()
        .and_then(|record| record.bundle.tenants.get(request.spec.tenant.as_str()))
        .map(|tenant| InstitutionId::parse(&tenant.spec.institution, "institution"))
        .transpose()?
        .ok_or_else(crate::command::no_policy)?;
    let request = request.clone();
    let made = proposed.parts().zip(grants);
    let made: Vec<LeaseId> = made
        .map(|(part, grant)| make(transition, proposed.request, &request, (role, &institution), part, grant))
        .collect();
    note(transition, proposed.request, role, &made);
    if proposed.overdue {
        transition.state.last_overdue = transition.now;
    }
    Ok(made)
}

/// Makes the lease of one part.
fn make(
    transition: &mut Transition<'_>,
    id: RequestId,
    request: &Request,
    (role, institution): (Role, &InstitutionId),
    placement: &Placement,
    grant: Grant,
) -> LeaseId {
    let (spec, placement, now) = (request.spec.clone(), placement.clone(), transition.now);
    // What it has in all, over members.
    let count = u32::try_from(placement.units()).unwrap_or(spec.gpus.count);
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
    transition.insert_lease(Lease {
        request: id,
        tenant: spec.tenant,
        origin: spec.origin,
        placement,
        peering,
        class: grant.class,
        institution: institution.clone(),
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
        traceparent: request.traceparent.clone(),
        reclaim: None,
        checkpointed_at: None,
        moved_from: if let Role::Replaces(old) = role { Some(old) } else { None },
        moved_to: None,
        joins: role == Role::Joins,
        ending_at: None,
        message: "waiting for the clusters to connect".to_owned(),
        revision: 0,
    })
}

/// The request, and what is replaced, know of the new leases.
fn note(transition: &mut Transition<'_>, id: RequestId, role: Role, made: &[LeaseId]) {
    let names: Vec<String> = made.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    transition.change_request(id, |request| {
        request.room_at = None;
        match role {
            Role::Starts => {
                request.attempts = request.attempts.saturating_add(1);
                request.state = RequestState::Matched;
                request.lease = made.first().copied();
                request.parts = made.iter().skip(1).copied().collect();
                request.message = format!("placed as {names}");
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
