//! The pod of a run, through the donor's API.

use std::time::{Duration, Instant};

use futures::AsyncReadExt as _;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{AttachParams, AttachedProcess, LogParams, PostParams};
use kube::{Api, Client};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::log_position::LogPosition;
use super::run_pod::NAME;
use crate::failure::Failure;
use crate::output::note;

/// Interval of looks at the pod until it runs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time from the lease to the start of the container: images of some 20 GB are pulled in it.
const START_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Calls that fail for so long are given up: the lease's term, after which nothing is there any more.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Buffer of a command's streams.
pub(super) const STREAM_BUFFER: usize = 256 << 10;
/// Most output that is kept of a command whose output is not streamed.
const MAX_OUTPUT: u64 = 64 << 10;
/// Size of the parts in which a log is read.
const LOG_PART: usize = 32 << 10;
/// Longest pause while the printed part of a log is read again.
const SEEK_LIMIT: Duration = Duration::from_secs(10);
/// Reasons of waiting containers that do not pass.
const HOPELESS: [&str; 6] = [
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
];

/// How a pod's container ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    /// Such as `OOMKilled`.
    pub(super) reason: String,
}

/// The pod.
#[derive(Clone)]
pub(super) struct Remote {
    pods: Api<Pod>,
}

impl Remote {
    pub(super) fn new(client: Client, namespace: &str) -> Self {
        Self { pods: Api::namespaced(client, namespace) }
    }

