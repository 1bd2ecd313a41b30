//! `comity run`: borrows GPUs for as long as one command runs.
//!
//! ```text
//!   folder ─▶ WorkFolder ──────── tar ───────▶ /workspace of the pod ── files that changed ─▶ results
//!   flags ──▶ BorrowedLease ─ kubeconfig ─▶ Remote ─▶ pod ─▶ log, exit code
//!   signals ─▶ the command; a second one ends the run
//! ```
//!
//! The lease has a short term and is renewed meanwhile, so that nothing is held for long if this process dies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use clap::Args;
use comity_proto::v1;
use kube::api::AttachParams;
use kube::config::Kubeconfig;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::io::SyncIoBridge;

mod borrowed_lease;
mod env_arg;
mod log_position;
mod ports;
mod remote;
mod results;
mod run_pod;
mod signals;
mod terminal;
mod work_folder;

use self::borrowed_lease::BorrowedLease;
use self::env_arg::parse_env;
use self::ports::{ForwardedPort, parse_port};
use self::remote::Remote;
use self::run_pod::{CONTROL, WORK, Work};
use self::signals::{Caught, Signals};
use self::work_folder::WorkFolder;
use super::lease::{KubeconfigSource, kube_client};
use super::request::{DeliveryArg, SpecArgs, read_spec};
use crate::exit::Success;
use crate::failure::Failure;
use crate::output::{Answer, Sheet, fields, note};
use crate::session::Session;
use crate::units::{DurationBounds, counted, format_bytes, parse_memory_mib};

const RUN_EXAMPLES: &str = "\
Examples:
  comity run --tenant poly-ml --origin polytech-campus --class midrange --gpus 0.25 \\
      --image docker.io/pytorch/pytorch:2.9.1 -- python train.py
  comity run --tenant poly-ml --origin polytech-campus --class frontier \\
      --image docker.io/library/python:3.13 --interactive
  comity run -f request.yaml --image IMAGE --dry-run -- python train.py    show what would happen

It takes this folder along, without what .gitignore and .comityignore exclude, runs the command in it,
prints its output, and brings back the files that the command wrote. The exit code is the command's;
125 if comity could not run it to its end. Ctrl-C goes to the command; a second one stops the run.
";
const RUN: &str = "Run";
const FILES: &str = "Files";
/// Term of the lease: how long it may outlive a client that dies.
const TERM_MS: u64 = 40_000;
const MIB: u64 = 1 << 20;
/// Interval of progress on long transfers.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the rest of the output once the command has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(10);
/// Pause before looking for the command's end again after the connection broke.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// `comity run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// Image of the container; it needs sh, and tar and find to take files along
    #[arg(long, env = "COMITY_IMAGE", help_heading = RUN)]
    image: String,
    /// Environment variable of the command, as in EPOCHS=3, or EPOCHS alone for its value here (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = parse_env, help_heading = RUN)]
    env: Vec<(String, String)>,
    /// User number of the command in its container; leases admit no root
    #[arg(long, value_name = "UID", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..),
        help_heading = RUN, hide_short_help = true)]
    user: u32,
    /// Connect this terminal to the command; without a command, to a shell
    #[arg(short, long, help_heading = RUN)]
    interactive: bool,
    /// Port of this machine that leads to a port of the command, as in 6006, or 8080:80 for port 80 there (repeatable)
    #[arg(long = "port", value_name = "HERE[:THERE]", value_parser = parse_port, help_heading = RUN)]
    ports: Vec<ForwardedPort>,
    /// Stop waiting for the lease after this time; the request is cancelled then
    #[arg(long, default_value = "10m", value_parser = DurationBounds::WAIT.parser(), allow_hyphen_values = true,
        value_name = "DURATION", help_heading = RUN)]
    timeout: u64,
    /// Show the request and the files that would be taken along, and change nothing
    #[arg(long, help_heading = RUN)]
    dry_run: bool,
    /// Folder that is taken along
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = FILES)]
    folder: PathBuf,
    /// Take no folder along
    #[arg(long, help_heading = FILES)]
    no_upload: bool,
    /// Most bytes that are taken along
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = parse_memory_mib, help_heading = FILES,
        hide_short_help = true)]
    max_upload: u64,
    /// Folder for the files that the command wrote [default: the one that was taken along, else this one]
    #[arg(long, value_name = "DIR", help_heading = FILES)]
    results: Option<PathBuf>,
    /// Bring no files back
    #[arg(long, conflicts_with = "results", help_heading = FILES)]
    no_results: bool,
    /// Most bytes that are brought back
    #[arg(long, value_name = "SIZE", default_value = "10Gi", value_parser = parse_memory_mib, help_heading = FILES,
        hide_short_help = true)]
    max_results: u64,
    #[command(flatten)]
    kubeconfig: KubeconfigSource,
    #[command(flatten)]
    spec: SpecArgs,
    /// Command and its arguments, after --
    #[arg(last = true, value_name = "COMMAND", required_unless_present = "interactive")]
    command: Vec<String>,
}

