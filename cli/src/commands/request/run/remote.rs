//! The pod of a run, through the donor's API.

use std::time::{Duration, Instant};

use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::Api;
use kube::api::{AttachParams, LogParams, PostParams};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;

use super::exec::{Exec, STREAM_BUFFER, beginning};
use super::log_position::LogPosition;
use super::run_pod::POD;
use crate::failure::Failure;
use crate::output::note;

/// Interval of looks at the pod until it runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time from the lease to the start of the container: images of some 20 GB are pulled in it.
const START_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Longest time that an image may be missing: registries that are busy answer again.
const STUCK_LIMIT: Duration = Duration::from_secs(30);
/// Limit of one attempt of a call.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(20);
/// Limit of a script. One that waits longer is asked again, on a new connection.
const SCRIPT_LIMIT: Duration = Duration::from_secs(60);
/// Pause between attempts.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Most output that is kept of a command whose output is not streamed.
const MAX_OUTPUT: u64 = 64 << 10;
/// Size of the parts in which a log is read.
const LOG_PART: usize = 32 << 10;
/// Longest pause while the printed part of a log is read again.
const SEEK_LIMIT: Duration = Duration::from_secs(10);
/// Reasons of waiting containers that do not pass, and those that may.
const HOPELESS: [&str; 5] = [
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];
const STUCK: [&str; 2] = ["ErrImagePull", "ImagePullBackOff"];
/// Exit code of a container that was killed, where nobody tells it.
const KILLED: i32 = 137;

/// How a pod's container ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    /// Such as `OOMKilled`.
    pub(super) reason: String,
}

/// The pod. Its API is replaced whenever the lease's credential is.
#[derive(Clone)]
pub(super) struct Remote {
    api: watch::Receiver<Api<Pod>>,
    /// Calls that fail for so long are given up: the lease's term, after which nothing is there any more.
    patience: Duration,
}

impl Remote {
    pub(super) const fn new(api: watch::Receiver<Api<Pod>>, term: Duration) -> Self {
        Self { api, patience: term }
    }

