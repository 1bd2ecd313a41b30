//! Key bundles: each side's public keys for a peering, signed by its cluster's identity key, which its institution may
//! vouch for. The signature is verified here, so that the broker, which carries bundles, cannot change them.

use std::collections::BTreeMap;

use comity_agent_state::record::{HpkePublicKey, RemoteKeys, RemoteNetwork};
use comity_proto::v1;
use comity_runtime::sealing::SUITE;
use comity_runtime::{ClusterName, IdentityKey, IdentityPublicKey, IdentitySignature};
use comity_types::{PeeringId, Side, is_dns_label};
use ipnet::Ipv4Net;

/// Domain of the signature over a bundle.
const BUNDLE_DOMAIN: &str = "key-bundle";
/// Most pod CIDRs of one cluster.
pub(crate) const MAX_POD_CIDRS: usize = 8;
/// Shortest prefix of a pod CIDR: no cluster may claim large parts of the internet.
const MIN_PREFIX: u8 = 8;
/// Bytes of the API server's "host:port", and of Liqo's version.
const MAX_API_SERVER_BYTES: usize = 261;
const MAX_VERSION_BYTES: usize = 32;
/// Characters of a value that an error quotes.
const QUOTED_CHARS: usize = 63;

/// Signing keys of institutions that this agent's own configuration pins, by institution.
pub type PinnedKeys = BTreeMap<String, Vec<IdentityPublicKey>>;

/// Why a bundle is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// A field has an unexpected value.
    #[error("the key bundle's {field} is {found:?}, want {want:?}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: String,
        /// The expected value.
        want: String,
    },
    /// A key or signature has the wrong form.
    #[error("the key bundle of {cluster} has a malformed {field}")]
    Form {
        /// The cluster of the bundle.
        cluster: String,
        /// Which field.
        field: &'static str,
    },
    /// Its network is invalid.
    #[error(
        "the network of {cluster} has {field} {value:?}: {reason}; correct section liqo of its agent's configuration"
    )]
    Network {
        /// The cluster of the bundle.
        cluster: String,
        /// Which field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The problem.
        reason: &'static str,
    },
    /// Not signed by the identity key with which the cluster joined.
    #[error("the key bundle of {cluster} is not signed by the identity key it joined with: it was changed in transit")]
    Signature {
        /// The cluster of the bundle.
        cluster: String,
    },
    /// The institution is pinned, and none of its keys vouches for the cluster.
    #[error(
        "no pinned key of institution {institution} vouches for the identity key of {cluster}: ask the institution for \
         a voucher, or correct pinnedInstitutionKeys"
    )]
    NotVouched {
        /// The cluster of the bundle.
        cluster: String,
        /// Its institution.
        institution: String,
    },
}

/// The expected sender of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Peering.
    pub peering: PeeringId,
    /// Epoch.
    pub epoch: u32,
    /// The other cluster.
    pub cluster: String,
    /// Its side.
    pub side: Side,
    /// Identity key with which it joined, as the broker says.
    pub identity_key: String,
    /// Its institution, as the broker says.
    pub institution: String,
}

/// Canonical bytes: HPKE's suite, then fields 1 to 8 and 11. Texts and lists have their length in 8 bytes before them,
/// numbers are big-endian. An absent network is one in which everything is empty.
///
/// No message carries the suite. A bundle signed for another suite does not verify, so nobody on the way can make two
/// agents use a weaker one.
#[must_use]
pub fn canonical(bundle: &v1::KeyBundle) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = |part: &[u8]| {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part);
    };
    part(&SUITE);
    part(bundle.peering.as_bytes());
    part(&bundle.epoch.to_be_bytes());
    part(bundle.cluster.as_bytes());
    part(&bundle.side.to_be_bytes());
    part(&bundle.wireguard_public);
    part(&bundle.hpke_public);
    part(&(bundle.endpoints.len() as u64).to_be_bytes());
    for endpoint in &bundle.endpoints {
        part(endpoint.as_bytes());
    }
    part(bundle.identity_key.as_bytes());
    let nothing = v1::ClusterNetwork::default();
    let network = bundle.network.as_ref().unwrap_or(&nothing);
    part(&(network.pod_cidrs.len() as u64).to_be_bytes());
    for cidr in &network.pod_cidrs {
        part(cidr.as_bytes());
    }
    part(network.api_server.as_bytes());
    part(network.liqo_cluster_id.as_bytes());
    part(network.liqo_version.as_bytes());
    part(&[u8::from(network.tun)]);
    part(&[u8::from(network.liqo_network)]);
    bytes
}

