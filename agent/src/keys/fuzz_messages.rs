//! Fuzzes what the broker and the other side may send.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_delivery::{ApiCredential, Credential, CredentialKind};
use comity_agent_model::desired_state::DesiredState;
use comity_fuzz::fuzz;
use comity_proto::v1;
use comity_proto::v1::broker_message::Body;
use comity_runtime::entropy::SeededEntropy;
use comity_runtime::{ClusterName, IdentityKey, IdentitySignature, SecretString};
use comity_types::{PeeringId, Side};
use prost::Message as _;

use crate::keys::bundle::{Expected, canonical, check_network, sign, verify};
use crate::keys::pins::{InstitutionPin, Pins};

fn network() -> v1::ClusterNetwork {
    v1::ClusterNetwork {
        pod_cidrs: vec!["10.44.0.0/16".into(), "10.45.0.0/16".into()],
        api_server: "192.0.2.7:6443".into(),
        liqo_cluster_id: "donor-liqo".into(),
        liqo_version: "v1.2.0".into(),
        tun: true,
        liqo_network: true,
    }
}

fn keys(side: v1::Side) -> v1::KeyBundle {
    v1::KeyBundle {
        peering: "peer-1".into(),
        epoch: 2,
        cluster: "campus".into(),
        side: side.into(),
        wireguard_public: vec![1; 32],
        hpke_public: vec![2; 1_216],
        endpoints: vec!["10.0.0.1:51871".into(), "[fd00::1]:1".into()],
        identity_key: "ed25519:GbIQEMn9GuX0jS2jHkGuT1t0cqEVpHsw1Wf6W2vCq0s=".into(),
        voucher: vec![3; 64],
        signature: vec![4; 64],
        network: Some(network()),
    }
}

fn lease() -> v1::Lease {
    let node = v1::NodePlacement { node: "n1".into(), cpu_milli: 4_000, memory_mib: 16_384, ..Default::default() };
    v1::Lease {
        id: "lease-1".into(),
        request: "req-1".into(),
        tenant: "poly-ml".into(),
        origin: "campus".into(),
        placement: Some(v1::Placement {
            donor: "ncc-main".into(),
            nodes: vec![node],
            resource_name: "nvidia.com/gpu".into(),
            resource_count: 1,
            ..Default::default()
        }),
        peering: "peer-1".into(),
        fencing_token: 7,
        message: "waiting".into(),
        target_namespace: "team-a".into(),
        reclaim: Some(v1::Reclaim::default()),
        gpus: Some(v1::GpuDemand { class: "frontier".into(), count: 1, ..Default::default() }),
        ..Default::default()
    }
}

#[test]
fn messages_of_the_broker() {
    let directive = v1::PeeringDirective {
        peering: Some(v1::Peering {
            id: "peer-1".into(),
            origin: "campus".into(),
            donor: "ncc-main".into(),
            ..Default::default()
        }),
        origin_keys: Some(keys(v1::Side::Origin)),
        donor_keys: Some(keys(v1::Side::Donor)),
        peer_identity_key: "ed25519:x".into(),
        peer_institution: "polytechnic".into(),
        ..Default::default()
    };
    let envelope = v1::Envelope {
        peering: "peer-1".into(),
        epoch: 2,
        lease: "lease-1".into(),
        step: "credential".into(),
        sequence: 1,
        from: "ncc-main".into(),
        to: "campus".into(),
        encapsulated_key: vec![5; 1_120],
        ciphertext: vec![6; 40],
        expires_at_ms: 9,
    };
    let state = v1::DesiredState {
        revision: 3,
        log_time_ms: 4,
        leases: vec![lease()],
        peerings: vec![directive],
        envelopes: vec![envelope],
        policy_commit: "3f2a9c51b0de4d8f6a7c2e19d05b84f7a1c6e3d2".to_owned(),
    };
    let valid = v1::BrokerMessage { body: Some(Body::Desired(state)) }.encode_to_vec();
    fuzz!("broker_message", vec![valid], |bytes: &[u8]| {
        let Ok(v1::BrokerMessage { body: Some(Body::Desired(state)), .. }) = v1::BrokerMessage::decode(bytes) else {
            return false;
        };
        for directive in &state.peerings {
            for keys in directive.origin_keys.iter().chain(&directive.donor_keys) {
                let _ = canonical(keys);
                let _ = keys.network.as_ref().map(|network| check_network("campus", network));
            }
        }
        let read = DesiredState::from(state);
        let again = DesiredState::decode(&read.encoded);
        assert_eq!(again.leases.len(), read.leases.len(), "what is kept on disk reads as it came");
        true
    });
}

#[test]
fn key_bundles_and_vouchers() {
    let (key, institution) =
        (IdentityKey::generate(&SeededEntropy::new(5)), IdentityKey::generate(&SeededEntropy::new(6)));
    let cluster = ClusterName::new("campus").expect("a name");
    let voucher = institution.vouch("polytechnic", &cluster, &key.public());
    let pin = InstitutionPin { keys: vec![institution.public()], clusters: BTreeSet::from(["campus".to_owned()]) };
    let pins = Pins { institutions: BTreeMap::from([("polytechnic".to_owned(), pin)]), require_vouchers: true };
    let expected = Expected {
        peering: PeeringId(1),
        epoch: 2,
        cluster: "campus".into(),
        side: Side::Origin,
        identity_key: key.public().to_string(),
        institution: "polytechnic".into(),
    };
    let valid = sign(keys(v1::Side::Origin), &key, Some(&voucher)).encode_to_vec();
    fuzz!("key_bundle", vec![valid], move |bytes: &[u8]| {
        let Ok(bundle) = v1::KeyBundle::decode(bytes) else { return false };
        let as_it_came = verify(&bundle, &expected, &pins).map_err(|error| error.to_string());
        // Signed again: only so does an edit get past the signature. The voucher is as it came.
        let voucher = IdentitySignature::from_bytes(&bundle.voucher).ok();
        let signed = verify(&sign(bundle, &key, voucher.as_ref()), &expected, &pins).map_err(|error| error.to_string());
        assert!(as_it_came.is_err() || signed.is_ok(), "{as_it_came:?}, and signed again {signed:?}");
        signed.is_ok()
    });
}

#[test]
fn credentials_of_the_donor() {
    let api = ApiCredential {
        kind: CredentialKind::Kubernetes,
        ca_pem: "-----BEGIN CERTIFICATE-----".into(),
        tls_server_name: "kubernetes".into(),
        token: SecretString::new("token".into()),
        namespace: "comity-lease-1".into(),
        expires_at_ms: 1,
        server_port: 6443,
    };
    fuzz!("credential", vec![Credential::Api(api).encode().to_vec()], |bytes: &[u8]| {
        let _ = Credential::decode_stored(bytes);
        Credential::decode(bytes).is_ok()
    });
}
