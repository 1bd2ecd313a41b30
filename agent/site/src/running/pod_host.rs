//! Runs the pods of leases as containers of this host.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_model::lease::lease_id::{LEASE_LABEL, namespace_name};
use comity_runtime::atomic_file;
use comity_runtime::clock::Clock;
use comity_runtime::entropy::Entropy;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::held::Held;
use crate::leases::LeaseRecord;
use crate::objects::Objects;
use crate::podman::{Podman, PodmanError};
use crate::running::admission::held_by;
use crate::running::container_status::new_status;
use crate::running::host_parts::HostParts;
use crate::running::pod_book::{BookError, PodBook, PodKey};
use crate::running::pod_plan::{PodPlan, PodRefusal};
use crate::running::pod_runner::PodRunner;
use crate::settings::SiteSettings;

/// Longest grace of pods whose lease has ended.
const LEASE_END_GRACE: Duration = Duration::from_secs(30);
/// Length of a UUID.
const UID_CHARS: usize = 36;
/// Longest manifest of a pod.
const MAX_MANIFEST_BYTES: usize = 256 << 10;

/// Why a host cannot run pods.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostError {
    #[error(transparent)]
    Podman(#[from] PodmanError),
    #[error("{0}")]
    Files(String),
}

/// Why a pod is not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("{}: {}", .0.field, .0.reason)]
    Invalid(PodRefusal),
    #[error(transparent)]
    Book(#[from] BookError),
}

/// The host, and the tasks that run its pods.
pub(crate) struct PodHost {
    parts: Arc<HostParts>,
    entropy: Arc<dyn Entropy>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

impl Deref for PodHost {
    type Target = HostParts;

