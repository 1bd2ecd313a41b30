//! The leader pulls the policy from a real registry: commits whose owners signed them, and folders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use comity_broker::policy_source::ArtifactPush;
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_testkit::OciRegistry;

use super::federation::{Federation, assert_refused, examples, within};
use super::policy_pulls::{Author, apply, failure, get, metric};
use super::registry_server::{self, RegistryMood, RegistryServer};

/// Without signatures, as the example policy is.
const FLUX: &str = "application/vnd.cncf.flux.content.v1.tar+gzip";

async fn set(federation: &Federation, address: &str) -> Result<(), tonic::Status> {
    let request = v1::SetPolicySourceRequest {
        repository: address.to_owned(),
        folder: "policy".to_owned(),
        interval_ms: 5_000,
        ..v1::SetPolicySourceRequest::default()
    };
    PolicyServiceClient::new(federation.user("ingrid")).set_policy_source(request).await.map(|_| ())
}

/// Sets the source, which pulls at once, and waits for what that pull is to show.
async fn pulled(
    federation: &Federation,
    address: &str,
    what: &str,
    is_there: impl Fn(&v1::PolicySource) -> bool,
) -> v1::GetPolicyResponse {
    set(federation, address).await.unwrap();
    within(what, async {
        loop {
            let policy = get(federation).await;
            if policy.source.as_ref().is_some_and(|source| source.pulled_at_ms > 0 && is_there(source)) {
                return policy;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await
}

/// Pushes the branch. Returns the digest.
async fn push(author: &Author, server: &RegistryServer, address: &str) -> String {
    let file = author.home.path().join("policy.bundle");
    author.git(&["bundle", "create", "--quiet", file.to_str().unwrap(), "main"]);
    let mut push = ArtifactPush::to(address, "main").unwrap();
    push.authorities = Some(server.authority.clone());
    push.push(std::fs::read(file).unwrap()).await.unwrap().digest
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_an_artifact_are_judged_as_those_of_a_repository() {
    if !comity_testkit::requirements::met("a registry with commits", &OciRegistry::missing()) {
        return;
    }
    let author = Author::new();
    let server = RegistryServer::start(author.home.path()).await;
    let mut federation = Federation::start().await;
    federation.config.policy_ca = Some(server.authority.clone());
    federation.restart().await;
    apply(&federation, author.policy(), "first").await.unwrap();
    let url = server.url("federation/policy:main");

    let first = author.commit(None, "as it is in force");
    let in_force = push(&author, &server, &url).await;
    let policy = pulled(&federation, &url, "the first commit", |source| source.commit == first).await;
    let source = policy.source.unwrap();
    assert_eq!((source.repository.as_str(), source.failure), (url.as_str(), None));
    assert_eq!((&source.artifact, &source.artifact_in_force), (&in_force, &in_force));

    author.edit("institutions/polytechnic.yaml", "contact: ", "contact: not-");
    let unsigned = author.commit(None, "by nobody");
    let seen = push(&author, &server, &url).await;
    let policy = pulled(&federation, &url, "the unsigned commit", |source| source.head == unsigned).await;
    let refused = failure(&policy);
    assert_eq!((refused.code.as_str(), refused.commit.as_str()), ("unsigned", unsigned.as_str()));
    let source = policy.source.unwrap();
    assert_eq!((&source.artifact, &source.artifact_in_force), (&seen, &in_force));

    let approved = author.commit(Some("poly"), &format!("Approve\n\nApproves: {unsigned}"));
    push(&author, &server, &url).await;
    pulled(&federation, &url, "the approved commit", |source| source.commit == approved).await;
    // Whoever moves the tag back brings nothing back.
    author.git(&["reset", "--quiet", "--hard", &first]);
    push(&author, &server, &url).await;
    let policy = pulled(&federation, &url, "the older commit", |source| source.head == first).await;
    assert_eq!(failure(&policy).code, "rollback");
    // Documents without commits change nothing from now on.
    server.push("federation/policy", "main", &[(FLUX, &archive(&examples()), BTreeMap::new())]).await;
    let policy = pulled(&federation, &url, "the folder", |source| source.failure.is_some()).await;
    let refused = failure(&policy);
    assert_eq!(refused.code, "unsigned");
    assert!(
        refused.reason.contains("artifact sha256:") && refused.remedy.contains("comity policy push"),
        "{refused:?}"
    );
}

/// The folder `policy` with a bundle.
fn archive(bundle: &v1::PolicyBundle) -> Vec<u8> {
    let files: Vec<_> = bundle.files.iter().map(|file| (format!("policy/{}", file.path), &file.text)).collect();
    registry_server::archive(files.iter().map(|(path, text)| (path.as_str(), text.as_str())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_comes_into_force_where_no_signatures_are_required_and_its_keys_vouch_for_it() {
    if !comity_testkit::requirements::met("a registry with folders", &OciRegistry::missing()) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let server = RegistryServer::start(home.path()).await;
    let mut federation = Federation::start().await;
    federation.config.policy_ca = Some(server.authority.clone());
    federation.restart().await;
    let (before, url) = (get(&federation).await.hash, server.url("policy:main"));
    let changed = |from: &str, to: &str| {
        let mut bundle = examples();
        bundle.files.iter_mut().for_each(|file| file.text = file.text.replace(from, to));
        archive(&bundle)
    };
    let longer = changed("maxQueuedRequestsPerTenant: ", "maxQueuedRequestsPerTenant: 1");
    let artifact = server.push("policy", "main", &[(FLUX, &longer, BTreeMap::new())]).await;
    let first = pulled(&federation, &url, "the folder", |source| source.artifact_in_force == artifact).await;
    assert_ne!(first.hash, before);
    let source = first.source.unwrap();
    assert_eq!((source.failure, source.head.as_str(), source.commit.as_str()), (None, "", ""));
    assert_eq!(metric(&federation, "comity_broker_policy_source_behind").await, "comity_broker_policy_source_behind 0");

    let invalid =
        server.push("policy", "main", &[(FLUX, &changed("kind: Quota", "kind: Quotum"), BTreeMap::new())]).await;
    let policy = pulled(&federation, &url, "what is no policy", |source| source.artifact == invalid).await;
    assert_eq!((failure(&policy).code.as_str(), &policy.hash), ("invalid", &first.hash));
    assert_eq!(policy.source.unwrap().artifact_in_force, artifact);

    // From now on a key must vouch for artifacts.
    let keys = home.path().join("cosign.pub");
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    std::fs::write(&keys, key.public_key_pem()).unwrap();
    federation.config.policy_oci_key = Some(keys);
    federation.restart().await;
    let unsigned = server.push("policy", "main", &[(FLUX, &archive(&examples()), BTreeMap::new())]).await;
    let policy =
        pulled(&federation, &url, "the artifact that nobody signed", |source| source.artifact == unsigned).await;
    assert_eq!((failure(&policy).code.as_str(), &policy.hash), ("unsigned-artifact", &first.hash));
    assert_eq!(policy.source.unwrap().artifact_in_force, artifact);
    let counted = metric(&federation, "comity_broker_policy_pulls_total{outcome=\"unsigned-artifact\"}").await;
    assert!(!counted.is_empty());

    // What the registry says about itself is not trusted either.
    server.set_mood(RegistryMood::OtherManifests);
    let lies = |source: &v1::PolicySource| source.failure.as_ref().is_some_and(|it| it.code == "unreachable");
    let policy = pulled(&federation, &url, "a lie", lies).await;
    assert!(failure(&policy).reason.contains("sent the manifest"), "{:?}", failure(&policy));
    let plain = "oci+http://registry.example/policy:main";
    assert_refused(set(&federation, plain).await, tonic::Code::InvalidArgument, "repository", plain);
}

/// The file that a flag of `comity-broker run` names, as the broker has it in force.
fn in_force(data: &Path, flag: &str, file: &Path) -> Option<PathBuf> {
    let mut run = Command::new(env!("CARGO_BIN_EXE_comity-broker"));
    let output = run.arg("run").arg("--data").arg(data).arg(flag).arg(file).arg("--dump-config").output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    shown[flag.trim_start_matches("--").replace('-', "_")].as_str().map(PathBuf::from)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registry_gets_the_credentials_of_the_flag() {
    if !comity_testkit::requirements::met("a registry with users", &OciRegistry::missing()) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let server = RegistryServer::start(home.path()).await;
    let mut federation = Federation::start().await;
    let credentials = home.path().join("registry.json");
    let host = format!("localhost:{}", server.address.port());
    let auths = serde_json::json!({"auths": {host: {"username": "bot", "password": "geheim"}}});
    let private = comity_runtime::atomic_file::PRIVATE;
    comity_runtime::atomic_file::write(&credentials, auths.to_string().as_bytes(), private).unwrap();
    let data = federation.data();
    federation.config.policy_ca = in_force(&data, "--policy-ca", &server.authority);
    federation.config.policy_registry_config = in_force(&data, "--policy-registry-config", &credentials);
    federation.restart().await;
    let artifact = server.push("policy", "main", &[(FLUX, &archive(&examples()), BTreeMap::new())]).await;
    let basic = "Basic Ym90OmdlaGVpbQ==";
    server.set_mood(RegistryMood::Basic(basic));
    let url = server.url("policy:main");
    pulled(&federation, &url, "what only users get", |source| source.artifact_in_force == artifact).await;
    assert!(server.take_calls().iter().any(|(_, sent)| sent.as_deref() == Some(basic)));
}
