//! Where a lease's kubeconfig is read from.

use std::path::PathBuf;

use clap::Args;
use comity_runtime::SecretString;
use comity_types::Delivery;

use super::{get_lease, local_api, secret};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::session::Session;
use crate::views::Known;

/// The flags that say where kubeconfigs are.
#[derive(Debug, Args)]
pub struct KubeconfigSource {
    /// Socket of the origin's agent [default: the context's]
    #[arg(long, value_name = "SOCKET", env = "COMITY_AGENT")]
    agent: Option<PathBuf>,
    /// Kubeconfig of the origin, to read the Secret from it
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

impl KubeconfigSource {
    /// Fails if neither the flags nor the context name a source, or nothing is there.
    ///
    /// # Errors
    /// [`Failure`]: none is named (exit code 2), no such file (64), or no agent listens (5).
    pub(crate) fn check(&self, session: &Session) -> Result<(), Failure> {
        match (&self.kubeconfig, self.socket(session)?) {
            (Some(origin), _) if !origin.is_file() => Err(Failure::configuration("there is no such file")
                .field("--kubeconfig", origin.display())
                .remedy("give a kubeconfig of the lease's origin")),
            (Some(_), _) => Ok(()),
            (None, Some(socket)) => local_api::check(&socket),
            (None, None) => Err(unnamed()),
        }
    }

    /// Gets the kubeconfig of a lease.
    ///
    /// # Errors
    /// [`Failure`]: no source, the lease is not active or is a virtual node, or the source does not have it.
    pub(crate) async fn fetch(&self, session: &Session, lease: &str) -> Result<SecretString, Failure> {
        let Some(origin) = &self.kubeconfig else {
            let socket = self.socket(session)?.ok_or_else(unnamed)?;
            return local_api::fetch_kubeconfig(&socket, lease).await;
        };
        let lease = get_lease(session, lease).await?;
        if lease.delivery.is(Delivery::VirtualNode) {
            let reason = format!("{} is a virtual node in {} and has no kubeconfig", lease.id, lease.origin);
            return Err(Failure::new(Exit::Refused, "wrong-state", reason)
                .remedy(format!("'comity lease show {}' shows what its pods need", lease.id)));
        }
        if !matches!(lease.state, Known::Value(state) if state.is_in_force()) {
            let reason = format!("{} is {}; only an active lease has a kubeconfig", lease.id, lease.state);
            return Err(Failure::new(Exit::Refused, "wrong-state", reason)
                .remedy(format!("see 'comity lease show {}'", lease.id)));
        }
        secret::read(origin, &lease).await
    }

    fn socket(&self, session: &Session) -> Result<Option<PathBuf>, Failure> {
        match &self.agent {
            Some(socket) => Ok(Some(socket.clone())),
            None if self.kubeconfig.is_some() => Ok(None),
            None => Ok(session.context()?.and_then(|context| context.agent)),
        }
    }
}

fn unnamed() -> Failure {
    Failure::usage("neither an agent nor a kubeconfig of the origin is given").remedy(
        "give --agent SOCKET (COMITY_AGENT) or --kubeconfig FILE; a context keeps the socket that 'comity login' or 'comity \
         context add' got",
    )
}
