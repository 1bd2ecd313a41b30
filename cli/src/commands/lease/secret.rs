//! Reads a lease's kubeconfig from the Secret that the origin's agent writes.

use std::path::Path;

use comity_runtime::SecretString;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::views::Lease;

/// Key of the kubeconfig in the Secret's data.
const DATA_KEY: &str = "kubeconfig";

/// A client for the current context of a kubeconfig.
///
/// # Errors
/// [`Failure`] if the kubeconfig cannot be used.
pub(crate) async fn kube_client(kubeconfig: Kubeconfig) -> Result<Client, Failure> {
    let bad = |error: &dyn std::fmt::Display| {
        Failure::configuration(format!("the kubeconfig cannot be used: {error}"))
            .remedy("check it with 'kubectl --kubeconfig FILE get namespaces'")
    };
    comity_runtime::install_crypto_provider();
    let config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(|error| bad(&error))?;
    Client::try_from(config).map_err(|error| bad(&error))
}

/// Reads the kubeconfig of a lease; `origin` is a kubeconfig file of the origin.
///
/// # Errors
/// [`Failure`]: the cluster cannot be reached, or the Secret is missing.
pub(super) async fn read(origin: &Path, lease: &Lease) -> Result<SecretString, Failure> {
    let kubeconfig = Kubeconfig::read_from(origin).map_err(|error| {
        Failure::configuration(format!("cannot read the kubeconfig: {error}"))
            .field("--kubeconfig", origin.display())
            .remedy("give a kubeconfig of the lease's origin")
    })?;
    let client = kube_client(kubeconfig).await.map_err(|failure| failure.field("--kubeconfig", origin.display()))?;
    let name = lease.secret_name.as_deref().unwrap_or(&lease.id);
    let namespace = lease.target_namespace.as_deref().unwrap_or("comity-leases");
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let place = format!("Secret {namespace}/{name} on {}", lease.origin);
    let secret = secrets.get(name).await.map_err(|error| read_failure(&place, origin, &error))?;
    let data = secret.data.and_then(|mut data| data.remove(DATA_KEY).or_else(|| data.remove("value")));
    let text = data.and_then(|data| String::from_utf8(data.0).ok()).ok_or_else(|| {
        Failure::refused("bad-secret", format!("{place} has no key {DATA_KEY:?}"))
            .remedy("the origin's agent writes it again when it restarts")
    })?;
    Ok(SecretString::new(text))
}

fn read_failure(place: &str, origin: &Path, error: &kube::Error) -> Failure {
    let (exit, code) = match error {
        kube::Error::Api(status) if status.code == 404 => (Exit::NotFound, "not-found"),
        kube::Error::Api(status) if matches!(status.code, 401 | 403) => (Exit::Permission, "permission-denied"),
        kube::Error::Api(_) => (Exit::Refused, "cluster-refused"),
        _ => (Exit::Unavailable, "unavailable"),
    };
    Failure::new(exit, code, format!("cannot read {place}: {error}"))
        .field("--kubeconfig", origin.display())
        .remedy("give a kubeconfig of the lease's origin that may read this Secret")
}
