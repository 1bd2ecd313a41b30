//! Containers through podman's command line, in a store of their own: guests see no image of the host's owner.
//!
//! podman has no daemon: containers outlive the agent, and their names tell a new agent which pods they belong to.

mod arguments;
mod container_state;
mod exit_watch;
mod podman_error;
mod podman_store;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

pub(crate) use self::arguments::{ContainerSpec, ExecOptions, LogOptions};
pub(crate) use self::container_state::{ContainerState, Exit};
pub(crate) use self::podman_error::PodmanError;
pub(crate) use self::podman_store::PodmanStore;

use self::exit_watch::ExitWatch;
use crate::settings::SiteSettings;

/// Time limit of a command that only reads or changes records.
const QUICK: Duration = Duration::from_secs(60);
/// Time limit of a pull: a large image over a slow line.
const PULL: Duration = Duration::from_secs(3_600);
/// Longest output of a command that is kept.
const MAX_OUTPUT: usize = 4 << 20;
/// Label of every container of this agent, with the uid of its pod.
const POD_LABEL: &str = "dev.comity.pod";
/// Most files that a container may have open, unless the agent's own limit is lower.
const MAX_OPEN_FILES: u64 = 1 << 20;

/// podman on this host.
#[derive(Debug)]
pub(crate) struct Podman {
    store: PodmanStore,
    open_files: u64,
    /// A file without credentials: otherwise podman looks for those of the host's owner.
    no_credentials: PathBuf,
}

