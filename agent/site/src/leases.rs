//! Leases of the site API with the hashes of their tokens, in one file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity_agent_model::delivery_error::DeliveryError;
use comity_runtime::atomic_file;
use comity_runtime::clock::Clock;
use comity_runtime::entropy::Entropy;
use comity_runtime::secret::SecretString;
use comity_types::LeaseId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use comity_agent_delivery::DonorLease;

use crate::held::Held;

const LEASES_FILE: &str = "leases.json";
const MAX_LEASES_BYTES: u64 = 4 << 20;
/// A host without Kubernetes lends few devices.
const MAX_LEASES: usize = 1_024;
/// Most valid tokens of one lease: a renewal overlaps with the token it replaces.
const MAX_TOKENS: usize = 8;
const TOKEN_BYTES: usize = 32;

/// One lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeaseRecord {
    pub(super) tenant: String,
    pub(super) origin: String,
    pub(super) namespace: String,
    pub(super) resource: String,
    pub(super) gpus: u64,
    /// CPU, memory and devices, which its pods share.
    pub(super) share: Held,
    tokens: Vec<TokenRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TokenRecord {
    sha256: String,
    expires_at_ms: u64,
}

impl LeaseRecord {
    /// A record without tokens.
    pub(super) fn of(lease: &DonorLease, namespace: &str) -> Self {
        Self {
            tenant: lease.tenant.clone(),
            origin: lease.origin.clone(),
            namespace: namespace.to_owned(),
            resource: lease.placement.resource_name.clone(),
            gpus: lease.placement.resource_count,
            share: Held::of_lease(lease),
            tokens: Vec::new(),
        }
    }
}

