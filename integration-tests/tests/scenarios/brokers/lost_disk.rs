//! A broker that lost its disk meets a lagging one: no acknowledged write may be lost.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_scenarios::{Federation, PATIENCE, until};

use crate::OrLogs as _;
use crate::inventories::origin_and_donor;

/// Requests acknowledged while broker 3 is down.
const WRITES: u32 = 20;
/// Timeout for brokers 2 and 3 to answer without broker 1.
const ALONE: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_lost_its_disk_does_not_outvote_the_one_that_has_everything() {
    let mut federation = origin_and_donor().await;
    // Agents stopped, so that nothing but requests changes the state.
    for cluster in ["polytech-campus", "ncc-main"] {
        federation.kill_agent(cluster).await.unwrap();
    }
    federation.kill_broker(3).await.unwrap();
    let mut acknowledged = BTreeSet::new();
    for _ in 0..WRITES {
        acknowledged.insert(submitted(&federation).await.or_logs(&federation));
    }
    assert_eq!(acknowledged.len(), WRITES as usize);

    for id in [1, 2] {
        federation.kill_broker(id).await.unwrap();
    }
    std::fs::remove_dir_all(federation.broker_dir(2).join("group")).unwrap();
    for id in [2, 3] {
        federation.start_broker(id).unwrap();
    }
    // They wait for broker 1, or have all requests.
    if let Ok(there) = until("an answer without broker 1", ALONE, async || requests(&federation).await.map(Some)).await
    {
        let gone: Vec<&String> = acknowledged.difference(&there).collect();
        assert!(gone.is_empty(), "{} of {WRITES} acknowledged requests are gone: {gone:?}", gone.len());
    }

    federation.start_broker(1).unwrap();
    let there = until("an answer", PATIENCE, async || requests(&federation).await.map(Some)).await.or_logs(&federation);
    assert!(acknowledged.is_subset(&there), "gone: {:?}", acknowledged.difference(&there));
    federation.agreed_state().await.or_logs(&federation);
    let there = requests(&federation).await.or_logs(&federation);
    assert!(acknowledged.is_subset(&there), "gone: {:?}", acknowledged.difference(&there));
}

/// Submits a request, and retries while there is no leader.
async fn submitted(federation: &Federation) -> Result<String> {
    until("a request to be accepted", PATIENCE, async || federation.submit(1, "frontier").await.map(Some)).await
}

/// Ids of all requests, read linearizably.
async fn requests(federation: &Federation) -> Result<BTreeSet<String>> {
    let list = federation.comity(&["request", "list", "--all"]).await?;
    let items = list["items"].as_array().context("a list has items")?;
    Ok(items.iter().filter_map(|request| request["id"].as_str()).map(str::to_owned).collect())
}
