//! `comity-agent join` and `doctor` as an operator runs them, against a real broker on loopback.
#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "join/federation.rs"]
mod federation;

use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use comity_agent::app::IDENTITY_KEY_FILE;
use comity_agent::enrollment::join::{JoinInput, Membership, RefusedToken, join_or_load};
use comity_agent::enrollment::join_error::JoinError;
use comity_agent::enrollment::token_source::JoinTokenSource;
use comity_agent_state::state_copy::{StateCopy, StateCopyError};
use comity_agent_state::store::Store;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use comity_runtime::{IdentityKey, SecretString, SystemClock, SystemEntropy};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use federation::Federation;

const INVENTORY: &str = "\
nodes:
  - name: titan
    cpu: \"32\"
    memory: 128Gi
    gpus:
      - {count: 2, product: NVIDIA-RTX-4090, memoryMiB: 24564, architecture: ada-lovelace, computeCapability: \"8.9\",
         driverVersion: \"550.1\"}
";

impl Federation {
    async fn invite_again(&self, cluster: &str, replace: bool) -> String {
        let request = v1::InviteClusterRequest {
            cluster: cluster.to_owned(),
            replace,
            idempotency_key: format!("again-{cluster}-{replace}"),
            ..v1::InviteClusterRequest::default()
        };
        FederationServiceClient::new(self.admin()).invite_cluster(request).await.unwrap().into_inner().token
    }

    async fn evict(&self, cluster: &str) {
        let request = v1::EvictClusterRequest {
            cluster: cluster.to_owned(),
            idempotency_key: format!("evict-{cluster}"),
            ..v1::EvictClusterRequest::default()
        };
        FederationServiceClient::new(self.admin()).evict_cluster(request).await.unwrap();
    }

    async fn members(&self) -> usize {
        let request = v1::ListClustersRequest::default();
        let clusters = FederationServiceClient::new(self.admin()).list_clusters(request).await.unwrap();
        clusters.into_inner().clusters.len()
    }
}

/// Runs the agent's program; no output of it may hold the token.
async fn agent(args: &[&str], input: &str, token: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_comity-agent"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.unwrap();
    let Output { status, stdout, stderr } = ended.unwrap();
    let printed = String::from_utf8([stdout, stderr].concat()).unwrap();
    let secret = &token[token.len() / 2..];
    assert!(!printed.contains(secret), "{args:?} printed the token");
    (status.code(), printed)
}

/// A configuration whose fabric listens on loopback.
fn write_config(home: &Path, inventory: &str) -> String {
    let inventory_file = home.join("inventory.yaml");
    std::fs::write(&inventory_file, inventory).unwrap();
    let config = home.join("config.yaml");
    let (state, inventory_file) = (home.join("state"), inventory_file.display());
    let text =
        format!("stateDir: {}\ninventoryFile: {inventory_file}\nfabric: {{listen: '127.0.0.1:0'}}\n", state.display());
    std::fs::write(&config, text).unwrap();
    config.display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_check_spends_nothing_and_then_the_same_token_joins() {
    let federation = Federation::start().await;
    let token = federation.invite("ncc-main").await;
    let home = tempfile::tempdir().unwrap();

    let config = write_config(home.path(), &INVENTORY.replace("driverVersion", "drivreVersion"));
    let (code, printed) = agent(&["join", &token, "--config", &config], "", &token).await;
    assert_eq!(code, Some(3), "{printed}");
    for part in ["driverVersion is missing", "did you mean driverVersion?", "was not used", "a datagram of the broker"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(federation.members().await, 0);

    write_config(home.path(), INVENTORY);
    let (code, printed) = agent(&["join", &token, "--config", &config, "--dry-run"], "", &token).await;
    assert!(code == Some(0) && printed.contains("dry run"), "{printed}");
    assert_eq!(federation.members().await, 0);

    let (code, printed) = agent(&["join", "-", "--config", &config, "-o", "json"], &token, &token).await;
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, report["id"].as_str()), (Some(0), Some("spiffe://comity.example/cluster/ncc-main")));
    assert!(report["checks"].as_array().unwrap().iter().all(|check| check["result"] == "ok"), "{printed}");
    assert_eq!(federation.members().await, 1);

    let (code, printed) = agent(&["doctor", "--config", &config], "", &token).await;
    assert!(code == Some(0) && printed.contains("ok       certificate"), "{printed}");

    // A second cluster cannot use the spent token.
    let other = tempfile::tempdir().unwrap();
    let config = write_config(other.path(), INVENTORY);
    let (code, printed) = agent(&["join", &token, "--config", &config], "", &token).await;
    assert!(code == Some(3) && printed.contains("already used"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_cluster_is_told_and_joins_again_with_a_new_token() {
    let federation = Federation::start().await;
    let first = federation.invite("ncc-main").await;
    let home = tempfile::tempdir().unwrap();
    let config = write_config(home.path(), INVENTORY);
    let join = async |token: &str| agent(&["join", "-", "--config", &config], token, token).await;
    assert_eq!(join(&first).await.0, Some(0));
    let (code, printed) = join(&first).await;
    assert!(code == Some(0) && printed.contains("has the identity"), "{printed}");

    federation.evict("ncc-main").await;
    let (code, printed) = agent(&["doctor", "--config", &config], "", &first).await;
    assert_ne!(code, Some(0));
    assert!(printed.contains("failed   membership"), "{printed}");
    assert!(printed.contains("comity cluster invite ncc-main") && !printed.contains("raft status"), "{printed}");

    let second = federation.invite_again("ncc-main", false).await;
    let (code, printed) = join(&second).await;
    assert!(code == Some(0) && printed.contains("joined as"), "{printed}");
    let (code, printed) = join(&second).await;
    assert!(code == Some(0) && printed.contains("has the identity"), "{printed}");
    let (code, printed) = agent(&["doctor", "--config", &config], "", &second).await;
    assert!(code == Some(0) && printed.contains("ok       membership"), "{printed}");
    // The first token is another one again, and used.
    let (code, printed) = join(&first).await;
    assert!(code == Some(3) && printed.contains("already used"), "{printed}");

    // Another cluster's token and another cluster's identity key are not taken for this one's.
    let other = federation.invite("polytech-campus").await;
    let (code, printed) = join(&other).await;
    assert!(code != Some(0) && printed.contains("cluster/ncc-main, and the join token is for"), "{printed}");
    assert_eq!(federation.members().await, 1);
    let key = home.path().join("state").join(IDENTITY_KEY_FILE);
    std::fs::remove_file(&key).unwrap();
    IdentityKey::load_or_generate(&key, &SystemEntropy).unwrap();
    let (code, printed) = agent(&["doctor", "--config", &config], "", &second).await;
    assert!(code != Some(0) && printed.contains("failed   identity key"), "{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_agent_joins_again_with_a_new_token_and_goes_on_without_a_refused_one() {
    let federation = Federation::start().await;
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let first = join(home.path(), &store, &federation.invite("ncc-main").await).await.unwrap();
    let generation = |membership: &Membership| membership.identity.generation();
    let second = federation.invite_again("ncc-main", true).await;
    let replaced = join(home.path(), &store, &second).await.unwrap();
    assert!(generation(&replaced) > generation(&first), "the old certificate is void");
    // The same call of a maintainer gives the first token again, which is used.
    let used = federation.invite("ncc-main").await;
    assert!(matches!(join(home.path(), &store, &used).await, Err(JoinError::Refused { .. })));
    let kept = join_with(home.path(), &store, &used, RefusedToken::IsIgnored).await.unwrap();
    assert_eq!(generation(&kept), generation(&replaced));

    // Records of another cluster: the token is not spent on them.
    let elsewhere = home.path().join("elsewhere");
    let records = Store::open(&elsewhere).unwrap();
    records.bind("spiffe://comity.example/cluster/ncc-main").await.unwrap();
    let campus = federation.invite("polytech-campus").await;
    let other = join(&elsewhere, &records, &campus).await;
    assert!(matches!(other, Err(JoinError::Copy(_))), "{other:?}");
    assert_eq!(federation.members().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_could_not_be_saved_comes_again_for_the_same_token() {
    let federation = Federation::start().await;
    let token = federation.invite("ncc-main").await;
    let home = tempfile::tempdir().unwrap();
    let config = write_config(home.path(), INVENTORY);
    let blocked = home.path().join("state/identity/cert.pem");
    std::fs::create_dir_all(blocked.join("in the way")).unwrap();
    // The identity's folder must be private: the join checks that first.
    let private = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(blocked.parent().unwrap(), private).unwrap();
    let (code, printed) = agent(&["join", "-", "--config", &config], &token, &token).await;
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("joined, but its certificate is not saved"), "{printed}");
    assert_eq!(federation.members().await, 1);

    std::fs::remove_dir_all(&blocked).unwrap();
    let (code, printed) = agent(&["join", "-", "--config", &config], &token, &token).await;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("used by an interrupted join") && printed.contains("joined as"), "{printed}");
    let mut left = std::fs::read_dir(home.path().join("state/identity")).unwrap().flatten();
    assert!(left.all(|entry| !entry.file_name().to_string_lossy().starts_with("pending")));
}

/// Keeps every image of a state in memory.
#[derive(Default)]
struct Images(Mutex<Vec<Vec<u8>>>);

impl StateCopy for Images {
    fn put(&self, image: &[u8]) -> Result<(), StateCopyError> {
        self.0.lock().unwrap().push(image.to_vec());
        Ok(())
    }
}

/// Joins in this process, as a replica of an agent does.
async fn join(state: &Path, store: &Store, token: &str) -> Result<Membership, JoinError> {
    join_with(state, store, token, RefusedToken::Fails).await
}

async fn join_with(state: &Path, store: &Store, token: &str, refused: RefusedToken) -> Result<Membership, JoinError> {
    let key = IdentityKey::load_or_generate(&state.join(IDENTITY_KEY_FILE), &SystemEntropy).unwrap();
    let token = JoinTokenSource::Inline(SecretString::new(token.to_owned()));
    join_or_load(JoinInput {
        state,
        token: Some(&token),
        refused,
        brokers: &[],
        key: &key,
        store: Some(store),
        voucher: None,
        clock: &SystemClock::new(),
        entropy: &SystemEntropy,
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_resumes_a_join_that_its_predecessor_did_not_survive() {
    let federation = Federation::start().await;
    let token = federation.invite("ncc-main").await;
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (home.path().join("first"), home.path().join("second"));
    let images = Arc::new(Images::default());
    let store = Store::open_with(&first, Some(Arc::<Images>::clone(&images))).unwrap();
    let joined = join(&first, &store, &token).await.unwrap();
    assert_eq!(federation.members().await, 1);

    // The first replica died with its certificate: its newest copy is of the time before the token was spent.
    let image = images.0.lock().unwrap().last().cloned().expect("the state was copied before the join");
    Store::restore(&second, &image).unwrap();
    assert!(!second.join("identity/cert.pem").exists());
    let successor = join(&second, &Store::open(&second).unwrap(), &token).await.unwrap();
    assert_eq!(successor.identity.id(), joined.identity.id());
    assert_eq!(federation.members().await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_configuration_gets_one() {
    let federation = Federation::start().await;
    let token = federation.invite("polytech-campus").await;
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state").display().to_string();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let listen = format!("127.0.0.1:{port}");
    let file = home.path().join("join.token");
    std::fs::write(&file, &token).unwrap();
    let file = file.display().to_string();
    let args = ["join", &file, "--state", &state, "--fabric-listen", &listen];
    let (code, printed) = agent(&args, "", &token).await;
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("next: comity-agent run --config"), "{printed}");
    let written = std::fs::read_to_string(home.path().join("state/agent.yaml")).unwrap();
    assert!(written.contains(&listen) && written.contains("inventory.yaml") && !written.contains("burst"), "{written}");
    assert!(home.path().join("state/inventory.yaml").exists());
    // The written file is found by itself.
    let (code, printed) = agent(&["doctor", "--state", &state], "", &token).await;
    assert!(code == Some(0) && printed.contains(&listen), "{printed}");
}

#[tokio::test]
async fn a_token_in_a_wrong_place_is_not_printed() {
    let token = format!("comity-join-v1.{}", "c2VjcmV0".repeat(20));
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("state").display().to_string();
    let wrong: [&[&str]; 6] = [
        &["join", &token, "--kubeconfig", &token, "--state", &state],
        &["run", "--config", &token],
        &["run", "--inventory", &token, "--state", &state],
        &["run", &token],
        &[&token],
        &["join", &token, "--state", &state],
    ];
    for args in wrong {
        let (code, printed) = agent(args, "", &token).await;
        assert!(code != Some(0) && !printed.is_empty(), "{printed}");
    }
}
