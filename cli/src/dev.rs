//! `comity dev`: a whole federation in this process.
//!
//! Three brokers and four agents with real mTLS, Raft, policy, handshakes, sealed credentials and tunnels. Without
//! `--kubernetes`, the donor is a host without Kubernetes; with it, the API servers are real.

mod alice;
mod brokers;
mod demonstration;
mod dev_context;
mod federation;
mod guide;
mod home;
mod institutions;
mod interrupt;
mod inventories;
mod kubernetes_clusters;
mod lease_check;
mod member;
mod patience;
mod pod_workload;
mod timeline;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use comity_runtime::contexts::Contexts;
use comity_runtime::private_files::make_private_files_only;

use crate::failure::Failure;
use crate::output::write_stdout;
use crate::session::Session;

use dev_context::DevContext;
use federation::Federation;
use home::Home;
use interrupt::Interrupt;
use kubernetes_clusters::KubernetesClusters;
use timeline::Timeline;

/// Poll interval for changes that this process makes.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Poll interval for changes that Kubernetes makes.
const KUBERNETES_POLL_INTERVAL: Duration = Duration::from_millis(50);

const DEV_EXAMPLES: &str = "\
Examples:
  comity dev                               start, demonstrate one lease, run until Ctrl-C
  comity dev --once                        demonstrate one lease, print each step's time, exit
  comity dev --once -o json                print the same as one JSON object
  comity dev --add-context                 save its settings: comity context use dev
  comity dev --state ~/comity-dev          keep the state for the next start
  comity dev --kubernetes                  use two real Kubernetes control planes
  comity dev --kubernetes --kubeconfig origin.kubeconfig --kubeconfig donor.kubeconfig

Needs no root and no installation; --kubernetes gets the Kubernetes programs as the tests do (see
the README). Ctrl-C stops everything and leaves nothing behind; a second Ctrl-C stops at once.
";

/// `comity dev`.
#[derive(Debug, Args)]
#[command(after_help = DEV_EXAMPLES)]
pub struct DevArgs {
    /// Demonstrate one lease from submission to release, then exit
    #[arg(long)]
    once: bool,
    /// Keep the state in this directory for the next start [default: a temporary directory]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Save the context `dev` while the federation runs, in place of variables to export
    #[arg(long, conflicts_with = "once")]
    add_context: bool,
    /// Use real Kubernetes control planes
    #[arg(long)]
    kubernetes: bool,
    /// With --kubernetes: use existing clusters, first the origin, then one to three donors (repeatable)
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    kubeconfig: Vec<PathBuf>,
}

impl DevArgs {
    /// Runs the federation and the demonstration.
    ///
    /// # Errors
    /// [`Failure`]: a step failed, or the state directory cannot be used.
    pub(crate) async fn run(&self, session: &Session) -> Result<(), Failure> {
        if self.kubeconfig.len() == 1 || self.kubeconfig.len() > inventories::NAMES.len() {
            return Err(Failure::usage(format!(
                "{} kubeconfigs are given, but 2 to 4 are needed",
                self.kubeconfig.len()
            ))
            .field("--kubeconfig", self.kubeconfig.len())
            .remedy("give the origin's first, then those of one to three donors"));
        }
        // The data of its brokers are those of comity-broker, which refuses files that others can read.
        make_private_files_only();
        let contexts = if self.add_context { Some(session.contexts()?) } else { None };
        let home = Home::open(self.state.as_deref())?;
        let interrupt = Interrupt::listen(home.temporary_path())?;
        let mut timeline = Timeline::new(session.format);
        let outcome = self.run_in(&home, contexts, &mut timeline, &interrupt).await;
        home.close()?;
        if session.format.is_for_scripts() && (self.once || outcome.is_err()) {
            write_stdout(&timeline.outcome(outcome.as_ref().err())?)?;
        }
        outcome
    }

    async fn run_in(
        &self,
        home: &Home,
        contexts: Option<&Contexts>,
        timeline: &mut Timeline,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let clusters = if self.kubernetes {
            Some(interrupt.run_until(KubernetesClusters::start(home, &self.kubeconfig, timeline)).await?)
        } else {
            None
        };
        let outcome = self.run_with_clusters(home, clusters.as_ref(), contexts, timeline, interrupt).await;
        if let Some(clusters) = clusters {
            clusters.stop().await?;
        }
        outcome
    }

    async fn run_with_clusters(
        &self,
        home: &Home,
        clusters: Option<&KubernetesClusters>,
        contexts: Option<&Contexts>,
        timeline: &mut Timeline,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let federation = interrupt.run_until(Federation::start(home, clusters, timeline)).await?;
        let outcome = async {
            let lease = interrupt.run_until(demonstration::until_used(&federation, clusters, timeline)).await?;
            if self.once {
                return interrupt.run_until(demonstration::release(&federation, clusters, &lease, timeline)).await;
            }
            let context = contexts.map(|contexts| DevContext::save(contexts, &federation)).transpose()?;
            guide::show(&federation, clusters, &lease, context.as_ref(), timeline)?;
            interrupt.triggered().await;
            timeline.note("stopping; press Ctrl-C again to stop at once");
            Ok(())
        }
        .await;
        federation.stop().await;
        outcome
    }
}