/// Signs a bundle: adds the identity key, the voucher and the signature.
#[must_use]
pub fn sign(mut bundle: v1::KeyBundle, key: &IdentityKey, voucher: Option<&IdentitySignature>) -> v1::KeyBundle {
    bundle.identity_key = key.public().to_string();
    bundle.voucher = voucher.map(|voucher| voucher.as_bytes().to_vec()).unwrap_or_default();
    bundle.signature = key.sign(BUNDLE_DOMAIN, &[&canonical(&bundle)]).as_bytes().to_vec();
    bundle
}

/// Checks the other side's bundle.
///
/// # Errors
/// [`BundleError`]; the peering must not use these keys.
pub fn verify(bundle: &v1::KeyBundle, expected: &Expected, pinned: &PinnedKeys) -> Result<RemoteKeys, BundleError> {
    let side = i32::from(v1::Side::from(expected.side));
    for (field, found, want) in [
        ("peering", bundle.peering.clone(), expected.peering.to_string()),
        ("epoch", bundle.epoch.to_string(), expected.epoch.to_string()),
        ("cluster", bundle.cluster.clone(), expected.cluster.clone()),
        ("side", bundle.side.to_string(), side.to_string()),
        ("identity_key", bundle.identity_key.clone(), expected.identity_key.clone()),
    ] {
        if found != want {
            return Err(BundleError::Field { field, found, want });
        }
    }
    let cluster = || bundle.cluster.clone();
    let malformed = |field| BundleError::Form { cluster: cluster(), field };
    let identity_key: IdentityPublicKey = bundle.identity_key.parse().map_err(|_| malformed("identity_key"))?;
    let signature = IdentitySignature::from_bytes(&bundle.signature).map_err(|_| malformed("signature"))?;
    identity_key
        .verify(BUNDLE_DOMAIN, &[&canonical(bundle)], &signature)
        .map_err(|_| BundleError::Signature { cluster: cluster() })?;
    if let Some(keys) = pinned.get(&expected.institution) {
        let not_vouched = || BundleError::NotVouched { cluster: cluster(), institution: expected.institution.clone() };
        let voucher = IdentitySignature::from_bytes(&bundle.voucher).map_err(|_| not_vouched())?;
        let name = ClusterName::new(bundle.cluster.clone()).map_err(|_| malformed("cluster"))?;
        if !keys.iter().any(|key| key.verify_voucher(&name, &identity_key, &voucher).is_ok()) {
            return Err(not_vouched());
        }
    }
    Ok(RemoteKeys {
        cluster: cluster(),
        wireguard_public: bundle.wireguard_public.as_slice().try_into().map_err(|_| malformed("wireguard_public"))?,
        hpke_public: HpkePublicKey::from_bytes(&bundle.hpke_public).ok_or_else(|| malformed("hpke_public"))?,
        identity_key,
        endpoints: bundle.endpoints.clone(),
        network: match &bundle.network {
            Some(network) => check_network(&bundle.cluster, network)?,
            None => RemoteNetwork::default(),
        },
    })
}

