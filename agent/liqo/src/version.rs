//! Versions of Liqo, and their differences.

use k8s_openapi::api::apps::v1::Deployment;

/// Oldest tested version.
const OLDEST_TESTED: Version = Version(1, 0, 3);
/// Newest minor version tested.
const NEWEST_TESTED_MINOR: (u32, u32) = (1, 2);
/// As errors say it.
pub(crate) const SUPPORTED: &str = "1.0.3 to 1.2.x";

/// The version of a Deployment of Liqo's, as in "1.2.0": from its image's tag, else from the label of the chart.
pub(crate) fn version_of(deployment: &Deployment) -> Option<String> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let image = pod.containers.first()?.image.as_deref()?;
    let image = image.split('@').next().unwrap_or(image);
    let tag = image.rsplit('/').next().and_then(|name| name.split_once(':')).map(|(_, tag)| tag);
    let label = deployment.metadata.labels.as_ref().and_then(|labels| labels.get("app.kubernetes.io/version"));
    let plain = |text: &str| text.strip_prefix('v').unwrap_or(text).to_owned();
    tag.map(plain).filter(|tag| Version::parse(tag).is_some()).or_else(|| label.map(|label| plain(label)))
}

/// A released version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u32, u32, u32);

impl Version {
    /// From "1.2.0" or "v1.2.0", with or without a suffix such as "-rc.1"; `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text.split(['-', '+']).next()?.split('.').map(|part| part.parse().ok());
        let version = Self(parts.next()??, parts.next()??, parts.next()??);
        parts.next().is_none().then_some(version)
    }

    /// Whether it was tested with this agent.
    pub(crate) fn is_supported(self) -> bool {
        self >= OLDEST_TESTED && (self.0, self.1) <= NEWEST_TESTED_MINOR
    }

    /// Whether virtual-kubelets take several `--local-podcidr`; before 1.2 the last one counts.
    pub(crate) fn takes_several_pod_networks(self) -> bool {
        self >= Self(1, 2, 0)
    }

    /// Whether the controller manager begins to use a new token that comes with a new certificate; before 1.2 it keeps
    /// the first one.
    pub(crate) fn takes_new_tokens(self) -> bool {
        self >= Self(1, 2, 0)
    }

    /// Whether virtual-kubelets begin to use a renewed certificate by themselves; before 1.2 they keep the old one
    /// until it ends.
    pub(crate) fn reloads_certificates(self) -> bool {
        self >= Self(1, 2, 0)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_version_is_the_images_tag_or_else_the_charts_label() {
        let version = |image: &str, label: Option<&str>| {
            let labels = label.map(|label| json!({ "app.kubernetes.io/version": label }));
            let containers = json!([{ "name": "c", "image": image }]);
            let deployment = json!({
                "metadata": { "labels": labels },
                "spec": { "selector": {}, "template": { "spec": { "containers": containers } } },
            });
            version_of(&serde_json::from_value(deployment).unwrap())
        };
        let found = |text: &str| Some(text.to_owned());
        assert_eq!(version("ghcr.io/liqotech/liqo-controller-manager:v1.2.0", Some("v1.1.2")), found("1.2.0"));
        assert_eq!(version("registry:5000/liqo:v1.1.2@sha256:00", None), found("1.1.2"));
        assert_eq!(version("registry:5000/liqo@sha256:00", Some("v1.0.3")), found("1.0.3"));
        assert_eq!(version("registry:5000/liqo:latest", Some("v1.0.3")), found("1.0.3"));
        assert_eq!(version("registry:5000/liqo@sha256:00", None), None);
    }

    #[test]
    fn versions_are_read_and_compared_by_number() {
        assert_eq!(Version::parse("v1.2.0"), Some(Version(1, 2, 0)));
        assert_eq!(Version::parse("1.10.3-rc.1"), Some(Version(1, 10, 3)));
        for wrong in ["", "1.2", "1.2.0.1", "latest", "v1.x.0"] {
            assert_eq!(Version::parse(wrong), None, "{wrong}");
        }
        let supported = |text: &str| Version::parse(text).is_some_and(Version::is_supported);
        assert!(["1.0.3", "1.0.4", "1.1.2", "1.2.0", "1.2.9"].into_iter().all(supported));
        assert!(!["1.0.2", "0.10.3", "1.3.0", "2.0.0"].into_iter().any(supported));
        for (text, new) in [("1.0.3", false), ("1.1.2", false), ("1.2.0", true)] {
            let version = Version::parse(text);
            assert_eq!(version.map(Version::takes_several_pod_networks), Some(new));
            assert_eq!(version.map(Version::reloads_certificates), Some(new));
            assert_eq!(version.map(Version::takes_new_tokens), Some(new));
        }
    }
}
