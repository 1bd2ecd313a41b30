//! Nothing secret reaches the broker: not its disk, not its logs, not its memory.

use comity_agent_state::store::Store;
use comity_scenarios::{FederationConfig, PATIENCE, search_files, search_memory};

use crate::OrLogs as _;
use crate::inventories::origin_and_donor_with;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_token_and_the_preshared_key_are_not_in_any_broker() {
    // Snapshots every few entries, so that there are some to search.
    let config = FederationConfig { snapshot_every: 10, ..FederationConfig::with_example_policy() };
    let mut federation = origin_and_donor_with(config).await;
    let request = federation.submit(3, "frontier").await.or_logs(&federation);
    let lease = federation.lease_of(&request).await.or_logs(&federation);
    federation.lease_in(&lease, "active", PATIENCE).await.or_logs(&federation);
    let kubeconfig =
        std::fs::read_to_string(federation.kubeconfig(&lease, "polytech-campus").await.or_logs(&federation)).unwrap();
    let token =
        kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: ")).unwrap().trim_matches('"').to_owned();
    assert!(token.len() >= 20);

    // The pre-shared key, from the origin's own disk.
    federation.kill_agent("polytech-campus").await.unwrap();
    let store = Store::open(&federation.agent_dir("polytech-campus")).unwrap();
    let psk =
        store.records().peering(comity_types::PeeringId(1), 1).unwrap().preshared.as_ref().unwrap().expose().to_vec();
    drop(store);
    federation.start_agent("polytech-campus").unwrap();
    federation.all_connected().await.or_logs(&federation);

    let snapshots = search_files(&federation.broker_dir(1), b"spiffe://comity.example/user/alice").unwrap();
    assert!(snapshots.iter().any(|finding| finding.place.contains("snapshot")), "no snapshot to search: {snapshots:?}");

    // The search works: each secret is found where it belongs.
    let donor = federation.agent_pid("ncc-main").unwrap();
    assert!(!search_memory(donor, &psk).unwrap().is_empty(), "the pre-shared key is not even at the donor");
    let origin = federation.agent_dir("polytech-campus");
    assert!(!search_files(&origin, token.as_bytes()).unwrap().is_empty(), "the token is not even at the origin");

    for (name, secret) in [("the token", token.as_bytes()), ("the pre-shared key", psk.as_slice())] {
        for id in 1..=3 {
            let found = search_files(&federation.broker_dir(id), secret).unwrap();
            assert!(found.is_empty(), "{name}: {found:?}");
        }
        for pid in federation.broker_pids() {
            let found = search_memory(pid, secret).unwrap();
            assert!(found.is_empty(), "{name}: {found:?}");
        }
        for entry in std::fs::read_dir(federation.dir()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let log = std::fs::read(&path).unwrap();
                assert!(memchr::memmem::find(&log, secret).is_none(), "{name} is in {}", path.display());
            }
        }
    }
}
