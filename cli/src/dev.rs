//! `comity dev`: a whole federation on one machine, in this process.
//!
//! Three brokers and four agents, over real mTLS, Raft, policy, handshake, sealed credentials and tunnels. What is not
//! real says so: on clusters without Kubernetes the donor serves a small echo API in place of a kube-apiserver.
//! With `--kubernetes` the API servers are real too.

mod brokers;
mod echo_workload;
mod federation;
mod guide;
mod home;
mod institutions;
mod interrupt;
mod kubernetes_clusters;
mod member;
mod pod_workload;
mod story;
mod timeline;

use std::path::PathBuf;

use clap::Args;

use crate::failure::Failure;
use crate::output::{Format, write_stdout};
use crate::session::Session;

use federation::Federation;
use home::Home;
use interrupt::Interrupt;
use kubernetes_clusters::KubernetesClusters;
use timeline::Timeline;

const EXAMPLES: &str = "\
Examples:
  comity dev                               starts, shows one lease, and runs until Ctrl-C
  comity dev --once                        the whole story, then exits; the time of each step
  comity dev --once -o json                the same as one JSON object
  comity dev --state ~/comity-dev          keeps its state for the next start
  comity dev --kubernetes                  two real Kubernetes control planes in place of the echo API
  comity dev --kubernetes --kubeconfig origin.kubeconfig --kubeconfig donor.kubeconfig

Needs no root and nothing to install; --kubernetes gets the Kubernetes programs as the tests do (see the README).
Ctrl-C ends everything that it started and leaves nothing behind; a second Ctrl-C ends at once.
";

/// `comity dev`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DevArgs {
    /// Run the whole story (submit, placed, connected, used, released), then exit
    #[arg(long)]
    once: bool,
    /// Keep the state in this directory for the next start [default: a temporary one, removed at the end]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Use real Kubernetes control planes
    #[arg(long)]
    kubernetes: bool,
    /// With --kubernetes: use clusters that exist, the origin first, then one to three donors
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    kubeconfig: Vec<PathBuf>,
}

impl DevArgs {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`]: a step did not succeed, or the state directory cannot be used.
    pub(crate) async fn run(&self, session: &Session) -> Result<(), Failure> {
        if self.kubeconfig.len() == 1 || self.kubeconfig.len() > member::NAMES.len() {
            return Err(Failure::usage(format!("{} kubeconfigs are given", self.kubeconfig.len()))
                .field("--kubeconfig", self.kubeconfig.len())
                .remedy("give the origin's first, then those of one to three donors"));
        }
        let home = Home::open(self.state.as_deref())?;
        let interrupt = Interrupt::listen(home.path_to_remove())?;
        let mut timeline = Timeline::new(session.format);
        let told = self.tell(&home, &mut timeline, &interrupt).await;
        home.close()?;
        if session.format != Format::Table && (self.once || told.is_err()) {
            write_stdout(&timeline.outcome(told.as_ref().err())?)?;
        }
        told
    }

    async fn tell(&self, home: &Home, timeline: &mut Timeline, interrupt: &Interrupt) -> Result<(), Failure> {
        let clusters = if self.kubernetes {
            Some(interrupt.or(KubernetesClusters::start(home, &self.kubeconfig, timeline)).await?)
        } else {
            None
        };
        let told = self.with_clusters(home, clusters.as_ref(), timeline, interrupt).await;
        if let Some(clusters) = clusters {
            clusters.stop().await?;
        }
        told
    }

    async fn with_clusters(
        &self,
        home: &Home,
        clusters: Option<&KubernetesClusters>,
        timeline: &mut Timeline,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let federation = interrupt.or(Federation::start(home, clusters, timeline)).await?;
        let told = async {
            let lease = interrupt.or(story::until_used(&federation, clusters, timeline)).await?;
            if self.once {
                return interrupt.or(story::release(&federation, clusters, &lease, timeline)).await;
            }
            guide::show(&federation, clusters, &lease, timeline)?;
            interrupt.triggered().await;
            timeline.note("stopping; Ctrl-C once more to stop at once");
            Ok(())
        }
        .await;
        federation.stop().await;
        told
    }
}
