//! `comity run`: borrows GPUs for as long as one command runs.
//!
//! ```text
//!   folder ─▶ WorkFolder ──────── tar ───────▶ /workspace of the pod ── files that changed ─▶ results
//!   flags ──▶ BorrowedLease ─ kubeconfig ─▶ Remote ─▶ pod ─▶ log, exit code
//!   signals ─▶ the command; a second one ends the run
//! ```
//!
//! The lease has a short term and is renewed meanwhile, so that nothing is held for long if this process dies.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::config::Kubeconfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

mod borrowed_lease;
mod env_arg;
mod exec;
mod log_position;
mod ports;
mod remote;
mod results;
mod run_plan;
mod run_pod;
mod scripts;
mod signals;
mod terminal;
mod transfer;
mod work_folder;

use self::borrowed_lease::BorrowedLease;
use self::env_arg::parse_env;
use self::ports::{ForwardedPort, parse_port};
use self::remote::Remote;
use self::run_plan::RunPlan;
use self::run_pod::{POD, Work};
use self::signals::{Caught, Signals};
use self::work_folder::WorkFolder;
use super::read_spec::read_spec;
use super::spec_args::SpecArgs;
use crate::commands::lease::{KubeconfigSource, kube_client};
use crate::exit::Success;
use crate::failure::Failure;
use crate::output::note;
use crate::session::{Session, call, idempotency_key};
use crate::units::{DurationBounds, parse_bytes};
use crate::views::{Lease, Request};

const RUN_EXAMPLES: &str = "\
Examples:
  comity run --tenant poly-ml --origin polytech-campus --class midrange \\
      --image docker.io/pytorch/pytorch:2.9.1 -- python train.py
  comity run -f request.yaml --image IMAGE --interactive

--help shows all flags, and what happens to files, signals and the lease.
";

const MORE_RUN_EXAMPLES: &str = "\
Examples:
  comity run --tenant poly-ml --origin polytech-campus --class midrange --gpus 0.25 \\
      --cpu-per-gpu 8 --memory-per-gpu 32Gi \\
      --image docker.io/pytorch/pytorch:2.9.1 -- python train.py
  comity run --tenant poly-ml --origin polytech-campus --class frontier \\
      --image docker.io/library/python:3.13 --interactive
  comity run -f request.yaml --image IMAGE --dry-run -- python train.py    show what would happen

It sends this folder, without what .gitignore and .comityignore exclude, runs the command in it, prints
its output, and brings back the files that the command wrote. The exit code is the command's; 125 if
comity could not run it to its end. Ctrl-C goes to the command; a second one stops the run.

The lease is renewed while the command runs. If this client dies, it ends within its term: 40s, unless
--duration is given.
";

const RUN: &str = "Run";
const FILES: &str = "Files";
/// Term of the lease: how long it may outlive a client that dies.
const TERM_MS: u64 = 40_000;
/// Interval at which the lease's credential is read again. It holds for minutes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the rest of the output once the container has ended.
const LAST_OUTPUT: Duration = Duration::from_secs(60);
/// Pause before looking for the command's end again after the connection broke.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// `comity run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES, after_long_help = MORE_RUN_EXAMPLES)]
pub struct RunArgs {
    /// Image of the container; it needs sh, tar and find
    #[arg(long, env = "COMITY_IMAGE", help_heading = RUN)]
    image: String,
    /// Variable: EPOCHS=3, or EPOCHS for its value here
    #[arg(long, value_name = "NAME[=VALUE]", value_parser = parse_env, help_heading = RUN)]
    env: Vec<(String, String)>,
    /// User number of the command in its container; leases admit no root
    #[arg(long, value_name = "UID", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..),
        help_heading = RUN, hide_short_help = true)]
    user: u32,
    /// Connect this terminal to the command, or to a shell
    #[arg(short, long, help_heading = RUN)]
    interactive: bool,
    /// Forward a port to the command, as in 8080:8000
    #[arg(long = "port", value_name = "HERE[:THERE]", value_parser = parse_port, help_heading = RUN)]
    ports: Vec<ForwardedPort>,
    /// Wait for the lease no longer
    #[arg(long, default_value = "10m", value_parser = DurationBounds::WAIT.parser(), allow_hyphen_values = true,
        value_name = "DURATION", help_heading = RUN)]
    timeout: u64,
    /// Wait even if no donor could ever serve the request as things are
    #[arg(long, help_heading = RUN, hide_short_help = true)]
    queue_anyway: bool,
    /// Show request and files, and change nothing
    #[arg(long, help_heading = RUN)]
    dry_run: bool,
    /// Folder that is sent
    #[arg(long, value_name = "DIR", default_value = ".", help_heading = FILES)]
    folder: PathBuf,
    /// Send no folder
    #[arg(long, help_heading = FILES)]
    no_upload: bool,
    /// Most bytes that are sent
    #[arg(long, value_name = "SIZE", default_value = "1Gi", value_parser = parse_bytes, help_heading = FILES,
        hide_short_help = true)]
    max_upload: u64,
    /// Folder for what it wrote [default: the one sent]
    #[arg(long, value_name = "DIR", help_heading = FILES)]
    results: Option<PathBuf>,
    /// Fetch no files
    #[arg(long, conflicts_with = "results", help_heading = FILES)]
    no_results: bool,
    /// Most bytes that are fetched
    #[arg(long, value_name = "SIZE", default_value = "10Gi", value_parser = parse_bytes, help_heading = FILES,
        hide_short_help = true)]
    max_results: u64,
    #[command(flatten)]
    kubeconfig: KubeconfigSource,
    #[command(flatten)]
    spec: SpecArgs,
    /// Command and its arguments, last; -- before it is good style
    #[arg(trailing_var_arg = true, value_name = "COMMAND", required_unless_present = "interactive")]
    command: Vec<String>,
}

