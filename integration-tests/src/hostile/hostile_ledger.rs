//! What must not have happened, whatever the broker said: checked from the outside, on the agents' disks and at the
//! impostor's end of every tunnel.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use comity_proto::v1;

use super::agent_stores::AgentStores;
use super::hostile_federation::{DONOR_CLUSTER, HostileFederation, MAX_LENT_GPUS, ORIGIN_CLUSTER};
use crate::process::memory::search_files;

/// Violations and what to look for.
#[derive(Debug, Default)]
pub(crate) struct HostileLedger {
    violations: BTreeSet<String>,
    /// Leases that the donor's own policy or binding forbids, with the reason.
    forbidden: BTreeMap<String, &'static str>,
    /// GPUs of each lease when the donor was first seen to grant it.
    granted: BTreeMap<String, u64>,
    /// Roots that each agent trusted at the last check.
    roots: BTreeMap<&'static str, BTreeSet<String>>,
    tokens: BTreeSet<String>,
    checks: u64,
}

impl HostileLedger {
    /// No agent may serve this lease from now on.
    pub(crate) fn forbid(&mut self, lease: &str, reason: &'static str) {
        self.forbidden.insert(lease.to_owned(), reason);
    }

    /// Notes a violation.
    pub(crate) fn violate(&mut self, what: String) {
        self.violations.insert(what);
    }

    /// All violations so far.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.iter().cloned().collect()
    }

    /// Number of checks.
    pub(crate) const fn checks(&self) -> u64 {
        self.checks
    }

    /// Tokens that the origin held at any check.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Compares what the agents have granted and opened with what they may.
    ///
    /// # Errors
    /// When a disk cannot be read.
    pub(crate) async fn check(&mut self, federation: &HostileFederation) -> Result<()> {
        self.checks += 1;
        self.check_impostor(federation);
        self.check_grants(federation).await?;
        for (lease, token) in federation.kubeconfigs().await? {
            self.tokens.insert(token);
            if let Some(reason) = self.forbidden.get(&lease) {
                self.violations.insert(format!("the origin has a kubeconfig for {lease}: {reason}"));
            }
        }
        if let Err(error) = federation.check_identities() {
            self.violations.insert(format!("{error:#}"));
        }
        for cluster in [ORIGIN_CLUSTER, DONOR_CLUSTER] {
            self.check_roots(federation, cluster);
            if let Err(error) = federation.status(cluster).await {
                self.violations.insert(format!("the agent of {cluster} does not answer: {error:#}"));
            }
        }
        Ok(())
    }

    fn check_impostor(&mut self, federation: &HostileFederation) {
        for opened in federation.broker.opened().iter().filter(|opened| opened.step == "credential") {
            let (lease, peering, from) = (&opened.lease, &opened.peering, &opened.from);
            self.violations.insert(format!("the impostor opened the credential of {lease} from {from} over {peering}"));
        }
        // The donor's policy allows one origin, so no played origin may have a tunnel, under any name.
        let played: Vec<String> = federation.broker.read(|books| {
            let origins = books
                .peerings
                .iter()
                .filter(|(_, entry)| entry.played == Some(v1::Side::Origin) && entry.peering.donor == DONOR_CLUSTER);
            origins.map(|(id, _)| id.clone()).collect()
        });
        for peering in played.iter().filter(|peering| federation.broker.impostor().has_tunnel(peering)) {
            self.violations.insert(format!("the impostor has a tunnel to {DONOR_CLUSTER} over {peering}"));
        }
    }

    /// An agent trusts the federation's own roots alone, and never stops to trust one: no honest operator drops any here.
    fn check_roots(&mut self, federation: &HostileFederation, cluster: &'static str) {
        let own: BTreeSet<String> = federation.broker.roots().hashes().map(|root| root.to_string()).collect();
        // That an identity cannot be read is noted elsewhere.
        let Ok(trusted) = federation.trusted_roots(cluster) else { return };
        for planted in trusted.difference(&own) {
            self.violations.insert(format!("{cluster} trusts the root {planted}, which is not of the federation"));
        }
        let before = self.roots.insert(cluster, trusted.clone()).unwrap_or_default();
        for taken in before.difference(&trusted) {
            self.violations.insert(format!("{cluster} trusts the root {taken} no more"));
        }
    }

    async fn check_grants(&mut self, federation: &HostileFederation) -> Result<()> {
        let grants = federation.grants().await?;
        let lent = grants.iter().fold(0_u64, |sum, grant| sum.saturating_add(grant.gpus));
        if lent > u64::from(MAX_LENT_GPUS) {
            self.violations
                .insert(format!("{DONOR_CLUSTER} grants {lent} GPUs and lends at most {MAX_LENT_GPUS}: {grants:?}"));
        }
        for grant in &grants {
            if grant.origin != ORIGIN_CLUSTER {
                self.violations.insert(format!("{DONOR_CLUSTER} grants {} to {}", grant.lease, grant.origin));
            }
            if let Some(reason) = self.forbidden.get(&grant.lease) {
                self.violations.insert(format!("{DONOR_CLUSTER} grants {}: {reason}", grant.lease));
            }
            let first = *self.granted.entry(grant.lease.clone()).or_insert(grant.gpus);
            if first != grant.gpus {
                let (lease, gpus) = (&grant.lease, grant.gpus);
                self.violations.insert(format!("{DONOR_CLUSTER} grants {lease} {gpus} GPUs, and {first} before"));
            }
        }
        Ok(())
    }

    /// Looks at what agents that have ended kept, and searches everything that the broker received for their tokens and
    /// pre-shared keys.
    ///
    /// # Errors
    /// When a disk cannot be read.
    pub(crate) fn search_disks(&mut self, federation: &HostileFederation, stores: &AgentStores) -> Result<()> {
        let kept = federation.broker.read(|books| stores.violations(books, federation.has_remembered()));
        self.violations.extend(kept?);
        let tokens = self.tokens.iter().map(|token| ("a token", token.as_bytes().to_vec()));
        let keys = stores.preshared()?.into_iter().map(|key| ("a pre-shared key", key));
        for (name, secret) in tokens.chain(keys).collect::<Vec<_>>() {
            for finding in search_files(federation.broker.disk(), &secret)? {
                self.violations.insert(format!("{name} is on the broker's disk: {finding}"));
            }
        }
        Ok(())
    }
}
