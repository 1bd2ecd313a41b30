//! This cluster as a member of its federation: its keys for signing and sealing, and the data that it publishes.

use std::sync::Arc;

use comity_agent_model::envelope::{Envelope, lease_text};
use comity_agent_state::record::{PeeringRecord, RemoteKeys, SecretKey};
use comity_proto::v1;
use comity_runtime::{Entropy, IdentityKey, IdentitySignature};
use comity_types::LeaseId;
use ipnet::Ipv4Net;
use zeroize::Zeroizing;

use crate::keys::pins::Pins;
use crate::keys::seal::{self, Binding, SealError};

/// Names, keys and addresses of this cluster.
pub struct Member {
    /// Trust domain of the federation.
    pub federation: String,
    /// This cluster.
    pub cluster: String,
    /// Key that signs bundles and envelopes.
    pub identity: IdentityKey,
    /// The institution's signature over it.
    pub voucher: Option<IdentitySignature>,
    /// Institutions' keys that the operator pinned.
    pub pins: Pins,
    /// Where others reach this cluster's fabric, "host:port".
    pub endpoints: Vec<String>,
    /// This cluster's network, as key bundles carry it; `None` if it has no Liqo.
    pub network: Option<v1::ClusterNetwork>,
    /// Randomness of keys and seals.
    pub entropy: Arc<dyn Entropy>,
}

/// The subject of an envelope.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    /// This side's keys of the epoch.
    pub(crate) keys: &'a PeeringRecord,
    /// The receiver.
    pub(crate) remote: &'a RemoteKeys,
    /// Lease; `None` for the peering itself.
    pub(crate) lease: Option<LeaseId>,
    /// Kind of the envelope.
    pub(crate) step: &'a str,
    /// Sequence, from 1.
    pub(crate) sequence: u64,
}

impl Member {
    /// Networks of this cluster's pods.
    #[must_use]
    pub fn pod_networks(&self) -> Vec<Ipv4Net> {
        let networks = self.network.iter().flat_map(|network| &network.pod_cidrs);
        networks.filter_map(|network| network.parse().ok()).collect()
    }

    /// A fresh secret.
    pub(crate) fn secret(&self) -> SecretKey {
        let mut bytes = Zeroizing::new([0; 32]);
        self.entropy.fill(bytes.as_mut());
        SecretKey::new(*bytes)
    }

    /// Seals content for the other side of a peering.
    pub(crate) fn seal(&self, subject: Subject<'_>, content: &[u8]) -> Result<v1::Envelope, SealError> {
        let Subject { keys, remote, lease, step, sequence } = subject;
        let binding = Binding {
            federation: self.federation.clone(),
            peering: keys.peering.to_string(),
            epoch: keys.epoch,
            lease: lease_text(lease),
            step: step.to_owned(),
            sequence,
            from: self.cluster.clone(),
            to: remote.cluster.clone(),
        };
        seal::seal(&binding, content, &remote.hpke_public, &self.identity, self.entropy.as_ref())
    }

    /// Opens an envelope of the other side.
    pub(crate) fn open(
        &self,
        envelope: &Envelope,
        keys: &PeeringRecord,
        remote: &RemoteKeys,
    ) -> Result<Zeroizing<Vec<u8>>, SealError> {
        seal::open(&self.federation, envelope, &keys.hpke_secret, &remote.identity_key)
    }
}
