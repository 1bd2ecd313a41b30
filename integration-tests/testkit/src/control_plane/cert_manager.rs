//! cert-manager beside a [`ControlPlane`]: its controller, and the controllers of a later version's cainjector, which run
//! on this machine and not in pods. Its webhook, which checks and completes objects, does not run.

use crate::binaries::Binaries;
use crate::control_plane::ControlPlane;
use crate::daemon::{Daemon, DaemonSpec};
use crate::kubectl::KubectlError;

/// Namespace of the Secrets of ClusterIssuers.
const NAMESPACE: &str = "cert-manager";

/// Why cert-manager does not run.
#[derive(Debug, thiserror::Error)]
pub enum CertManagerError {
    /// The API server refused an object.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// A program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// The program.
        program: &'static str,
        /// The cause.
        #[source]
        source: std::io::Error,
    },
}

/// A running cert-manager. Dropping it kills its programs; its objects stay in the cluster.
#[derive(Debug)]
pub struct CertManager {
    daemons: [Daemon; 2],
}

impl CertManager {
    /// Installs the CustomResourceDefinitions and starts the programs, without waiting until they work.
    ///
    /// # Errors
    /// [`CertManagerError`].
    pub async fn start(binaries: &Binaries, plane: &ControlPlane) -> Result<Self, CertManagerError> {
        let definitions = binaries.program("cert-manager-crds.yaml").display().to_string();
        plane.kubectl(&["apply", "--server-side", "-f", &definitions]).await?;
        let established = ["wait", "--for=condition=Established", "--timeout=60s", "-f", &definitions];
        plane.kubectl(&established).await?;
        plane.kubectl(&["create", "namespace", NAMESPACE]).await?;
        let resources = format!("--cluster-resource-namespace={NAMESPACE}");
        let kubeconfig = format!("--kubeconfig={}", plane.admin_kubeconfig_path().display());
        let controller = ["--leader-elect=false", "--metrics-listen-address=127.0.0.1:0", &resources, &kubeconfig];
        let controller = start(binaries, plane, "cert-manager-controller", &controller)?;
        let cainjector = start(binaries, plane, "cert-manager-cainjector", &[])?;
        Ok(Self { daemons: [controller, cainjector] })
    }

    /// The ends of its logs, for error messages.
    #[must_use]
    pub fn logs(&self) -> String {
        let logs = self.daemons.iter().map(|daemon| format!("\n--- {}\n{}", daemon.name(), daemon.log_tail()));
        logs.collect()
    }
}

fn start(
    binaries: &Binaries,
    plane: &ControlPlane,
    name: &'static str,
    args: &[&str],
) -> Result<Daemon, CertManagerError> {
    Daemon::start(DaemonSpec {
        name,
        program: binaries.program(name),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        env: vec![("KUBECONFIG", plane.admin_kubeconfig_path())],
        log: plane.log_dir().join(format!("{name}.log")),
        pid_file: plane.run_dir().join(format!("{name}.pid")),
    })
    .map_err(|source| CertManagerError::Start { program: name, source })
}