    fn deref(&self) -> &HostParts {
        &self.parts
    }
}

impl PodHost {
    /// Opens the records in `state`, and goes on with the pods that are there.
    pub(crate) async fn open(
        state: &Path,
        settings: SiteSettings,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Arc<Self>, HostError> {
        let podman = Podman::open(&settings, state).await?;
        let volumes = state.join("volumes");
        atomic_file::create_private_dir(&volumes).map_err(|error| HostError::Files(error.to_string()))?;
        let book = PodBook::open(state, clock.as_ref()).map_err(HostError::Files)?;
        let objects = Objects::open(state).map_err(HostError::Files)?;
        let (tasks, stopping) = (TaskTracker::new(), CancellationToken::new());
        let parts = Arc::new(HostParts { podman, book, objects, settings, volumes, clock });
        let host = Arc::new(Self { parts, entropy, tasks, stopping });
        // What cannot be removed now keeps no lease from being ended.
        if let Err(error) = host.remove_orphans().await {
            tracing::warn!(%error, "what is left of pods cannot be removed");
        }
        for (key, _) in host.book.all() {
            Self::spawn(&host, key);
        }
        Ok(host)
    }

    /// Containers of pods that are not in the book: the agent ended between two steps of their removal.
    async fn remove_orphans(&self) -> Result<(), PodmanError> {
        let known: Vec<String> =
            self.book.all().into_iter().filter_map(|(_, entry)| entry.pod.metadata.uid.clone()).collect();
        let containers = self.podman.list().await?.into_iter().map(|(_, uid)| uid);
        let secrets = self.podman.secrets().await?;
        let secrets =
            secrets.iter().filter_map(|name| name.strip_prefix("comity-")?.get(..UID_CHARS).map(str::to_owned));
        let files = std::fs::read_dir(&self.volumes).into_iter().flatten().flatten();
        let files = files.filter_map(|file| file.file_name().to_str()?.get(..UID_CHARS).map(str::to_owned));
        let found: BTreeSet<String> = containers.chain(secrets).chain(files).collect();
        for uid in found.iter().filter(|uid| !known.contains(uid)) {
            tracing::warn!(uid, "what is left of a pod without a record is removed");
            self.remove_all_of(uid).await?;
        }
        Ok(())
    }

    /// Takes a pod of a lease, and starts it. `manifest` is the pod as its author wrote it; warnings are for them.
    pub(crate) fn add(
        host: &Arc<Self>,
        lease: LeaseId,
        record: &LeaseRecord,
        manifest: &Value,
        dry_run: bool,
    ) -> Result<(Arc<Pod>, Vec<String>), Refused> {
        let size = manifest.to_string().len();
        if size > MAX_MANIFEST_BYTES {
            let reason = format!("it has {size} bytes; at most {MAX_MANIFEST_BYTES} are taken");
            return Err(Refused::Invalid(PodRefusal { field: "pod".to_owned(), reason }));
        }
        let plan = PodPlan::read(manifest, &record.resource).map_err(Refused::Invalid)?;
        let inits = plan.inits.iter().enumerate();
        let inits = inits.map(|(index, container)| (format!("spec.initContainers[{index}].image"), container));
        for (field, container) in inits.chain([("spec.containers[0].image".to_owned(), &plan.main)]) {
            if !host.settings.is_local(&container.image) {
                let refused = |reason| Refused::Invalid(PodRefusal { field, reason });
                host.settings.reference(&container.image).map_err(refused)?;
            }
        }
        let invalid = |field: &str, reason: String| Refused::Invalid(PodRefusal { field: field.to_owned(), reason });
        let mut pod: Pod = serde_json::from_value(manifest.clone())
            .map_err(|error| invalid("metadata", format!("it cannot be read: {error}")))?;
        let name = match (pod.metadata.name.take(), pod.metadata.generate_name.as_deref()) {
            (Some(name), _) => name,
            (None, Some(prefix)) => format!("{prefix}{}", &hex::encode(random::<4>(host.entropy.as_ref()))[..5]),
            (None, None) => return Err(invalid("metadata.name", "it is missing".to_owned())),
        };
        if !comity_types::is_dns_subdomain(&name) {
            return Err(invalid("metadata.name", format!("{name:?}; use lower-case letters, digits, - and .")));
        }
        let key = PodKey { lease, name: name.clone() };
        let metadata = &mut pod.metadata;
        metadata.name = Some(name);
        metadata.namespace = Some(namespace_name(lease));
        metadata.uid = Some(uid(host.entropy.as_ref()));
        metadata.creation_timestamp = Some(host.now());
        metadata.deletion_timestamp = None;
        metadata.labels.get_or_insert_default().insert(LEASE_LABEL.to_owned(), lease.to_string());
        // Owners and finalizers are of another cluster.
        (metadata.owner_references, metadata.finalizers, metadata.managed_fields) = (None, None, None);
        pod.status = Some(new_status(&plan, host.now()));
        let hold = |others: &[&Held]| {
            let free = record.share.clone().without(others.iter().copied());
            held_by(&plan, &record.share, &free, &record.resource)
        };
        let pod = host.book.add(&key, pod, &record.resource, dry_run, hold)?;
        if !dry_run {
            Self::spawn(host, key);
        }
        Ok((pod, plan.warnings))
    }

    /// Ends all pods of a lease and removes what it has here; returns when that is done.
    pub(crate) async fn end_lease(&self, lease: LeaseId) -> Result<(), String> {
        for (key, entry) in self.book.of_lease(lease).1 {
            let grace = PodPlan::of_stored(&entry.pod, &entry.resource).map_or(LEASE_END_GRACE, |plan| plan.grace);
            self.book.delete(&key, grace.min(LEASE_END_GRACE), self.now()).map_err(|error| error.to_string())?;
        }
        let mut versions = self.book.versions();
        while !self.book.of_lease(lease).1.is_empty() {
            // The book has the sender.
            _ = versions.changed().await;
        }
        self.book.end_history(lease);
        self.objects.remove_all(lease).map_err(|error| error.to_string())
    }

    fn spawn(host: &Arc<Self>, key: PodKey) {
        let (runner, stopping) = (PodRunner::new(Arc::clone(&host.parts), key), host.stopping.clone());
        host.tasks.spawn(async move { stopping.run_until_cancelled(runner.run()).await });
    }

    /// Ends the tasks; containers go on.
    pub(crate) fn stop(&self) {
        self.stopping.cancel();
    }
}

fn random<const N: usize>(entropy: &dyn Entropy) -> [u8; N] {
    let mut bytes = [0; N];
    entropy.fill(&mut bytes);
    bytes
}

/// A random UUID (RFC 9562, version 4).
fn uid(entropy: &dyn Entropy) -> String {
    let mut bytes = random::<16>(entropy);
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let text = hex::encode(bytes);
    format!("{}-{}-{}-{}-{}", &text[..8], &text[8..12], &text[12..16], &text[16..20], &text[20..])
}
