//! Lends a host without Kubernetes.
//!
//! The agent serves the lease's own API on loopback, the part of Kubernetes' that `kubectl`, client libraries and the
//! origin's agent need, and runs its pods as containers:
//!
//! ```text
//! /version /api /apis /api/v1 /openapi/v3                     discovery
//! /api/v1/namespaces/{namespace}/resourcequotas[/gpus]        get, list: what the lease has, and its pods use
//! /api/v1/namespaces/{namespace}/pods[/{name}]                create, get, list, watch, delete
//! /api/v1/namespaces/{namespace}/pods/{name}/log              get, also following
//! /api/v1/namespaces/{namespace}/pods/{name}/exec             get, a WebSocket
//! /api/v1/namespaces/{namespace}/{configmaps,secrets}[/{name}]  create, get, list, update, patch, delete
//! ```
//! Every request needs the bearer token of a lease that has not ended: 401 otherwise, 403 for another lease's
//! namespace. Without [`SiteSettings`] the host runs nothing, and says so when a pod is made; `comity dev` works so.

mod answers;
mod api;
mod cdi;
mod certificate;
mod held;
mod lease_seats;
mod leases;
mod objects;
mod podman;
mod record_files;
mod running;
mod server;
mod settings;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use comity_agent_delivery::{ApiCredential, CredentialKind, DonorDelivery, DonorLease, Prepared};
use comity_agent_model::api_port::API_PORT;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::ForwardTarget;
use comity_agent_model::lease::lease_id::namespace_name;
use comity_runtime::atomic_file;
use comity_runtime::clock::Clock;
use comity_runtime::entropy::Entropy;
use comity_types::LeaseId;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use self::api::Site;
use self::leases::{LeaseRecord, Leases};
use self::running::PodHost;

pub use self::settings::SiteSettings;

/// Folder of the site's records in the agent's state folder.
const SITE_FOLDER: &str = "site";

/// Checks what `comity-agent doctor` tells about a site: podman can hold guests, and each of the first `devices` GPUs has
/// a CDI device.
///
/// # Errors
/// A sentence.
pub async fn check(settings: &SiteSettings, state_dir: &Path, devices: u32) -> Result<(), String> {
    podman::Podman::open(settings, &state_dir.join(SITE_FOLDER)).await.map_err(|error| error.to_string())?;
    check_devices(&settings.devices, 0..devices)
}

fn check_devices(kind: &str, devices: impl Iterator<Item = u32>) -> Result<(), String> {
    let (names, mut wanted) = (cdi::names(kind), devices.map(|device| device.to_string()));
    match wanted.find(|name| !names.contains(name)) {
        None => Ok(()),
        Some(name) => Err(format!(
            "there is no CDI device {kind}={name}, by which containers get GPU {name}; NVIDIA's toolkit makes it: \
             nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
        )),
    }
}

/// podman on the store of a site's guests, for the owner of the host: to load images, or to look at containers.
#[must_use]
pub fn podman_command(settings: &SiteSettings, state_dir: &Path) -> std::process::Command {
    podman::PodmanStore::new(settings, &state_dir.join(SITE_FOLDER)).command()
}

/// A running site. Dropping it ends its API; containers go on, and the next agent finds them.
pub struct SiteDelivery {
    site: Site,
    ca_pem: String,
    address: SocketAddr,
    server: JoinHandle<()>,
}

impl SiteDelivery {
    /// Serves on a free loopback port, with the records of the folder `site` in the agent's state folder.
    ///
    /// # Errors
    /// [`DeliveryError`] when the state cannot be read, no port is free, or the host cannot hold guests as `settings`
    /// say.
    pub async fn start(
        state_dir: &Path,
        settings: Option<SiteSettings>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Self, DeliveryError> {
        const OPERATION: &str = "start the site API";
        let failed = |error: String| DeliveryError::temporary(OPERATION, error);
        let dir = state_dir.join(SITE_FOLDER);
        atomic_file::create_private_dir(&dir).map_err(|error| failed(error.to_string()))?;
        let identity = certificate::open(&dir, clock.now()).map_err(|error| failed(error.to_string()))?;
        let host = match settings {
            Some(settings) => Some(
                PodHost::open(&dir, settings, Arc::clone(&clock), Arc::clone(&entropy))
                    .await
                    .map_err(|error| failed(error.to_string()))?,
            ),
            None => None,
        };
        let site = Site { leases: Arc::new(Leases::open(&dir, clock, entropy)?), host, seats: Arc::default() };
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(|error| failed(error.to_string()))?;
        let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let server = tokio::spawn(server::serve(listener, identity.tls, api::router(site.clone())));
        let runs_pods = site.host.is_some();
        tracing::info!(%address, runs_pods, "serving the site API, the API of leases on this host");
        Ok(Self { site, ca_pem: identity.ca_pem, address, server })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SiteDelivery {
    fn drop(&mut self) {
        self.server.abort();
        if let Some(host) = &self.site.host {
            host.stop();
        }
    }
}

// The state of leases is one small file: blocking the caller for it is cheaper than a thread.
impl DonorDelivery for SiteDelivery {
    fn prepare<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<Prepared, DeliveryError>> {
        Box::pin(async move {
            if let Some(host) = &self.site.host {
                let devices = lease.placement.nodes.iter().flat_map(|node| &node.devices).map(|share| share.device);
                check_devices(&host.settings.devices, devices)
                    .map_err(|message| DeliveryError::permanent("cdi-device-missing", message))?;
            }
            let namespace = namespace_name(lease.lease_id);
            self.site.leases.put(lease.lease_id, LeaseRecord::of(lease, &namespace))?;
            Ok(Prepared { namespace })
        })
    }

    fn credential<'a>(&'a self, lease: &'a DonorLease) -> BoxFuture<'a, Result<ApiCredential, DeliveryError>> {
        Box::pin(async move {
            Ok(ApiCredential {
                kind: CredentialKind::Site,
                ca_pem: self.ca_pem.clone(),
                tls_server_name: certificate::SERVER_NAME.to_owned(),
                token: self.site.leases.issue(lease.lease_id, lease.ends_at_ms)?,
                namespace: namespace_name(lease.lease_id),
                expires_at_ms: lease.ends_at_ms,
                server_port: API_PORT,
            })
        })
    }

    fn reopen<'a>(&'a self, _lease: &'a DonorLease) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(async { Ok(()) })
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(async move {
            // Its tokens first: nothing new starts while its pods end.
            self.site.leases.remove(lease_id)?;
            self.site.seats.forget(lease_id);
            let Some(host) = &self.site.host else { return Ok(()) };
            host.end_lease(lease_id)
                .await
                .map_err(|error| DeliveryError::temporary(format!("end the pods of {lease_id}"), error))
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(async move {
            let mut ids = self.site.leases.ids();
            if let Some(host) = &self.site.host {
                ids.extend(host.book.all().into_iter().map(|(key, _)| key.lease));
                ids.extend(host.objects.leases());
            }
            Ok(ids)
        })
    }

    fn api_target(&self) -> ForwardTarget {
        self.address.into()
    }
}
