//! Pulls artifacts from a real registry, and from one that misbehaves.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_provenance::ObjectId;
use comity_testkit::OciRegistry;
use ed25519_dalek::Signer as _;
use p256::pkcs8::{EncodePublicKey as _, LineEnding};

use super::registry_server::{RegistryMood, RegistryServer, archive, digest};
use super::{
    Branch, PULL_PATIENCE, PolicyAccess, PullError, Pulled, Repository, Wanted, branch, git, has, objects_with, pull,
};
use crate::policy_source::ArtifactPush;

const FLUX: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";
const IMAGE_LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const BUNDLE: &str = "application/vnd.comity.policy.v1.git-bundle";
const COSIGN_SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// A registry, a clone with the policy, and what a broker needs.
struct Shelf {
    home: tempfile::TempDir,
    server: RegistryServer,
    access: PolicyAccess,
}

impl Shelf {
    /// `None` where there is no registry.
    async fn new(test: &str) -> Option<Self> {
        if !comity_testkit::requirements::met(test, &OciRegistry::missing()) {
            return None;
        }
        comity_runtime::install_crypto_provider();
        let home = tempfile::tempdir().unwrap();
        let server = RegistryServer::start(home.path()).await;
        let clone = home.path().join("clone");
        std::fs::create_dir(&clone).unwrap();
        git(&clone, &["init", "--quiet", "--initial-branch", "main"]);
        let (cache, authorities) = (home.path().join("cache"), Some(server.authority.clone()));
        let access = PolicyAccess { cache, authorities, ..PolicyAccess::default() };
        Some(Self { home, server, access })
    }

    fn commit(&self, text: &str) -> ObjectId {
        let clone = self.home.path().join("clone");
        std::fs::write(clone.join("a.yaml"), text).unwrap();
        git(&clone, &["add", "."]);
        git(&clone, &["commit", "--quiet", "-m", text]);
        git(&clone, &["rev-parse", "HEAD"]).parse().unwrap()
    }

    fn bundle(&self) -> Vec<u8> {
        self.bundle_of(&self.home.path().join("clone"))
    }

    fn bundle_of(&self, clone: &Path) -> Vec<u8> {
        let file = self.home.path().join("policy.bundle");
        git(clone, &["bundle", "create", "--quiet", file.to_str().unwrap(), "main"]);
        std::fs::read(file).unwrap()
    }

    async fn push_archive(&self, tag: &str, files: &[(&str, &str)]) -> String {
        self.server.push("policy", tag, &[(FLUX, &archive(files.iter().copied()), BTreeMap::new())]).await
    }

    async fn pull_from(&self, address: &str) -> Result<Pulled, PullError> {
        let repository = Repository::parse(address).unwrap();
        pull(&self.access, &repository, &Branch::parse("main").unwrap(), &[], PULL_PATIENCE).await
    }

    async fn pull(&self) -> Result<Pulled, PullError> {
        self.pull_from(&self.server.url("policy:main")).await
    }

    async fn refused(&self) -> PullError {
        self.pull().await.unwrap_err()
    }
}

/// Paths of the documents.
fn paths(pulled: Pulled) -> Vec<String> {
    paths_in("", pulled)
}

