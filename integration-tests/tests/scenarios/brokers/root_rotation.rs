//! A federation moves to its next root while it works: three brokers, two agents, a lease with traffic.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use comity_runtime::IdentityDir;
use comity_scenarios::{Federation, FederationConfig, PATIENCE, program, until};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::process::Command;
use tokio::task::JoinHandle;

use crate::OrLogs as _;
use crate::inventories::origin_and_donor_with;

const AGENTS: [&str; 2] = ["polytech-campus", "ncc-main"];
/// Life of the agents' certificates: each is renewed after two thirds of it.
const CERTIFICATES_S: u64 = 60;
/// Brokers end what is void within five seconds.
const STREAMS_END_WITHIN: Duration = Duration::from_secs(8);
/// Between two questions through the tunnel, and the longest wait for an answer.
const QUESTION_PAUSE: Duration = Duration::from_millis(250);
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Questions to the donor's API through the tunnel of a lease, one after another until dropped.
struct Traffic {
    answered: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Traffic {
    async fn start(kubeconfig: &Path) -> Result<Self> {
        let parsed = Kubeconfig::read_from(kubeconfig)?;
        let config = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
        let (answered, failed) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let counts = (Arc::clone(&answered), Arc::clone(&failed));
        let task = tokio::spawn(async move {
            loop {
                let count = if is_answered(&config).await { &counts.0 } else { &counts.1 };
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(QUESTION_PAUSE).await;
            }
        });
        Ok(Self { answered, failed, task })
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether the donor's API answers on a new connection.
async fn is_answered(config: &kube::Config) -> bool {
    let Ok(client) = kube::Client::try_from(config.clone()) else { return false };
    matches!(tokio::time::timeout(ANSWER_WITHIN, client.apiserver_version()).await, Ok(Ok(_)))
}

async fn comity_broker(args: &[&str]) -> Result<()> {
    let output = Command::new(program("comity-broker")?).args(args).output().await?;
    ensure!(output.status.success(), "comity-broker {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

async fn install(federation: &Federation, from: &Path, more: &[&str]) -> Result<()> {
    for id in 1..=3 {
        let data = federation.broker_dir(id);
        comity_broker(&[&["ca", "install", "--from", text(from), "--data", text(&data)], more].concat()).await?;
    }
    Ok(())
}

/// Roots that an agent trusts.
fn trusted_roots(federation: &Federation, cluster: &str) -> Result<usize> {
    let (_, identity) = IdentityDir::new(federation.agent_dir(cluster).join("identity")).load()?;
    Ok(identity.roots().hashes().count())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_renewed_keep_their_streams_and_a_lease_when_the_previous_root_is_dropped() {
    let config = FederationConfig { cluster_certificates_s: CERTIFICATES_S, ..FederationConfig::with_example_policy() };
    let federation = origin_and_donor_with(config).await;
    let request = federation.submit(2, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let kubeconfig = federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation);
    let traffic = Traffic::start(&kubeconfig).await.unwrap();

    // The next root. All brokers issue under it, and both roots are trusted.
    let dir = federation.dir();
    let first = federation.broker_dir(1).with_file_name("broker-1-root");
    let [second, next, last] = ["root-2", "next", "last"].map(|name| dir.join(name));
    comity_broker(&["ca", "root", "--succeeds", text(&first), "--out", text(&second)]).await.unwrap();
    comity_broker(&["ca", "intermediate", "--root", text(&second), "--out", text(&next)]).await.unwrap();
    let before = issuing_roots(&federation).await.unwrap();
    install(&federation, &next, &[]).await.unwrap();
    until("all brokers to issue under the next root", PATIENCE, async || {
        let now = issuing_roots(&federation).await?;
        ensure!(now.len() == 3 && now.iter().all(|root| *root == now[0] && !before.contains(root)), "{now:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(&federation);

    // Agents renew by themselves, people by a command. Somebody did not.
    std::fs::create_dir(dir.join("user-late")).unwrap();
    for entry in std::fs::read_dir(dir.join("user-alice")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.join("user-late").join(path.file_name().unwrap())).unwrap();
    }
    for user in ["alice", "admin"] {
        federation.comity_as(user, &["login", "--renew"]).await.or_logs(&federation);
    }
    until("both agents to trust both roots", PATIENCE, async || {
        for cluster in AGENTS {
            let roots = trusted_roots(&federation, cluster)?;
            ensure!(roots == 2, "{cluster} trusts {roots}");
        }
        let status = federation.comity_as("admin", &["raft", "status"]).await?;
        ensure!(status["oldRoots"].as_array().is_some_and(Vec::is_empty), "still needed: {}", status["oldRoots"]);
        Ok(Some(()))
    })
    .await
    .or_logs(&federation);

    // The previous root goes.
    let drop_previous = ["ca", "intermediate", "--root", text(&second), "--drop-previous", "--out", text(&last)];
    comity_broker(&drop_previous).await.unwrap();
    install(&federation, &last, &["--yes"]).await.unwrap();
    until("the old root to be void", PATIENCE, async || {
        let (code, _, said) = federation.run_comity("late", &["lease", "list"]).await?;
        ensure!(code != 0, "a certificate of the old root is still accepted");
        Ok(said.contains("root").then_some(()))
    })
    .await
    .or_logs(&federation);
    let answered = traffic.answered();
    tokio::time::sleep(STREAMS_END_WITHIN).await;

    for cluster in AGENTS {
        let log = federation.log_of(cluster).unwrap();
        let ended: Vec<&str> = log.lines().filter(|line| line.contains("the stream to the broker ended")).collect();
        let is_refused = |line: &&&str| line.to_lowercase().contains("unauthenticated") || line.contains("replaced");
        assert!(ended.iter().find(is_refused).is_none(), "{cluster}: {ended:#?}");
    }
    federation.all_connected().await.or_logs(&federation);
    federation.lease_in(&lease, "active", Duration::ZERO).await.or_logs(&federation);
    let failed = traffic.failed.load(Ordering::Relaxed);
    assert_eq!(failed, 0, "questions through the tunnel without an answer\n{}", federation.logs());
    assert!(traffic.answered() > answered, "the tunnel carries traffic");
}

/// The root under which each broker issues certificates.
async fn issuing_roots(federation: &Federation) -> Result<Vec<String>> {
    let status = federation.comity_as("admin", &["raft", "status"]).await?;
    let brokers = status["brokers"].as_array().context("a status names brokers")?;
    let root = |broker: &serde_json::Value| broker["issuingRootSha256"].as_str().map(str::to_owned);
    Ok(brokers.iter().filter_map(root).filter(|root| !root.is_empty()).collect())
}
