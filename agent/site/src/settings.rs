//! The section `site` of the agent's configuration.

use std::path::PathBuf;

use comity_agent_model::settings::SettingChecks;
use serde::{Deserialize, Serialize};

/// How a host without Kubernetes runs the pods of leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SiteSettings {
    /// The program.
    pub podman: PathBuf,
    /// Kind of the GPUs' CDI devices; the index in the inventory is the device's name, as in "nvidia.com/gpu=0".
    pub devices: String,
    /// Network of all pods: "none", or a network of podman that the owner made, and whose reach the owner answers for.
    pub network: String,
    /// Registries of guests' images, as in "docker.io"; the host's network reaches them, so no others are asked.
    pub registries: Vec<String>,
    /// Images in the agent's own store that guests may use without a registry; a `*` at the end stands for anything.
    pub local_images: Vec<String>,
}

impl Default for SiteSettings {
    fn default() -> Self {
        Self {
            podman: PathBuf::from("podman"),
            devices: "nvidia.com/gpu".to_owned(),
            network: "none".to_owned(),
            registries: REGISTRIES.map(str::to_owned).to_vec(),
            local_images: Vec::new(),
        }
    }
}

/// Public registries.
const REGISTRIES: [&str; 6] = ["docker.io", "quay.io", "ghcr.io", "gcr.io", "nvcr.io", "registry.k8s.io"];

impl SiteSettings {
    /// Checks the values.
    pub fn check(&self, checks: &mut SettingChecks) {
        let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let is_kind = |kind: &str| {
            kind.split_once('/').is_some_and(|(vendor, class)| {
                !vendor.is_empty() && !class.is_empty() && is_plain(vendor) && is_plain(class)
            })
        };
        if !is_kind(&self.devices) {
            checks.refuse("site.devices", &self.devices, "write vendor/class, as in nvidia.com/gpu");
        }
        // Others of podman's modes give guests the host's network.
        let is_mode = ["host", "private", "bridge", "pasta", "slirp4netns", "ns", "container", ""];
        if !is_plain(&self.network) || is_mode.contains(&self.network.as_str()) {
            let reason = "write none, or the name of a network that `podman network create` made";
            checks.refuse("site.network", &self.network, reason);
        }
        for registry in &self.registries {
            let (host, port) =
                registry.split_once(':').map_or((registry.as_str(), None), |(host, port)| (host, Some(port)));
            if host.is_empty() || !is_plain(host) || port.is_some_and(|port| port.parse::<u16>().is_err()) {
                checks.refuse("site.registries", registry, "write host or host:port, as in registry.example.org");
            }
        }
        for image in self.local_images.iter().filter(|image| image.trim_end_matches('*').is_empty()) {
            checks.refuse("site.localImages", image, "name an image, or the beginning of its name before a *");
        }
    }

    /// The image with its registry, if guests may pull from there.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn reference(&self, image: &str) -> Result<String, String> {
        // As Kubernetes reads names: without a registry they are those of docker.io.
        let first = image.split_once('/').map(|(first, _)| first);
        let named = first.filter(|first| first.contains(['.', ':']) || *first == "localhost");
        let full = match (named, first) {
            (Some(_), _) => image.to_owned(),
            (None, Some(_)) => format!("docker.io/{image}"),
            (None, None) => format!("docker.io/library/{image}"),
        };
        let registry = named.unwrap_or("docker.io");
        if self.registries.iter().any(|other| other == registry) {
            return Ok(full);
        }
        Err(format!("this host pulls from {}, and not from {registry}", self.registries.join(", ")))
    }

    /// Registries on this host itself, which need no TLS.
    pub(crate) fn plain_registries(&self) -> impl Iterator<Item = &String> {
        self.registries.iter().filter(|registry| registry.starts_with("127.0.0.1:"))
    }

    /// Whether guests may use an image as it is in the agent's store.
    pub(crate) fn is_local(&self, image: &str) -> bool {
        self.local_images.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => image.starts_with(beginning),
            None => image == pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_the_host_and_vague_values_are_refused() {
        let refused = |settings: SiteSettings| {
            let mut checks = SettingChecks::default();
            settings.check(&mut checks);
            checks.finish().err().map(|invalid| invalid.0[0].field)
        };
        assert_eq!(refused(SiteSettings::default()), None);
        let with = |network: &str| SiteSettings { network: network.to_owned(), ..SiteSettings::default() };
        for network in ["host", "ns:/proc/1/ns/net", "container:x", ""] {
            assert_eq!(refused(with(network)), Some("site.network"), "{network}");
        }
        assert_eq!(refused(with("guests")), None);
        assert_eq!(refused(SiteSettings { devices: "gpu".into(), ..SiteSettings::default() }), Some("site.devices"));
        let all = SiteSettings { local_images: vec!["*".to_owned()], ..SiteSettings::default() };
        assert_eq!(refused(all), Some("site.localImages"));
        let some = SiteSettings { local_images: vec!["lab/*".to_owned(), "a:1".to_owned()], ..SiteSettings::default() };
        let pulled = [
            ("busybox", Some("docker.io/library/busybox")),
            ("lab/x:1", Some("docker.io/lab/x:1")),
            ("quay.io/a/b@sha256:0", Some("quay.io/a/b@sha256:0")),
            ("localhost/a", None),
            ("10.0.0.1:80/a", None),
            ("docker.io.evil.org/a", None),
        ];
        for (image, expected) in pulled {
            assert_eq!(some.reference(image).ok().as_deref(), expected, "{image}");
        }
        assert!(some.is_local("lab/x:2") && some.is_local("a:1") && !some.is_local("a:10"));
    }
}
