//! One pod from its start to its removal.
//!
//! Containers are named by the pod's uid and their place, and what is to do next follows from their state alone: a new
//! agent goes on where the old one stopped.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState as ShownState, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio::sync::watch;

use crate::podman::{ContainerState, Exit, PodmanError};
use crate::running::container_maker::{ContainerMaker, NotStarted, container_name};
use crate::running::container_status::{container_mut, container_ref, running, set_conditions, terminated, waiting};
use crate::running::host_parts::HostParts;
use crate::running::pod_book::{PodEntry, PodKey, Stop};
use crate::running::pod_plan::{ContainerPlan, PodPlan, RestartPolicy};

/// Pause before what failed is tried again: first, and longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Pause before a container is started again: first, and longest, as in Kubernetes.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Exit code of a container whose end nobody saw.
const LOST: i32 = 255;

/// How a pod's work ended.
enum Outcome {
    Succeeded,
    Failed,
    Stopped(Stop),
    PastDeadline,
}

/// Runs one pod.
pub(crate) struct PodRunner {
    host: Arc<HostParts>,
    key: PodKey,
}

impl PodRunner {
    pub(crate) const fn new(host: Arc<HostParts>, key: PodKey) -> Self {
        Self { host, key }
    }

    /// Returns when the pod is deleted and nothing of it is left.
    pub(crate) async fn run(self) {
        let Some(entry) = self.host.book.entry(&self.key) else { return };
        let plan = match PodPlan::of_stored(&entry.pod, &entry.resource) {
            Ok(plan) => plan,
            // Another version of the agent took it.
            Err(refusal) => {
                tracing::warn!(pod = self.key.name, field = refusal.field, "a stored pod cannot be read");
                return self.forget(&entry).await;
            }
        };
        let mut stop = entry.stop.subscribe();
        if !entry.has_ended() {
            let outcome = tokio::select! {
                biased;
                stop = stopped(&mut stop) => Outcome::Stopped(stop),
                () = self.deadline(&plan, &entry) => Outcome::PastDeadline,
                outcome = self.work(&plan, &entry) => outcome,
            };
            self.end(&plan, &entry, outcome, &mut stop).await;
        }
        stopped(&mut stop).await;
        self.forget(&entry).await;
    }

    async fn deadline(&self, plan: &PodPlan, entry: &PodEntry) {
        let Some(deadline) = plan.deadline else { return std::future::pending().await };
        let start = entry.pod.status.as_ref().and_then(|status| status.start_time.as_ref());
        let start = start.map_or(0, |start| u64::try_from(start.0.as_millisecond()).unwrap_or_default());
        let past = Duration::from_millis(self.host.clock.unix_ms().saturating_sub(start));
        self.host.clock.sleep(deadline.saturating_sub(past)).await;
    }

    /// Runs the containers until the pod has succeeded or failed.
    async fn work(&self, plan: &PodPlan, entry: &PodEntry) -> Outcome {
        for (index, init) in plan.inits.iter().enumerate() {
            loop {
                let exit = self.run_container(plan, init, index, entry).await;
                if exit.code == 0 {
                    break;
                }
                if plan.restart == RestartPolicy::Never {
                    return Outcome::Failed;
                }
                self.restart(init, index, entry, &exit).await;
            }
        }
        let index = plan.inits.len();
        loop {
            let exit = self.run_container(plan, &plan.main, index, entry).await;
            match (plan.restart, exit.code) {
                (RestartPolicy::Never | RestartPolicy::OnFailure, 0) => return Outcome::Succeeded,
                (RestartPolicy::Never, _) => return Outcome::Failed,
                (RestartPolicy::OnFailure | RestartPolicy::Always, _) => {
                    self.restart(&plan.main, index, entry, &exit).await;
                }
            }
        }
    }

