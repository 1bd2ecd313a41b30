//! How far a ProvisioningRequest is, from its `GpuRequest`. Pure.

use super::provisioning_request::{ProvisioningRequest, ProvisioningRequestStatus};
use crate::burst::LEASE;
use crate::crd::{ConditionStatus, GpuRequest, condition, conditions};

/// Reasons of refusals that pass: the `GpuRequest` is submitted again.
const PASSING: [&str; 3] = ["LimitReached", "PolicyChanged", "VirtualNodeUnavailable"];

/// How far a ProvisioningRequest is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for its lease, for this reason.
    Waits(String),
    /// Its pods can run on this lease.
    Provisioned(String),
    /// This try is over: Kueue evicts the pods if they run, and asks again.
    Failed(String),
    /// It is over for good: Kueue does not ask again.
    Revoked(String),
}

impl Progress {
    /// How far it is while this is its `GpuRequest`.
    pub(super) fn of(request: &ProvisioningRequest, gpus: &GpuRequest) -> Self {
        let status = gpus.status.clone().unwrap_or_default();
        let state = status.state.as_deref().unwrap_or("Submitting");
        let message = status.message.clone().unwrap_or_default();
        let name = status.request.as_deref().unwrap_or("its GpuRequest");
        let accepted = status.conditions.iter().find(|condition| condition.type_ == "Accepted");
        let passes = accepted.is_some_and(|accepted| PASSING.contains(&accepted.reason.as_str()));
        match (request.provisioned_lease(), state) {
            (None, "Refused") if passes => Self::Waits(said("its GpuRequest is refused for now", &message)),
            (_, "Refused" | "Failed") => Self::Failed(said(&format!("{name} is {state}"), &message)),
            (_, "Cancelled") => Self::Revoked(said(&format!("{name} was cancelled"), &message)),
            (None, "Completed") => Self::Failed(said(&format!("{name} ended before its pods could start"), &message)),
            (Some(lease), "Completed") => Self::Revoked(said(&format!("{lease} has ended"), &message)),
            (Some(lease), "Submitting" | "Queued") => Self::Failed(said(&format!("{lease} ended early"), &message)),
            (Some(lease), _) => match &status.lease {
                Some(other) if other != lease => Self::Failed(format!("{lease} ended early; {name} has {other} now")),
                _ => Self::Provisioned(lease.to_owned()),
            },
            (None, "Active") if status.lease.is_some() => Self::Provisioned(status.lease.unwrap_or_default()),
            (None, state) => Self::Waits(said(&format!("{name} is {state}"), &message)),
        }
    }

    /// Whether the lease is no longer needed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Failed(_) | Self::Revoked(_))
    }

    /// The status that tells it.
    pub(super) fn status(&self, request: &ProvisioningRequest, now_ms: u64) -> ProvisioningRequestStatus {
        let old = request.status.clone().unwrap_or_default();
        let of = |type_: &str, status: ConditionStatus, reason: &str, message: &str| {
            condition(type_, status, reason, message, now_ms)
        };
        // Without it Kueue does not show the message of `Provisioned`.
        let accepted = of("Accepted", ConditionStatus::True, "Accepted", "the agent of this cluster serves it");
        let mut details = old.provisioning_class_details;
        let fresh = match self {
            Self::Waits(why) => vec![accepted, of("Provisioned", ConditionStatus::False, "Waiting", why)],
            Self::Provisioned(lease) => {
                details.insert(LEASE.to_owned(), lease.clone());
                let message = format!("its pods run on {lease}");
                vec![accepted, of("Provisioned", ConditionStatus::True, "Leased", &message)]
            }
            Self::Failed(why) => vec![of("Failed", ConditionStatus::True, "LeaseFailed", why)],
            Self::Revoked(why) => vec![of("CapacityRevoked", ConditionStatus::True, "LeaseEnded", why)],
        };
        let kept = old.conditions.iter().filter(|old| fresh.iter().all(|new| new.type_ != old.type_)).cloned();
        let kept: Vec<_> = kept.collect();
        let conditions = conditions(&old.conditions, kept.into_iter().chain(fresh).collect());
        ProvisioningRequestStatus { conditions, provisioning_class_details: details }
    }
}