/// What a run takes from this machine.
struct Taken {
    folder: Option<WorkFolder>,
    listeners: Vec<(TcpListener, ForwardedPort)>,
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
            false => Some(WorkFolder::collect(&self.folder, self.max_upload)?),
        };
        if self.dry_run {
            return self.plan(session, spec, folder).await.map(|()| Success::Done);
        }
        self.kubeconfig.check(session)?;
        self.make_results_folder()?;
        let listeners = ports::listen(&self.ports).await?;
        let mut signals = Signals::listen()?;
        let limit = Duration::from_millis(self.timeout);
        let borrowed = BorrowedLease::borrow(session, self.submission(spec), limit, &mut signals).await;
        let borrowed = borrowed.map_err(|failure| failure.written_in(self.spec.written_in()))?;
        let done = self.on_lease(session, &borrowed, Taken { folder, listeners }, &mut signals).await;
        borrowed.give_back(&mut signals).await;
        done.map(|code| Success::Command(exit_byte(code)))
    }

    fn submission(&self, spec: v1::RequestSpec) -> v1::SubmitRequestRequest {
        v1::SubmitRequestRequest {
            spec: Some(spec),
            idempotency_key: idempotency_key(None),
            dry_run: false,
            queue_anyway: self.queue_anyway,
        }
    }

    /// Where results go.
    fn results_folder(&self) -> &Path {
        let here = if self.no_upload { Path::new(".") } else { self.folder.as_path() };
        self.results.as_deref().unwrap_or(here)
    }

    /// Makes the folder for results, rather than after the command.
    fn make_results_folder(&self) -> Result<(), Failure> {
        if self.no_results {
            return Ok(());
        }
        let folder = self.results_folder();
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::usage(format!("the folder for results cannot be used: {error}"))
                .field("--results", folder.display())
                .remedy("give another folder, or --no-results")
        })
    }

    /// Has the broker check the request, and prints what would happen.
    async fn plan(&self, session: &Session, spec: v1::RequestSpec, folder: Option<WorkFolder>) -> Result<(), Failure> {
        let term_ms = spec.duration_ms;
        let submit = v1::SubmitRequestRequest { dry_run: true, ..self.submission(spec) };
        let checked = call(RequestServiceClient::new(session.channel()?).submit_request(submit)).await;
        let checked = checked.map_err(|failure| failure.written_in(self.spec.written_in()))?;
        for warning in &checked.warnings {
            note(&format!("warning: {warning}"));
        }
        let (files, bytes) = folder.as_ref().map_or((Vec::new(), 0), |folder| (folder.names(), folder.bytes));
        let left_out = folder.map(|folder| folder.left_out).unwrap_or_default();
        let request = Request::from(checked.request.unwrap_or_default());
        session.print(&RunPlan {
            image: self.image.clone(),
            command: self.words(),
            term_ms,
            files,
            bytes,
            left_out,
            request,
        })
    }

    /// The request, for one container on one node.
    fn one_container(&self) -> Result<v1::RequestSpec, Failure> {
        let mut spec = read_spec(&self.spec)?;
        let several = [
            (self.spec.named("--members", "members"), spec.members.is_some()),
            (self.spec.named("--spread-donors", "spreadDonors"), spec.spread_donors),
            (
                self.spec.named("--spread-nodes", "topology.spreadNodes"),
                spec.topology.as_ref().is_some_and(|topology| topology.spread_nodes),
            ),
        ];
        if let Some((field, _)) = several.into_iter().find(|(_, is_set)| *is_set) {
            return Err(Failure::usage("a run is one container on one node")
                .field(field, "")
                .remedy(format!("leave out {field}; 'comity request submit' takes it")));
        }
        if spec.delivery() == v1::Delivery::VirtualNode {
            let field = self.spec.named("--delivery", "delivery");
            return Err(Failure::usage("a run needs a kubeconfig, which a virtual node has not")
                .field(field, "virtual-node")
                .remedy(format!("leave out {field}")));
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
        taken: Taken,
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
        let (tell, api) = watch::channel(signals.run_until(self.api(session, lease)).await?);
        let remote = Remote::new(api, Duration::from_millis(lease.term_ms));
        tokio::select! {
            done = self.in_pod(&remote, &pod, borrowed, taken, signals) => done,
            lost = borrowed.lost() => Err(lost),
            never = self.refresh(session, lease, &tell) => match never {},
        }
    }

    /// Reads the lease's credential again and again: it runs out, and the agent renews it.
    async fn refresh(&self, session: &Session, lease: &Lease, tell: &watch::Sender<Api<Pod>>) -> Infallible {
        loop {
            tokio::time::sleep(REFRESH_INTERVAL).await;
            if let Ok(api) = self.api(session, lease).await {
                tell.send_replace(api);
            }
        }
    }

    /// The lease's API at the donor, with its present credential.
    async fn api(&self, session: &Session, lease: &Lease) -> Result<Api<Pod>, Failure> {
        let kubeconfig = self.kubeconfig.fetch(session, &lease.id).await?;
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig.expose())
            .map_err(|error| Failure::refused("bad-kubeconfig", format!("the kubeconfig is unusable: {error}")))?;
        let client = kube_client(kubeconfig).await?;
        Ok(Api::namespaced(client, lease.donor_namespace.as_deref().unwrap_or_default()))
    }

    async fn in_pod(
        &self,
        remote: &Remote,
        pod: &Pod,
        borrowed: &BorrowedLease,
        Taken { folder, listeners }: Taken,
        signals: &mut Signals,
    ) -> Result<i32, Failure> {
        let start = async {
            remote.start(pod).await?;
            if let Some(folder) = folder {
                transfer::upload(remote, folder).await?;
            }
            remote.sh(scripts::BEGIN, POD).await
        };
        signals.run_until(start).await?;
        let _forwarding = ports::forward(listeners, remote);
        if self.interactive {
            let code = terminal::connect(remote, &self.words(), signals).await?;
            self.finish(remote, code, signals).await?;
            return Ok(code);
        }
        let printing = remote.clone();
        let mut log = JoinSet::new();
        log.spawn(async move { printing.print_log().await });
        let End { code, with_container } = attend(remote, borrowed, signals).await?;
        if with_container {
            note("warning: the container ended with the command, and its files are gone");
        } else {
            self.finish(remote, code, signals).await?;
        }
        // The log ends with the container.
        match signals.run_until(async { Ok(tokio::time::timeout(LAST_OUTPUT, log.join_next()).await) }).await? {
            Ok(Some(Ok(Err(failure)))) => note(&format!("warning: output is missing: {failure}")),
            Ok(_) => {}
            Err(_) => note("warning: the rest of the output did not come in time"),
        }
        Ok(code)
    }

    /// Fetches the results and lets the container end.
    async fn finish(&self, remote: &Remote, code: i32, signals: &mut Signals) -> Result<(), Failure> {
        let folder = self.results_folder();
        let finish = async {
            if !self.no_results {
                transfer::fetch(remote, folder, self.max_results).await?;
            }
            remote.sh(scripts::FINISH, POD).await
        };
        let finished = signals.run_until(finish).await;
        finished.map(drop).map_err(|failure| {
            let reason = format!("the command ended with {code}, but {}", failure.reason);
            Failure { reason, ..failure }
        })
    }
}

