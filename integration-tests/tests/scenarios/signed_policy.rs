//! Donors that verify the signed policy by themselves: whoever holds a broker cannot change their terms.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, until};
use comity_testkit::SignedGit;

use crate::OrLogs as _;
use crate::inventories::inventory;

const PATIENCE: Duration = Duration::from_secs(60);

/// A repository with the example policy, which requires the signatures of its maintainer and of the donor's institution.
struct SignedExamples {
    repository: SignedGit,
    _home: tempfile::TempDir,
}

impl SignedExamples {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let repository = SignedGit::init(home.path(), &["ingrid", "centre"]).unwrap();
        let author = Self { repository, _home: home };
        copy(&FederationConfig::with_example_policy().policy, &author.policy());
        let key = |person: &str| author.repository.key(person).unwrap();
        let signatures = format!(
            "spec:\n  signatures: {{required: true, maintainersNeeded: 1}}\n  commitKeys:\n    - {{maintainer: \
             spiffe://comity.example/user/ingrid, key: {}}}\n",
            key("ingrid")
        );
        author.edit("federation.yaml", "spec:\n", &signatures);
        author.edit("clusters/ncc-main.yaml", "maxLeaseDuration: 3d", "maxLeaseDuration: 4h");
        let keys = format!("spec:\n  commitKeys: [{{key: {}}}]\n", key("centre"));
        author.edit("institutions/national-centre.yaml", "spec:\n", &keys);
        author
    }

    fn repository(&self) -> PathBuf {
        self.repository.path()
    }

    fn policy(&self) -> PathBuf {
        self.repository().join("policy")
    }

    fn commit(&self, signer: &str, message: &str) -> String {
        self.repository.commit(Some(signer), message).unwrap()
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        self.repository.edit(&format!("policy/{file}"), from, to).unwrap();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Waits until a commit is in force.
async fn in_force(federation: &Federation, commit: &str) {
    until("the commit to be in force", PATIENCE, async || {
        let source = federation.comity_as("admin", &["policy", "source", "show"]).await?;
        Ok((source["commit"] == commit).then_some(()))
    })
    .await
    .or_logs(federation);
}

async fn submit(federation: &Federation, duration: &str) -> String {
    let who = ["request", "submit", "--queue-anyway", "--tenant", "poly-ml", "--origin", "polytech-campus"];
    let what = ["--class", "frontier", "--gpus", "1", "--duration", duration];
    let request = federation.comity(&[&who[..], &what].concat()).await.or_logs(federation);
    request["id"].as_str().unwrap().to_owned()
}

/// Submits a request, and waits until its lease is active.
async fn active(federation: &Federation, duration: &str) -> String {
    let request = submit(federation, duration).await;
    let lease = federation.lease_of(&request).await.or_logs(federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(federation);
    lease
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_broker_widens_a_donors_terms_and_the_donor_does_not_lend_by_them() {
    let author = SignedExamples::new();
    let first = author.commit("ingrid", "as it is in force");
    let config = FederationConfig { brokers: 3, policy: author.policy(), ..FederationConfig::with_example_policy() };
    let mut federation = Federation::start(config).await.unwrap();
    let repository = author.repository();
    let set = ["policy", "source", "set", repository.to_str().unwrap(), "--folder", "policy", "--interval", "5s"];
    federation.comity_as("admin", &set).await.or_logs(&federation);
    in_force(&federation, &first).await;
    for (cluster, gpus, more) in [
        ("polytech-campus", 0, String::new()),
        ("ncc-main", 16, format!("signedPolicy: {{commit: {first}, folder: policy}}\n")),
    ] {
        let file = inventory(federation.dir(), cluster, gpus, "frontier");
        let spec = AgentSpec { more, ..AgentSpec::new(cluster, InventorySource::File(file)) };
        federation.join(spec).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    // By the pinned commit, and by what its owner signed later.
    let kept = active(&federation, "1h").await;
    author.edit("clusters/ncc-main.yaml", "maxLeaseDuration: 4h", "maxLeaseDuration: 8h");
    let second = author.commit("centre", "lend for longer");
    in_force(&federation, &second).await;
    let long = active(&federation, "6h").await;
    federation.comity(&["lease", "release", &long, "--yes"]).await.or_logs(&federation);

    // Whoever holds a broker's certificate may apply any policy.
    let forged = federation.dir().join("forged");
    author.edit("clusters/ncc-main.yaml", "maxLeaseDuration: 8h", "maxLeaseDuration: 2d");
    copy(&author.policy(), &forged);
    author.repository.git(&["checkout", "--quiet", "--", "policy"]).unwrap();
    copy(&federation.broker_dir(1).join("identity"), &federation.dir().join("user-thief"));
    let apply = ["policy", "apply", forged.to_str().unwrap(), "--force", "--yes"];
    federation.comity_as("thief", &apply).await.or_logs(&federation);
    let refused_request = submit(&federation, "20h").await;
    let refused = until("the donor to refuse", PATIENCE, async || {
        let log = federation.log_of("ncc-main")?;
        Ok(log.lines().find(|line| line.contains("code=\"signed-policy\"")).map(str::to_owned))
    })
    .await
    .or_logs(&federation);
    assert!(refused.contains("signed-policy") && refused.contains("clusters/ncc-main.yaml:"), "{refused}");
    assert!(refused.contains(&second[..12]), "by the commit that its owner signed: {refused}");
    federation.lease_in(&kept, "active", PATIENCE).await.or_logs(&federation);

    // As a standby replica after a failover, the agent knows the verified commit and lacks its documents.
    // Fails if the request has failed by itself, after its last try.
    let _ = federation.comity(&["request", "cancel", &refused_request, "--yes"]).await;
    federation.kill_agent("ncc-main").await.unwrap();
    let documents = federation.agent_dir("ncc-main").join("signed-policy.json");
    std::fs::remove_file(&documents).unwrap();
    federation.start_agent("ncc-main").unwrap();
    active(&federation, "2h").await;
    assert!(documents.exists(), "a broker showed them");
    federation.lease_in(&kept, "active", PATIENCE).await.or_logs(&federation);
}
