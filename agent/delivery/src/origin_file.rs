//! Kubeconfig files for leases of an origin without Kubernetes, readable by their owner only.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::forward_target::client_check::ClientCheck;
use comity_runtime::atomic_file;
use comity_types::LeaseId;
use futures::future::BoxFuture;

use crate::{Accepted, ApiCredential, OriginDelivery, OriginLease, kubeconfig, probe};

const SUFFIX: &str = ".kubeconfig";
/// Most files read in the folder: more leases than one origin holds.
const MAX_FILES: usize = 100_000;

fn file_name(lease_id: LeaseId) -> String {
    format!("{lease_id}{SUFFIX}")
}

/// Writes kubeconfig files into a folder.
#[derive(Clone, Debug)]
pub struct OriginFile {
    dir: PathBuf,
}

impl OriginFile {
    /// Uses the folder `kubeconfigs` in the agent's state folder, made if absent. Blocks.
    ///
    /// # Errors
    /// [`DeliveryError::Temporary`] when the folder cannot be made.
    pub fn open(state_dir: &Path) -> Result<Self, DeliveryError> {
        let dir = state_dir.join("kubeconfigs");
        atomic_file::create_private_dir(&dir)
            .map_err(|error| DeliveryError::temporary("make the folder for kubeconfigs", error))?;
        Ok(Self { dir })
    }

    fn path(&self, lease_id: LeaseId) -> PathBuf {
        self.dir.join(file_name(lease_id))
    }

    fn write(&self, lease: &OriginLease, credential: &ApiCredential, server: &str) -> Result<Accepted, DeliveryError> {
        let path = self.path(lease.lease_id);
        let kubeconfig = kubeconfig::render(lease.lease_id, credential, server);
        atomic_file::write(&path, kubeconfig.expose().as_bytes(), atomic_file::PRIVATE)
            .map_err(|error| DeliveryError::temporary(format!("write the kubeconfig of {}", lease.lease_id), error))?;
        // Its folder stays here: the broker and other people need no path of this host.
        Ok(Accepted { secret_name: file_name(lease.lease_id), kubeconfig })
    }

    fn delete(&self, lease_id: LeaseId) -> Result<(), DeliveryError> {
        let path = self.path(lease_id);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(DeliveryError::temporary(format!("remove {}", path.display()), error))
            }
            _ => Ok(()),
        }
    }

    fn leases(&self) -> Result<BTreeSet<LeaseId>, DeliveryError> {
        let failed = |error| DeliveryError::temporary(format!("read {}", self.dir.display()), error);
        let mut leases = BTreeSet::new();
        for entry in std::fs::read_dir(&self.dir).map_err(failed)?.take(MAX_FILES) {
            let name = entry.map_err(failed)?.file_name();
            leases.extend(name.to_str().and_then(|name| name.strip_suffix(SUFFIX)?.parse::<LeaseId>().ok()));
        }
        Ok(leases)
    }
}

// One small file each: blocking the caller for that is cheaper than a thread.
impl OriginDelivery for OriginFile {
    fn accept<'a>(
        &'a self,
        lease: &'a OriginLease,
        credential: &'a ApiCredential,
        server: &'a str,
    ) -> BoxFuture<'a, Result<Accepted, DeliveryError>> {
        Box::pin(async move { self.write(lease, credential, server) })
    }

    fn clients(&self, _lease: &OriginLease) -> Option<Arc<dyn ClientCheck>> {
        None
    }

    fn probe<'a>(
        &'a self,
        _lease: &'a OriginLease,
        credential: &'a ApiCredential,
        local_api: SocketAddr,
    ) -> BoxFuture<'a, Result<(), DeliveryError>> {
        Box::pin(probe::probe(credential, local_api))
    }

    fn remove(&self, lease_id: LeaseId) -> BoxFuture<'_, Result<(), DeliveryError>> {
        Box::pin(async move { self.delete(lease_id) })
    }

    fn list(&self) -> BoxFuture<'_, Result<BTreeSet<LeaseId>, DeliveryError>> {
        Box::pin(async move { self.leases() })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use comity_runtime::SecretString;

    use super::*;
    use crate::CredentialKind;

    #[tokio::test]
    async fn a_kubeconfig_is_private_listed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let origin = OriginFile::open(dir.path()).unwrap();
        let lease = OriginLease {
            lease_id: LeaseId(7),
            tenant: "t".into(),
            donor: "d".into(),
            target_namespace: String::new(),
            expires_at_ms: 0,
        };
        let credential = ApiCredential {
            kind: CredentialKind::Site,
            ca_pem: "ca".into(),
            tls_server_name: "donor".into(),
            token: SecretString::new("secret".into()),
            namespace: "comity-lease-7".into(),
            expires_at_ms: 0,
            server_port: 6443,
        };
        let accepted = origin.accept(&lease, &credential, "127.0.0.1:1").await.unwrap();
        assert_eq!(accepted.secret_name, "lease-7.kubeconfig", "brokers are told no path");
        let path = dir.path().join("kubeconfigs").join(&accepted.secret_name);
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(origin.list().await.unwrap(), BTreeSet::from([LeaseId(7)]));
        origin.remove(LeaseId(7)).await.unwrap();
        origin.remove(LeaseId(7)).await.unwrap();
        assert!(origin.list().await.unwrap().is_empty());
    }
}
