#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use comity_agent_state::record::{HpkePublicKey, PeeringRecord, RemoteKeys, RemoteNetwork, SecretKey};
use comity_proto::v1;
use comity_types::PeeringId;

use super::*;

fn remote(cluster: &str) -> RemoteKeys {
    RemoteKeys {
        cluster: cluster.to_owned(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
        identity_key: comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(1)).public(),
        institution: None,
        endpoints: Vec::new(),
        network: RemoteNetwork { liqo_cluster_id: format!("{cluster}-liqo"), ..RemoteNetwork::default() },
    }
}

async fn peer(store: &Store, number: u64, cluster: &str) {
    let bundle = v1::KeyBundle { epoch: 1, ..v1::KeyBundle::default() };
    let (id, secret) = (PeeringId(number), || SecretKey::new([1; 32]));
    let record = PeeringRecord::new(id, &bundle, Side::Donor, secret(), secret());
    let record = PeeringRecord { remote: Some(remote(cluster)), ..record };
    store.update(move |change| change.put_peering(record)).await.unwrap();
}

/// Places a cluster's one network at the first /16 of 100.64.0.0/10 that no other cluster has, unless it has one.
async fn place(book: &RemapBook, cluster: &str) -> String {
    let networks: [Ipv4Net; 1] = ["10.244.0.0/16".parse().unwrap()];
    let request = PlacementRequest {
        peering: "peer-1",
        cluster,
        networks: &networks,
        endpoints: &[],
        listed: &[],
        own: &[],
        chosen: &[],
        taken: &[],
    };
    let placed = book.place(request, |request| {
        if let [chosen] = request.chosen {
            return Ok(vec![*chosen]);
        }
        let mut ranges = (64..128).map(|second| format!("100.{second}.0.0/16").parse::<Ipv4Net>().unwrap());
        let here = ranges.find(|range| !request.taken.contains(range)).unwrap();
        Ok(vec![PodNetwork { there: request.networks[0], here }])
    });
    placed.await.unwrap()[0].here.to_string()
}

#[tokio::test]
async fn ranges_survive_a_restart_and_end_with_the_last_peering() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    for (number, cluster) in [(1, "north"), (2, "south"), (3, "south")] {
        peer(&store, number, cluster).await;
    }
    let ranges = br#"{"north": [{"there": "10.244.0.0/16", "here": "100.70.0.0/16"}]}"#;
    store.keep(RANGES_KEY, ranges.to_vec()).await.unwrap();
    let book = RemapBook::open(store.clone()).unwrap();
    book.webhook_is_registered();
    assert_eq!(
        (place(&book, "north").await, place(&book, "south").await),
        ("100.70.0.0/16".into(), "100.64.0.0/16".into())
    );

    let book = RemapBook::open(store.clone()).unwrap();
    book.webhook_is_registered();
    assert_eq!(place(&book, "south").await, "100.64.0.0/16");
    let seen = book
        .subscribe()
        .borrow()
        .networks("south", &["10.244.0.0/16".parse().unwrap(), "10.9.0.0/16".parse().unwrap()]);
    assert_eq!(seen.iter().map(|net| net.here.to_string()).collect::<Vec<_>>(), ["100.64.0.0/16", "10.9.0.0/16"]);

    for (number, left) in [(2, 2), (3, 1)] {
        store.update(move |change| change.drop_peering(PeeringId(number), 1)).await.unwrap();
        book.forget_strangers().await.unwrap();
        assert_eq!(book.subscribe().borrow().0.len(), left);
    }
}

#[tokio::test]
async fn a_remapped_cluster_waits_for_the_webhook_that_writes_its_addresses() {
    let state = tempfile::tempdir().unwrap();
    let store = Store::open(state.path()).unwrap();
    peer(&store, 1, "north").await;
    let book = Arc::new(RemapBook::open(store).unwrap());
    let placing = tokio::spawn({
        let book = Arc::clone(&book);
        async move { place(&book, "north").await }
    });
    let mut ranges = book.subscribe();
    let chosen = ranges.wait_for(|ranges| !ranges.0.is_empty());
    tokio::time::timeout(Duration::from_secs(5), chosen).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!placing.is_finished());
    book.webhook_is_registered();
    assert_eq!(placing.await.unwrap(), "100.64.0.0/16");
}
