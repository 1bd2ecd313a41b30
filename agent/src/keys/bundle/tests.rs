//! Bundles that were changed on the way, are malformed, or lack the voucher that a pin demands.

#![expect(clippy::unwrap_used, reason = "tests")]

use comity_runtime::SystemEntropy;

use super::*;
use crate::keys::pins::InstitutionPin;

fn parts(voucher_by: Option<&IdentityKey>) -> (v1::KeyBundle, Expected) {
    let key = IdentityKey::generate(&SystemEntropy);
    let cluster = ClusterName::new("donor").unwrap();
    let voucher = voucher_by.map(|institution| institution.vouch("poly", &cluster, &key.public()));
    let bundle = v1::KeyBundle {
        peering: "peer-1".into(),
        epoch: 2,
        cluster: "donor".into(),
        side: v1::Side::Donor.into(),
        wireguard_public: vec![1; 32],
        hpke_public: vec![2; HpkePublicKey::BYTES],
        endpoints: vec!["10.0.0.1:51871".into(), "a:1".into()],
        network: Some(v1::ClusterNetwork {
            pod_cidrs: vec!["10.44.0.0/16".into(), "10.45.0.0/16".into()],
            api_server: "192.0.2.7:6443".into(),
            liqo_cluster_id: "donor-liqo".into(),
            liqo_version: "v1.2.0".into(),
            tun: true,
            liqo_network: true,
        }),
        ..v1::KeyBundle::default()
    };
    let bundle = sign(bundle, &key, voucher.as_ref());
    let expected = Expected {
        peering: PeeringId(1),
        epoch: 2,
        cluster: "donor".into(),
        side: Side::Donor,
        identity_key: key.public().to_string(),
        institution: "poly".into(),
    };
    (bundle, expected)
}

#[test]
fn a_changed_bundle_is_refused() {
    let (bundle, expected) = parts(None);
    let remote = verify(&bundle, &expected, &Pins::default()).unwrap();
    assert_eq!(remote.endpoints.len(), 2);
    assert_eq!(remote.network.pod_cidrs[1].to_string(), "10.45.0.0/16");
    assert_eq!(remote.network.api_address(), Some("192.0.2.7:6443".parse().unwrap()));
    fn network(bundle: &mut v1::KeyBundle) -> &mut v1::ClusterNetwork {
        bundle.network.as_mut().unwrap()
    }
    let changes: [fn(&mut v1::KeyBundle); 16] = [
        |b| b.peering = "peer-2".into(),
        |b| b.epoch = 3,
        |b| b.cluster = "other".into(),
        |b| b.side = v1::Side::Origin.into(),
        |b| b.wireguard_public[0] = 9,
        |b| b.hpke_public[0] = 9,
        |b| b.endpoints = vec!["10.0.0.1:51871a".into(), ":1".into()],
        |b| b.identity_key = IdentityKey::generate(&SystemEntropy).public().to_string(),
        |b| b.signature[0] ^= 1,
        |b| b.network = None,
        |b| network(b).pod_cidrs = vec!["10.44.0.0/1610.45.0.0/16".into()],
        |b| network(b).api_server = "192.0.2.8:6443".into(),
        |b| network(b).liqo_cluster_id = "other".into(),
        |b| network(b).liqo_version = "v1.2.1".into(),
        |b| network(b).tun = false,
        |b| network(b).liqo_network = false,
    ];
    for change in changes {
        let mut changed = bundle.clone();
        change(&mut changed);
        assert!(verify(&changed, &expected, &Pins::default()).is_err(), "{changed:?}");
    }
}

fn signed_with(network: v1::ClusterNetwork) -> Result<RemoteKeys, BundleError> {
    let key = IdentityKey::generate(&SystemEntropy);
    let (bundle, expected) = parts(None);
    let bundle = sign(v1::KeyBundle { network: Some(network), ..bundle }, &key, None);
    verify(&bundle, &Expected { identity_key: key.public().to_string(), ..expected }, &Pins::default())
}

#[test]
fn an_invalid_network_is_refused_and_named() {
    let cidrs = |cidrs: &[&str]| v1::ClusterNetwork {
        pod_cidrs: cidrs.iter().map(|cidr| (*cidr).to_owned()).collect(),
        ..v1::ClusterNetwork::default()
    };
    let nine: Vec<String> = (0..9).map(|n| format!("10.{n}.0.0/16")).collect();
    let nine: Vec<&str> = nine.iter().map(String::as_str).collect();
    for wrong in [
        cidrs(&["10.44.0.1/16"]),
        cidrs(&["0.0.0.0/0"]),
        cidrs(&["127.0.0.0/8"]),
        cidrs(&["fd00::/64"]),
        cidrs(&["10.44.0.0/16", "10.44.7.0/24"]),
        cidrs(&nine),
        v1::ClusterNetwork { api_server: "https://a:1".into(), ..v1::ClusterNetwork::default() },
        v1::ClusterNetwork { api_server: "a:0".into(), ..v1::ClusterNetwork::default() },
        v1::ClusterNetwork { liqo_cluster_id: "../x".into(), ..v1::ClusterNetwork::default() },
        v1::ClusterNetwork { liqo_version: "v\n".into(), ..v1::ClusterNetwork::default() },
    ] {
        let error = signed_with(wrong.clone()).unwrap_err();
        assert!(matches!(error, BundleError::Network { .. }), "{wrong:?}: {error}");
    }
    assert_eq!(signed_with(v1::ClusterNetwork::default()).unwrap().network, RemoteNetwork::default());
}

