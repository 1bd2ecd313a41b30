//! A broker group that was killed as a whole serves the same revision and leases after a restart.

use comity_scenarios::{PATIENCE, until};

use crate::OrLogs as _;
use crate::inventories::origin_and_donor;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_killed_as_a_whole_comes_back_with_the_same_revision_and_leases() {
    let mut federation = origin_and_donor().await;
    let request = federation.submit(2, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);

    // Agents stopped, so that nothing changes the state meanwhile.
    for cluster in ["polytech-campus", "ncc-main"] {
        federation.kill_agent(cluster).await.unwrap();
    }
    let (before, _) = federation.agreed_state().await.or_logs(&federation);
    let leases_before = federation.comity(&["lease", "list"]).await.or_logs(&federation);
    for id in 1..=3 {
        federation.kill_broker(id).await.unwrap();
    }
    for id in 1..=3 {
        federation.start_broker(id).unwrap();
    }
    federation.leader().await.or_logs(&federation);
    // Silence is noticed meanwhile, so the revision may have moved on; it never goes back.
    let (after, _) = federation.agreed_state().await.or_logs(&federation);
    assert!(after >= before, "{before} → {after}");
    let leases_after = federation.comity(&["lease", "list"]).await.or_logs(&federation);
    let strip = |list: &serde_json::Value| {
        let lease = &list["items"][0];
        (lease["id"].clone(), lease["placement"].clone(), lease["fencingToken"].clone(), lease["activeAtMs"].clone())
    };
    assert_eq!(strip(&leases_before), strip(&leases_after));

    for cluster in ["polytech-campus", "ncc-main"] {
        federation.start_agent(cluster).unwrap();
    }
    until("the lease to be active again", PATIENCE, async || {
        let seen = federation.comity(&["lease", "show", &lease]).await?;
        Ok((seen["state"] == "active").then_some(()))
    })
    .await
    .or_logs(&federation);
}