/// What a run takes from this machine.
struct Taken {
    folder: Option<WorkFolder>,
    listeners: Vec<(TcpListener, ForwardedPort)>,
}

/// The answer of a dry run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    image: String,
    command: Vec<String>,
    term_ms: u64,
    /// Files that would be taken along, and their bytes.
    files: usize,
    bytes: u64,
}

impl Answer for Plan {
    fn table(&self, _now_ms: u64) -> Sheet {
        fields(&[
            ("Image", self.image.clone()),
            ("Command", self.command.join(" ")),
            ("Lease", format!("renewed while the command runs, every {} s at the latest", self.term_ms / 1_000)),
            ("Taken along", format!("{}, {}", counted(self.files as u64, "file", "files"), format_bytes(self.bytes))),
        ])
    }
}

impl RunArgs {
    /// Runs the command; ends with its exit code.
    ///
    /// # Errors
    /// [`Failure`] if it could not be run to its end.
    pub async fn run(&self, session: &Session) -> Result<Success, Failure> {
        let spec = self.one_container()?;
        let folder = match self.no_upload {
            true => None,
            false => Some(WorkFolder::collect(&self.folder, self.max_upload.saturating_mul(MIB))?),
        };
        if self.dry_run {
            let (files, bytes) = folder.map_or((0, 0), |folder| (folder.files, folder.bytes));
            let plan =
                Plan { image: self.image.clone(), command: self.words(), term_ms: spec.duration_ms, files, bytes };
            return session.print(&plan).map(|()| Success::Done);
        }
        self.kubeconfig.check(session)?;
        let listeners = ports::listen(&self.ports).await?;
        let mut signals = Signals::listen()?;
        let limit = Duration::from_millis(self.timeout);
        let borrowed = BorrowedLease::borrow(session, spec, limit, &mut signals).await?;
        let done = self.on_lease(session, &borrowed, Taken { folder, listeners }, &mut signals).await;
        borrowed.give_back().await;
        done.map(|code| Success::Command(exit_byte(code)))
    }