    /// Makes and starts a container, unless it is there already, and waits for its end.
    async fn run_container(&self, plan: &PodPlan, container: &ContainerPlan, index: usize, entry: &PodEntry) -> Exit {
        let name = container_name(entry, index);
        let mut pause = RETRY.0;
        loop {
            let failure = match self.try_container(plan, container, index, entry).await {
                Ok(exit) => {
                    self.show(&container.name, terminated(&exit, &name), false);
                    return exit;
                }
                Err(failure) => failure,
            };
            let NotStarted(reason, message) = failure;
            tracing::debug!(pod = self.key.name, container = container.name, reason, message, "a container waits");
            // One that runs is still shown so when podman does not answer.
            if !self.was_running(&container.name) {
                self.show(&container.name, waiting(reason, &message), false);
            }
            self.host.clock.sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    async fn try_container(
        &self,
        plan: &PodPlan,
        container: &ContainerPlan,
        index: usize,
        entry: &PodEntry,
    ) -> Result<Exit, NotStarted> {
        let podman = &self.host.podman;
        let name = container_name(entry, index);
        let failed = |error: PodmanError| NotStarted("RunContainerError", error.to_string());
        let state = podman.state(&name).await.map_err(failed)?;
        if matches!(state, None | Some(ContainerState::Created)) {
            if self.was_running(&container.name) {
                // The host was restarted, or somebody removed the container. No job runs twice unasked.
                return Ok(self.lost());
            }
            if state.is_some() {
                // The agent ended while it made this one: it may lack a part.
                podman.remove(&name).await.map_err(failed)?;
            }
            ContainerMaker { host: &self.host, lease: self.key.lease, plan, entry }.create(container, index).await?;
            if let Err(error) = podman.start(&name).await {
                podman.remove(&name).await.map_err(failed)?;
                return Err(failed(error));
            }
        }
        if let Some(ContainerState::Running { since, .. }) = podman.state(&name).await.map_err(failed)? {
            self.show(&container.name, running(Time(since)), index == plan.inits.len());
        }
        podman.ended(&name).await.map_err(failed)
    }

    /// Whether the container was last seen running.
    fn was_running(&self, container: &str) -> bool {
        let state = self.shown(container).and_then(|shown| shown.state);
        state.is_some_and(|state| state.running.is_some())
    }

    /// The container's entry in the pod's status.
    fn shown(&self, container: &str) -> Option<ContainerStatus> {
        let entry = self.host.book.entry(&self.key)?;
        container_ref(entry.pod.status.as_ref()?, container).cloned()
    }

    /// The end of a container that is gone.
    fn lost(&self) -> Exit {
        let now = self.host.now().0;
        let error = "the container is gone; most likely this host was started again".to_owned();
        Exit { code: LOST, oom_killed: false, started: now, finished: now, error }
    }

    /// Waits out the backoff, and removes the container, so that a new one takes its place.
    async fn restart(&self, container: &ContainerPlan, index: usize, entry: &PodEntry, exit: &Exit) {
        let name = container_name(entry, index);
        let shown = self.shown(&container.name);
        let count = u32::try_from(shown.map_or(0, |shown| shown.restart_count)).unwrap_or_default();
        let pause = BACKOFF.0.saturating_mul(2_u32.saturating_pow(count.min(16))).min(BACKOFF.1);
        // The first restart comes at once.
        if count > 0 {
            let message = format!("back-off {} s restarting the container", pause.as_secs());
            self.show(&container.name, waiting("CrashLoopBackOff", &message), false);
            self.host.clock.sleep(pause).await;
        }
        self.change(|status| {
            if let Some(shown) = container_mut(status, &container.name) {
                shown.last_state = Some(terminated(exit, &name));
                shown.restart_count += 1;
            }
        });
        if let Err(error) = self.host.podman.remove(&name).await {
            tracing::warn!(pod = self.key.name, %error, "a container that ended cannot be removed");
        }
    }

    /// Ends the containers that run, and writes how the pod ended.
    async fn end(&self, plan: &PodPlan, entry: &PodEntry, outcome: Outcome, stop: &mut watch::Receiver<Option<Stop>>) {
        let grace = match outcome {
            Outcome::Succeeded | Outcome::Failed => None,
            Outcome::Stopped(stop) => Some(stop.grace),
            Outcome::PastDeadline => Some(plan.grace),
        };
        let mut last = None;
        for (index, container) in plan.containers().enumerate().filter(|_| grace.is_some()) {
            let name = container_name(entry, index);
            self.stop_container(&name, grace.unwrap_or_default(), stop).await;
            if let Ok(Some(ContainerState::Ended(exit))) = self.host.podman.state(&name).await {
                self.show(&container.name, terminated(&exit, &name), false);
                last = (index == plan.inits.len()).then_some(exit.code);
            }
        }
        let (phase, reason) = match outcome {
            Outcome::Succeeded => ("Succeeded", None),
            Outcome::Stopped(_) if last == Some(0) => ("Succeeded", None),
            Outcome::PastDeadline => {
                ("Failed", Some(("DeadlineExceeded", "the pod ran longer than activeDeadlineSeconds")))
            }
            Outcome::Failed | Outcome::Stopped(_) => ("Failed", None),
        };
        let now = self.host.now();
        self.change(|status| {
            status.phase = Some(phase.to_owned());
            if let Some((reason, message)) = reason {
                (status.reason, status.message) = (Some(reason.to_owned()), Some(message.to_owned()));
            }
            set_conditions(status, true, false, &now);
        });
    }

    /// Stops a container. A deletion with a shorter grace takes effect at once.
    async fn stop_container(&self, name: &str, grace: Duration, stop: &mut watch::Receiver<Option<Stop>>) {
        let podman = &self.host.podman;
        let mut grace = grace;
        loop {
            let sooner = async {
                let is_sooner = |stop: &Option<Stop>| stop.is_some_and(|stop| stop.grace < grace);
                let wanted = stop.wait_for(is_sooner).await.ok().and_then(|stop| *stop);
                match wanted {
                    Some(stop) => stop.grace,
                    None => std::future::pending().await,
                }
            };
            let stopped = tokio::select! {
                stopped = podman.stop(name, grace) => stopped,
                sooner = sooner => {
                    grace = sooner;
                    continue;
                }
            };
            match stopped {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = self.key.name, %error, "a container cannot be stopped; it is tried again");
                    self.host.clock.sleep(RETRY.0).await;
                }
            }
        }
    }

