//! The store over restarts, when it is full, when it is damaged, and in another format.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::PermissionsExt;

use comity_agent_liqo::LiqoPeer;
use comity_agent_liqo::donor::{Grant, Grants};
use comity_proto::v1;
use comity_runtime::{IdentityKey, IdentityPublicKey, SeededEntropy};
use comity_types::{Delivery, LeaseId, MAX_FENCING_TOKEN_STEP as STEP, PeeringId, Side};

use super::change::MAX_EPOCHS;
use super::tables::DONORS;
use super::*;
use crate::record::{
    AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord, HpkePublicKey, LeasePeer, LiqoRecord, MAX_MESSAGE_ID,
    OriginRecord, PeerRecord, PeeringRecord, RefusedKey, RemoteKeys, RemoteNetwork, ReportKey, SecretBlob, SecretKey,
    Trust,
};

fn heartbeat() -> v1::agent_message::Body {
    v1::agent_message::Body::Heartbeat(v1::Heartbeat {})
}

fn clean(token: u64) -> v1::agent_message::Body {
    v1::agent_message::Body::LeaseReport(v1::LeaseReport {
        lease: "lease-1".into(),
        fencing_token: token,
        outcome: None,
    })
}

fn donor(lease: u64, token: u64) -> DonorRecord {
    let peer = LeasePeer { peering: PeeringId(3), cluster: "origin".into(), identity_key: Some(identity_key()) };
    let share = AdmittedShare { milli: 1_000, ..AdmittedShare::default() };
    let part = AdmittedPart { devices: [(0, share)].into(), ..AdmittedPart::default() };
    let capacity = AdmittedCapacity { nodes: [("n".to_owned(), part)].into(), ..AdmittedCapacity::default() };
    let record = DonorRecord::new(LeaseId(lease), token, Delivery::Namespace);
    DonorRecord { peer: Some(peer), capacity, admitted_at_ms: 5, ..record }
}

fn identity_key() -> IdentityPublicKey {
    IdentityKey::generate(&SeededEntropy::new(1)).public()
}

fn peer() -> PeerRecord {
    PeerRecord {
        cluster: "origin".into(),
        identity_key: identity_key(),
        trust: Trust::FirstUse,
        institution: "poly".into(),
        since_ms: 5,
        had_lease: false,
        refused: Some(RefusedKey { identity_key: IdentityKey::generate(&SeededEntropy::new(2)).public(), at_ms: 6 }),
    }
}

fn exchange() -> LiqoRecord {
    let peer = LiqoPeer { peering: "peer-3".into(), cluster: "origin".into(), liqo_id: "liqo-2".into() };
    LiqoRecord {
        identity: Some(SecretBlob::new(b"identity".to_vec())),
        ..LiqoRecord::new(PeeringId(3), Side::Donor, &peer, "liqo-1")
    }
}

fn put_one_of_each(change: &mut Change<'_>) {
    change.put_donor(donor(1, 7));
    change.put_origin(OriginRecord::new(LeaseId(2), 3, Delivery::VirtualNode));
    change.put_peer(peer());
    change.put_liqo(exchange());
    change.put_closed(PeeringId(1), 2);
    change.send(ReportKey::Clean(LeaseId(1)), clean(7));
}

#[tokio::test]
async fn broker_names_epochs_without_end() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("state");
    let store = Store::open(&directory).unwrap();
    let remote = RemoteKeys {
        cluster: "origin".into(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
        identity_key: identity_key(),
        institution: None,
        endpoints: Vec::new(),
        network: RemoteNetwork::default(),
    };
    let keys = move |peering: u64, epoch: u32, is_complete: bool| {
        let bundle = v1::KeyBundle { epoch, ..v1::KeyBundle::default() };
        let [wireguard, hpke, preshared] = [1, 2, 3].map(|byte| SecretKey::new([byte; 32]));
        let record = PeeringRecord::new(PeeringId(peering), &bundle, Side::Donor, wireguard, hpke);
        match is_complete {
            true => PeeringRecord { remote: Some(remote.clone()), preshared: Some(preshared), ..record },
            false => record,
        }
    };
    let other = keys(2, 1, false);
    store.update(move |change| change.put_peering(other.clone())).await.unwrap();
    for epoch in 1..=40 {
        let record = keys(1, epoch, epoch == 7);
        store.update(move |change| change.put_peering(record.clone())).await.unwrap();
    }
    // A lower epoch can be made again, and is the one that stays then.
    let lower = keys(1, 20, false);
    store.update(move |change| change.put_peering(lower.clone())).await.unwrap();
    drop(store);
    let kept = Store::open(&directory).unwrap().records();
    let epochs = |peering| kept.epochs(PeeringId(peering)).map(|record| record.epoch).collect::<Vec<_>>();
    assert_eq!(epochs(1), [7, 20, 39, 40], "the tunnel in use, the epoch just named, and the newest");
    assert_eq!((epochs(1).len(), epochs(2)), (MAX_EPOCHS, vec![1]));
}

