//! Donors that verify the signed policy by themselves: whoever holds a broker cannot change their terms.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, until};

use crate::OrLogs as _;
use crate::inventories::inventory;

const PATIENCE: Duration = Duration::from_secs(60);

/// A repository with the example policy, which requires the signatures of its maintainer and of the donor's institution.
struct SignedExamples(tempfile::TempDir);

impl SignedExamples {
    fn new() -> Self {
        let author = Self(tempfile::tempdir().unwrap());
        for person in ["ingrid", "centre"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-C", person, "-f"])
                .arg(author.0.path().join(person))
                .status();
            assert!(made.unwrap().success());
        }
        let policy = FederationConfig::with_example_policy().policy;
        copy(&policy, &author.policy());
        author.git(&["init", "--quiet", "--initial-branch", "main"]);
        let key = |person: &str| {
            std::fs::read_to_string(author.0.path().join(format!("{person}.pub"))).unwrap().trim().to_owned()
        };
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
        self.0.path().join("repository")
    }

    fn policy(&self) -> PathBuf {
        self.repository().join("policy")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(self.repository())
            .env("HOME", self.0.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .args(["-c", "user.name=A", "-c", "user.email=a@x", "-c", "gpg.format=ssh"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn commit(&self, signer: &str, message: &str) -> String {
        let sign = format!("-S{}", self.0.path().join(signer).display());
        self.git(&["add", "."]);
        self.git(&["commit", "--quiet", "-m", message, &sign]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn edit(&self, file: &str, from: &str, to: &str) {
        edit(&self.policy().join(file), from, to);
    }
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} has no {from}", path.display());
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stolen_broker_widens_a_donors_terms_and_the_donor_does_not_lend_by_them() {
    let author = SignedExamples::new();
    let first = author.commit("ingrid", "as it is in force");
    let config = FederationConfig { brokers: 1, policy: author.policy(), ..FederationConfig::with_example_policy() };
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
    let submit = async |duration: &str| {
        let who = ["request", "submit", "--queue-anyway", "--tenant", "poly-ml", "--origin", "polytech-campus"];
        let what = ["--class", "frontier", "--gpus", "1", "--duration", duration];
        let request = federation.comity(&[&who[..], &what].concat()).await.or_logs(&federation);
        request["id"].as_str().unwrap().to_owned()
    };
    let active = async |duration: &str| {
        let request = submit(duration).await;
        let lease = federation.lease_of(&request).await.or_logs(&federation);
        federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
        lease
    };
    // By the pinned commit, and by what its owner signed later.
    let kept = active("1h").await;
    author.edit("clusters/ncc-main.yaml", "maxLeaseDuration: 4h", "maxLeaseDuration: 8h");
    let second = author.commit("centre", "lend for longer");
    in_force(&federation, &second).await;
    let long = active("6h").await;
    federation.comity(&["lease", "release", &long, "--yes"]).await.or_logs(&federation);

    // Whoever holds a broker's certificate may apply any policy.
    let forged = federation.dir().join("forged");
    copy(&author.policy(), &forged);
    edit(&forged.join("clusters/ncc-main.yaml"), "maxLeaseDuration: 8h", "maxLeaseDuration: 2d");
    copy(&federation.broker_dir(1).join("identity"), &federation.dir().join("user-thief"));
    let apply = ["policy", "apply", forged.to_str().unwrap(), "--force", "--yes"];
    federation.comity_as("thief", &apply).await.or_logs(&federation);
    submit("20h").await;
    let refused = until("the donor to refuse", PATIENCE, async || {
        let log = federation.log_of("ncc-main")?;
        Ok(log.lines().find(|line| line.contains("code=\"signed-policy\"")).map(str::to_owned))
    })
    .await
    .or_logs(&federation);
    assert!(refused.contains("signed-policy") && refused.contains("clusters/ncc-main.yaml:"), "{refused}");
    assert!(refused.contains(&second[..12]), "by the commit that its owner signed: {refused}");
    federation.lease_in(&kept, "active", PATIENCE).await.or_logs(&federation);
}
