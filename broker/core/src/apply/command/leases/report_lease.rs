//! Records one side's progress on a lease.

use comity_types::{ClusterId, DONOR_REFUSED, EndReason, LeaseId, LeaseState, Side};
use serde::{Deserialize, Serialize};

use crate::apply::command::clusters::mark_clusters::refresh_suspicion;
use crate::apply::command::leases::checkpoint_lease::record_checkpoint;
use crate::model::lease::SideState;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// One side's report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseOutcome {
    /// The side is prepared.
    Ready {
        /// Namespace on the donor; empty if the origin reports.
        namespace: String,
        /// Secret on the origin; empty if the donor reports.
        secret_name: String,
    },
    /// The side cannot or will not continue.
    Failed {
        /// Stable error code.
        code: String,
        /// Message for people.
        message: String,
        /// The highest fencing token that the donor admitted; zero if the origin reports.
        highest_fencing_token: u64,
    },
    /// The side has removed everything.
    Clean,
    /// The work is saved; only the origin reports this.
    Checkpointed,
    /// No work has used the lease for this long; only the donor reports this.
    Idle {
        /// By the donor's monotonic clock.
        idle_for: Millis,
    },
    /// Work uses the lease; only the donor reports this.
    InUse,
}

/// A report from one of a lease's two clusters. Reports with another fencing token are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportLease {
    /// The reporting cluster.
    pub cluster: ClusterId,
    /// The lease.
    pub lease: LeaseId,
    /// The lease's fencing token.
    pub fencing_token: u64,
    /// The report.
    pub outcome: LeaseOutcome,
}

