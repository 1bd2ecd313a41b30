//! What agents have kept, looked at after they have ended.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use comity_agent_state::store::Store;

use super::books::{Books, DONOR_CLUSTER, EARLIER, ORIGIN_CLUSTER};
use super::impostor::IMPOSTOR;

/// Most of each that an agent may keep, whatever a broker names: other clusters, peerings, and epochs of a peering.
const MOST_CLUSTERS: usize = 4_096;
const MOST_PEERINGS: usize = 1_024;
const MOST_EPOCHS: usize = 4;
/// Longest time for which a lease may go on after its end without a broker.
const LONGEST_GRACE_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// The stores of the agents by cluster.
pub(crate) struct AgentStores(pub(super) BTreeMap<&'static str, Store>);

impl AgentStores {
    /// Pre-shared keys of the tunnels between the two agents.
    ///
    /// # Errors
    /// When there is no store of the donor.
    pub(crate) fn preshared(&self) -> Result<Vec<Vec<u8>>> {
        let records = self.0.get(DONOR_CLUSTER).context("no store of the donor")?.records();
        let with_origin = records
            .peerings
            .values()
            .filter(|record| record.remote.as_ref().is_some_and(|remote| remote.cluster != IMPOSTOR));
        Ok(with_origin.filter_map(|record| Some(record.preshared.as_ref()?.expose().to_vec())).collect())
    }

    /// What an agent keeps that it may not. `has_remembered`: whether the origin remembered clusters from before.
    ///
    /// # Errors
    /// When a store cannot be read.
    pub(crate) fn violations(&self, books: &Books, has_remembered: bool) -> Result<Vec<String>> {
        let mut violations = Vec::new();
        for (cluster, store) in &self.0 {
            let records = store.records();
            let (peers, other) =
                (&records.peers, if *cluster == DONOR_CLUSTER { ORIGIN_CLUSTER } else { DONOR_CLUSTER });
            if peers.len() > MOST_CLUSTERS {
                violations.push(format!("{cluster} remembers {} clusters", peers.len()));
            }
            // New clusters replace the newest.
            let oldest = format!("{EARLIER}0");
            if *cluster == ORIGIN_CLUSTER && has_remembered && !peers.contains_key(&oldest) {
                violations.push(format!("{cluster} has forgotten {oldest} for clusters that the broker invented"));
            }
            let (true_key, kept_key) = (
                books.members.get(other).map(|member| member.identity_key.clone()),
                peers.get(other).map(|peer| peer.identity_key.to_string()),
            );
            if true_key != kept_key {
                violations.push(format!("{cluster} remembers {kept_key:?} of {other}, whose key is {true_key:?}"));
            }
            let peerings: BTreeSet<_> = records.peerings.keys().map(|(peering, _)| *peering).collect();
            if peerings.len() > MOST_PEERINGS {
                violations.push(format!("{cluster} keeps {} peerings", peerings.len()));
            }
            for (peering, epochs) in peerings.iter().map(|peering| (peering, records.epochs(*peering).count())) {
                if epochs > MOST_EPOCHS {
                    violations.push(format!("{cluster} keeps {epochs} epochs of {peering}"));
                }
            }
            let kept = store.kept("outage-grace-ms")?;
            let grace_ms = kept.and_then(|kept| Some(u64::from_be_bytes(kept.try_into().ok()?)));
            if grace_ms.is_some_and(|grace_ms| grace_ms > LONGEST_GRACE_MS) {
                violations.push(format!("{cluster} keeps leases for {grace_ms:?} ms after their ends"));
            }
        }
        Ok(violations)
    }
}
