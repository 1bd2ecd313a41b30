//! One pod from its start to its removal.
//!
//! Containers are named by the pod's uid and their place, and what is to do next follows from their state alone: a new
//! agent goes on where the old one stopped.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comity_runtime::atomic_file;
use k8s_openapi::api::core::v1::{ContainerState as ShownState, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::container_status::{container_mut, container_ref, running, set_conditions, terminated, waiting};
use crate::environment::{Sources, expanded, holds_secret};
use crate::objects::ObjectKind;
use crate::pod_book::{PodEntry, PodKey, Stop};
use crate::pod_host::PodHost;
use crate::pod_plan::{ContainerPlan, MountPlan, PodPlan, RestartPolicy, VolumePlan};
use crate::podman::{ContainerSpec, ContainerState, Exit};

/// Pause before what failed is tried again: first, and longest.
const RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));
/// Pause before a container is started again: first, and longest, as in Kubernetes.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(300));

/// Folder beside those of volumes; no volume has this name.
const HOST_FILES: &str = "host_files";
/// Exit code of a container whose end nobody saw.
const LOST: i32 = 255;
/// Longest value that podman keeps as a secret.
const MAX_SECRET_BYTES: usize = 500_000;

/// Why a container cannot be started now: a reason as in Kubernetes, and a sentence.
struct NotStarted(&'static str, String);

/// How a pod's work ended.
enum Outcome {
    Succeeded,
    Failed,
    Stopped(Stop),
    PastDeadline,
}

/// Runs one pod.
pub(crate) struct PodRunner {
    host: Arc<PodHost>,
    key: PodKey,
}

impl PodRunner {
    pub(crate) const fn new(host: Arc<PodHost>, key: PodKey) -> Self {
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
            self.show(&container.name, waiting(reason, &message), false);
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
        let failed = |error: crate::podman::PodmanError| NotStarted("RunContainerError", error.to_string());
        let state = podman.state(&name).await.map_err(failed)?;
        if matches!(state, None | Some(ContainerState::Created)) && self.has_run(&container.name) {
            // It ran before the host started anew, or before somebody removed it: a job does not run twice unasked.
            return Ok(self.lost());
        }
        if matches!(state, None | Some(ContainerState::Created)) {
            // One that was made and never started may lack a part.
            podman.remove(&name).await.map_err(failed)?;
            self.create(plan, container, index, entry).await?;
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

    /// Whether the container is shown as running.
    fn has_run(&self, container: &str) -> bool {
        let entry = self.host.book.entry(&self.key);
        let status = entry.as_ref().and_then(|entry| entry.pod.status.as_ref());
        let shown = status.and_then(|status| container_ref(status, container));
        shown.and_then(|shown| shown.state.as_ref()).is_some_and(|state| state.running.is_some())
    }

    /// The end of a container that is gone.
    fn lost(&self) -> Exit {
        let now = self.host.now().0;
        let error = "the container is gone; most likely this host was started again".to_owned();
        Exit { code: LOST, oom_killed: false, started: now, finished: now, error }
    }

    /// Makes a container.
    async fn create(
        &self,
        plan: &PodPlan,
        container: &ContainerPlan,
        index: usize,
        entry: &PodEntry,
    ) -> Result<(), NotStarted> {
        const CONFIG: &str = "CreateContainerConfigError";
        let podman = &self.host.podman;
        let image = self.pull(plan, container, entry).await?;
        let failed = |error: crate::podman::PodmanError| NotStarted("CreateContainerError", error.to_string());
        if container.non_root && container.user.is_none() {
            let user = podman.image_user(&image).await.map_err(failed)?;
            if user.is_empty() || user.split(':').next().is_none_or(|user| !user.parse().is_ok_and(|id: u32| id > 0)) {
                let message = "runAsNonRoot is set, and the image names no user by a number: set runAsUser";
                return Err(NotStarted(CONFIG, message.to_owned()));
            }
        }
        let sources = Sources { lease: self.key.lease, objects: &self.host.objects, pod: &entry.pod };
        let variables = sources.variables(container).map_err(|message| NotStarted(CONFIG, message))?;
        let expand = |texts: &[String]| {
            // Command lines are readable by all users of the host.
            match texts.iter().find(|text| holds_secret(text, &variables)) {
                Some(text) => {
                    Err(NotStarted(CONFIG, format!("{text:?} would show a Secret; read the variable in the command")))
                }
                None => Ok(texts.iter().map(|text| expanded(text, &variables)).collect::<Vec<_>>()),
            }
        };
        let mut spec = ContainerSpec {
            name: container_name(entry, index),
            pod_uid: uid(entry).to_owned(),
            image,
            command: expand(&container.command)?,
            args: expand(&container.args)?,
            user: container.user.clone(),
            working_dir: container.working_dir.clone(),
            hostname: plan.hostname.clone().unwrap_or_else(|| self.key.name.chars().take(63).collect()),
            network: self.host.settings.network.clone(),
            cpu_milli: container.cpu_milli.unwrap_or(entry.held.cpu_milli),
            memory_mib: container.memory_mib.unwrap_or(entry.held.memory_mib),
            devices: self.devices(container, entry),
            read_only_root: container.read_only_root,
            tty: container.tty,
            dropped_capabilities: container.dropped_capabilities.clone(),
            ..ContainerSpec::default()
        };
        // Images that name all devices get none by that: hooks of NVIDIA's older toolkit would obey them.
        spec.env.push(("NVIDIA_VISIBLE_DEVICES".to_owned(), "void".to_owned()));
        for (name, variable) in variables {
            // podman keeps no empty secrets.
            if variable.is_secret && !variable.value.is_empty() {
                if variable.value.len() > MAX_SECRET_BYTES {
                    let message = format!("variable {name} has more than {MAX_SECRET_BYTES} bytes; mount its Secret");
                    return Err(NotStarted(CONFIG, message));
                }
                let secret = format!("{}-{}", container_name(entry, index), spec.secrets.len());
                podman.put_secret(&secret, &variable.value).await.map_err(failed)?;
                spec.secrets.push((secret, name));
            } else {
                spec.env.push((name, variable.value));
            }
        }
        self.mount_host_files(&mut spec).map_err(|error| NotStarted(CONFIG, error.to_string()))?;
        for mount in &container.mounts {
            self.mount(plan, mount, &sources, &mut spec).map_err(|message| NotStarted(CONFIG, message))?;
        }
        podman.create(&spec).await.map_err(failed)
    }

    /// The first of the pod's shares, as many as the container asks for.
    fn devices(&self, container: &ContainerPlan, entry: &PodEntry) -> Vec<String> {
        let mut wanted = container.units;
        let mut devices = Vec::new();
        for (device, units) in &entry.held.devices {
            if wanted > 0 {
                devices.push(format!("{}={device}", self.host.settings.devices));
                wanted = wanted.saturating_sub(u64::from(*units));
            }
        }
        devices
    }

    async fn pull(&self, plan: &PodPlan, container: &ContainerPlan, entry: &PodEntry) -> Result<String, NotStarted> {
        let image = &container.image;
        let wrong = |reason: &str| NotStarted("ErrImagePull", format!("image {image:?}: {reason}"));
        let local = self.host.settings.is_local(image);
        let (reference, auth) = if local {
            (image.clone(), None)
        } else {
            (self.host.settings.reference(image).map_err(|reason| wrong(&reason))?, self.auth_file(plan, entry)?)
        };
        let pulled = self.host.podman.pull(&reference, auth.as_deref(), local).await;
        if let Some(path) = &auth {
            _ = std::fs::remove_file(path);
        }
        pulled.map_err(|error| {
            tracing::info!(pod = self.key.name, image, %error, "an image of a guest is not pulled");
            wrong(error.of_pull())
        })
    }

    /// Writes the credentials of the pod's pull secrets, for as long as the pull takes.
    fn auth_file(&self, plan: &PodPlan, entry: &PodEntry) -> Result<Option<PathBuf>, NotStarted> {
        const KEY: &str = ".dockerconfigjson";
        let wrong = |message: String| NotStarted("ErrImagePull", message);
        let mut auths = Map::new();
        for name in &plan.pull_secrets {
            let data = self.host.objects.data(self.key.lease, ObjectKind::Secret, name);
            let data = data.ok_or_else(|| wrong(format!("Secret {name:?}, a pull secret, does not exist")))?;
            // The error might quote the credential.
            let config: Option<Value> = data.get(KEY).and_then(|bytes| serde_json::from_slice(bytes).ok());
            let config = config.ok_or_else(|| wrong(format!("Secret {name:?} has no JSON in its key {KEY}")))?;
            auths.extend(config["auths"].as_object().cloned().unwrap_or_default());
        }
        if auths.is_empty() {
            return Ok(None);
        }
        let path = self.host.volumes.join(format!("{}.auth", uid(entry)));
        let text = json!({ "auths": auths }).to_string();
        atomic_file::write(&path, text.as_bytes(), atomic_file::PRIVATE).map_err(|error| wrong(error.to_string()))?;
        Ok(Some(path))
    }

    /// podman's own files of these names are writable, and lie where nothing limits them.
    fn mount_host_files(&self, spec: &mut ContainerSpec) -> std::io::Result<()> {
        let folder = self.host.volumes.join(&spec.pod_uid).join(HOST_FILES);
        std::fs::create_dir_all(&folder)?;
        let hosts = format!("127.0.0.1 localhost {name}\n::1 localhost\n", name = spec.hostname);
        let mut files = vec![
            ("/etc/hosts", hosts),
            ("/etc/hostname", format!("{}\n", spec.hostname)),
            ("/run/.containerenv", String::new()),
        ];
        if spec.network == "none" {
            files.push(("/etc/resolv.conf", String::new()));
        }
        for (path, text) in files {
            let file = folder.join(path.rsplit('/').next().unwrap_or_default());
            std::fs::write(&file, text)?;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644))?;
            spec.mounts.push((file, path.to_owned(), true));
        }
        Ok(())
    }

    fn mount(
        &self,
        plan: &PodPlan,
        mount: &MountPlan,
        sources: &Sources<'_>,
        spec: &mut ContainerSpec,
    ) -> Result<(), String> {
        let folder = self.host.volumes.join(&spec.pod_uid).join(&mount.volume);
        let failed = |error: std::io::Error| format!("volume {:?} cannot be made: {error}", mount.volume);
        match &plan.volumes[&mount.volume] {
            VolumePlan::Memory { size_mib } => spec.memory_mounts.push((mount.path.clone(), *size_mib)),
            VolumePlan::Folder => {
                std::fs::create_dir_all(&folder).map_err(failed)?;
                spec.mounts.push((folder, mount.path.clone(), mount.read_only));
            }
            VolumePlan::Files { sources: files, mode } => {
                if folder.exists() {
                    std::fs::remove_dir_all(&folder).map_err(failed)?;
                }
                std::fs::create_dir_all(&folder).map_err(failed)?;
                sources.write_files(files, *mode, &folder)?;
                let part = mount.sub_path.as_ref().map_or(folder.clone(), |path| folder.join(path));
                if !part.exists() {
                    return Err(format!("volume {:?} has no file {:?}", mount.volume, mount.sub_path));
                }
                spec.mounts.push((part, mount.path.clone(), true));
            }
        }
        Ok(())
    }

    /// Waits out the backoff, and removes the container, so that a new one takes its place.
    async fn restart(&self, container: &ContainerPlan, index: usize, entry: &PodEntry, exit: &Exit) {
        let name = container_name(entry, index);
        let count = self.host.book.entry(&self.key).and_then(|entry| {
            let mut status = entry.pod.status.clone()?;
            container_mut(&mut status, &container.name).map(|container| container.restart_count)
        });
        let count = u32::try_from(count.unwrap_or_default()).unwrap_or_default();
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
        self.host.remove_all_of(uid(entry)).await.map_err(|error| error.to_string())?;
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

fn uid(entry: &PodEntry) -> &str {
    entry.pod.metadata.uid.as_deref().unwrap_or_default()
}

/// The name of a pod's container. Logs are read by it, too.
pub(crate) fn container_name(entry: &PodEntry, index: usize) -> String {
    format!("comity-{}-{index}", uid(entry))
}
