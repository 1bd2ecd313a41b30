//! Manifests of artifacts, as the OCI image specification 1.1 has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy_source::oci::address::ArtifactDigest;
use crate::policy_source::pull_error::PullError;

/// Media type of a manifest.
pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of the configuration of an artifact that has none: `{}`.
pub(super) const EMPTY_CONFIG: &str = "application/vnd.oci.empty.v1+json";
const NO_MANIFEST: &str = "push the artifact with `comity policy push`, `oras push` or `flux push artifact`";

/// A reference to a content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    pub(super) media_type: String,
    pub(super) digest: ArtifactDigest,
    /// Bytes of the content.
    pub(super) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) annotations: BTreeMap<String, String>,
}

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ArtifactManifest {
    schema_version: u32,
    /// Absent in some registries' manifests of version 1.0.
    #[serde(default = "own_media_type")]
    media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    artifact_type: Option<String>,
    config: Descriptor,
    pub(super) layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

fn own_media_type() -> String {
    MANIFEST_TYPE.to_owned()
}

impl ArtifactManifest {
    /// The manifest of an artifact with one layer and no configuration.
    pub(super) fn of_layer(artifact_type: &str, config: Descriptor, layer: Descriptor) -> Self {
        Self {
            schema_version: 2,
            media_type: own_media_type(),
            artifact_type: Some(artifact_type.to_owned()),
            config,
            layers: vec![layer],
            annotations: BTreeMap::new(),
        }
    }

    /// `what` names the artifact in errors.
    pub(super) fn parse(bytes: &[u8], what: &dyn std::fmt::Display) -> Result<Self, PullError> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| {
            PullError::saying(&format!("{what} has no manifest of an OCI artifact"), &error, NO_MANIFEST)
        })?;
        if manifest.schema_version != 2 || manifest.media_type != MANIFEST_TYPE {
            let reason = format!("{what} has no manifest of an OCI artifact: its media type is");
            return Err(PullError::saying(&reason, &manifest.media_type, NO_MANIFEST));
        }
        Ok(manifest)
    }

    /// The only layer.
    pub(super) fn only_layer(self, what: &dyn std::fmt::Display) -> Result<Descriptor, PullError> {
        let count = self.layers.len();
        let mut layers = self.layers.into_iter();
        match (layers.next(), count) {
            (Some(layer), 1) => Ok(layer),
            _ => Err(PullError::new(
                format!("{what} has {count} layers, and a policy has one"),
                "push one Git bundle, or one folder: `oras push ADDRESS policy/`",
            )),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    fn manifest() -> ArtifactManifest {
        let descriptor = |media_type: &str, content: &[u8]| Descriptor {
            media_type: media_type.to_owned(),
            digest: ArtifactDigest::of(content),
            size: content.len() as u64,
            annotations: BTreeMap::new(),
        };
        ArtifactManifest::of_layer("x/y", descriptor(EMPTY_CONFIG, b"{}"), descriptor("x/z", b"layer"))
    }

    #[test]
    fn a_manifest_has_one_layer_and_is_no_index() {
        let text = serde_json::to_string(&manifest()).unwrap();
        let parse = |text: &str| ArtifactManifest::parse(text.as_bytes(), &"it");
        assert_eq!(parse(&text).unwrap(), manifest());
        assert_eq!(manifest().only_layer(&"it").unwrap().size, 5);
        let mut two = manifest();
        two.layers.push(two.layers[0].clone());
        assert!(two.only_layer(&"it").unwrap_err().reason.contains("2 layers"));
        let index = text.replace(MANIFEST_TYPE, "application/vnd.oci.image.index.v1+json");
        assert!(parse(&index).unwrap_err().reason.contains("image.index"));
        for bad in [text.replace("\"schemaVersion\":2", "\"schemaVersion\":1"), text.replace("sha256:", "sha512:")] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn made_up_manifests() {
        let valid = vec![serde_json::to_vec(&manifest()).unwrap()];
        fuzz!("artifact_manifests", valid, |bytes: &[u8]| {
            ArtifactManifest::parse(bytes, &"it").and_then(|manifest| manifest.only_layer(&"it")).is_ok()
        });
    }
}
