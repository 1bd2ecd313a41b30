//! A request that nobody can serve is refused at once, or explained donor by donor.

use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource};

use crate::OrLogs as _;
use crate::inventories::inventory;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_donor_is_named_with_its_first_reason_and_what_would_unblock_it() {
    let config = FederationConfig { brokers: 1, ..FederationConfig::with_example_policy() };
    let mut federation = Federation::start(config).await.unwrap();
    for (cluster, gpus, class) in [
        ("polytech-campus", 0, "frontier"),
        ("ncc-main", 2, "frontier"),
        ("physics-farm", 8, "midrange"),
        ("startup-pc", 1, "midrange"),
    ] {
        let file = inventory(federation.dir(), cluster, gpus, class);
        federation.join(AgentSpec::new(cluster, InventorySource::File(file))).await.or_logs(&federation);
    }
    federation.all_connected().await.or_logs(&federation);
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let explained = federation.comity(&["request", "explain", &request]).await.or_logs(&federation);
    let donors = explained["donors"].as_array().unwrap();
    assert_eq!(donors.len(), 3, "{explained}");
    for donor in donors {
        assert_eq!(donor["fits"], false, "{donor}");
        assert!(
            !donor["reason"].as_str().unwrap().is_empty() && !donor["unblock"].as_str().unwrap().is_empty(),
            "{donor}"
        );
    }
    let code = |name: &str| {
        donors.iter().find(|donor| donor["donor"] == name).and_then(|donor| donor["code"].as_str()).unwrap().to_owned()
    };
    assert_eq!(code("ncc-main"), "no-such-devices", "it has two, three are asked for");
    assert_eq!(code("physics-farm"), "class-not-lent");
    assert_eq!(code("startup-pc"), "class-not-lent");
    // Exit codes: nobody can ever serve it, not found, refused by policy, wrong use.
    let who = ["--tenant", "poly-ml", "--origin", "polytech-campus", "--class", "frontier", "--gpus", "3"];
    for command in [&["quote"][..], &["request", "submit"], &["request", "submit", "--dry-run"]] {
        let args = [command, &who].concat();
        let (code, _, err) = federation.run_comity("alice", &args).await.unwrap();
        assert!(code == 6 && err.contains("set queue_anyway"), "{code}: {err}");
    }
    let (code, _, err) = federation.run_comity("alice", &["request", "show", "req-999"]).await.unwrap();
    assert_eq!(code, 3, "{err}");
    let (code, _, err) = federation.run_comity("alice", &["cluster", "invite", "ncc-main"]).await.unwrap();
    assert_eq!(code, 4, "{err}");
}