fn said(what: &str, why: &str) -> String {
    if why.is_empty() { what.to_owned() } else { format!("{what}: {why}") }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::crd::{GpuRequestSpec, GpuRequestStatus};

    fn gpus(state: &str, lease: Option<&str>) -> GpuRequest {
        let mut object = GpuRequest::new("job-train-1", GpuRequestSpec::default());
        object.status = Some(GpuRequestStatus {
            state: Some(state.to_owned()),
            request: Some("req-4".to_owned()),
            lease: lease.map(str::to_owned),
            message: Some("no donor has room".to_owned()),
            ..GpuRequestStatus::default()
        });
        object
    }

    fn waiting() -> ProvisioningRequest {
        ProvisioningRequest::new("job-train-1", Default::default())
    }

    fn provisioned() -> ProvisioningRequest {
        let mut request = waiting();
        request.status = Some(Progress::Provisioned("lease-7".to_owned()).status(&request, 1_000));
        request
    }

    #[test]
    fn a_waiting_one_says_why_and_a_lease_makes_it_provisioned() {
        let request = waiting();
        for state in ["Submitting", "Queued", "Placed", "Connecting"] {
            let progress = Progress::of(&request, &gpus(state, None));
            assert_eq!(progress, Progress::Waits(format!("req-4 is {state}: no donor has room")));
        }
        let status = Progress::of(&request, &gpus("Queued", None)).status(&request, 1_000);
        let of = |type_: &str| status.conditions.iter().find(|one| one.type_ == type_).unwrap().status.clone();
        assert_eq!((of("Accepted").as_str(), of("Provisioned").as_str()), ("True", "False"));
        let progress = Progress::of(&request, &gpus("Active", Some("lease-7")));
        assert_eq!(progress, Progress::Provisioned("lease-7".to_owned()));
        let status = progress.status(&request, 2_000);
        assert_eq!(status.provisioning_class_details[LEASE], "lease-7");
        assert!(status.conditions.iter().all(|one| one.status == "True"));
    }

    #[test]
    fn a_passing_outage_or_a_reclaim_that_has_begun_takes_nothing_away() {
        let request = provisioned();
        for state in ["Active", "Suspect", "Reclaiming", "Ending"] {
            let progress = Progress::of(&request, &gpus(state, Some("lease-7")));
            assert_eq!(progress, Progress::Provisioned("lease-7".to_owned()), "{state}");
            assert_eq!(
                progress.status(&request, 9_000),
                request.status.clone().unwrap(),
                "{state}: nothing is written"
            );
        }
    }

    #[test]
    fn a_lost_lease_is_asked_for_again_and_one_that_ran_out_is_not() {
        let request = provisioned();
        for (state, lease) in [("Queued", None), ("Active", Some("lease-8")), ("Failed", None), ("Refused", None)] {
            let progress = Progress::of(&request, &gpus(state, lease));
            assert!(matches!(progress, Progress::Failed(_)) && progress.is_over(), "{state}: {progress:?}");
        }
        for state in ["Completed", "Cancelled"] {
            let progress = Progress::of(&request, &gpus(state, None));
            assert!(matches!(progress, Progress::Revoked(_)), "{state}: {progress:?}");
        }
        assert!(matches!(Progress::of(&waiting(), &gpus("Completed", None)), Progress::Failed(_)));
    }

    #[test]
    fn a_refusal_that_passes_is_waited_for() {
        let mut refused = gpus("Refused", None);
        let mut because = |reason: &str| {
            let accepted = condition("Accepted", ConditionStatus::False, reason, "", 1_000);
            refused.status.as_mut().unwrap().conditions = vec![accepted];
            Progress::of(&waiting(), &refused)
        };
        assert!(matches!(because("LimitReached"), Progress::Waits(_)));
        assert!(matches!(because("PolicyDenied"), Progress::Failed(_)));
    }

    #[test]
    fn an_end_is_written_beside_what_was_said_and_is_final() {
        let mut request = provisioned();
        request.status = Some(Progress::Failed("gone".to_owned()).status(&request, 5_000));
        let status = request.status.clone().unwrap();
        let names: Vec<&str> = status.conditions.iter().map(|one| one.type_.as_str()).collect();
        assert_eq!(names, ["Accepted", "Provisioned", "Failed"]);
        assert!(request.is_final() && !provisioned().is_final());
    }
}
