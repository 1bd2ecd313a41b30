//! The ledger of the namespaces of leases' Secrets, on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use comity_agent_model::delivery_error::DeliveryError;
use comity_runtime::atomic_file;
use comity_types::LeaseId;

const LEDGER_FILE: &str = "origin-secrets.json";
/// Far more leases than one origin holds.
const MAX_LEDGER_BYTES: u64 = 16 << 20;
const OPERATION: &str = "note where the Secret of a lease is";

/// Namespace of each lease's Secret. Changes are on disk before they take effect.
#[derive(Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    namespaces: Mutex<BTreeMap<LeaseId, String>>,
}

impl Ledger {
    /// Reads the ledger. Blocks.
    pub(super) fn open(state_dir: &Path) -> Result<Self, DeliveryError> {
        let path = state_dir.join(LEDGER_FILE);
        let namespaces = match atomic_file::read_bounded(&path, MAX_LEDGER_BYTES) {
            Ok(bytes) => parse(&path, &bytes)?,
            Err(error) if error.is_not_found() => BTreeMap::new(),
            Err(error) => return Err(DeliveryError::temporary(OPERATION, error)),
        };
        Ok(Self { path, namespaces: Mutex::new(namespaces) })
    }

    pub(super) fn note(&self, lease_id: LeaseId, namespace: &str) -> Result<(), DeliveryError> {
        let mut namespaces = self.lock();
        match namespaces.get(&lease_id) {
            Some(noted) if noted == namespace => return Ok(()),
            Some(noted) => {
                let message =
                    format!("the Secret of {lease_id} is in namespace {noted} and cannot move to {namespace}");
                return Err(DeliveryError::permanent("secret-elsewhere", message));
            }
            None => {}
        }
        let mut changed = namespaces.clone();
        changed.insert(lease_id, namespace.to_owned());
        self.store(&mut namespaces, changed)
    }

    pub(super) fn forget(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let mut namespaces = self.lock();
        let mut changed = namespaces.clone();
        if changed.remove(&lease_id).is_none() {
            return Ok(());
        }
        self.store(&mut namespaces, changed)
    }

    pub(super) fn namespace(&self, lease_id: LeaseId) -> Option<String> {
        self.lock().get(&lease_id).cloned()
    }

    pub(super) fn leases(&self) -> BTreeSet<LeaseId> {
        self.lock().keys().copied().collect()
    }

    fn store(
        &self,
        current: &mut BTreeMap<LeaseId, String>,
        changed: BTreeMap<LeaseId, String>,
    ) -> Result<(), DeliveryError> {
        let bytes = serde_json::to_vec(&changed).map_err(|error| DeliveryError::temporary(OPERATION, error))?;
        atomic_file::write(&self.path, &bytes, atomic_file::PRIVATE)
            .map_err(|error| DeliveryError::temporary(OPERATION, error))?;
        *current = changed;
        Ok(())
    }

    /// The map is replaced as a whole, so a panic elsewhere cannot leave it half changed.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseId, String>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<BTreeMap<LeaseId, String>, DeliveryError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let remedy = "restore it, or remove it together with the Secrets labelled comity.dev/lease";
        DeliveryError::permanent("damaged-state", format!("{} cannot be read: {error}; {remedy}", path.display()))
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn ledgers_of_secrets() {
        let valid = [&br#"{"lease-1":"team-a","lease-2":"b"}"#[..], b"{}"];
        fuzz!("origin_secrets", valid.map(<[u8]>::to_vec).to_vec(), |bytes: &[u8]| {
            let path = Path::new(LEDGER_FILE);
            match parse(path, bytes) {
                Ok(namespaces) => {
                    let written = serde_json::to_vec(&namespaces).unwrap();
                    assert_eq!(parse(path, &written).unwrap(), namespaces, "nothing is lost");
                    true
                }
                Err(error) => {
                    assert!(error.to_string().contains(LEDGER_FILE), "{error}");
                    false
                }
            }
        });
    }

    #[test]
    fn notes_survive_a_restart_and_a_lease_stays_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let ledger = Ledger::open(dir.path()).unwrap();
        ledger.note(LeaseId(1), "a").unwrap();
        ledger.note(LeaseId(2), "b").unwrap();
        assert!(ledger.note(LeaseId(1), "b").is_err());
        ledger.forget(LeaseId(2)).unwrap();
        let again = Ledger::open(dir.path()).unwrap();
        assert_eq!(again.namespace(LeaseId(1)).as_deref(), Some("a"));
        assert_eq!(again.leases(), BTreeSet::from([LeaseId(1)]));
    }
}