/// Validates the network of `cluster`. That cluster signed it, but it must not divert packets of this one.
///
/// The broker's core checks the same form before it relays a bundle. The check is repeated here, because an agent does
/// not trust a broker about another cluster, and links no code of the broker.
///
/// # Errors
/// [`BundleError::Network`].
pub fn check_network(cluster: &str, network: &v1::ClusterNetwork) -> Result<RemoteNetwork, BundleError> {
    let refuse = |field, value: &str, reason| {
        let value = value.chars().take(QUOTED_CHARS).collect();
        BundleError::Network { cluster: cluster.to_owned(), field, value, reason }
    };
    if network.pod_cidrs.len() > MAX_POD_CIDRS {
        return Err(refuse("pod_cidrs", &network.pod_cidrs.len().to_string(), "at most 8 are taken"));
    }
    let mut pod_cidrs: Vec<Ipv4Net> = Vec::with_capacity(network.pod_cidrs.len());
    for text in &network.pod_cidrs {
        let cidr: Ipv4Net = text.parse().map_err(|_| refuse("pod_cidrs", text, "want IPv4 as in \"10.44.0.0/16\""))?;
        if cidr.prefix_len() < MIN_PREFIX || cidr.addr() != cidr.network() {
            return Err(refuse("pod_cidrs", text, "want a prefix of 8 to 32 and no bits set behind it"));
        }
        let address = cidr.network();
        if address.is_loopback() || address.is_multicast() || address.is_link_local() || address.is_broadcast() {
            return Err(refuse("pod_cidrs", text, "no pods can have such addresses"));
        }
        if pod_cidrs.iter().any(|other| other.contains(&cidr) || cidr.contains(other)) {
            return Err(refuse("pod_cidrs", text, "it overlaps with another one"));
        }
        pod_cidrs.push(cidr);
    }
    let api_server = &network.api_server;
    if !api_server.is_empty() && (api_server.len() > MAX_API_SERVER_BYTES || !is_host_port(api_server)) {
        return Err(refuse("api_server", api_server, "want host:port"));
    }
    if !network.liqo_cluster_id.is_empty() && !is_dns_label(&network.liqo_cluster_id) {
        return Err(refuse("liqo_cluster_id", &network.liqo_cluster_id, "want a DNS label"));
    }
    if network.liqo_version.len() > MAX_VERSION_BYTES || !network.liqo_version.bytes().all(in_version) {
        return Err(refuse("liqo_version", &network.liqo_version, "want a version as in \"v1.2.0\""));
    }
    Ok(RemoteNetwork {
        pod_cidrs,
        api_server: api_server.clone(),
        liqo_cluster_id: network.liqo_cluster_id.clone(),
        liqo_version: network.liqo_version.clone(),
        tun: network.tun,
        liqo_network: network.liqo_network,
    })
}

fn in_version(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".+-".contains(&byte)
}

fn is_host_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    !host.is_empty()
        && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte))
        && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::SystemEntropy;

    use super::*;

    fn parts(voucher_by: Option<&IdentityKey>) -> (v1::KeyBundle, Expected) {
        let key = IdentityKey::generate(&SystemEntropy);
        let cluster = ClusterName::new("donor").unwrap();
        let voucher = voucher_by.map(|institution| institution.vouch(&cluster, &key.public()));
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
        let remote = verify(&bundle, &expected, &PinnedKeys::new()).unwrap();
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
            assert!(verify(&changed, &expected, &PinnedKeys::new()).is_err(), "{changed:?}");
        }
    }

    fn signed_with(network: v1::ClusterNetwork) -> Result<RemoteKeys, BundleError> {
        let key = IdentityKey::generate(&SystemEntropy);
        let (bundle, expected) = parts(None);
        let bundle = sign(v1::KeyBundle { network: Some(network), ..bundle }, &key, None);
        verify(&bundle, &Expected { identity_key: key.public().to_string(), ..expected }, &PinnedKeys::new())
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
            verify(&sign(bundle, &key, None), &expected, &PinnedKeys::new()).unwrap_err()
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
        let refused = verify(&bundle, &expected, &PinnedKeys::new()).unwrap_err();
        assert!(matches!(refused, BundleError::Signature { .. }), "{refused}");
    }

    #[test]
    fn keys_swapped_by_the_broker_are_refused_where_the_institution_is_pinned() {
        let institution = IdentityKey::generate(&SystemEntropy);
        let pinned = PinnedKeys::from([("poly".to_owned(), vec![institution.public()])]);
        let (bundle, expected) = parts(Some(&institution));
        assert!(verify(&bundle, &expected, &pinned).is_ok());
        // A stolen broker shows its own identity key and signs with it; it cannot make the voucher.
        for forged_by in [None, Some(&IdentityKey::generate(&SystemEntropy))] {
            let (bundle, expected) = parts(forged_by);
            assert!(matches!(verify(&bundle, &expected, &pinned), Err(BundleError::NotVouched { .. })));
        }
    }
}