#[test]
fn a_key_of_the_wrong_form_is_refused_and_named() {
    let key = IdentityKey::generate(&SystemEntropy);
    let (bundle, expected) = parts(None);
    let expected = Expected { identity_key: key.public().to_string(), ..expected };
    let refused = |change: &dyn Fn(&mut v1::KeyBundle)| {
        let mut bundle = bundle.clone();
        change(&mut bundle);
        verify(&sign(bundle, &key, None), &expected, &Pins::default()).unwrap_err()
    };
    let malformed = |field| BundleError::Form { cluster: "donor".into(), field };
    // 32 bytes are a key of X25519 alone; the last one has coefficients out of ML-KEM's range.
    for hpke_public in [vec![2; 32], vec![2; HpkePublicKey::BYTES + 1], vec![0xff; HpkePublicKey::BYTES]] {
        assert_eq!(refused(&|b| b.hpke_public.clone_from(&hpke_public)), malformed("hpke_public"));
    }
    assert_eq!(refused(&|b| b.wireguard_public = vec![1; 31]), malformed("wireguard_public"));
}

#[test]
fn a_bundle_signed_for_another_suite_is_refused() {
    let key = IdentityKey::generate(&SystemEntropy);
    let (bundle, expected) = parts(None);
    let expected = Expected { identity_key: key.public().to_string(), ..expected };
    let mut bundle = sign(bundle, &key, None);
    let mut signed = canonical(&bundle);
    // X25519 (0x0020) in place of X-Wing.
    assert_eq!(signed[8..14], SUITE);
    signed[8..10].copy_from_slice(&[0x00, 0x20]);
    bundle.signature = key.sign(BUNDLE_DOMAIN, &[&signed]).as_bytes().to_vec();
    let refused = verify(&bundle, &expected, &Pins::default()).unwrap_err();
    assert!(matches!(refused, BundleError::Signature { .. }), "{refused}");
}

fn pins(institution: &IdentityKey, clusters: &[&str]) -> Pins {
    let clusters = clusters.iter().map(|cluster| (*cluster).to_owned()).collect();
    let pin = InstitutionPin { keys: vec![institution.public()], clusters };
    Pins { institutions: [("poly".to_owned(), pin)].into(), require_vouchers: false }
}

#[test]
fn keys_swapped_by_the_broker_are_refused_where_the_institution_is_pinned() {
    let institution = IdentityKey::generate(&SystemEntropy);
    let pins = pins(&institution, &[]);
    let (bundle, expected) = parts(Some(&institution));
    assert_eq!(verify(&bundle, &expected, &pins).unwrap().institution.as_deref(), Some("poly"));
    // A stolen broker shows its own identity key and signs with it; it cannot make the voucher.
    for forged_by in [None, Some(&IdentityKey::generate(&SystemEntropy))] {
        let (bundle, expected) = parts(forged_by);
        assert!(matches!(verify(&bundle, &expected, &pins), Err(BundleError::NotVouched { .. })));
    }
}

/// The pin lists the cluster, so it holds whatever institution the broker names; and a voucher tells the institution
/// itself.
#[test]
fn broker_relabels_institution_to_skip_pin() {
    let institution = IdentityKey::generate(&SystemEntropy);
    let by_cluster = pins(&institution, &["donor"]);
    let relabelled = |expected: Expected| Expected { institution: "unpinned".to_owned(), ..expected };
    let (bundle, expected) = parts(None);
    let refused = verify(&bundle, &relabelled(expected), &by_cluster).unwrap_err();
    assert_eq!(
        refused,
        BundleError::NotVouched { cluster: "donor".to_owned(), institution: Some("poly".to_owned()) },
        "{refused}"
    );
    let (bundle, expected) = parts(Some(&institution));
    for pins in [&by_cluster, &pins(&institution, &[])] {
        let remote = verify(&bundle, &relabelled(expected.clone()), pins).unwrap();
        assert_eq!(remote.institution.as_deref(), Some("poly"), "the voucher names it, not the broker");
    }
    // The voucher of another pinned institution does not stand for the one that owns the cluster.
    let other = IdentityKey::generate(&SystemEntropy);
    let mut two = by_cluster;
    let pin = InstitutionPin { keys: vec![other.public()], clusters: Default::default() };
    two.institutions.insert("other".to_owned(), pin);
    let (mut bundle, expected) = parts(None);
    let key: IdentityPublicKey = bundle.identity_key.parse().unwrap();
    let voucher = other.vouch("other", &ClusterName::new("donor").unwrap(), &key);
    bundle.voucher = voucher.as_bytes().to_vec();
    assert!(matches!(verify(&bundle, &expected, &two), Err(BundleError::NotVouched { .. })));
}

#[test]
fn required_vouchers_fail_closed() {
    let institution = IdentityKey::generate(&SystemEntropy);
    let (vouched, plain) = (parts(Some(&institution)), parts(None));
    let required = |pins: Pins| Pins { require_vouchers: true, ..pins };
    let nobody = required(Pins::default());
    for (bundle, expected) in [&vouched, &plain] {
        let refused = verify(bundle, expected, &nobody).unwrap_err();
        assert_eq!(refused, BundleError::NotVouched { cluster: "donor".to_owned(), institution: None });
    }
    let pinned = required(pins(&institution, &[]));
    let unpinned = Expected { institution: "unpinned".to_owned(), ..plain.1.clone() };
    assert!(matches!(verify(&plain.0, &unpinned, &pinned), Err(BundleError::NotVouched { .. })));
    assert!(verify(&vouched.0, &vouched.1, &pinned).is_ok());
}