impl ReportLease {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let lease = transition.state().leases.get(&self.lease);
        let side = lease.and_then(|lease| lease.side_of(&self.cluster));
        // The leases of others are none of its business, not even whether they exist.
        let (lease, side) = lease.zip(side).ok_or_else(|| Refusal::not_found("lease", self.lease, "lease"))?;
        if lease.fencing_token != self.fencing_token {
            return Err(Refusal::new(
                Code::StaleFencingToken,
                format!("{} has another fencing token", self.lease),
                "read the desired state again",
            )
            .at("lease_report.fencing_token", self.fencing_token));
        }
        let state = lease.state;
        match &self.outcome {
            LeaseOutcome::Ready { namespace, secret_name } => {
                if matches!(state, LeaseState::Ending | LeaseState::Ended) {
                    return Err(Refusal::new(Code::WrongState, format!("{} is ending", self.lease), "take it down"));
                }
                if side == Side::Donor {
                    let peering = transition.state().peerings.get(&lease.peering);
                    let network = peering.and_then(|it| it.origin_keys.as_ref()).and_then(|keys| keys.network.as_ref());
                    let liqo_id = network.map(|network| network.liqo_cluster_id.as_str()).filter(|id| !id.is_empty());
                    lease.check_donor_namespace(self.lease, liqo_id, namespace)?;
                }
                self.ready(transition, side, namespace, secret_name);
            }
            LeaseOutcome::Failed { code, message, highest_fencing_token } => {
                let donor = lease.placement.donor.clone();
                // Once for each lease, so that reports without end move nothing.
                let is_news = !matches!(state, LeaseState::Ending | LeaseState::Ended);
                if side == Side::Donor && is_news {
                    transition.follow_fencing_tokens(&self.cluster, *highest_fencing_token);
                }
                let reason = match side {
                    Side::Origin if code == DONOR_REFUSED => EndReason::OriginRefused,
                    Side::Origin => EndReason::OriginFailed,
                    Side::Donor => EndReason::DonorFailed,
                };
                if reason == EndReason::OriginRefused {
                    transition.note_refused_donor(&self.cluster, &donor);
                }
                transition.end_lease(self.lease, reason, &format!("{}: {message} ({code})", self.cluster));
            }
            LeaseOutcome::Clean => {
                if state == LeaseState::Ended {
                    return Ok(ReplyBody::Done);
                }
                if state != LeaseState::Ending {
                    return Err(Refusal::new(
                        Code::WrongState,
                        format!("{} is not ending", self.lease),
                        "report a failure first if it cannot be kept up",
                    ));
                }
                transition.report_clean(self.lease, side);
            }
            LeaseOutcome::Checkpointed => {
                if side == Side::Donor {
                    return Err(Refusal::new(
                        Code::PermissionDenied,
                        format!("{} lends {} and does not know its work", self.cluster, self.lease),
                        "only the origin can say that it is saved",
                    ));
                }
                // A late report is harmless.
                if state.is_in_force() {
                    record_checkpoint(transition, self.lease);
                }
            }
            LeaseOutcome::Idle { idle_for } => self.record_use(transition, side, Some(*idle_for))?,
            LeaseOutcome::InUse => self.record_use(transition, side, None)?,
        }
        Ok(ReplyBody::Done)
    }

    /// Records since when the lease has been idle. A late report is harmless.
    fn record_use(&self, transition: &mut Transition<'_>, side: Side, idle_for: Option<Millis>) -> Result<(), Refusal> {
        if side == Side::Origin {
            return Err(Refusal::new(
                Code::PermissionDenied,
                format!("{} borrows {} and does not count its use", self.cluster, self.lease),
                "only the donor can say whether work uses it",
            ));
        }
        let state = transition.state();
        let Some(lease) = state.leases.get(&self.lease).filter(|lease| lease.state.is_in_force()) else {
            return Ok(());
        };
        // Idle time counts while the lease is active, its clusters are heard and a leader could hear of its use.
        let heard = [&lease.origin, &lease.placement.donor].map(|id| state.clusters.get(id).map(|it| it.since));
        let times = heard.into_iter().chain([lease.active_at, Some(state.term_began)]);
        let usable_since = times.flatten().max().unwrap_or_default();
        let idle_since = idle_for.map(|idle_for| transition.now().before(idle_for).max(usable_since));
        if lease.idle_since != idle_since {
            transition.change_lease(self.lease, |lease| lease.idle_since = idle_since);
        }
        Ok(())
    }

    fn ready(&self, transition: &mut Transition<'_>, side: Side, namespace: &str, secret_name: &str) {
        let now = transition.now();
        let held = |transition: &Transition<'_>| {
            transition.state().leases.get(&self.lease).is_some_and(|lease| lease.state.is_held())
        };
        let waited = held(transition);
        let mut begins = now;
        transition.change_lease(self.lease, |lease| {
            match side {
                Side::Donor => {
                    lease.donor_side = SideState::Ready;
                    namespace.clone_into(&mut lease.donor_namespace);
                }
                Side::Origin => {
                    lease.origin_side = SideState::Ready;
                    secret_name.clone_into(&mut lease.secret_name);
                }
            }
            let both = lease.donor_side == SideState::Ready && lease.origin_side == SideState::Ready;
            if lease.state.is_held() {
                lease.message = if both {
                    lease.state = LeaseState::Active;
                    lease.active_at = Some(now);
                    // Its hold may have run out without an entry that ended it.
                    begins = now.min(lease.hold_until);
                    lease.expires_at = lease.ends_by.or(Some(begins.after(lease.term)));
                    String::new()
                } else {
                    lease.waits_for().to_owned()
                };
            }
        });
        if waited && !held(transition) {
            transition.pin_gpu_type(self.lease);
            transition.begin_metering(self.lease, begins);
            transition.align_gang_terms(self.lease, begins);
            if let Some(lease) = transition.state().leases.get(&self.lease) {
                let (origin, donor) = (lease.origin.clone(), lease.placement.donor.clone());
                transition.forget_refused_donor(&origin, &donor);
            }
            // The missing report may have arrived before one of the clusters fell silent.
            refresh_suspicion(transition, self.lease);
        }
    }
}
