//! Key bundles: each side's public keys for a peering, signed by its cluster's identity key, which its institution may
//! vouch for. The signature is verified here, so that the broker, which carries bundles, cannot change them.

use comity_agent_state::record::{HpkePublicKey, RemoteKeys, RemoteNetwork};
use comity_proto::v1;
use comity_runtime::sealing::SUITE;
use comity_runtime::{ClusterName, IdentityKey, IdentityPublicKey, IdentitySignature};
use comity_types::{PeeringId, Side, is_dns_label};
use ipnet::Ipv4Net;

use crate::keys::pins::{NotVouched, Pins};

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
    /// The cluster needs a voucher of a pinned institution.
    #[error(
        "no pinned key of {} vouches for the identity key of {cluster}: ask the institution for a voucher (comity \
         cluster voucher create), or correct pinnedInstitutions and requireVouchers",
        .institution.as_ref().map_or_else(|| "any institution".to_owned(), |name| format!("institution {name}"))
    )]
    NotVouched {
        /// The cluster of the bundle.
        cluster: String,
        /// The institution that has to vouch; `None`: any that is pinned.
        institution: Option<String>,
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
    /// Its institution, as the broker says: it may demand a voucher, and spares none.
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
pub fn verify(bundle: &v1::KeyBundle, expected: &Expected, pins: &Pins) -> Result<RemoteKeys, BundleError> {
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
    let name = ClusterName::new(bundle.cluster.clone()).map_err(|_| malformed("cluster"))?;
    let institution = pins
        .vouched_by(&name, &identity_key, &bundle.voucher, &expected.institution)
        .map_err(|NotVouched { institution }| BundleError::NotVouched { cluster: cluster(), institution })?;
    Ok(RemoteKeys {
        cluster: cluster(),
        wireguard_public: bundle.wireguard_public.as_slice().try_into().map_err(|_| malformed("wireguard_public"))?,
        hpke_public: HpkePublicKey::from_bytes(&bundle.hpke_public).ok_or_else(|| malformed("hpke_public"))?,
        identity_key,
        institution,
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
mod tests;
