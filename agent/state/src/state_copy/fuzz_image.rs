//! Fuzzes the image with which a successor continues. Its JSON is tried as it is, too: edits of what is compressed would
//! seldom get past the decompression.

use std::collections::BTreeMap;
use std::sync::Arc;

use comity_agent_liqo::LiqoPeer;
use comity_fuzz::fuzz;
use comity_proto::v1;
use comity_runtime::{IdentityKey, SeededEntropy};
use comity_types::{Delivery, LeaseId, PeeringId, Side};
use serde_json::json;

use super::{StateFiles, StateImage};
use crate::record::{
    AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord, HpkePublicKey, LeasePeer, LiqoRecord, OriginRecord,
    Outgoing, PeerRecord, PeeringRecord, Records, RefusedKey, RemoteKeys, RemoteNetwork, ReportKey, SecretBlob,
    SecretKey, Trust,
};

pub(crate) fn records() -> Records {
    let [key, refused] = [1, 2].map(|seed| IdentityKey::generate(&SeededEntropy::new(seed)).public());
    let [wireguard, hpke, preshared] = [1, 2, 3].map(|byte| SecretKey::new([byte; 32]));
    let remote = RemoteKeys {
        cluster: "origin".into(),
        wireguard_public: [3; 32],
        hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).expect("a key"),
        identity_key: key,
        institution: Some("polytechnic".into()),
        endpoints: vec!["192.0.2.1:51871".into()],
        network: RemoteNetwork::default(),
    };
    let bundle = v1::KeyBundle { epoch: 2, ..v1::KeyBundle::default() };
    let peering = PeeringRecord {
        remote: Some(remote),
        preshared: Some(preshared),
        ..PeeringRecord::new(PeeringId(3), &bundle, Side::Donor, wireguard, hpke)
    };
    let share = AdmittedShare { milli: 1_000, ..AdmittedShare::default() };
    let part = AdmittedPart { devices: [(0, share)].into(), ..AdmittedPart::default() };
    let donor = DonorRecord {
        peer: Some(LeasePeer { peering: PeeringId(3), cluster: "origin".into(), identity_key: Some(key) }),
        capacity: AdmittedCapacity { nodes: [("n".to_owned(), part)].into(), ..AdmittedCapacity::default() },
        ..DonorRecord::new(LeaseId(1), 7, Delivery::Namespace)
    };
    let origin = OriginRecord::new(LeaseId(2), 3, Delivery::VirtualNode);
    let refused = Some(RefusedKey { identity_key: refused, at_ms: 6 });
    let institution = "polytechnic".to_owned();
    let peer = PeerRecord {
        cluster: "origin".into(),
        identity_key: key,
        trust: Trust::FirstUse,
        institution,
        since_ms: 5,
        had_lease: true,
        refused,
    };
    let liqo_peer = LiqoPeer { peering: "peer-3".into(), cluster: "origin".into(), liqo_id: "liqo-2".into() };
    let liqo = LiqoRecord {
        identity: Some(SecretBlob::new(b"identity".to_vec())),
        ..LiqoRecord::new(PeeringId(3), Side::Donor, &liqo_peer, "liqo-1")
    };
    let heartbeat = v1::agent_message::Body::Heartbeat(v1::Heartbeat {});
    let message = v1::AgentMessage { message_id: 4, body: Some(heartbeat), ..v1::AgentMessage::default() };
    let mut records = Records { fence: 7, ..Records::default() };
    records.peerings.insert((PeeringId(3), 2), Arc::new(peering));
    records.donors.insert(LeaseId(1), Arc::new(donor));
    records.origins.insert(LeaseId(2), Arc::new(origin));
    records.peers.insert("origin".into(), Arc::new(peer));
    records.liqo.insert(PeeringId(3), Arc::new(liqo));
    records.closed.insert(PeeringId(1), 2);
    records.outbox.insert(4, Arc::new(Outgoing { key: ReportKey::Clean(LeaseId(1)), message }));
    records
}

#[test]
fn images_of_the_state() {
    let files: StateFiles = serde_json::from_value(json!({ "identity/key.pem": "a2V5" })).expect("files");
    let blobs = BTreeMap::from([("brokers".to_owned(), SecretBlob::new(b"a:1".to_vec()))]);
    let image = StateImage { records: records(), next_message_id: 5, blobs, files };
    let compressed = image.encode();
    let valid = vec![zstd::decode_all(compressed.as_slice()).expect("JSON"), compressed];
    fuzz!("state_image", valid, |bytes: &[u8]| {
        let Ok(image) = StateImage::from_json(bytes).or_else(|_| StateImage::decode(bytes)) else { return false };
        let written = image.encode();
        let again = StateImage::decode(&written).expect("an image that was read can be written, and read again");
        assert_eq!(again.encode(), written, "nothing is lost");
        true
    });
}