fn paths_in(folder: &str, pulled: Pulled) -> Vec<String> {
    let Pulled::Documents(documents) = pulled else { panic!("{pulled:?} has no documents") };
    documents.files(folder).unwrap().into_iter().map(|file| file.path).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pushed_commits_are_pulled_and_a_layer_is_fetched_once() {
    let Some(shelf) = Shelf::new("artifacts with commits").await else { return };
    let first = shelf.commit("one");
    for address in [shelf.server.url("org/policy:main"), shelf.server.plain_url("org/policy:main")] {
        let mut push = ArtifactPush::to(&address, "main").unwrap();
        push.authorities = Some(shelf.server.authority.clone());
        let pushed = push.push(shelf.bundle()).await.unwrap();
        assert_eq!((pushed.address, pushed.commit), (address.clone(), first.to_string()));
        assert_eq!(pushed.pinned, address.replace(":main", &format!("@{}", pushed.digest)));
        let pulled = branch(shelf.pull_from(&address).await.unwrap());
        assert!(pulled.head == first && has(&pulled, first));
        assert_eq!(pulled.artifact.unwrap().to_string(), pushed.digest);
    }
    let address = shelf.server.url("org/policy:main");
    let pinned = format!(
        "{}@{}",
        shelf.server.url("org/policy"),
        branch(shelf.pull_from(&address).await.unwrap()).artifact.unwrap()
    );
    shelf.server.take_calls();
    branch(shelf.pull_from(&address).await.unwrap());
    let layers = |calls: Vec<(String, _)>| calls.into_iter().filter(|(call, _)| call.contains("/blobs/")).count();
    assert_eq!(layers(shelf.server.take_calls()), 0, "what is in the cache is not fetched again");

    // As `oras push` makes it of a file of `git bundle create`.
    let second = shelf.commit("two");
    shelf.server.push("org/policy", "main", &[(BUNDLE, &shelf.bundle(), BTreeMap::new())]).await;
    let pulled = branch(shelf.pull_from(&address).await.unwrap());
    assert!(pulled.head == second && has(&pulled, first) && has(&pulled, second));
    assert_eq!(layers(shelf.server.take_calls()), 1);
    // Whoever changes the cache only makes the broker fetch again.
    std::fs::write(shelf.access.cache.join("bundle"), "changed").unwrap();
    assert_eq!(branch(shelf.pull_from(&address).await.unwrap()).head, second);
    // A digest stays what it is.
    assert_eq!(branch(shelf.pull_from(&pinned).await.unwrap()).head, first);

    let other = ArtifactPush::to(&address, "other").unwrap();
    assert!(other.push(shelf.bundle()).await.unwrap_err().reason.contains("no branch `other`"));
    // An agent asks a broker that has not pulled yet.
    std::fs::remove_dir_all(&shelf.access.cache).unwrap();
    let (at, main) = (Repository::parse(&address).unwrap(), Branch::parse("main").unwrap());
    let wanted = Wanted { commit: first, verified: None };
    objects_with(&shelf.access, &at, &main, wanted, PULL_PATIENCE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bundle_without_its_history_does_not_keep_out_the_whole_one() {
    let Some(shelf) = Shelf::new("artifacts of shallow clones").await else { return };
    let first = shelf.commit("one");
    let head = shelf.commit("two");
    let (shallow, url) =
        (shelf.home.path().join("shallow"), format!("file://{}", shelf.home.path().join("clone").display()));
    git(shelf.home.path(), &["clone", "--quiet", "--depth", "1", &url, shallow.to_str().unwrap()]);
    let main = Branch::parse("main").unwrap();
    for (bundle, is_whole) in [(shelf.bundle_of(&shallow), false), (shelf.bundle(), true)] {
        shelf.server.push("policy", "main", &[(BUNDLE, &bundle, BTreeMap::new())]).await;
        let pulled = branch(shelf.pull().await.unwrap());
        assert_eq!((pulled.head, has(&pulled, head), has(&pulled, first)), (head, true, is_whole));
    }
    assert!(!shelf.access.cache.join("layer").exists(), "the commits are kept once");
    // Another branch of the same bundle has a head of its own.
    let at = Repository::parse(&shelf.server.url("policy:main")).unwrap();
    let other = Branch::parse("other").unwrap();
    let error = pull(&shelf.access, &at, &other, &[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("no branch `other`"), "{error}");
    shelf.server.take_calls();
    pull(&shelf.access, &at, &main, &[], PULL_PATIENCE).await.unwrap();
    assert!(shelf.server.take_calls().iter().all(|(call, _)| !call.contains("/blobs/")), "it was added before");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_ends_and_names_its_own_flags() {
    let Some(shelf) = Shelf::new("pushes that fail").await else { return };
    shelf.commit("one");
    let mut push = ArtifactPush::to(&shelf.server.url("policy:main"), "main").unwrap();
    let untrusted = push.push(shelf.bundle()).await.unwrap_err();
    assert!(untrusted.remedy.contains("--registry-ca"), "{}", untrusted.remedy);
    push.authorities = Some(shelf.server.authority.clone());
    shelf.server.set_mood(RegistryMood::Basic("Basic x"));
    let refused = push.push(shelf.bundle()).await.unwrap_err();
    assert!(refused.remedy.contains("--registry-config"), "{}", refused.remedy);
    shelf.server.set_mood(RegistryMood::Hangs);
    push.deadline = Duration::from_millis(300);
    let late = push.push(shelf.bundle()).await.unwrap_err();
    assert!(late.reason.contains("did not take the policy within"), "{late}");
    let nobody = ArtifactPush::to("oci+http://127.0.0.1:1/policy:main", "main").unwrap();
    let unreachable = nobody.push(shelf.bundle()).await.unwrap_err();
    for error in [late, unreachable] {
        assert!(error.remedy.contains("this machine") && !error.remedy.contains("leader"), "{}", error.remedy);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_pulled_as_its_documents() {
    let Some(shelf) = Shelf::new("artifacts with folders").await else { return };
    let files =
        [("b.yaml", "b"), ("sub/a.yml", "a"), (".github/x.yaml", "x"), ("README.md", "r"), ("a.test.yaml", "t")];
    let pushed = shelf.push_archive("main", &files).await;
    let pulled = shelf.pull().await.unwrap();
    let Pulled::Documents(documents) = &pulled else { panic!("{pulled:?}") };
    assert_eq!(documents.artifact.to_string(), pushed);
    assert_eq!(paths(pulled), ["b.yaml", "sub/a.yml"]);
    // As `oras push` makes it of a folder.
    let archive = archive([("policy/c.yaml", "c"), ("charts/d.yaml", "d")]);
    shelf.server.push("policy", "main", &[(IMAGE_LAYER, &archive, BTreeMap::new())]).await;
    assert_eq!(paths(shelf.pull().await.unwrap()), ["charts/d.yaml", "policy/c.yaml"]);
    assert_eq!(paths_in("policy", shelf.pull().await.unwrap()), ["c.yaml"]);

    let error = shelf.pull_from(&shelf.server.url("policy:other")).await.unwrap_err();
    assert!(error.reason.contains("there is no oci://localhost") && error.reason.contains("policy:other"), "{error}");
    shelf.server.push("policy", "main", &[("text/plain", b"x", BTreeMap::new())]).await;
    assert!(shelf.refused().await.reason.contains("no policy, of media type: text/plain"));
    let layer = |content| (FLUX, content, BTreeMap::new());
    shelf.server.push("policy", "main", &[layer(&archive[..]), layer(&b"x"[..])]).await;
    assert!(shelf.refused().await.reason.contains("has 2 layers"));
    shelf.server.push("policy", "main", &[layer(&b"no gzip"[..])]).await;
    let Pulled::Documents(broken) = shelf.pull().await.unwrap() else { panic!("no documents") };
    assert!(broken.files("").unwrap_err().reason.contains("the archive of the policy: "));
    // The manifest says less, and much more, than the layer has.
    for (size, reason) in
        [(3, "more than 3 bytes"), (archive.len() + 1, "sent a layer of"), (1 << 40, "more than 8388608 bytes")]
    {
        let mut descriptor = shelf.server.upload("policy", FLUX, &archive).await;
        descriptor["size"] = size.into();
        let config = shelf.server.upload("policy", "application/vnd.oci.empty.v1+json", b"{}").await;
        let manifest = serde_json::json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
            "layers": [descriptor],
        });
        shelf.server.put_manifest("policy", "main", &manifest).await;
        std::fs::remove_dir_all(&shelf.access.cache).unwrap();
        let error = shelf.refused().await;
        assert!(error.reason.contains(reason), "{size}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_lies_or_hangs_is_refused() {
    let Some(shelf) = Shelf::new("registries with faults").await else { return };
    shelf.push_archive("main", &[("a.yaml", "a")]).await;
    for (mood, reason) in
        [(RegistryMood::OtherLayers, "sent a layer of"), (RegistryMood::Endless, "has more than 262144 bytes")]
    {
        shelf.server.set_mood(mood.clone());
        let error = shelf.refused().await;
        assert!(error.reason.contains(reason), "{mood:?}: {error}");
        assert_eq!(error.code, "unreachable");
    }
    let (at, main) = (Repository::parse(&shelf.server.url("policy:main")).unwrap(), Branch::parse("main").unwrap());
    shelf.server.set_mood(RegistryMood::Hangs);
    let error = pull(&shelf.access, &at, &main, &[], Duration::from_millis(300)).await.unwrap_err();
    assert!(error.reason.contains("did not send the policy within"), "{error}");
    shelf.server.set_mood(RegistryMood::Good);
    let none = PolicyAccess { authorities: None, ..shelf.access.clone() };
    let error = pull(&none, &at, &main, &[], PULL_PATIENCE).await.unwrap_err();
    assert!(error.reason.contains("cannot trust localhost"), "{error}");
    assert_eq!(paths(shelf.pull().await.unwrap()), ["a.yaml"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manifest_is_the_one_that_the_registry_or_the_address_names() {
    let Some(shelf) = Shelf::new("registries that send other manifests").await else { return };
    let artifact = shelf.push_archive("main", &[("a.yaml", "a")]).await;
    shelf.server.set_mood(RegistryMood::OtherManifests);
    let pinned = format!("{}@{artifact}", shelf.server.url("policy"));
    for address in [shelf.server.url("policy:main"), pinned] {
        let error = shelf.pull_from(&address).await.unwrap_err();
        assert!(error.reason.contains("sent the manifest sha256:") && error.reason.contains(&artifact), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_sends_callers_elsewhere_over_tls_only() {
    let Some(shelf) = Shelf::new("registries that redirect").await else { return };
    shelf.push_archive("main", &[("a.yaml", "a")]).await;
    // The layer is there, too.
    let plain = format!("http://{}", shelf.server.plain);
    for (mood, reason) in [
        (RegistryMood::LayersAt(plain), "redirects to an address without TLS"),
        (RegistryMood::LayersAt("https://bot:x@localhost/x".to_owned()), "redirects to an address with a user"),
        (RegistryMood::LayersAt("/v2/policy/blobs/again".to_owned()), "redirects (307"),
        (RegistryMood::TokensOf("http://127.0.0.1:1/token".to_owned()), "takes tokens from an address without TLS"),
    ] {
        shelf.server.set_mood(mood.clone());
        let error = shelf.refused().await;
        assert!(error.reason.contains(reason), "{mood:?}: {error}");
    }
    // Registries keep layers elsewhere.
    let storage = format!("https://localhost:{}/storage", shelf.server.address.port());
    shelf.server.set_mood(RegistryMood::LayersAt(storage));
    assert_eq!(paths(shelf.pull().await.unwrap()), ["a.yaml"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_go_to_their_registry_only() {
    let Some(mut shelf) = Shelf::new("credentials of registries").await else { return };
    shelf.push_archive("main", &[("a.yaml", "a")]).await;
    let file = shelf.home.path().join("config.json");
    let port = shelf.server.address.port();
    let write = |host: &str, password: &str| {
        let auth = STANDARD.encode(format!("bot:{password}"));
        let text = serde_json::json!({"auths": {host: {"auth": auth}}}).to_string();
        comity_runtime::atomic_file::write(&file, text.as_bytes(), comity_runtime::atomic_file::PRIVATE).unwrap();
    };
    let basic = "Basic Ym90OmdlaGVpbQ==";
    for mood in [RegistryMood::Basic(basic), RegistryMood::Bearer(basic)] {
        shelf.server.set_mood(mood.clone());
        shelf.access.registry_config = None;
        let error = shelf.refused().await;
        assert!(error.remedy.contains("--policy-registry-config"), "{mood:?}: {error}");
        shelf.access.registry_config = Some(file.clone());
        shelf.server.take_calls();
        write("other.example", "geheim");
        shelf.refused().await;
        assert!(shelf.server.take_calls().iter().all(|(_, sent)| sent.is_none()), "sent to another host");
        write(&format!("localhost:{port}"), "falsch");
        let error = shelf.refused().await;
        let shown = format!("{error} {} {error:?}", error.remedy);
        assert!(!shown.contains("falsch") && !shown.contains(&STANDARD.encode("bot:falsch")), "{shown}");
        write(&format!("localhost:{port}"), "geheim");
        shelf.server.take_calls();
        let _ = std::fs::remove_dir_all(&shelf.access.cache);
        assert_eq!(paths(shelf.pull().await.unwrap()), ["a.yaml"]);
        let calls = shelf.server.take_calls();
        let token = calls.iter().find(|(call, _)| call.contains("/token"));
        match mood {
            RegistryMood::Bearer(_) => {
                let (call, sent) = token.unwrap();
                assert!(call.contains("service=registry&scope=repository%3Apolicy%3Apull"), "{call}");
                assert_eq!(sent.as_deref(), Some(basic));
                // The password goes where tokens come from, and nowhere else.
                let with_password = calls.iter().filter(|(_, sent)| sent.as_deref() == Some(basic)).count();
                assert_eq!(with_password, 1);
            }
            _ => assert_eq!(token, None),
        }
    }
}

/// A key as cosign has it.
enum CosignKey {
    P256(p256::ecdsa::SigningKey),
    Ed25519(ed25519_dalek::SigningKey),
}

impl CosignKey {
    fn p256(seed: u8) -> Self {
        Self::P256(p256::ecdsa::SigningKey::from_slice(&[seed; 32]).unwrap())
    }

    fn ed25519(seed: u8) -> Self {
        Self::Ed25519(ed25519_dalek::SigningKey::from_bytes(&[seed; 32]))
    }

    fn pem(&self) -> String {
        match self {
            Self::P256(key) => key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap(),
            Self::Ed25519(key) => key.verifying_key().to_public_key_pem(LineEnding::LF).unwrap(),
        }
    }

    fn sign(&self, payload: &[u8]) -> String {
        STANDARD.encode(match self {
            Self::P256(key) => {
                let signature: p256::ecdsa::Signature = key.sign(payload);
                signature.to_der().as_bytes().to_vec()
            }
            Self::Ed25519(key) => key.sign(payload).to_bytes().to_vec(),
        })
    }
}

/// What cosign signs about an artifact.
fn payload(artifact: &str, kind: &str) -> Vec<u8> {
    let critical = serde_json::json!({
        "identity": {"docker-reference": "registry.example/policy"}, "image": {"docker-manifest-digest": artifact}, "type": kind,
    });
    serde_json::to_vec(&serde_json::json!({"critical": critical, "optional": null})).unwrap()
}

const KIND: &str = "cosign container image signature";

#[tokio::test(flavor = "multi_thread")]
async fn with_keys_only_signed_artifacts_count() {
    let Some(mut shelf) = Shelf::new("signed artifacts").await else { return };
    let keys = shelf.home.path().join("cosign.pub");
    shelf.access.artifact_keys = Some(keys.clone());
    let ours = [CosignKey::p256(1), CosignKey::ed25519(2)];
    let others = [CosignKey::p256(3), CosignKey::ed25519(4)];
    std::fs::write(&keys, format!("{}\n{}\n", ours[0].pem(), ours[1].pem())).unwrap();
    let older = shelf.push_archive("older", &[("a.yaml", "old")]).await;
    let archive = archive([("a.yaml", "a")]);
    let artifact = shelf.server.push("policy", "main", &[(FLUX, &archive, BTreeMap::new())]).await;
    let signatures = async |layers: &[(Vec<u8>, String)]| {
        let layers = layers.iter().map(|(payload, signature)| {
            let annotations = BTreeMap::from([(COSIGN_SIGNATURE.to_owned(), signature.clone())]);
            ("application/vnd.dev.cosign.simplesigning.v1+json", &payload[..], annotations)
        });
        let tag = format!("{}.sig", artifact.replace(':', "-"));
        shelf.server.push("policy", &tag, &layers.collect::<Vec<_>>()).await;
    };
    let unsigned = async |what: &str| {
        shelf.server.take_calls();
        let error = shelf.refused().await;
        assert_eq!(error.code, "unsigned-artifact", "{what}: {error}");
        assert!(error.reason.contains(&artifact), "{what}: {error}");
        assert_eq!(error.artifact.map(|seen| seen.to_string()), Some(artifact.clone()), "{what}");
        // Nothing of the artifact was read.
        let layer = digest(&archive);
        assert!(shelf.server.take_calls().iter().all(|(call, _)| !call.contains(&layer)), "{what}");
    };
    unsigned("no signature").await;
    let genuine = payload(&artifact, KIND);
    for (what, payload, signature) in [
        ("another key", genuine.clone(), others[0].sign(&genuine)),
        ("another key of Ed25519", genuine.clone(), others[1].sign(&genuine)),
        ("another payload", payload(&artifact, KIND), ours[0].sign(b"something else")),
        ("another artifact", payload(&older, KIND), ours[0].sign(&payload(&older, KIND))),
        ("another kind", payload(&artifact, "attestation"), ours[1].sign(&payload(&artifact, "attestation"))),
        ("no base64", genuine.clone(), "%".to_owned()),
        ("no signature", genuine.clone(), String::new()),
    ] {
        signatures(&[(payload, signature)]).await;
        unsigned(what).await;
    }
    for key in &ours {
        // Beside another one's, as several people sign.
        signatures(&[(genuine.clone(), others[0].sign(&genuine)), (genuine.clone(), key.sign(&genuine))]).await;
        let _ = std::fs::remove_dir_all(&shelf.access.cache);
        assert_eq!(paths(shelf.pull().await.unwrap()), ["a.yaml"]);
        assert!(shelf.server.take_calls().iter().any(|(call, _)| call.contains(&digest(&archive))));
    }
    let cases: [(&str, &str); 3] =
        [("", "has no key"), ("-----BEGIN PUBLIC KEY-----", "key 1 in it"), ("\u{0}", "key 1 in it")];
    for (text, reason) in cases {
        std::fs::write(&keys, text).unwrap();
        let error = shelf.refused().await;
        assert!(error.reason.contains(reason) && error.reason.contains("--policy-oci-key"), "{error}");
    }
    std::fs::remove_file(&keys).unwrap();
    assert!(shelf.refused().await.reason.contains("--policy-oci-key"), "a lost file of keys admits nothing");
    assert!(Path::new(&shelf.access.cache).join("layer").is_file());
}
