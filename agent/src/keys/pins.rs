//! Keys of institutions that this agent's own configuration pins, and the vouchers that they must have made.
//!
//! A voucher names the institution, so the institution whose pinned key made it is known without the broker. What the
//! broker says about institutions can only demand a voucher, never spare one.

use std::collections::{BTreeMap, BTreeSet};

use comity_runtime::{ClusterName, IdentityPublicKey, IdentitySignature};
use serde::{Deserialize, Serialize};

/// The pin of one institution.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InstitutionPin {
    /// Its signing keys, "ed25519:BASE64"; any of them may make a voucher.
    pub keys: Vec<IdentityPublicKey>,
    /// Clusters that need a voucher of this institution, whatever the broker says.
    #[serde(default)]
    pub clusters: BTreeSet<String>,
}

/// All pins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// By institution.
    pub institutions: BTreeMap<String, InstitutionPin>,
    /// Whether every cluster needs a voucher of a pinned institution.
    pub require_vouchers: bool,
}

/// No pinned key made the voucher that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotVouched {
    /// The institution that has to vouch; `None`: any that is pinned.
    pub institution: Option<String>,
}

impl Pins {
    /// The pinned institution that vouches for the identity key of a cluster; `None` if nobody does and nobody has to.
    /// `claimed` is its institution by the broker's word.
    ///
    /// # Errors
    /// [`NotVouched`].
    pub fn vouched_by(
        &self,
        cluster: &ClusterName,
        key: &IdentityPublicKey,
        voucher: &[u8],
        claimed: &str,
    ) -> Result<Option<String>, NotVouched> {
        let owner = self.institutions.iter().find(|(_, pin)| pin.clusters.contains(cluster.as_str()));
        let voucher = IdentitySignature::from_bytes(voucher).ok();
        let made_by = |name: &str, pin: &InstitutionPin| {
            let verifies = |voucher| pin.keys.iter().any(|by| by.verify_voucher(name, cluster, key, voucher).is_ok());
            voucher.as_ref().is_some_and(verifies)
        };
        let found = match owner {
            Some((name, pin)) => made_by(name, pin).then_some(name),
            None => self.institutions.iter().find(|(name, pin)| made_by(name, pin)).map(|(name, _)| name),
        };
        let needed = owner.map(|(name, _)| name.clone());
        let needed = needed.or_else(|| self.institutions.contains_key(claimed).then(|| claimed.to_owned()));
        match found {
            Some(name) => Ok(Some(name.clone())),
            None if needed.is_some() || self.require_vouchers => Err(NotVouched { institution: needed }),
            None => Ok(None),
        }
    }
}