#[tokio::test]
async fn a_lease_with_a_known_cluster_is_remembered_when_it_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("state");
    let store = Store::open(&directory).unwrap();
    let peer_of = |name: &str| PeerRecord { cluster: name.to_owned(), ..peer() };
    let known = ["origin", "donor", "stranger"].map(peer_of);
    store
        .update(move |change| {
            known.into_iter().for_each(|peer| change.put_peer(peer));
            // Not admitted.
            change.put_donor(DonorRecord::new(LeaseId(1), 7, Delivery::default()));
            change.put_origin(OriginRecord::new(LeaseId(2), 3, Delivery::VirtualNode));
        })
        .await
        .unwrap();
    assert!(store.records().peers.values().all(|peer| !peer.had_lease));
    store
        .update(|change| {
            change.put_donor(donor(1, 7));
            change.change_origin(LeaseId(2), |record| {
                let (peering, cluster) = (PeeringId(4), "donor".to_owned());
                record.peer = Some(LeasePeer { peering, cluster, identity_key: None });
            });
        })
        .await
        .unwrap();
    store.update(|change| [1, 2].map(|lease| change.drop_lease(LeaseId(lease)))).await.unwrap();
    drop(store);
    let kept = Store::open(&directory).unwrap().records();
    let had_lease = ["origin", "donor", "stranger"].map(|name| kept.peers[name].had_lease);
    assert_eq!(had_lease, [true, true, false]);
}

#[tokio::test]
async fn the_fence_takes_no_step_that_no_honest_broker_takes() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(&home.path().join("state")).unwrap();
    let put = |lease, token| {
        store.update(move |change| {
            change.put_donor(DonorRecord::new(LeaseId(lease), token, Delivery::default()));
        })
    };
    for (lease, token, fence) in [(1, 7, 7), (2, u64::MAX, 7), (3, STEP + 8, 7), (4, STEP + 7, STEP + 7)] {
        put(lease, token).await.unwrap();
        assert_eq!((store.records().fence, store.records().donors.len()), (fence, lease as usize), "{token}");
    }
}

#[tokio::test]
async fn everything_is_there_after_a_restart_and_only_for_the_owner() {
    let home = tempfile::tempdir().unwrap();
    let directory = home.path().join("state");
    let store = Store::open(&directory).unwrap();
    store.update(put_one_of_each).await.unwrap();
    store.keep("brokers", b"a:1".to_vec()).await.unwrap();
    let before = store.records();
    drop(store);
    let mode = std::fs::metadata(directory.join("agent.redb")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let store = Store::open(&directory).unwrap();
    let after = store.records();
    assert_eq!(after.donors, before.donors);
    assert_eq!(after.origins, before.origins);
    assert_eq!(after.peers, before.peers);
    assert_eq!(after.peers["origin"], Arc::new(peer()));
    assert_eq!(after.liqo, before.liqo);
    assert_eq!(after.liqo[&PeeringId(3)].identity.as_ref().unwrap().expose(), b"identity");
    assert_eq!((after.fence, after.closed.get(&PeeringId(1))), (7, Some(&2)));
    assert_eq!(after.outbox, before.outbox);
    assert_eq!(store.kept("brokers").unwrap().unwrap(), b"a:1");
}

#[tokio::test]
async fn message_ids_grow_over_restarts_and_over_messages_that_are_not_kept() {
    let home = tempfile::tempdir().unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let store = Store::open(home.path()).unwrap();
        let loose = store.take_message_id().await.unwrap();
        store.update(|change| change.send(ReportKey::Clean(LeaseId(1)), clean(loose_token()))).await.unwrap();
        let kept = *store.records().outbox.keys().next_back().unwrap();
        assert!(loose > last && kept > loose, "{last} {loose} {kept}");
        store.update(move |change| drop(change.unsend(kept))).await.unwrap();
        last = kept;
    }
}

#[test]
fn a_message_id_that_would_overflow_is_damage() {
    let home = tempfile::tempdir().unwrap();
    let open_after = |next: u64| {
        let store = Store::open(home.path()).unwrap();
        let transaction = store.0.database.begin_write().unwrap();
        transaction.open_table(META).unwrap().insert(NEXT_MESSAGE_ID, next).unwrap();
        transaction.commit().unwrap();
        drop(store);
        Store::open(home.path())
    };
    drop(open_after(MAX_MESSAGE_ID).unwrap());
    let error = open_after(MAX_MESSAGE_ID + 1).err().unwrap().to_string();
    assert!(error.contains("next-message-id") && error.contains("restore the file"), "{error}");
}

