//! Operations: certificates renew themselves, and one trace spans all processes.

use comity_scenarios::{FederationConfig, PATIENCE, until};

use crate::OrLogs as _;
use crate::inventories::{origin_and_donor, origin_and_donor_with};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_and_the_agent_stays_connected() {
    let config = FederationConfig { brokers: 1, cluster_certificates_s: 60, ..FederationConfig::with_example_policy() };
    let federation = origin_and_donor_with(config).await;
    let show = async || federation.comity_as("admin", &["cluster", "show", "ncc-main"]).await;
    let before = show().await.or_logs(&federation);
    let first = before["certificateNotAfterMs"].as_u64().unwrap();
    until("a fresh certificate", PATIENCE, async || {
        let now = show().await?;
        Ok((now["certificateNotAfterMs"].as_u64() >= Some(first + 15_000)).then_some(()))
    })
    .await
    .or_logs(&federation);
    // A stream ends with its certificate: the agent moves to one of the new certificate.
    until("a stream of the new certificate", PATIENCE, async || {
        let log = federation.log_of("broker-1")?;
        Ok((log.lines().filter(|line| line.contains("agent connected")).count() > 2).then_some(()))
    })
    .await
    .or_logs(&federation);
    let after = show().await.or_logs(&federation);
    assert_eq!(after["connected"], true);
    assert_eq!(after["sinceMs"], before["sinceMs"], "it was never lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_goes_from_the_command_through_the_brokers_to_both_agents() {
    let federation = origin_and_donor().await;
    let request = federation.submit(1, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let brokers: String = (1..=3).map(|id| federation.log_of(&format!("broker-{id}")).unwrap()).collect();
    let submitted = brokers.lines().find(|line| line.contains("submitted") && line.contains(&request)).unwrap();
    let (_, rest) = submitted.split_once("trace_id=\"").unwrap();
    let trace_id = &rest[..32];
    for (agent, step) in [("ncc-main", "prepare-lease"), ("polytech-campus", "probe")] {
        let log = federation.log_of(agent).unwrap();
        let joined = log.lines().any(|line| line.contains(step) && line.contains(trace_id));
        assert!(joined, "{agent} did not do {step} under trace {trace_id}\n{log}");
    }
}
