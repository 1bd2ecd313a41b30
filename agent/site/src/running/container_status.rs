//! The status of a pod, as Kubernetes writes it.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    PodCondition, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::podman::Exit;
use crate::running::pod_plan::{ContainerPlan, PodPlan};

/// The status of a pod that was just taken.
pub(crate) fn new_status(plan: &PodPlan, now: Time) -> PodStatus {
    let container = |container: &ContainerPlan| ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone(),
        started: Some(false),
        state: Some(waiting("PodInitializing", "")),
        ..ContainerStatus::default()
    };
    let inits: Vec<ContainerStatus> = plan.inits.iter().map(container).collect();
    let mut status = PodStatus {
        phase: Some("Pending".to_owned()),
        start_time: Some(now.clone()),
        qos_class: Some("Burstable".to_owned()),
        init_container_statuses: (!inits.is_empty()).then_some(inits),
        container_statuses: Some(vec![container(&plan.main)]),
        ..PodStatus::default()
    };
    set_conditions(&mut status, plan.inits.is_empty(), false, &now);
    status
}

/// A container's entry.
pub(crate) fn container_mut<'a>(status: &'a mut PodStatus, name: &str) -> Option<&'a mut ContainerStatus> {
    let inits = status.init_container_statuses.iter_mut().flatten();
    inits.chain(status.container_statuses.iter_mut().flatten()).find(|container| container.name == name)
}

/// A container's entry, to read.
pub(crate) fn container_ref<'a>(status: &'a PodStatus, name: &str) -> Option<&'a ContainerStatus> {
    let inits = status.init_container_statuses.iter().flatten();
    inits.chain(status.container_statuses.iter().flatten()).find(|container| container.name == name)
}

/// Sets the conditions that clients wait for; their times change only when they do.
pub(crate) fn set_conditions(status: &mut PodStatus, initialized: bool, ready: bool, now: &Time) {
    let old = status.conditions.take().unwrap_or_default();
    let condition = |(kind, holds): (&str, bool)| {
        let text = if holds { "True" } else { "False" };
        let same = old.iter().find(|condition| condition.type_ == kind && condition.status == text);
        same.cloned().unwrap_or_else(|| PodCondition {
            type_: kind.to_owned(),
            status: text.to_owned(),
            last_transition_time: Some(now.clone()),
            ..PodCondition::default()
        })
    };
    let all = [("PodScheduled", true), ("Initialized", initialized), ("ContainersReady", ready), ("Ready", ready)];
    status.conditions = Some(all.map(condition).into());
}

/// A container that does not run yet, and why.
pub(crate) fn waiting(reason: &str, message: &str) -> ContainerState {
    let message = (!message.is_empty()).then(|| message.to_owned());
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// A container that runs.
pub(crate) fn running(since: Time) -> ContainerState {
    ContainerState { running: Some(ContainerStateRunning { started_at: Some(since) }), ..ContainerState::default() }
}

/// A container that has ended.
pub(crate) fn terminated(exit: &Exit, container: &str) -> ContainerState {
    let reason = match exit {
        Exit { oom_killed: true, .. } => "OOMKilled",
        Exit { code: 0, .. } => "Completed",
        Exit { error, .. } if !error.is_empty() => "ContainerCannotRun",
        Exit { .. } => "Error",
    };
    let state = ContainerStateTerminated {
        exit_code: exit.code,
        reason: Some(reason.to_owned()),
        message: (!exit.error.is_empty()).then(|| exit.error.clone()),
        started_at: Some(Time(exit.started)),
        finished_at: Some(Time(exit.finished)),
        container_id: Some(format!("podman://{container}")),
        ..ContainerStateTerminated::default()
    };
    ContainerState { terminated: Some(state), ..ContainerState::default() }
}