/// All leases. Changes are on disk before they take effect.
#[derive(Debug)]
pub(super) struct Leases {
    path: PathBuf,
    records: Mutex<BTreeMap<LeaseId, LeaseRecord>>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Leases {
    /// Reads the file. Blocks.
    pub(super) fn open(dir: &Path, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Result<Self, DeliveryError> {
        let path = dir.join(LEASES_FILE);
        let records = match atomic_file::read_bounded(&path, MAX_LEASES_BYTES) {
            Ok(bytes) => parse(&path, &bytes)?,
            Err(error) if error.is_not_found() => BTreeMap::new(),
            Err(error) => return Err(DeliveryError::temporary("read the leases of the site API", error)),
        };
        Ok(Self { path, records: Mutex::new(records), clock, entropy })
    }

    /// Adds or updates a lease; its tokens stay.
    pub(super) fn put(&self, lease_id: LeaseId, mut record: LeaseRecord) -> Result<(), DeliveryError> {
        self.change(|records| {
            if records.len() >= MAX_LEASES && !records.contains_key(&lease_id) {
                return Err(DeliveryError::permanent(
                    "too-many-leases",
                    format!("the site API holds {MAX_LEASES} leases; release some"),
                ));
            }
            record.tokens = records.get(&lease_id).map(|old| old.tokens.clone()).unwrap_or_default();
            records.insert(lease_id, record);
            Ok(())
        })
    }

    /// A new token, valid until `ends_at_ms`. Only its hash is kept.
    pub(super) fn issue(&self, lease_id: LeaseId, ends_at_ms: u64) -> Result<SecretString, DeliveryError> {
        let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
        self.entropy.fill(bytes.as_mut());
        let token = URL_SAFE_NO_PAD.encode(bytes.as_ref());
        let now = self.clock.unix_ms();
        self.change(|records| {
            let record = records.get_mut(&lease_id).ok_or_else(|| {
                DeliveryError::temporary(
                    format!("issue a token for {lease_id}"),
                    "it is not prepared; it is prepared again",
                )
            })?;
            record.tokens.retain(|token| token.expires_at_ms > now);
            let too_many = (record.tokens.len() + 1).saturating_sub(MAX_TOKENS);
            record.tokens.drain(..too_many);
            record.tokens.push(TokenRecord { sha256: hash(&token), expires_at_ms: ends_at_ms });
            Ok(())
        })?;
        Ok(SecretString::new(token))
    }

    /// Forgets a lease and its tokens.
    pub(super) fn remove(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        if !self.lock().contains_key(&lease_id) {
            return Ok(());
        }
        self.change(|records| {
            records.remove(&lease_id);
            Ok(())
        })
    }

    /// The lease of a token, if the token is valid now. Compares against every token in constant time.
    pub(super) fn authenticate(&self, token: &str) -> Option<(LeaseId, LeaseRecord)> {
        let (given, now) = (hash(token), self.clock.unix_ms());
        let records = self.lock();
        let mut found = None;
        for (id, record) in records.iter() {
            for known in &record.tokens {
                let same: bool = known.sha256.as_bytes().ct_eq(given.as_bytes()).into();
                if same && known.expires_at_ms > now {
                    found = Some((*id, record.clone()));
                }
            }
        }
        found
    }

    /// Whether a lease has not been removed.
    pub(super) fn contains(&self, lease_id: LeaseId) -> bool {
        self.lock().contains_key(&lease_id)
    }

    /// Ids of all leases.
    pub(super) fn ids(&self) -> BTreeSet<LeaseId> {
        self.lock().keys().copied().collect()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<LeaseId, LeaseRecord>) -> Result<(), DeliveryError>,
    ) -> Result<(), DeliveryError> {
        const OPERATION: &str = "store the leases of the site API";
        let mut records = self.lock();
        let mut changed = records.clone();
        change(&mut changed)?;
        if changed != *records {
            let bytes = serde_json::to_vec(&changed).map_err(|error| DeliveryError::temporary(OPERATION, error))?;
            atomic_file::write(&self.path, &bytes, atomic_file::PRIVATE)
                .map_err(|error| DeliveryError::temporary(OPERATION, error))?;
            *records = changed;
        }
        Ok(())
    }

    /// The map is replaced as a whole, so a panic elsewhere cannot leave it half changed.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseId, LeaseRecord>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(token: &str) -> String {
    hex::encode(Sha256::digest(token))
}

fn parse(path: &Path, bytes: &[u8]) -> Result<BTreeMap<LeaseId, LeaseRecord>, DeliveryError> {
    serde_json::from_slice(bytes).map_err(|error| {
        DeliveryError::permanent(
            "damaged-state",
            format!("{} cannot be read: {error}; restore or remove it", path.display()),
        )
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;
    use comity_runtime::clock::ManualClock;
    use comity_runtime::entropy::SeededEntropy;

    use super::*;

    #[test]
    fn leases_of_the_site_api() {
        let valid = br#"{"lease-1":{"tenant":"poly-ml","origin":"campus","namespace":"comity-lease-1",
            "resource":"nvidia.com/gpu","gpus":2,"share":{"cpu_milli":1000,"memory_mib":512,"devices":{"0":2}},"tokens":[{"sha256":"ab","expires_at_ms":5}]}}"#;
        let folder = tempfile::tempdir().unwrap();
        fuzz!("site_leases", vec![valid.to_vec()], move |bytes: &[u8]| {
            let path = folder.path().join(LEASES_FILE);
            let records = match parse(&path, bytes) {
                Ok(records) => records,
                Err(error) => {
                    assert!(error.to_string().contains(LEASES_FILE), "{error}");
                    return false;
                }
            };
            let (clock, entropy) = (Arc::new(ManualClock::at_unix_ms(3)), Arc::new(SeededEntropy::new(1)));
            let leases = Leases { path, records: Mutex::new(records), clock, entropy };
            if let Some(first) = leases.ids().first().copied() {
                let token = leases.issue(first, 9).unwrap();
                assert_eq!(leases.authenticate(token.expose()).map(|(id, _)| id), Some(first));
                assert!(leases.lock()[&first].tokens.len() <= MAX_TOKENS, "old tokens go");
                let written = std::fs::read(&leases.path).unwrap();
                assert_eq!(parse(&leases.path, &written).unwrap(), *leases.lock(), "nothing is lost");
            }
            assert!(leases.authenticate("never issued").is_none());
            true
        });
    }
}