impl Podman {
    /// Finds podman, and checks that it can hold guests as this host promises. Containers are kept in `state`.
    pub(crate) async fn open(settings: &SiteSettings, state: &Path) -> Result<Self, PodmanError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PodmanError::NotRoot);
        }
        let store = PodmanStore::new(settings, state);
        let no_credentials = store.prepare(settings).map_err(|error| PodmanError::Files(error.to_string()))?;
        let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(MAX_OPEN_FILES).min(MAX_OPEN_FILES);
        let podman = Self { store, open_files, no_credentials };
        podman.check().await?;
        Ok(podman)
    }

    /// Checks that limits hold, and that guests can have users of their own.
    async fn check(&self) -> Result<(), PodmanError> {
        let info = self.run(&["info", "--format=json"], None, QUICK).await?;
        let info: Value = serde_json::from_slice(&info).map_err(|error| PodmanError::Output(error.to_string()))?;
        let controllers: Vec<&str> =
            info["host"]["cgroupControllers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for controller in ["cpu", "memory", "pids"] {
            if !controllers.contains(&controller) {
                return Err(PodmanError::Controller { controller, has: controllers.join(", ") });
            }
        }
        for file in ["/etc/subuid", "/etc/subgid"] {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            if !text.lines().any(|line| line.starts_with("containers:")) {
                return Err(PodmanError::NoSubordinateIds { file });
            }
        }
        Ok(())
    }

    /// Fetches an image; returns its id. It asks the registry each time: who may not pull an image may not run one that
    /// somebody else pulled. `local` images are the owner's, and never fetched.
    pub(crate) async fn pull(&self, image: &str, auth: Option<&Path>, local: bool) -> Result<String, PodmanError> {
        if local {
            let id = self.run(&["image", "inspect", "--format={{.Id}}", "--", image], None, QUICK).await?;
            return Ok(first_line(&id));
        }
        let auth = format!("--authfile={}", auth.unwrap_or(&self.no_credentials).display());
        Ok(first_line(&self.run(&["pull", "--quiet", &auth, "--", image], None, PULL).await?))
    }

    /// The user that an image names; empty for root.
    pub(crate) async fn image_user(&self, id: &str) -> Result<String, PodmanError> {
        Ok(first_line(&self.run(&["image", "inspect", "--format={{.Config.User}}", "--", id], None, QUICK).await?))
    }

    /// Makes a container. It does not run yet.
    pub(crate) async fn create(&self, spec: &ContainerSpec) -> Result<(), PodmanError> {
        let arguments = spec.create_arguments(self.open_files);
        self.run(&arguments.iter().map(String::as_str).collect::<Vec<_>>(), None, QUICK).await.map(drop)
    }

    /// Starts a container.
    pub(crate) async fn start(&self, name: &str) -> Result<(), PodmanError> {
        self.run(&["start", "--", name], None, QUICK).await.map(drop)
    }

    /// The state of a container; `None` if there is none of this name.
    pub(crate) async fn state(&self, name: &str) -> Result<Option<ContainerState>, PodmanError> {
        match self.run(&["container", "inspect", "--", name], None, QUICK).await {
            Ok(output) => ContainerState::read(&output).map(Some).map_err(PodmanError::Output),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until a container has ended.
    pub(crate) async fn ended(&self, name: &str) -> Result<Exit, PodmanError> {
        loop {
            match self.state(name).await? {
                Some(ContainerState::Ended(exit)) => return Ok(exit),
                Some(ContainerState::Running { pid, .. }) => ExitWatch::of(pid).exited().await,
                // It is being stopped, or its process has ended and podman has not recorded it yet.
                Some(ContainerState::Created | ContainerState::Changing) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                None => return Err(PodmanError::Gone(name.to_owned())),
            }
        }
    }

    /// Asks a container to end, and kills it after the grace.
    pub(crate) async fn stop(&self, name: &str, grace: Duration) -> Result<(), PodmanError> {
        let time = format!("--time={}", grace.as_secs());
        match self.run(&["stop", "--ignore", &time, "--", name], None, grace + QUICK).await {
            Err(error) if !error.is_missing() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Removes a container with its files, killing what runs there.
    pub(crate) async fn remove(&self, name: &str) -> Result<(), PodmanError> {
        if self.state(name).await?.is_none() {
            return Ok(());
        }
        self.stop(name, Duration::ZERO).await?;
        // podman gives up on folders that a guest nested deeply, and then on its whole store.
        let format = "--format={{index .GraphDriver.Data \"UpperDir\"}}";
        let upper = self.run(&["container", "inspect", format, "--", name], None, QUICK).await?;
        let upper = PathBuf::from(first_line(&upper));
        if upper.starts_with(self.store.root()) {
            remove_tree(&upper).await?;
        }
        self.run(&["rm", "--force", "--ignore", "--time=0", "--volumes", "--", name], None, QUICK).await.map(drop)
    }

    /// Containers of a pod, by its uid.
    pub(crate) async fn containers_of(&self, uid: &str) -> Result<Vec<String>, PodmanError> {
        let all = self.list().await?;
        Ok(all.into_iter().filter(|(_, pod)| pod == uid).map(|(name, _)| name).collect())
    }

    /// Names of all secrets.
    pub(crate) async fn secrets(&self) -> Result<Vec<String>, PodmanError> {
        let listed = self.run(&["secret", "ls", "--format={{.Name}}"], None, QUICK).await?;
        Ok(String::from_utf8_lossy(&listed).lines().map(|line| line.trim().to_owned()).collect())
    }

    /// Names of this agent's containers, each with the uid of its pod.
    pub(crate) async fn list(&self) -> Result<Vec<(String, String)>, PodmanError> {
        let filter = format!("--filter=label={POD_LABEL}");
        let output = self.run(&["ps", "--all", "--no-trunc", "--format=json", &filter], None, QUICK).await?;
        let listed: Value = serde_json::from_slice(&output).map_err(|error| PodmanError::Output(error.to_string()))?;
        let one = |container: &Value| {
            let name = container["Names"][0].as_str()?;
            Some((name.to_owned(), container["Labels"][POD_LABEL].as_str()?.to_owned()))
        };
        Ok(listed.as_array().into_iter().flatten().filter_map(one).collect())
    }

    /// Keeps a value that a container gets in a variable: command lines are readable by all users of the host.
    pub(crate) async fn put_secret(&self, name: &str, value: &str) -> Result<(), PodmanError> {
        self.remove_secret(name).await?;
        self.run(&["secret", "create", "--", name, "-"], Some(value.as_bytes()), QUICK).await.map(drop)
    }

    /// Forgets a value.
    pub(crate) async fn remove_secret(&self, name: &str) -> Result<(), PodmanError> {
        match self.run(&["secret", "rm", "--", name], None, QUICK).await {
            Err(error) if !error.is_missing() => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// What a container has written, as podman writes it. The process ends when the stream is dropped.
    pub(crate) fn logs(&self, name: &str, options: &LogOptions) -> Result<LogStream, PodmanError> {
        let (reader, writer) = io::pipe().map_err(PodmanError::Pipe)?;
        let again = writer.try_clone().map_err(PodmanError::Pipe)?;
        let mut command = self.command(&[]);
        command.args(options.arguments(name)).stdout(writer).stderr(again);
        let child = command.spawn().map_err(|error| self.not_run(error))?;
        // The command holds the other end, too: without this the pipe never ends.
        drop(command);
        let output = pipe::Receiver::from_owned_fd(reader.into()).map_err(PodmanError::Pipe)?;
        Ok(LogStream { output, _child: child })
    }

    /// A command in a running container, to be started. podman lets it run on when it is killed itself, so nothing does.
    pub(crate) fn exec(&self, name: &str, options: &ExecOptions) -> Command {
        let mut command = self.command(&[]);
        command.args(options.arguments(name)).kill_on_drop(false);
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::from(self.store.command());
        command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    fn not_run(&self, error: io::Error) -> PodmanError {
        if error.kind() == io::ErrorKind::NotFound {
            return PodmanError::Missing(self.store.program().to_owned());
        }
        PodmanError::NotRun(error)
    }

    async fn run(&self, arguments: &[&str], input: Option<&[u8]>, limit: Duration) -> Result<Vec<u8>, PodmanError> {
        let mut command = self.command(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command.spawn().map_err(|error| self.not_run(error))?;
        let operation = || arguments.iter().take(2).copied().collect::<Vec<_>>().join(" ");
        let work = async {
            if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
                stdin.write_all(input).await?;
            }
            child.wait_with_output().await
        };
        let output = tokio::time::timeout(limit, work).await;
        let output = output.map_err(|_| PodmanError::TimedOut { operation: operation(), limit })?;
        let mut output = output.map_err(PodmanError::NotRun)?;
        if output.status.success() {
            output.stdout.truncate(MAX_OUTPUT);
            return Ok(output.stdout);
        }
        Err(PodmanError::failed(operation(), &output.stderr))
    }
}

/// The log of a container.
pub(crate) struct LogStream {
    pub(crate) output: pipe::Receiver,
    /// Killed when dropped.
    _child: Child,
}

/// Removes a folder that a guest filled. A program of its own: however deep the folder is, it does not end the agent.
pub(crate) async fn remove_tree(folder: &Path) -> Result<(), PodmanError> {
    let mut command = Command::new("rm");
    command.args(["-rf", "--one-file-system", "--"]).arg(folder).stdin(Stdio::null()).stdout(Stdio::null());
    let output = command.stderr(Stdio::piped()).kill_on_drop(true).output().await.map_err(PodmanError::NotRun)?;
    if output.status.success() {
        return Ok(());
    }
    Err(PodmanError::failed("rm".to_owned(), &output.stderr))
}

fn first_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().next().unwrap_or_default().trim().to_owned()
}
