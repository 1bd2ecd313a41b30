//! What runs pods: podman, records, objects and settings of this host.

use std::path::PathBuf;
use std::sync::Arc;

use comity_runtime::clock::Clock;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::objects::Objects;
use crate::podman::{Podman, PodmanError, remove_tree};
use crate::running::pod_book::PodBook;
use crate::settings::SiteSettings;

/// The parts of a host.
pub(crate) struct HostParts {
    pub(crate) podman: Podman,
    pub(crate) book: PodBook,
    pub(crate) objects: Objects,
    pub(crate) settings: SiteSettings,
    pub(crate) volumes: PathBuf,
    pub(crate) clock: Arc<dyn Clock>,
}

impl HostParts {
    /// Removes containers, secrets and files of a pod, by its uid.
    pub(crate) async fn remove_all_of(&self, uid: &str) -> Result<(), PodmanError> {
        for name in self.podman.containers_of(uid).await? {
            self.podman.remove(&name).await?;
        }
        let beginning = format!("comity-{uid}-");
        for secret in self.podman.secrets().await?.iter().filter(|name| name.starts_with(&beginning)) {
            self.podman.remove_secret(secret).await?;
        }
        remove_tree(&self.volumes.join(format!("{uid}.auth"))).await?;
        remove_tree(&self.volumes.join(uid)).await
    }

    /// The time, as Kubernetes writes it: in whole seconds.
    pub(crate) fn now(&self) -> Time {
        let seconds = i64::try_from(self.clock.unix_ms() / 1_000).unwrap_or_default();
        Time(Timestamp::from_second(seconds).unwrap_or_default())
    }
}