fn loose_token() -> u64 {
    9
}

#[tokio::test]
async fn one_message_of_a_kind_waits_and_the_newest_wins() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let key = || ReportKey::Clean(LeaseId(1));
    store.update(move |change| change.send(key(), clean(1))).await.unwrap();
    let first = store.records();
    store.update(move |change| change.send(key(), clean(1))).await.unwrap();
    assert_eq!(store.records().outbox, first.outbox, "the same again changes nothing");
    store.update(move |change| change.send(key(), clean(2))).await.unwrap();
    let records = store.records();
    assert_eq!(records.outbox.len(), 1);
    assert!(records.outbox.keys().next() > first.outbox.keys().next());
}

#[tokio::test]
async fn a_full_outbox_refuses_and_changes_nothing() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    store
        .update(|change| (0..MAX_OUTBOX).for_each(|n| change.send(ReportKey::Clean(LeaseId(n as u64)), heartbeat())))
        .await
        .unwrap();
    let refused = store
        .update(|change| {
            change.put_donor(donor(1, 1));
            change.send(ReportKey::Ready(LeaseId(1)), heartbeat());
        })
        .await;
    assert!(matches!(refused, Err(StoreError::OutboxFull)));
    assert!(store.records().donors.is_empty());
}

#[tokio::test]
async fn a_damaged_record_is_named_and_not_quoted() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let write = || -> Result<(), redb::Error> {
        let transaction = store.0.database.begin_write()?;
        transaction.open_table(DONORS)?.insert("lease-9", b"{\"secret\"".as_slice())?;
        transaction.commit()?;
        Ok(())
    };
    write().unwrap();
    drop(store);
    let error = Store::open(home.path()).err().unwrap().to_string();
    assert!(error.contains("lease-9") && !error.contains("secret"), "{error}");
}

#[test]
fn a_file_that_lost_its_content_is_not_taken_for_a_new_one() {
    let home = tempfile::tempdir().unwrap();
    drop(Store::open(home.path()).unwrap());
    std::fs::write(home.path().join(STORE_FILE), "").unwrap();
    let error = Store::open(home.path()).err().unwrap().to_string();
    assert!(error.contains("empty") && error.contains("restore the file"), "{error}");
    // The trace of a start that was cut off is no obstacle.
    std::fs::remove_file(home.path().join(STORE_FILE)).unwrap();
    std::fs::write(home.path().join("agent.new"), "half a database").unwrap();
    drop(Store::open(home.path()).unwrap());
}

#[tokio::test]
async fn random_bytes_inside_agent_redb_are_an_error_with_a_remedy() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    for id in 1..=20 {
        store.update(move |change| change.put_donor(donor(id, id))).await.unwrap();
        store.keep("outage-grace-ms", vec![7; 3_000]).await.unwrap();
    }
    drop(store);
    let path = home.path().join(STORE_FILE);
    let good = std::fs::read(&path).unwrap();
    let mut random = 0x9e37_79b9_u64;
    // All of the header, and some of each page.
    let places = (0..512).step_by(16).chain((512..good.len()).step_by(good.len() / 100 + 1));
    let mut refused = 0;
    for at in places {
        let mut damaged = good.clone();
        for byte in &mut damaged[at..(at + 64).min(good.len())] {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = random.to_be_bytes()[0];
        }
        std::fs::write(&path, &damaged).unwrap();
        if let Err(error) = Store::open(home.path()) {
            refused += 1;
            let error = error.to_string();
            assert!(error.contains(&path.display().to_string()) && error.contains("restore the file"), "{at}: {error}");
        }
    }
    assert!(refused > 0, "no damage was noticed");
    std::fs::write(&path, &good).unwrap();
    assert_eq!(Store::open(home.path()).unwrap().records().donors.len(), 20);
}

#[tokio::test]
async fn grants_follow_from_the_records_also_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let grant = Grant {
        origin_liqo_id: "liqo-2".into(),
        namespace: "team-a".into(),
        resources: [("nvidia.com/gpu".to_owned(), "2".to_owned())].into(),
        node_selector: [("kubernetes.io/hostname".to_owned(), "a".to_owned())].into(),
        node_labels: std::collections::BTreeMap::new(),
    };
    let record = |lease: u64, removed| DonorRecord {
        grant: Some(grant.clone()),
        removed,
        ..DonorRecord::new(LeaseId(lease), 1, Delivery::VirtualNode)
    };
    let (lent, gone) = (record(1, false), record(2, true));
    let store = Store::open(home.path()).unwrap();
    store
        .update(move |change| {
            change.put_donor(lent);
            change.put_donor(gone);
            change.put_donor(donor(3, 1));
        })
        .await
        .unwrap();
    let before = store.records().grants();
    assert_eq!(before.0.keys().collect::<Vec<_>>(), ["lease-1"]);
    drop(store);
    let store = Store::open(home.path()).unwrap();
    assert_eq!(store.records().grants(), before);
    store.update(|change| change.change_donor(LeaseId(1), |record| record.grant = None)).await.unwrap();
    assert_eq!(store.records().grants(), Grants::default());
}