    /// The request, for one container on one node.
    fn one_container(&self) -> Result<v1::RequestSpec, Failure> {
        let mut spec = read_spec(&self.spec)?;
        let several = [
            ("--members", spec.members.is_some()),
            ("--spread-donors", spec.spread_donors),
            ("--spread-nodes", spec.topology.as_ref().is_some_and(|topology| topology.spread_nodes)),
        ];
        if let Some((flag, _)) = several.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage("a run is one container on one node")
                .field(flag, "")
                .remedy(format!("leave out {flag}; 'comity request submit' takes it")));
        }
        if self.spec.delivery == Some(DeliveryArg::VirtualNode) || spec.delivery() == v1::Delivery::VirtualNode {
            return Err(Failure::usage("a run needs a kubeconfig, which a virtual node has not")
                .field("--delivery", "virtual-node")
                .remedy("leave out --delivery"));
        }
        spec.delivery = v1::Delivery::Namespace.into();
        spec.topology.get_or_insert_default().same_node = true;
        if spec.duration_ms == 0 {
            spec.duration_ms = TERM_MS;
        }
        Ok(spec)
    }

    /// The command; a shell if there is none.
    fn words(&self) -> Vec<String> {
        if self.command.is_empty() { vec!["/bin/sh".to_owned()] } else { self.command.clone() }
    }

    /// Everything between the start of the lease and its end; returns the command's exit code.
    async fn on_lease(
        &self,
        session: &Session,
        borrowed: &BorrowedLease,
        Taken { folder, listeners }: Taken,
        signals: &mut Signals,
    ) -> Result<i32, Failure> {
        let lease = &borrowed.lease;
        let command = self.words();
        let work = Work {
            image: &self.image,
            command: &command,
            is_interactive: self.interactive,
            env: &self.env,
            user: self.user,
        };
        let pod = run_pod::manifest(&work, lease)?;
        let start = async {
            let kubeconfig = self.kubeconfig.fetch(session, &lease.id).await?;
            let kubeconfig = Kubeconfig::from_yaml(kubeconfig.expose())
                .map_err(|error| Failure::refused("bad-kubeconfig", format!("the kubeconfig is unusable: {error}")))?;
            let namespace = lease.donor_namespace.clone().unwrap_or_default();
            let remote = Remote::new(kube_client(kubeconfig).await?, &namespace);
            remote.start(&pod).await?;
            if let Some(folder) = folder {
                let age = SystemTime::now().duration_since(folder.newest).unwrap_or_default();
                upload(&remote, folder).await?;
                tokio::time::sleep(run_pod::SETTLED.saturating_sub(age)).await;
            }
            remote.sh(run_pod::BEGIN).await?;
            Ok(remote)
        };
        let remote = signals.run_until(start).await?;
        let _forwarding = ports::forward(listeners, &remote);
        let code = if self.interactive {
            terminal::connect(&remote, &command, signals).await?
        } else {
            attend(&remote, borrowed, signals).await?
        };
        if !self.no_results {
            signals.run_until(self.fetch_results(&remote)).await?;
        }
        Ok(code)
    }

    async fn fetch_results(&self, remote: &Remote) -> Result<(), Failure> {
        if remote.ended().await?.is_some() {
            note("warning: the container ended at once, and its files with it");
            return Ok(());
        }
        let here = if self.no_upload { Path::new(".") } else { self.folder.as_path() };
        let folder = self.results.as_deref().unwrap_or(here).to_owned();
        let most = self.max_results.saturating_mul(MIB);
        let script = format!("cd {WORK} && find . -type f -newer {CONTROL}/sent -exec tar -cf - {{}} +");
        let parameters = AttachParams::default().stdout(true).stderr(false).stdin(false);
        let mut process = remote.exec(&["/bin/sh", "-c", &script], parameters).await?;
        let stream = process.stdout().ok_or_else(|| Failure::unavailable("the command has no output"))?;
        let unpacked = tokio::task::spawn_blocking(move || {
            let stream = std::io::BufReader::with_capacity(remote::STREAM_BUFFER, SyncIoBridge::new(stream));
            results::unpack(stream, &folder, most).map(|fetched| (fetched, folder))
        });
        let unpacked = unpacked.await.map_err(|error| Failure::unavailable(error.to_string()))?;
        let (fetched, folder) = unpacked
            .map_err(|error| Failure::refused("results-failed", format!("the results were not fetched: {error}")))?;
        for refused in &fetched.refused {
            note(&format!("warning: not fetched: {refused}"));
        }
        if fetched.files > 0 {
            let files = counted(fetched.files, "file", "files");
            note(&format!("{files}, {}, fetched to {}", format_bytes(fetched.bytes), folder.display()));
        }
        match remote::exit_code(&mut process).await {
            Ok(0) => {}
            _ => note("warning: not all files could be listed; the image needs find and tar"),
        }
        remote.sh(&format!(": >{CONTROL}/done")).await.map(drop)
    }
}

