//! Pushes the commits of a clone as an artifact, for `comity policy push`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use comity_types::redact_secrets;
use http::header::LOCATION;
use http::{Method, StatusCode, Uri};

use crate::policy_source::http_host::{HttpAnswer, TRUST};
use crate::policy_source::oci::address::{ArtifactAddress, ArtifactDigest, ArtifactVersion};
use crate::policy_source::oci::git_bundle::{GIT_BUNDLE, GitBundle};
use crate::policy_source::oci::manifest::{ArtifactManifest, Descriptor, EMPTY_CONFIG, MANIFEST_TYPE};
use crate::policy_source::oci::registry::{LIES, Registry, RegistryCall};
use crate::policy_source::oci::registry_login::LOGIN_REMEDY;
use crate::policy_source::pull_error::{PullError, REACH};
use crate::policy_source::repository::Branch;
use crate::policy_source::upload_pack::MAX_FETCH_BYTES;

const EMPTY: &[u8] = b"{}";
/// Bytes of an answer to a push: nothing of them counts.
const MAX_PUSH_ANSWER_BYTES: usize = 64 * 1024;
const PUSH_LOGIN_REMEDY: &str = "log in with `docker login` or `oras login`, or give --registry-config a config.json with \
    `auths` for the registry; programs of `credsStore` and `credHelpers` do not run";
const PUSH_REACH: &str = "check the address, and whether this machine reaches the registry, and how fast";
/// Time of a whole push: the largest bundle at 1 Mbit/s.
const PUSH_DEADLINE: Duration = Duration::from_secs(600);
const PUSH_REMEDY: &str = "ask who runs the registry whether it takes OCI artifacts";
const UPLOAD_REMEDY: &str = "push to a registry that takes uploads at its own address";

/// A push of a Git bundle.
#[derive(Debug)]
pub struct ArtifactPush {
    address: ArtifactAddress,
    tag: String,
    branch: Branch,
    /// File with credentials, in the form of Docker's config.json.
    pub registry_config: Option<PathBuf>,
    /// PEM file with further authorities of the registry.
    pub authorities: Option<PathBuf>,
    /// Time of the whole push.
    pub deadline: Duration,
}

/// What was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedArtifact {
    /// Address with the tag.
    pub address: String,
    /// Address with the digest, which stays what it is.
    pub pinned: String,
    /// Digest of the manifest.
    pub digest: String,
    /// Head of the branch.
    pub commit: String,
}

impl ArtifactPush {
    /// A push to an address with a tag, of a bundle with a branch.
    ///
    /// # Errors
    /// Reason and remedy, if the texts are no such things.
    pub fn to(address: &str, branch: &str) -> Result<Self, PullError> {
        // What is refused may have a password in it.
        let shown = redact_secrets(address);
        let invalid = |why: &str, remedy| PullError::new(format!("address `{shown}` {why}"), remedy);
        let tagged = "write oci://HOST/NAME:TAG, without a password";
        let parsed = ArtifactAddress::parse(address).ok_or_else(|| invalid("is none of an artifact", tagged))?;
        let parsed = parsed.map_err(|error| invalid(error.why, error.remedy))?;
        let ArtifactVersion::Tag(tag) = parsed.version.clone() else { return Err(invalid("has no tag", tagged)) };
        let branch = Branch::parse(branch)
            .map_err(|invalid| PullError::new(format!("`{branch}` {}", invalid.why), invalid.remedy))?;
        Ok(Self { address: parsed, tag, branch, registry_config: None, authorities: None, deadline: PUSH_DEADLINE })
    }

    /// Pushes a bundle that `git bundle create` made of the branch.
    ///
    /// # Errors
    /// [`PullError`] if it is no such bundle, or the registry does not take it.
    pub async fn push(&self, bundle: Vec<u8>) -> Result<PushedArtifact, PullError> {
        let pushed = tokio::time::timeout(self.deadline, self.push_bundle(bundle)).await;
        let pushed = pushed.unwrap_or_else(|_| {
            let reason = format!("{} did not take the policy within {} s", self.host(), self.deadline.as_secs());
            Err(PullError::new(reason, PUSH_REACH))
        });
        pushed.map_err(of_push)
    }

