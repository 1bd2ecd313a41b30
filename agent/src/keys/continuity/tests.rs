//! Identity keys that change, lawfully and otherwise.

#![expect(clippy::unwrap_used, reason = "tests")]

use comity_agent_state::record::{HpkePublicKey, PeeringRecord, RemoteNetwork, SecretKey};
use comity_agent_state::store::Store;
use comity_runtime::{IdentityKey, SeededEntropy};
use comity_types::{PeeringId, Side};

use super::*;

fn key(seed: u64) -> IdentityPublicKey {
    IdentityKey::generate(&SeededEntropy::new(seed)).public()
}

/// Verified keys of cluster `donor`, vouched for by an institution.
fn remote(seed: u64, institution: Option<&str>) -> RemoteKeys {
    RemoteKeys {
        cluster: "donor".to_owned(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
        identity_key: key(seed),
        institution: institution.map(str::to_owned),
        endpoints: Vec::new(),
        network: RemoteNetwork::default(),
    }
}

struct Memory {
    store: Store,
    _home: tempfile::TempDir,
}

impl Memory {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        Self { store: Store::open(home.path()).unwrap(), _home: home }
    }

    async fn note(&self, remote: RemoteKeys, claimed: &'static str) -> Result<(), ContinuityError> {
        self.store.update(move |change| note(change, &remote, claimed, 7)).await.unwrap()
    }

    async fn accept(&self, seed: u64) -> Result<PeerRecord, DecisionError> {
        self.store.update(move |change| accept(change, "donor", key(seed), 9)).await.unwrap()
    }

    fn peer(&self) -> PeerRecord {
        PeerRecord::clone(&self.store.records().peers["donor"])
    }
}

/// A new epoch, a new peering, and another institution by the broker's word: the cluster keeps its key until a person
/// accepts another one.
#[tokio::test]
async fn broker_swaps_identity_key_between_epochs() {
    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    memory.note(remote(1, None), "poly").await.unwrap();
    assert_eq!(memory.peer().trust, Trust::FirstUse);
    for claimed in ["poly", "another"] {
        let refused = memory.note(remote(2, None), claimed).await.unwrap_err();
        assert!(matches!(refused, ContinuityError::Changed { .. }), "{refused}");
        assert!(refused.to_string().contains("comity-agent peers accept donor --key KEY"), "{refused}");
    }
    let peer = memory.peer();
    assert_eq!((peer.identity_key, peer.refused.unwrap().identity_key), (key(1), key(2)));

    assert!(matches!(memory.accept(3).await, Err(DecisionError::NotShown { .. })), "nobody showed it");
    assert_eq!(memory.accept(2).await.unwrap().trust, Trust::Accepted);
    memory.note(remote(2, None), "poly").await.unwrap();
    assert!(memory.note(remote(1, None), "poly").await.is_err(), "the old key has no way back");
    assert_eq!(memory.accept(2).await.unwrap().refused, None, "the known key stays, and the other one is dropped");
}

#[tokio::test]
async fn the_voucher_of_its_institution_replaces_a_key_without_a_person() {
    let memory = Memory::new();
    memory.note(remote(1, Some("poly")), "whatever").await.unwrap();
    let peer = memory.peer();
    assert_eq!((peer.trust, peer.vouched_institution()), (Trust::Voucher, Some("poly")));
    memory.note(remote(2, Some("poly")), "whatever").await.unwrap();
    assert_eq!(memory.peer().identity_key, key(2));
    // Another pinned institution may not take the cluster over, with the same or another key.
    for seed in [2, 3] {
        let refused = memory.note(remote(seed, Some("other")), "poly").await.unwrap_err();
        assert!(matches!(refused, ContinuityError::OtherInstitution { .. }), "{refused}");
    }
    // Nor does a voucher that is left out matter while the key stays.
    memory.note(remote(2, None), "poly").await.unwrap();
    assert!(memory.note(remote(3, None), "poly").await.is_err());
    assert_eq!(memory.peer().vouched_institution(), Some("poly"));
}

