//! One pull of an artifact: manifest, signature, layer.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use comity_provenance::ObjectId;

use crate::policy_source::access::PolicyAccess;
use crate::policy_source::blocking::blocking;
use crate::policy_source::object_database::{Cache, ObjectDatabase};
use crate::policy_source::oci::address::{ArtifactAddress, ArtifactDigest, ArtifactVersion};
use crate::policy_source::oci::cosign::{ArtifactKeys, MAX_PAYLOAD_BYTES, MAX_SIGNATURES, signature_of, signature_tag};
use crate::policy_source::oci::git_bundle::{GIT_BUNDLE, GitBundle};
use crate::policy_source::oci::manifest::{ArtifactManifest, Descriptor};
use crate::policy_source::oci::registry::{RawManifest, Registry};
use crate::policy_source::oci::unpacked::{FOLDERS, MAX_ARCHIVE_BYTES};
use crate::policy_source::pull_error::PullError;
use crate::policy_source::pulled::{Pulled, PulledBranch, PulledDocuments};
use crate::policy_source::repository::Branch;
use crate::policy_source::upload_pack::MAX_FETCH_BYTES;

const SIGN_REMEDY: &str = "let the holder of a key sign it: `cosign sign --key cosign.key --new-bundle-format=false \
                           --use-signing-config=false --tlog-upload=false NAME@DIGEST`";

/// Fetches the artifact of an address. What an earlier pull fetched is not fetched again.
pub(in crate::policy_source) async fn pull_artifact(
    access: &PolicyAccess,
    address: &ArtifactAddress,
    branch: &Branch,
) -> Result<Pulled, PullError> {
    let (authorities, login) = (access.authorities.as_deref(), access.registry_config.as_deref());
    let mut registry = Registry::of(address, authorities, login, "pull")?;
    let manifest = registry.manifest(&address.version).await?.ok_or_else(|| {
        let reason = format!("there is no {address}, or it needs credentials");
        PullError::new(
            reason,
            "push it, or check the address; give each broker credentials with --policy-registry-config",
        )
    })?;
    let digest = manifest.digest;
    content_of(access, &mut registry, address, branch, manifest).await.map_err(|error| error.about(digest))
}

async fn content_of(
    access: &PolicyAccess,
    registry: &mut Registry,
    address: &ArtifactAddress,
    branch: &Branch,
    manifest: RawManifest,
) -> Result<Pulled, PullError> {
    let artifact = manifest.digest;
    if let Some(file) = &access.artifact_keys {
        check_signature(registry, &ArtifactKeys::read(file)?, address, artifact).await?;
    }
    let layer = ArtifactManifest::parse(&manifest.bytes, address)?.only_layer(address)?;
    let is_bundle = layer.media_type == GIT_BUNDLE;
    if !is_bundle && !FOLDERS.contains(&layer.media_type.as_str()) {
        let reason = format!("{address} has a layer that is no policy, of media type");
        let remedy = "push a clone with `comity policy push`, or a folder with `flux push artifact` or `oras push`";
        return Err(PullError::saying(&reason, &layer.media_type, remedy));
    }
    let (folder, name) = (access.cache.clone(), address.to_string());
    let cache = Arc::new(blocking(move || Cache::of(&folder, &name)).await?);
    if is_bundle {
        let (head, objects) = commits(registry, cache, layer, branch).await?;
        return Ok(Pulled::Branch(PulledBranch { head, artifact: Some(artifact), objects }));
    }
    let archive = held_or_fetched(registry, &cache, layer, MAX_ARCHIVE_BYTES).await?;
    Ok(Pulled::Documents(PulledDocuments { artifact, archive }))
}

/// Before anything of the artifact is read, a key must vouch for its digest.
async fn check_signature(
    registry: &mut Registry,
    keys: &ArtifactKeys,
    address: &ArtifactAddress,
    digest: ArtifactDigest,
) -> Result<(), PullError> {
    let tag = signature_tag(digest);
    let shown = address.with_digest(digest);
    let found = registry.manifest(&ArtifactVersion::Tag(tag)).await?;
    let Some(RawManifest { bytes, .. }) = found else {
        return Err(PullError::unsigned_artifact(format!("{shown} has no signature of cosign"), SIGN_REMEDY));
    };
    let layers = ArtifactManifest::parse(&bytes, &format!("the signature of {shown}"))?.layers;
    for layer in layers.iter().take(MAX_SIGNATURES) {
        let Some(signature) = signature_of(layer) else { continue };
        let payload = registry.layer(layer, MAX_PAYLOAD_BYTES).await?;
        if keys.vouch_for(digest, &payload, &signature) {
            return Ok(());
        }
    }
    let reason = format!("{shown} has no signature of cosign by a key of --policy-oci-key");
    Err(PullError::unsigned_artifact(reason, SIGN_REMEDY))
}

/// The archive of a folder. Whoever changes the file in the cache only makes brokers fetch it again.
async fn held_or_fetched(
    registry: &mut Registry,
    cache: &Arc<Cache>,
    layer: Descriptor,
    limit: usize,
) -> Result<Bytes, PullError> {
    let (file, digest) = (cache.layer(), layer.digest);
    let held = blocking(move || Ok(read_held(&file, digest, limit))).await?;
    if let Some(held) = held {
        return Ok(held);
    }
    let content = registry.layer(&layer, limit).await?;
    let (file, kept) = (cache.layer(), content.clone());
    blocking(move || {
        fs::write(&file, &kept)
            .map_err(|error| PullError::saying("cannot keep the policy's layer", &error, "free the broker's disk"))
    })
    .await?;
    Ok(content)
}

fn read_held(file: &Path, digest: ArtifactDigest, limit: usize) -> Option<Bytes> {
    let held = comity_runtime::atomic_file::read_bounded(file, limit as u64).ok()?;
    (ArtifactDigest::of(&held) == digest).then(|| Bytes::from(held))
}

/// The head of the branch in a Git bundle, and the objects. A bundle is left out only if this very one was added before:
/// that its head is there is not enough, as another bundle with that head may lack what comes before it.
async fn commits(
    registry: &mut Registry,
    cache: Arc<Cache>,
    layer: Descriptor,
    branch: &Branch,
) -> Result<(ObjectId, ObjectDatabase), PullError> {
    let bundle = format!("{} {branch}", layer.digest);
    let (held, added) = (Arc::clone(&cache), bundle.clone());
    if let Some(found) = blocking(move || held.added(&added)).await? {
        return Ok(found);
    }
    let content = registry.layer(&layer, MAX_FETCH_BYTES).await?;
    let branch = branch.clone();
    blocking(move || {
        let GitBundle { head, pack } = GitBundle::parse(&content, &branch)?;
        cache.add(pack)?;
        let objects = cache.open()?;
        if !objects.has(head) {
            let reason = format!("the Git bundle lacks the head {head} of its branch `{branch}`");
            return Err(PullError::new(reason, "push the branch again with `comity policy push`"));
        }
        cache.note_added(&bundle, head)?;
        Ok((head, objects))
    })
    .await
}