    /// Makes the pod and waits until its container runs.
    pub(super) async fn start(&self, pod: &Pod) -> Result<(), Failure> {
        let parameters = PostParams::default();
        match retried("the pod", || self.pods.create(&parameters, pod)).await {
            Ok(_) => {}
            // An attempt whose answer was lost.
            Err(_) if self.pods.get_opt(NAME).await.is_ok_and(|present| present.is_some()) => {}
            Err(failure) => return Err(failure),
        }
        let (began, mut said) = (Instant::now(), String::new());
        loop {
            let present = retried("the pod", || self.pods.get(NAME)).await?;
            match progress(&present) {
                Progress::Runs => return Ok(()),
                Progress::Failed(why) => {
                    return Err(Failure::refused("not-started", format!("the container did not start: {why}")));
                }
                Progress::Waits(why) => {
                    if !why.is_empty() && why != said {
                        note(&why);
                        said = why;
                    }
                }
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
        let pod = retried("the pod", || self.pods.get(NAME)).await?;
        let state = container(&pod).and_then(|container| container.state.clone());
        Ok(state
            .and_then(|state| state.terminated)
            .map(|terminated| Ended { code: terminated.exit_code, reason: terminated.reason.unwrap_or_default() }))
    }

    /// Starts a command in the container.
    pub(super) async fn exec(&self, command: &[&str], parameters: AttachParams) -> Result<AttachedProcess, Failure> {
        let parameters = AttachParams {
            container: Some(NAME.to_owned()),
            max_stdin_buf_size: Some(STREAM_BUFFER),
            max_stdout_buf_size: Some(STREAM_BUFFER),
            ..parameters
        };
        retried("a command in the container", || self.pods.exec(NAME, command.iter().copied(), &parameters)).await
    }

    /// Connects to a port of the container.
    pub(super) async fn connect(&self, port: u16) -> Result<impl AsyncRead + AsyncWrite + Unpin, Failure> {
        let connected = self.pods.portforward(NAME, &[port]).await;
        let mut forwarder = connected.map_err(|error| failure_of("a connection", &error))?;
        forwarder.take_stream(port).ok_or_else(|| Failure::unavailable("the donor opened no connection"))
    }

    /// Runs a short script in the container; returns what it printed.
    pub(super) async fn sh(&self, script: &str) -> Result<String, Failure> {
        let parameters = AttachParams::default().stderr(true).stdout(true).stdin(false);
        let mut process = self.exec(&["/bin/sh", "-c", script], parameters).await?;
        let (mut out, mut error) = (String::new(), String::new());
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let read = async {
            if let Some(stdout) = stdout {
                _ = tokio::io::AsyncReadExt::read_to_string(
                    &mut tokio::io::AsyncReadExt::take(stdout, MAX_OUTPUT),
                    &mut out,
                )
                .await;
            }
        };
        let read_error = async {
            if let Some(stderr) = stderr {
                _ = tokio::io::AsyncReadExt::read_to_string(
                    &mut tokio::io::AsyncReadExt::take(stderr, MAX_OUTPUT),
                    &mut error,
                )
                .await;
            }
        };
        tokio::join!(read, read_error);
        match exit_code(&mut process).await? {
            0 => Ok(out),
            code => {
                let why = error.lines().next().unwrap_or_default();
                Err(Failure::refused("step-failed", format!("a step in the container ended with {code}: {why}")))
            }
        }
    }

    /// Writes the container's log to standard output until the container ends.
    ///
    /// # Errors
    /// The donor refuses it, or does not answer for too long.
    pub(super) async fn print_log(&self) -> Result<(), Failure> {
        let mut position = LogPosition::default();
        let mut failing_since: Option<Instant> = None;
        loop {
            let parameters = LogParams {
                container: Some(NAME.to_owned()),
                follow: true,
                since_time: position.since(),
                ..LogParams::default()
            };
            match self.pods.log_stream(NAME, &parameters).await {
                Ok(stream) => {
                    if print_rest(stream, &mut position).await > 0 {
                        failing_since = None;
                    }
                    if self.ended().await?.is_some() {
                        return Ok(());
                    }
                }
                Err(error) if is_final(&error) => return Err(failure_of("the log", &error)),
                Err(_) => {}
            }
            if failing_since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                return Err(Failure::unavailable("the log cannot be read any more"));
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// Prints what follows `position` in a log until the stream ends or breaks; returns the bytes that were printed.
async fn print_rest(mut stream: impl futures::AsyncRead + Unpin, position: &mut LogPosition) -> u64 {
    let (mut stdout, mut part, mut printed) = (tokio::io::stdout(), vec![0; LOG_PART], 0);
    let mut again = position.again();
    loop {
        let read = if again.is_open() {
            // A log that is shorter than before was rotated.
            tokio::time::timeout(SEEK_LIMIT, stream.read(&mut part)).await.unwrap_or(Ok(0))
        } else {
            stream.read(&mut part).await
        };
        let read = read.unwrap_or(0);
        if read == 0 {
            if again.is_open() {
                position.lose();
            }
            return printed;
        }
        let rest = match again.skip(&part[..read]) {
            Some(rest) => rest,
            None => {
                position.lose();
                return printed;
            }
        };
        // A closed standard output does not end the run.
        _ = stdout.write_all(rest).await;
        _ = stdout.flush().await;
        position.printed(rest);
        printed += rest.len() as u64;
    }
}

/// The exit code of a command.
///
/// # Errors
/// [`Failure`] if the connection broke before it ended, or it did not start.
pub(super) async fn exit_code(process: &mut AttachedProcess) -> Result<i32, Failure> {
    let status = match process.take_status() {
        Some(status) => status.await,
        None => None,
    };
    let Some(status) = status else {
        return Err(Failure::unavailable("the connection to the container was cut"));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.and_then(|details| details.causes).unwrap_or_default();
    let code = causes.iter().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    code.and_then(|cause| cause.message.as_deref()?.parse().ok()).ok_or_else(|| {
        Failure::refused("step-failed", format!("the container ran no command: {}", status.message.unwrap_or_default()))
    })
}

enum Progress {
    Runs,
    /// Why, for people; may be empty.
    Waits(String),
    Failed(String),
}

fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.iter().find(|container| container.name == NAME)
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
        let text = message.map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}"));
        return if HOPELESS.contains(&reason) { Progress::Failed(text) } else { Progress::Waits(text) };
    }
    let conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let unscheduled = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    Progress::Waits(unscheduled.filter_map(|condition| condition.message.clone()).next().unwrap_or_default())
}

fn is_final(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 429)
}

fn failure_of(what: &str, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => {
            Failure::refused("donor-refused", format!("{what}: the donor refuses it: {}", status.message))
        }
        other => Failure::unavailable(format!("{what}: the donor does not answer: {other}")),
    }
}

/// Repeats a call until the donor answers, or has not for too long.
async fn retried<T, F>(what: &str, mut attempt: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = kube::Result<T>>,
{
    let began = Instant::now();
    loop {
        match attempt().await {
            Ok(done) => return Ok(done),
            // Quotas are counted a moment after they are made.
            Err(kube::Error::Api(status)) if status.message.contains("status unknown for quota") => {}
            Err(error) if is_final(&error) || began.elapsed() > PATIENCE => return Err(failure_of(what, &error)),
            Err(_) => {}
        }
        tokio::time::sleep(RETRY_PAUSE).await;
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
            Progress::Failed(why) => format!("failed {why}"),
        }
    }

    fn with_state(state: Value) -> String {
        progress_of(json!({ "containerStatuses": [
            { "name": NAME, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state },
        ] }))
    }

    #[test]
    fn people_learn_why_a_container_does_not_start() {
        assert_eq!(with_state(json!({ "running": {} })), "runs");
        assert_eq!(with_state(json!({ "waiting": { "reason": "ContainerCreating" } })), "waits ContainerCreating");
        let back_off = json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no such image" } });
        assert_eq!(with_state(back_off), "failed ImagePullBackOff: no such image");
        let unscheduled = json!({ "conditions": [
            { "type": "PodScheduled", "status": "False", "message": "0/3 nodes are available" },
        ] });
        assert_eq!(progress_of(unscheduled), "waits 0/3 nodes are available");
        assert_eq!(progress_of(json!({ "phase": "Failed", "reason": "Evicted" })), "failed Evicted");
    }
}