#[tokio::test]
async fn a_store_of_another_format_is_not_read() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::open(home.path()).unwrap();
    let write = |format: u64| -> Result<(), redb::Error> {
        let transaction = store.0.database.begin_write()?;
        transaction.open_table(META)?.insert("format", format)?;
        transaction.commit()?;
        Ok(())
    };
    write(FORMAT + 1).unwrap();
    drop(store);
    let error = Store::open(home.path()).err().unwrap().to_string();
    assert!(error.contains("has format 2, this agent reads format 1"), "{error}");
}

/// Keeps images in memory; refuses them once another process writes.
#[derive(Default)]
struct Images {
    newest: Mutex<Vec<u8>>,
    is_replaced: std::sync::atomic::AtomicBool,
}

impl StateCopy for Images {
    fn put(&self, image: &[u8]) -> Result<(), StateCopyError> {
        if self.is_replaced.load(std::sync::atomic::Ordering::SeqCst) {
            return Err(StateCopyError::Replaced { place: "memory".to_owned() });
        }
        *self.newest.lock().unwrap() = image.to_vec();
        Ok(())
    }
}

#[tokio::test]
async fn another_directory_continues_with_the_copy() {
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (home.path().join("first"), home.path().join("second"));
    let images = Arc::new(Images::default());
    let store = Store::open_with(&first, Some(Arc::<Images>::clone(&images))).unwrap();
    std::fs::write(first.join("identity-key.pem"), "key").unwrap();
    store.keep("brokers", b"a:1".to_vec()).await.unwrap();
    store.update(put_one_of_each).await.unwrap();
    let used = store.take_message_id().await.unwrap();
    let before = store.records();

    // The successor had a state of its own, which is void.
    let stale = Store::open(&second).unwrap();
    stale.update(|change| change.put_donor(donor(9, 9))).await.unwrap();
    drop(stale);
    Store::restore(&second, &images.newest.lock().unwrap()).unwrap();
    let successor = Store::open(&second).unwrap();
    let after = successor.records();
    assert_eq!((after.fence, &after.donors, &after.origins), (7, &before.donors, &before.origins));
    assert_eq!((&after.liqo, &after.closed, &after.outbox), (&before.liqo, &before.closed, &before.outbox));
    assert_eq!(successor.kept("brokers").unwrap().as_deref(), Some(&b"a:1"[..]));
    assert!(successor.take_message_id().await.unwrap() > used, "no id is used twice");
    assert_eq!(std::fs::read(second.join("identity-key.pem")).unwrap(), b"key");

    // The first process learns at its next change that it was replaced, and publishes nothing.
    images.is_replaced.store(true, std::sync::atomic::Ordering::SeqCst);
    let refused = store.update(|change| change.put_donor(donor(3, 8))).await.unwrap_err();
    assert!(matches!(refused, StoreError::Copy(StateCopyError::Replaced { .. })), "{refused}");
    assert!(!store.records().donors.contains_key(&LeaseId(3)));
}

#[test]
fn a_damaged_image_is_refused_and_nothing_is_removed() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("identity-key.pem"), "key").unwrap();
    let refused = Store::restore(home.path(), b"no image").unwrap_err().to_string();
    assert!(refused.contains("cannot be read"), "{refused}");
    assert!(home.path().join("identity-key.pem").exists());
}

#[tokio::test]
async fn the_records_of_another_cluster_are_refused() {
    let home = tempfile::tempdir().unwrap();
    let (own, other) = ("spiffe://dev.test/cluster/ncc-main", "spiffe://dev.test/cluster/hospital-research");
    assert_eq!(Store::owner_of(home.path()).unwrap(), None);
    let store = Store::open(home.path()).unwrap();
    store.check_owner(other).unwrap();
    store.bind(own).await.unwrap();
    store.bind(own).await.unwrap();
    let error = store.bind(other).await.unwrap_err().to_string();
    assert!(error.contains("agent.redb belongs to cluster spiffe://dev.test/cluster/ncc-main"), "{error}");
    assert!(error.contains("a state directory of its own"), "{error}");
    store.check_owner(other).unwrap_err();
    assert_eq!(Store::owner_of(home.path()).unwrap(), None, "the store that is open has checked it");
    drop(store);
    assert_eq!(Store::owner_of(home.path()).unwrap().as_deref(), Some(own));
}