#[tokio::test]
async fn a_first_use_becomes_vouched_and_only_by_the_institution_of_the_first_use_with_another_key() {
    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    assert!(memory.note(remote(2, Some("other")), "other").await.is_err());
    memory.note(remote(2, Some("poly")), "poly").await.unwrap();
    assert_eq!((memory.peer().identity_key, memory.peer().trust), (key(2), Trust::Voucher));

    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    memory.note(remote(1, Some("poly")), "poly").await.unwrap();
    assert_eq!(memory.peer().trust, Trust::Voucher);
}

/// Clusters that mattered stay remembered, whatever the broker invents, and a true one that is new is not refused.
#[tokio::test]
async fn broker_invents_clusters_without_end() {
    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    // Refused, and kept for a person to see.
    memory.note(remote(2, None), "poly").await.unwrap_err();
    let before = memory.peer();
    let fill = move |change: &mut Change<'_>| {
        let named = |cluster: &str| PeerRecord { cluster: cluster.to_owned(), since_ms: 8, ..before.clone() };
        let had_lease = true;
        change.put_peer(PeerRecord { had_lease, since_ms: 99, ..named("used") });
        change.put_peer(PeerRecord { trust: Trust::Voucher, since_ms: 99, ..named("vouched") });
        change.put_peer(PeerRecord { trust: Trust::Accepted, since_ms: 99, ..named("accepted") });
        for number in 4..MAX_PEERS {
            change.put_peer(named(&format!("invented-{number}")));
        }
    };
    memory.store.update(fill).await.unwrap();
    let named = |cluster: String| RemoteKeys { cluster, ..remote(5, None) };
    for number in 0..20 {
        let (late, now_ms) = (named(format!("late-{number}")), 100 + number);
        memory.store.update(move |change| note(change, &late, "poly", now_ms)).await.unwrap().unwrap();
    }
    let records = memory.store.records();
    assert_eq!(records.peers.len(), MAX_PEERS);
    for kept in ["donor", "used", "vouched", "accepted", "late-19"] {
        assert!(records.peers.contains_key(kept), "{kept}");
    }
    assert_eq!(records.peers.keys().filter(|name| name.starts_with("late-")).count(), 1, "they replace each other");

    // One with a peering or a lease here is none of those that go.
    memory
        .store
        .update(|change| {
            let bundle = comity_proto::v1::KeyBundle { epoch: 1, ..Default::default() };
            let [wireguard, hpke] = [1, 2].map(|byte| SecretKey::new([byte; 32]));
            let record = PeeringRecord::new(PeeringId(1), &bundle, Side::Donor, wireguard, hpke);
            let remote = RemoteKeys { cluster: "late-19".to_owned(), ..remote(5, None) };
            change.put_peering(PeeringRecord { remote: Some(remote), ..record });
        })
        .await
        .unwrap();
    memory.note(named("last".to_owned()), "poly").await.unwrap();
    assert!(memory.store.records().peers.contains_key("late-19"));
}

#[tokio::test]
async fn the_table_is_bounded_and_a_forgotten_cluster_is_new() {
    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    memory.accept(1).await.unwrap();
    let fill = |change: &mut Change<'_>| {
        for number in 1..MAX_PEERS {
            let peer = PeerRecord::clone(&change.records().peers["donor"]);
            change.put_peer(PeerRecord { cluster: format!("c-{number}"), had_lease: true, ..peer });
        }
    };
    memory.store.update(fill).await.unwrap();
    let late = RemoteKeys { cluster: "late".to_owned(), ..remote(5, None) };
    assert!(matches!(memory.note(late.clone(), "poly").await, Err(ContinuityError::Full { .. })));
    memory.note(remote(1, None), "poly").await.unwrap();
    memory.store.update(|change| forget(change, "c-1")).await.unwrap().unwrap();
    memory.note(late, "poly").await.unwrap();
    assert_eq!(
        memory.store.update(|change| forget(change, "c-1")).await.unwrap(),
        Err(DecisionError::Unknown { cluster: "c-1".to_owned() })
    );
    memory.store.update(|change| forget(change, "donor")).await.unwrap().unwrap();
    memory.store.update(|change| forget(change, "c-2")).await.unwrap().unwrap();
    memory.note(remote(2, None), "poly").await.unwrap();
}
