//! `comity lease kubeconfig`.

use std::path::PathBuf;

use clap::Args;
use comity_runtime::atomic_file::{self, PRIVATE};
use comity_types::printable;
use serde::Serialize;

use super::KubeconfigSource;
use crate::commands::completions::known_ids;
use crate::failure::Failure;
use crate::output::{Answer, Sheet, write_stdout};
use crate::session::Session;

const KUBECONFIG_EXAMPLES: &str = "\
Examples:
  comity lease kubeconfig lease-7 --agent /var/lib/comity-agent/agent.sock > gpus.kubeconfig
  comity lease kubeconfig lease-7 --kubeconfig ~/.kube/config --output-file gpus.kubeconfig
  kubectl --kubeconfig gpus.kubeconfig get resourcequota

--agent asks your cluster's agent on this machine. --kubeconfig reads the Secret that the agent
wrote to your cluster. The kubeconfig holds a token: keep it secret. It works wherever the agent's
loopback port is reachable. A lease with delivery virtual-node has no kubeconfig: start its pods
on your own cluster.
";

/// `comity lease kubeconfig`.
#[derive(Debug, Args)]
#[command(after_help = KUBECONFIG_EXAMPLES)]
pub struct KubeconfigArgs {
    /// Lease, as in lease-7
    #[arg(add = known_ids::leases())]
    lease: String,
    #[command(flatten)]
    source: KubeconfigSource,
    /// Write to this file, readable only by you, instead of standard output
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
}

/// The answer after a file was written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    lease: String,
    file: PathBuf,
}

impl Answer for Written {
    fn table(&self, _now_ms: u64) -> Sheet {
        format!("{}: kubectl --kubeconfig {} get resourcequota", self.lease, self.file.display()).into()
    }
}

impl KubeconfigArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let kubeconfig = self.source.fetch(session, &self.lease).await?;
        let Some(file) = &self.output_file else {
            return write_stdout(&printable(kubeconfig.expose()));
        };
        atomic_file::write(file, kubeconfig.expose().as_bytes(), PRIVATE)
            .map_err(|error| Failure::configuration(error.to_string()).field("--output-file", file.display()))?;
        session.print(&Written { lease: self.lease.clone(), file: file.clone() })
    }
}