/// How the command ended.
struct End {
    code: i32,
    /// Its container ended, too: it was killed, for example because of its memory.
    with_container: bool,
}

/// Passes signals on to the command until it ends.
async fn attend(remote: &Remote, borrowed: &BorrowedLease, signals: &mut Signals) -> Result<End, Failure> {
    let mut end = Box::pin(command_end(remote));
    let (mut has_caught, mut is_reclaimed) = (false, false);
    let mut telling = JoinSet::new();
    let mut tell = |signal: Caught| {
        let remote = remote.clone();
        telling.spawn(async move {
            if let Err(failure) = remote.sh(scripts::SIGNAL, signal.name()).await {
                note(&format!("warning: the command did not get SIG{}: {failure}", signal.name()));
            }
        });
    };
    loop {
        tokio::select! {
            ended = &mut end => return ended,
            signal = signals.next() => {
                if has_caught {
                    return Err(signal.failure());
                }
                has_caught = true;
                note(&format!("SIG{} goes to the command; another signal stops the run at once", signal.name()));
                tell(signal);
            }
            why = borrowed.reclaimed(), if !is_reclaimed => {
                is_reclaimed = true;
                note(&format!("{} is being reclaimed: {why}; SIGTERM goes to the command", borrowed.lease.id));
                tell(Caught::Terminate);
            }
        }
    }
}