    /// Removes everything of the pod.
    async fn forget(&self, entry: &PodEntry) {
        let mut pause = RETRY.0;
        while let Err(error) = self.try_forget(entry).await {
            tracing::warn!(pod = self.key.name, error, "what is left of a pod cannot be removed; it is tried again");
            self.host.clock.sleep(pause).await;
            pause = (pause * 2).min(RETRY.1);
        }
    }

    async fn try_forget(&self, entry: &PodEntry) -> Result<(), String> {
        self.host.remove_all_of(entry.uid()).await.map_err(|error| error.to_string())?;
        self.host.book.forget(&self.key).map_err(|error| error.to_string())
    }

    /// Shows the state of a container, and what follows from it for the pod.
    fn show(&self, container: &str, state: ShownState, is_ready: bool) {
        let now = self.host.now();
        self.change(|status| {
            let runs = state.running.is_some();
            let is_main = status.container_statuses.iter().flatten().any(|other| other.name == container);
            if let Some(shown) = container_mut(status, container) {
                (shown.ready, shown.started) = (is_ready || state.terminated.is_some() && !is_main, Some(runs));
                shown.state = Some(state);
            }
            if runs && is_main {
                status.phase = Some("Running".to_owned());
            }
            let initialized = is_main || status.init_container_statuses.iter().flatten().all(|init| init.ready);
            set_conditions(status, initialized, is_ready, &now);
        });
    }

    fn change(&self, change: impl FnOnce(&mut PodStatus)) {
        if let Err(error) = self.host.book.change_status(&self.key, change) {
            tracing::warn!(pod = self.key.name, %error, "the status of a pod cannot be stored");
        }
    }
}

/// Waits until the pod is deleted.
async fn stopped(stop: &mut watch::Receiver<Option<Stop>>) -> Stop {
    let wanted = stop.wait_for(Option::is_some).await.ok().and_then(|stop| *stop);
    match wanted {
        Some(stop) => stop,
        // The book is gone, and this task with it.
        None => std::future::pending().await,
    }
}
