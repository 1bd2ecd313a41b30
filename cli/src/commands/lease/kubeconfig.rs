//! `comity lease kubeconfig`.

use std::path::PathBuf;

use clap::Args;
use comity_runtime::atomic_file::{self, PRIVATE};
use comity_types::{Delivery, printable};
use serde::Serialize;

use super::{local_api, secret};
use crate::commands::completions::known_ids;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Sheet, write_stdout};
use crate::session::Session;
use crate::views::Known;

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
    /// Unix socket of the origin's agent on this machine [default: the context's]
    #[arg(long, value_name = "SOCKET", env = "COMITY_AGENT")]
    agent: Option<PathBuf>,
    /// Kubeconfig of the origin, to read the Secret from it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
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
        let agent = match (&self.agent, &self.kubeconfig) {
            (None, None) => session.context()?.and_then(|context| context.agent),
            (given, _) => given.clone(),
        };
        let kubeconfig = match (&agent, &self.kubeconfig) {
            (_, Some(origin)) => {
                let lease = super::get_lease(session, &self.lease).await?;
                if lease.delivery.is(Delivery::VirtualNode) {
                    let reason = format!("{} is a virtual node in {} and has no kubeconfig", lease.id, lease.origin);
                    return Err(Failure::new(Exit::Refused, "wrong-state", reason)
                        .remedy(format!("'comity lease show {}' shows what its pods need", lease.id)));
                }
                if !matches!(lease.state, Known::Value(state) if state.is_in_force()) {
                    return Err(Failure::new(
                        Exit::Refused,
                        "wrong-state",
                        format!("{} is {}; only an active lease has a kubeconfig", lease.id, lease.state),
                    )
                    .remedy(format!("see 'comity lease show {}'", lease.id)));
                }
                secret::read(origin, &lease).await?
            }
            (Some(socket), None) => local_api::fetch_kubeconfig(socket, &self.lease).await?,
            (None, None) => {
                return Err(Failure::usage("neither an agent nor a kubeconfig of the origin is given").remedy(
                    "give --agent SOCKET (COMITY_AGENT) or --kubeconfig FILE; a context keeps the socket that 'comity \
                         login' or 'comity context add' got",
                ));
            }
        };
        let Some(file) = &self.output_file else {
            return write_stdout(&printable(kubeconfig.expose()));
        };
        atomic_file::write(file, kubeconfig.expose().as_bytes(), PRIVATE)
            .map_err(|error| Failure::configuration(error.to_string()).field("--output-file", file.display()))?;
        session.print(&Written { lease: self.lease.clone(), file: file.clone() })
    }
}