/// Sends the folder to the container.
async fn upload(remote: &Remote, folder: WorkFolder) -> Result<(), Failure> {
    if folder.files == 0 {
        return Ok(());
    }
    let (files, all) = (counted(folder.files as u64, "file", "files"), format_bytes(folder.bytes));
    note(&format!("sending {files}, {all}"));
    let parameters = AttachParams::default().stdin(true).stdout(false).stderr(true);
    let mut process = remote.exec(&["tar", "-xf", "-", "-C", WORK], parameters).await?;
    let stream = process.stdin().ok_or_else(|| Failure::unavailable("the command has no input"))?;
    let errors = tokio::spawn(first_line(process.stderr()));
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let mut writing = tokio::task::spawn_blocking(move || {
        let mut stream = std::io::BufWriter::with_capacity(remote::STREAM_BUFFER, SyncIoBridge::new(stream));
        folder.write(&mut stream, &counter)?;
        // Ends tar's input.
        stream.get_mut().shutdown()
    });
    let mut progress = tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
    let written = loop {
        tokio::select! {
            written = &mut writing => break written.map_err(|error| Failure::unavailable(error.to_string()))?,
            _ = progress.tick() => note(&format!("sent {} of {all}", format_bytes(sent.load(Ordering::Relaxed)))),
        }
    };
    let code = remote::exit_code(&mut process).await;
    let why = errors.await.unwrap_or_default();
    match (written, code) {
        (Ok(()), Ok(0)) => Ok(()),
        (Err(error), Ok(0) | Err(_)) => {
            Err(Failure::unavailable(format!("the folder was not sent: {error}")).remedy("run it again"))
        }
        (_, Ok(code)) => {
            let reason = format!("tar in the container ended with {code}: {why}");
            Err(Failure::refused("upload-failed", reason).remedy("the image needs tar; --no-upload sends no files"))
        }
        (Ok(()), Err(failure)) => Err(failure.remedy("the image needs tar; --no-upload sends no files")),
    }
}

/// The first line of a command's errors.
async fn first_line(stream: Option<impl tokio::io::AsyncRead + Unpin>) -> String {
    use tokio::io::AsyncReadExt as _;
    let mut text = Vec::new();
    if let Some(stream) = stream {
        _ = stream.take(remote::STREAM_BUFFER as u64).read_to_end(&mut text).await;
    }
    String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned()
}

/// Prints the output of the command and passes signals on until it ends; returns its exit code.
async fn attend(remote: &Remote, borrowed: &BorrowedLease, signals: &mut Signals) -> Result<i32, Failure> {
    let printing = remote.clone();
    let mut log = tokio::spawn(async move { printing.print_log().await });
    let mut end = Box::pin(command_end(remote));
    let mut caught: Option<Caught> = None;
    let (code, has_ended) = loop {
        tokio::select! {
            ended = &mut end => break ended?,
            failure = borrowed.lost() => {
                return Err(Failure::refused("lease-lost", format!("{} ended: {failure}", borrowed.lease.id))
                    .remedy(format!("see 'comity lease show {}'", borrowed.lease.id)));
            }
            signal = signals.next() => {
                if caught.is_some() {
                    return Err(signal.failure());
                }
                caught = Some(signal);
                note(&format!("SIG{} goes to the command; another signal stops the run at once", signal.name()));
                let remote = remote.clone();
                tokio::spawn(async move {
                    let kill = format!("kill -s {} \"$(cat {CONTROL}/pid)\"", signal.name());
                    if let Err(failure) = remote.sh(&kill).await {
                        note(&format!("warning: the command did not get it: {failure}"));
                    }
                });
            }
        }
    };
    if has_ended {
        // The log ends with the container.
        _ = tokio::time::timeout(LAST_OUTPUT, &mut log).await;
    } else {
        // What was written before the end is on its way.
        _ = tokio::time::timeout(Duration::from_millis(500), &mut log).await;
    }
    log.abort();
    Ok(code)
}

/// Waits until the command has ended; its exit code, and whether its container has ended, too.
async fn command_end(remote: &Remote) -> Result<(i32, bool), Failure> {
    loop {
        let asked = remote.sh(run_pod::AWAIT_END).await;
        if let Ok(Ok(code)) = asked.as_deref().map(|printed| printed.trim().parse()) {
            return Ok((code, false));
        }
        if let Some(ended) = remote.ended().await? {
            if !matches!(ended.reason.as_str(), "" | "Completed" | "Error") {
                note(&format!("the container ended: {}", ended.reason));
            }
            return Ok((ended.code, true));
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// A code as processes end with it.
fn exit_byte(code: i32) -> u8 {
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}