    /// Host of the registry.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.address.host
    }

    async fn push_bundle(&self, bundle: Vec<u8>) -> Result<PushedArtifact, PullError> {
        if bundle.len() > MAX_FETCH_BYTES {
            let reason =
                format!("the Git bundle has more than {MAX_FETCH_BYTES} bytes, and brokers pull no larger one");
            return Err(PullError::new(reason, "keep the policy in a repository of its own"));
        }
        let commit = GitBundle::parse(&bundle, &self.branch)?.head;
        let (authorities, login) = (self.authorities.as_deref(), self.registry_config.as_deref());
        let mut registry = Registry::of(&self.address, authorities, login, "pull,push")?;
        let config = push_content(&mut registry, EMPTY_CONFIG, Bytes::from_static(EMPTY)).await?;
        let layer = push_content(&mut registry, GIT_BUNDLE, Bytes::from(bundle)).await?;
        let manifest = ArtifactManifest::of_layer(GIT_BUNDLE, config, layer);
        let manifest = serde_json::to_vec(&manifest)
            .map_err(|error| PullError::saying("the manifest cannot be written", &error, PUSH_REMEDY))?;
        let digest = ArtifactDigest::of(&manifest);
        let path = registry.path(&format!("manifests/{}", self.tag));
        put(&mut registry, &path, MANIFEST_TYPE, Bytes::from(manifest)).await?;
        let (address, pinned) = (self.address.to_string(), self.address.with_digest(digest).to_string());
        Ok(PushedArtifact { address, pinned, digest: digest.to_string(), commit: commit.to_string() })
    }
}

/// The error in terms of the flags of `comity policy push`: those of brokers have other names.
fn of_push(error: PullError) -> PullError {
    let remedy = match error.remedy {
        LOGIN_REMEDY => PUSH_LOGIN_REMEDY,
        TRUST => "give the registry's authority with --registry-ca",
        REACH => PUSH_REACH,
        LIES => "ask who runs the registry",
        remedy => remedy,
    };
    PullError { reason: error.reason.replace("--policy-ca", "--registry-ca"), remedy, ..error }
}

/// Uploads a content in one piece.
async fn push_content(registry: &mut Registry, media_type: &str, content: Bytes) -> Result<Descriptor, PullError> {
    let digest = ArtifactDigest::of(&content);
    let descriptor = Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size: content.len() as u64,
        annotations: BTreeMap::new(),
    };
    let path = registry.path("blobs/uploads/");
    let begun = RegistryCall {
        method: Method::POST,
        path: &path,
        media_type: "application/octet-stream",
        body: Bytes::new(),
        limit: MAX_PUSH_ANSWER_BYTES,
    };
    let begun = registry.call(begun).await?;
    if begun.status != StatusCode::ACCEPTED {
        registry.check_status(begun.status)?;
        let reason = format!("{} answers {} in place of an upload", registry.host(), begun.status);
        return Err(PullError::new(reason, PUSH_REMEDY));
    }
    let upload = upload_path(registry, &begun)?;
    let separator = if upload.contains('?') { '&' } else { '?' };
    let path = format!("{upload}{separator}digest={}", digest.to_string().replace(':', "%3A"));
    put(registry, &path, "application/octet-stream", content).await?;
    Ok(descriptor)
}

/// The path of an upload. Some registries name it with a host, which must be their own: content goes nowhere else.
fn upload_path(registry: &Registry, begun: &HttpAnswer) -> Result<String, PullError> {
    let refused = |why: &str, remedy| PullError::new(format!("{} {why}", registry.host()), remedy);
    let to = begun.headers.get(LOCATION).and_then(|to| to.to_str().ok()).and_then(|to| to.parse::<Uri>().ok());
    let nowhere = || refused("names no address for the upload", PUSH_REMEDY);
    let to = to.ok_or_else(nowhere)?;
    if to.host().is_some_and(|host| !host.eq_ignore_ascii_case(registry.host())) {
        return Err(refused("sends the upload to another server", UPLOAD_REMEDY));
    }
    to.path_and_query().map(|path| path.as_str().to_owned()).ok_or_else(nowhere)
}

async fn put(registry: &mut Registry, path: &str, media_type: &str, body: Bytes) -> Result<(), PullError> {
    let limit = MAX_PUSH_ANSWER_BYTES;
    let answer = registry.call(RegistryCall { method: Method::PUT, path, media_type, body, limit }).await?;
    registry.check_status(answer.status)
}
