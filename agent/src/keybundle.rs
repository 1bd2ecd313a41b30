//! Key bundles: what each side of a peering shows the other, signed by its cluster's identity key, which its institution
//! may vouch for. The broker carries them and cannot change them; here is where that is made sure.

use std::collections::BTreeMap;

use comity_proto::v1;
use comity_runtime::{ClusterName, IdentityKey, IdentityPublicKey, IdentitySignature};

use crate::record::RemoteKeys;

const SIGNED_AS: &str = "key-bundle";

/// Signing keys of institutions that this agent's own configuration pins, by institution.
pub type PinnedKeys = BTreeMap<String, Vec<IdentityPublicKey>>;

/// Why a bundle is not believed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// It is about something else.
    #[error("the key bundle's {field} is {found:?}, want {want:?}")]
    Field {
        /// Which field.
        field: &'static str,
        /// What it says.
        found: String,
        /// What it should say.
        want: String,
    },
    /// A key or signature has the wrong form.
    #[error("the key bundle of {cluster} has a malformed {field}")]
    Form {
        /// Whose bundle.
        cluster: String,
        /// Which field.
        field: &'static str,
    },
    /// Not signed by the identity key with which the cluster joined.
    #[error("the key bundle of {cluster} is not signed by the identity key it joined with: it was changed on its way")]
    Signature {
        /// Whose bundle.
        cluster: String,
    },
    /// The institution is pinned, and none of its keys vouches for the cluster.
    #[error(
        "no pinned key of institution {institution} vouches for the identity key of {cluster}: ask the institution for a voucher, or correct pinnedInstitutionKeys"
    )]
    NotVouched {
        /// Whose bundle.
        cluster: String,
        /// Its institution.
        institution: String,
    },
}

/// Whom to expect at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Peering.
    pub peering: String,
    /// Epoch.
    pub epoch: u32,
    /// The other cluster.
    pub cluster: String,
    /// Its side.
    pub side: v1::Side,
    /// Identity key with which it joined, as the broker says.
    pub identity_key: String,
    /// Its institution, as the broker says.
    pub institution: String,
}

/// Canonical bytes of fields 1 to 8: texts and lists with their length in 8 bytes before them, numbers big-endian.
#[must_use]
pub fn canonical(bundle: &v1::KeyBundle) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut part = |part: &[u8]| {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend(part);
    };
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
    bytes
}

/// Completes a bundle: puts the identity key, the voucher and the signature in.
#[must_use]
pub fn sign(mut bundle: v1::KeyBundle, key: &IdentityKey, voucher: Option<&IdentitySignature>) -> v1::KeyBundle {
    bundle.identity_key = key.public().to_string();
    bundle.voucher = voucher.map(|voucher| voucher.as_bytes().to_vec()).unwrap_or_default();
    bundle.signature = key.sign(SIGNED_AS, &[&canonical(&bundle)]).as_bytes().to_vec();
    bundle
}

/// Checks the other side's bundle.
///
/// # Errors
/// [`BundleError`] with what is wrong; the peering must then not go on with these keys.
pub fn verify(bundle: &v1::KeyBundle, expected: &Expected, pinned: &PinnedKeys) -> Result<RemoteKeys, BundleError> {
    let side = i32::from(expected.side);
    for (field, found, want) in [
        ("peering", bundle.peering.clone(), expected.peering.clone()),
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
        .verify(SIGNED_AS, &[&canonical(bundle)], &signature)
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
        hpke_public: bundle.hpke_public.as_slice().try_into().map_err(|_| malformed("hpke_public"))?,
        identity_key,
        endpoints: bundle.endpoints.clone(),
    })
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
            hpke_public: vec![2; 32],
            endpoints: vec!["10.0.0.1:51871".into(), "a:1".into()],
            ..v1::KeyBundle::default()
        };
        let bundle = sign(bundle, &key, voucher.as_ref());
        let expected = Expected {
            peering: "peer-1".into(),
            epoch: 2,
            cluster: "donor".into(),
            side: v1::Side::Donor,
            identity_key: key.public().to_string(),
            institution: "poly".into(),
        };
        (bundle, expected)
    }

    #[test]
    fn a_bundle_is_believed_only_unchanged() {
        let (bundle, expected) = parts(None);
        assert_eq!(verify(&bundle, &expected, &PinnedKeys::new()).unwrap().endpoints.len(), 2);
        let changes: [fn(&mut v1::KeyBundle); 9] = [
            |b| b.peering = "peer-2".into(),
            |b| b.epoch = 3,
            |b| b.cluster = "other".into(),
            |b| b.side = v1::Side::Origin.into(),
            |b| b.wireguard_public[0] = 9,
            |b| b.hpke_public[0] = 9,
            |b| b.endpoints = vec!["10.0.0.1:51871a".into(), ":1".into()],
            |b| b.identity_key = IdentityKey::generate(&SystemEntropy).public().to_string(),
            |b| b.signature[0] ^= 1,
        ];
        for change in changes {
            let mut changed = bundle.clone();
            change(&mut changed);
            assert!(verify(&changed, &expected, &PinnedKeys::new()).is_err(), "{changed:?}");
        }
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