    /// Makes the pod and waits until its container runs.
    pub(super) async fn start(&self, pod: &Pod) -> Result<(), Failure> {
        let parameters = &PostParams::default();
        match self.retried("the pod", |pods| async move { pods.create(parameters, pod).await }).await {
            Ok(_) => {}
            // An attempt whose answer was lost.
            Err(_) if self.pods().get_opt(POD).await.is_ok_and(|present| present.is_some()) => {}
            Err(failure) => return Err(failure),
        }
        let (began, mut said, mut stuck_since) = (Instant::now(), String::new(), None);
        loop {
            let why = match progress(&self.pod().await?) {
                Progress::Runs => return Ok(()),
                Progress::Failed(why) => return Err(not_started(&why)),
                Progress::Stuck(why) => {
                    if stuck_since.get_or_insert_with(Instant::now).elapsed() > STUCK_LIMIT {
                        return Err(not_started(&why));
                    }
                    why
                }
                Progress::Waits(why) => why,
            };
            if !why.is_empty() && why != said {
                note(&why);
                said = why;
            }
            if began.elapsed() > START_LIMIT {
                let minutes = START_LIMIT.as_secs() / 60;
                return Err(Failure::unavailable(format!(
                    "the container did not start within {minutes} minutes: {said}"
                )));
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// How the container ended; `None` while it runs.
    pub(super) async fn ended(&self) -> Result<Option<Ended>, Failure> {
        let pod = self.pod().await?;
        let state = container(&pod).and_then(|container| container.state.clone());
        if let Some(terminated) = state.and_then(|state| state.terminated) {
            let reason = terminated.reason.unwrap_or_default();
            return Ok(Some(Ended { code: terminated.exit_code, reason }));
        }
        // One that was evicted, or whose node was lost.
        let status = pod.status.filter(|status| status.phase.as_deref() == Some("Failed"));
        Ok(status.map(|status| Ended { code: KILLED, reason: status.reason.unwrap_or_default() }))
    }

    /// Starts a command in the container.
    pub(super) async fn exec(&self, command: &[&str], parameters: AttachParams) -> Result<Exec, Failure> {
        let parameters = AttachParams {
            container: Some(POD.to_owned()),
            max_stdin_buf_size: Some(STREAM_BUFFER),
            max_stdout_buf_size: Some(STREAM_BUFFER),
            max_stderr_buf_size: Some(STREAM_BUFFER),
            ..parameters
        };
        let parameters = &parameters;
        let process = self.retried("a command in the container", |pods| async move {
            pods.exec(POD, command.iter().copied(), parameters).await
        });
        process.await.map(Exec::new)
    }

    /// Connects to a port of the container.
    pub(super) async fn connect(&self, port: u16) -> Result<impl AsyncRead + AsyncWrite + Unpin, Failure> {
        let connected = self.pods().portforward(POD, &[port]).await;
        let mut forwarder = connected.map_err(|error| failure_of("a connection", &error))?;
        forwarder.take_stream(port).ok_or_else(|| Failure::unavailable("the donor opened no connection"))
    }

    /// Runs a short script in the container; returns what it printed. `argument` is its `$0`.
    ///
    /// # Errors
    /// It fails, or takes longer than [`SCRIPT_LIMIT`].
    pub(super) async fn sh(&self, script: &str, argument: &str) -> Result<String, Failure> {
        let parameters = AttachParams::default().stderr(true).stdout(true).stdin(false);
        let step = async {
            let mut exec = self.exec(&["/bin/sh", "-c", script, argument], parameters).await?;
            let (stdout, stderr) = (exec.stdout.take(), exec.stderr.take());
            let (printed, errors) = tokio::join!(beginning(stdout, MAX_OUTPUT), beginning(stderr, MAX_OUTPUT));
            match exec.code().await? {
                0 => Ok(printed),
                code => {
                    let why = errors.lines().next().unwrap_or_default();
                    Err(Failure::refused("step-failed", format!("a step in the container ended with {code}: {why}")))
                }
            }
        };
        let done = tokio::time::timeout(SCRIPT_LIMIT, step).await;
        done.unwrap_or_else(|_| Err(Failure::unavailable("a step in the container takes too long")))
    }

    /// Writes the container's log to standard output until the container ends, across outages of any length.
    ///
    /// # Errors
    /// The donor refuses it.
    pub(super) async fn print_log(&self) -> Result<(), Failure> {
        let mut position = LogPosition::default();
        loop {
            let parameters = LogParams {
                container: Some(POD.to_owned()),
                follow: true,
                since_time: position.since(),
                ..LogParams::default()
            };
            match tokio::time::timeout(ATTEMPT_LIMIT, self.pods().log_stream(POD, &parameters)).await {
                Ok(Ok(stream)) => {
                    print_rest(stream, &mut position).await;
                    match self.ended().await {
                        Ok(Some(_)) => return Ok(()),
                        Err(failure) if !failure.is_passing() => return Err(failure),
                        Ok(None) | Err(_) => {}
                    }
                }
                Ok(Err(error)) if is_final(&error) => return Err(failure_of("the log", &error)),
                Ok(Err(_)) | Err(_) => {}
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    fn pods(&self) -> Api<Pod> {
        self.api.borrow().clone()
    }

    async fn pod(&self) -> Result<Pod, Failure> {
        self.retried("the pod", |pods| async move { pods.get(POD).await }).await
    }

    /// Repeats a call until the donor answers, or has not for too long.
    async fn retried<T, F>(&self, what: &str, attempt: impl Fn(Api<Pod>) -> F) -> Result<T, Failure>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let began = Instant::now();
        loop {
            let failure = match tokio::time::timeout(ATTEMPT_LIMIT, attempt(self.pods())).await {
                Ok(Ok(done)) => return Ok(done),
                // Quotas are counted a moment after they are made.
                Ok(Err(error)) if is_final(&error) && !error.to_string().contains("status unknown for quota") => {
                    return Err(failure_of(what, &error));
                }
                Ok(Err(error)) => failure_of(what, &error),
                Err(_) => Failure::unavailable(format!("{what}: the donor does not answer")),
            };
            if began.elapsed() > self.patience {
                return Err(failure);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Prints what follows `position` in a log until the stream ends or breaks.
async fn print_rest(mut stream: impl futures::AsyncRead + Unpin, position: &mut LogPosition) {
    let (mut stdout, mut part) = (tokio::io::stdout(), vec![0; LOG_PART]);
    let mut again = position.again();
    loop {
        let read = if again.is_open() {
            // A log that is shorter than before was rotated.
            tokio::time::timeout(SEEK_LIMIT, stream.read(&mut part)).await.unwrap_or(Ok(0))
        } else {
            stream.read(&mut part).await
        };
        let read = read.unwrap_or(0);
        let rest = if read == 0 { None } else { again.skip(&part[..read]) };
        let Some(rest) = rest else {
            if read > 0 || again.is_open() {
                position.lose();
            }
            return;
        };
        // A closed standard output does not end the run.
        _ = stdout.write_all(rest).await;
        _ = stdout.flush().await;
        position.printed(rest);
    }
}

fn not_started(why: &str) -> Failure {
    Failure::refused("not-started", format!("the container did not start: {why}"))
}

enum Progress {
    Runs,
    /// Why, for people; may be empty.
    Waits(String),
    /// It may pass, but seldom does.
    Stuck(String),
    Failed(String),
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == POD)
}

fn progress(pod: &Pod) -> Progress {
    let status = pod.status.as_ref();
    let state = container(pod).and_then(|container| container.state.as_ref());
    if state.is_some_and(|state| state.running.is_some()) {
        return Progress::Runs;
    }
    if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
        let reason = ended.reason.as_deref().unwrap_or_default();
        return Progress::Failed(
            format!("{reason} {}", ended.message.as_deref().unwrap_or_default()).trim().to_owned(),
        );
    }
    if status.and_then(|status| status.phase.as_deref()) == Some("Failed") {
        let text = |part: Option<&String>| part.cloned().unwrap_or_default();
        let (reason, message) =
            status.map(|status| (text(status.reason.as_ref()), text(status.message.as_ref()))).unwrap_or_default();
        return Progress::Failed(format!("{reason} {message}").trim().to_owned());
    }
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let (reason, message) = (waiting.reason.as_deref().unwrap_or_default(), waiting.message.as_deref());
        let text = match (message, reason) {
            (Some(message), _) => format!("{reason}: {message}"),
            (None, "" | "PodInitializing" | "ContainerCreating") => "the container starts".to_owned(),
            (None, _) => reason.to_owned(),
        };
        return match reason {
            reason if HOPELESS.contains(&reason) => Progress::Failed(text),
            reason if STUCK.contains(&reason) => Progress::Stuck(text),
            _ => Progress::Waits(text),
        };
    }
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let unscheduled = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    Progress::Waits(unscheduled.filter_map(|condition| condition.message.clone()).next().unwrap_or_default())
}

/// Whether repeating does not help. A token that has run out is replaced (401).
fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && !matches!(status.code, 401 | 429))
}

fn failure_of(what: &str, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => {
            Failure::refused("donor-refused", format!("{what}: the donor refuses it: {}", status.message))
        }
        other => Failure::unavailable(format!("{what}: the donor does not answer: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn progress_of(status: Value) -> String {
        let pod = serde_json::from_value(json!({ "status": status })).expect("a pod");
        match progress(&pod) {
            Progress::Runs => "runs".to_owned(),
            Progress::Waits(why) => format!("waits {why}"),
            Progress::Stuck(why) => format!("stuck {why}"),
            Progress::Failed(why) => format!("failed {why}"),
        }
    }

    fn with_state(state: Value) -> String {
        progress_of(json!({ "containerStatuses": [
            { "name": POD, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ] }))
    }

    #[test]
    fn people_learn_why_a_container_does_not_start() {
        assert_eq!(with_state(json!({ "running": {} })), "runs");
        assert_eq!(with_state(json!({ "waiting": { "reason": "ContainerCreating" } })), "waits the container starts");
        let back_off = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        assert_eq!(with_state(back_off), "stuck ImagePullBackOff: no such image");
        let unscheduled = json!({ "conditions": [
            { "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" },
        ] });
        assert_eq!(progress_of(unscheduled), "waits 0/3 nodes are available");
        assert_eq!(progress_of(json!({ "phase": "Failed", "reason": "Evicted" })), "failed Evicted");
    }
}
