//! Prints commands to try while the federation runs.

use comity_runtime::atomic_file::{self, PRIVATE};

use super::demonstration::LeaseInUse;
use super::dev_context::{self, DevContext};
use super::federation::Federation;
use super::inventories::{DONOR, NAMES, ORIGIN};
use super::kubernetes_clusters::KubernetesClusters;
use super::timeline::Timeline;
use crate::failure::Failure;
use crate::output::write_stdout;

/// Prints the commands for people, or the steps so far for scripts.
pub(super) fn show(
    federation: &Federation,
    clusters: Option<&KubernetesClusters>,
    used: &LeaseInUse,
    context: Option<&DevContext>,
    timeline: &Timeline,
) -> Result<(), Failure> {
    if timeline.format().is_for_scripts() {
        return write_stdout(&timeline.outcome(None)?);
    }
    let lease = &used.lease.id;
    let file = federation.home.join(format!("{lease}.kubeconfig"));
    atomic_file::write(&file, used.kubeconfig.expose().as_bytes(), PRIVATE)
        .map_err(|error| Failure::configuration(error.to_string()))?;
    let socket = federation.agent_socket(ORIGIN).unwrap_or_default();
    let mut text = format!(
        "
The federation runs until Ctrl-C. In another shell, as alice of the tenant poly-ml:

{selection}
  comity offers
  comity lease show {lease}
  comity quote --tenant poly-ml --origin {ORIGIN} --class frontier --gpus 2 --duration 2h
  comity request submit --tenant poly-ml --origin {ORIGIN} --class midrange --gpus 1 --wait
  comity lease kubeconfig {lease}
  comity lease release {lease}

As ingrid, who maintains the federation:

  comity --identity {maintainer} cluster list
  comity --identity {maintainer} raft status
",
        selection = dev_context::selection(federation, &socket, context),
        maintainer = federation.maintainer.display(),
    );
    text.push_str(&match clusters {
        None => "
These clusters have no Kubernetes, and run nothing: the lease shows its quota.
For real API servers, run: comity dev --kubernetes
"
        .to_owned(),
        Some(clusters) => {
            let paths: String = NAMES
                .iter()
                .filter_map(|name| Some(format!("  {name:<16} {}\n", clusters.kubeconfig(name)?.display())))
                .collect();
            format!(
                "
Administrators' kubeconfigs:
{paths}
  kubectl --kubeconfig {tenant} get resourcequota,pods               as the tenant, through the tunnel
  kubectl --kubeconfig {donor} get namespaces -l comity.dev/lease    as the donor's administrator
",
                tenant = file.display(),
                donor = clusters.kubeconfig(DONOR).unwrap_or(&file).display(),
            )
        }
    });
    timeline.print(&text);
    Ok(())
}
