//! Identity keys that change, lawfully and otherwise.

#![expect(clippy::unwrap_used, reason = "tests")]

use comity_agent_state::record::{HpkePublicKey, RemoteNetwork};
use comity_agent_state::store::Store;
use comity_runtime::{IdentityKey, SeededEntropy};

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
        assert!(refused.to_string().contains("comity-agent peers accept donor --key ed25519:"), "{refused}");
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

#[tokio::test]
async fn the_table_is_bounded_and_a_forgotten_cluster_is_new() {
    let memory = Memory::new();
    memory.note(remote(1, None), "poly").await.unwrap();
    let fill = |change: &mut Change<'_>| {
        for number in 1..MAX_PEERS {
            let peer = PeerRecord::clone(&change.records().peers["donor"]);
            change.put_peer(PeerRecord { cluster: format!("c-{number}"), ..peer });
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