/// Waits until the command has ended.
async fn command_end(remote: &Remote) -> Result<End, Failure> {
    let mut is_told = false;
    loop {
        let failure = match remote.sh(scripts::AWAIT_END, POD).await.map(|printed| printed.trim().parse()) {
            Ok(Ok(code)) => return Ok(End { code, with_container: false }),
            // It still runs. A shell that answers at once does not keep this loop busy.
            Ok(Err(_)) => {
                tokio::time::sleep(RECONNECT_PAUSE / 10).await;
                continue;
            }
            Err(failure) => failure,
        };
        match remote.ended().await {
            Ok(Some(ended)) => {
                if !matches!(ended.reason.as_str(), "" | "Completed" | "Error") {
                    note(&format!("the container ended: {}", ended.reason));
                }
                return Ok(End { code: ended.code, with_container: true });
            }
            Ok(None) => {}
            // As long as the lease is renewed, the command goes on.
            Err(failure) if failure.is_passing() => {}
            Err(failure) => return Err(failure),
        }
        if !is_told {
            is_told = true;
            note(&format!("{failure}; the command goes on, and this client tries again"));
        }
        tokio::time::sleep(RECONNECT_PAUSE).await;
    }
}

/// A code as processes end with it.
fn exit_byte(code: i32) -> u8 {
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn flags_after_the_command_are_its_own() {
        let flags = ["run", "--tenant", "t", "--origin", "o", "--class", "c", "--image", "i"];
        let command = |more: &[&str]| {
            let line = Line::try_parse_from([&flags, more].concat());
            line.map(|line| line.run.command).map_err(|error| error.kind())
        };
        let words = Ok(["python", "train.py", "--gpus", "3"].map(str::to_owned).to_vec());
        assert_eq!(command(&["--", "python", "train.py", "--gpus", "3"]), words);
        assert_eq!(command(&["python", "train.py", "--gpus", "3"]), words);
        assert_eq!(command(&["--interactive"]), Ok(Vec::new()));
        assert_eq!(command(&[]), Err(clap::error::ErrorKind::MissingRequiredArgument));
        assert_eq!(command(&["--misspelt", "python"]), Err(clap::error::ErrorKind::UnknownArgument));
    }

    #[test]
    fn a_run_is_one_container() {
        let spec = |more: &[&str]| {
            let flags = ["run", "--tenant", "t", "--origin", "o", "--class", "c", "--image", "i"];
            Line::parse_from([&flags, more, &["true"]].concat()).run.one_container()
        };
        let of_run = spec(&[]).expect("good");
        assert_eq!((of_run.duration_ms, of_run.delivery()), (TERM_MS, v1::Delivery::Namespace));
        assert!(of_run.topology.is_some_and(|topology| topology.same_node));
        assert_eq!(spec(&["--duration", "10m"]).expect("good").duration_ms, 600_000);
        for (flags, named) in [
            (&["--members", "2"][..], "--members"),
            (&["--spread-nodes"], "--spread-nodes"),
            (&["--delivery", "virtual-node", "--namespace", "lab"], "--delivery"),
        ] {
            assert_eq!(spec(flags).expect_err("refused").field, named);
        }
    }
}
