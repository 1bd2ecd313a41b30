//! Attacks that go on for ever: what has no end, and what agents would remember without end.

use std::time::Duration;

use comity_proto::v1;

use super::{AttackRound, HANDSHAKE_TIME};
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::hostile_federation::{HostileFederation, SOON};
use crate::wait::until;
use crate::watch::now_ms;

/// Clusters, peerings and epochs that one attack names.
const CLUSTERS: u64 = 3;
const PEERINGS: u64 = 20;
const EPOCHS: u32 = 8;
/// An outage grace of the attacker's, in which nothing lasts longer than its end.
const NO_GRACE_MS: u64 = 1;
/// What an agent takes to do what is due.
const SOME_TIME: Duration = Duration::from_secs(20);
/// How long before the donor's own limit the broker becomes silent.
const BEFORE_LIMIT: Duration = Duration::from_secs(8);

impl AttackRound<'_> {
    /// Shows the origin donors that nobody has heard of, with keys of the impostor. What the origin keeps of them is
    /// looked at in the end.
    pub(crate) async fn invent_clusters(&mut self) {
        for _ in 0..CLUSTERS {
            let name = format!("invented-{:08x}", self.dice.bits() >> 32);
            self.forged_peering(ORIGIN_CLUSTER, &name, v1::Side::Donor).await;
        }
    }

    /// Proposes peerings between the two agents that nobody needs.
    pub(crate) fn invent_peerings(&mut self) {
        self.propose(PEERINGS);
    }

    /// Proposes a number of peerings between the two agents; returns them.
    pub(crate) fn propose(&mut self, number: u64) -> Vec<String> {
        self.federation
            .broker
            .change(|books| (0..number).map(|_| books.propose(ORIGIN_CLUSTER, DONOR_CLUSTER, None)).collect())
    }

    /// Names one epoch of the honest peering after another, and establishes the last.
    pub(crate) async fn invent_epochs(&mut self) {
        self.name_epochs().await;
        self.handshake(&self.peering()).await;
    }

    /// Names one epoch of the honest peering after another, each once the agents have made keys for the one before.
    pub(crate) async fn name_epochs(&mut self) {
        let (broker, peering) = (&self.federation.broker, self.peering());
        for _ in 0..EPOCHS {
            self.with_peering(&peering, |entry| entry.begin_epoch(entry.peering.epoch.saturating_add(1)));
            let has_keys = || {
                broker.read(|books| {
                    books.peerings.get(&peering).is_none_or(|entry| {
                        entry.origin_keys.is_some() && entry.donor_keys.is_some()
                            || entry.peering.state() == v1::PeeringState::Failed
                    })
                })
            };
            let _ = until("keys of the epoch", HANDSHAKE_TIME, async || Ok(has_keys().then_some(()))).await;
        }
    }

    /// Grants each agent an outage grace without end. What the agents keep of it is looked at in the end.
    pub(crate) async fn endless_outage_grace(&mut self) {
        self.welcome_with(u64::MAX).await;
    }

    /// Opens the streams of both agents again, with an outage grace.
    async fn welcome_with(&self, outage_grace_ms: u64) {
        let broker = &self.federation.broker;
        let before = broker.welcomes();
        broker.lie(|whims| whims.outage_grace_ms = Some(outage_grace_ms));
        broker.restart();
        let welcomed = async || Ok((broker.welcomes() >= before + 2).then_some(()));
        let _ = until("both agents to be connected again", SOON, welcomed).await;
        self.pause().await;
    }

    /// Prolongs the honest lease for ever, and answers nobody any more. The donor's own limit has to end it.
    pub(crate) async fn prolong_and_go_silent(&mut self) {
        let (federation, lease) = (self.federation, self.lease.clone());
        // The round may renew wrongly, and this attack takes longer than an agent's certificate has left.
        federation.broker.lie(|whims| whims.renewals.clear());
        self.welcome_with(NO_GRACE_MS).await;
        federation.broker.change(|books| {
            if let Some(lease) = books.leases.get_mut(&lease) {
                (lease.expires_at_ms, lease.term_ms) = (u64::MAX / 2, u64::MAX / 2);
            }
        });
        self.pause().await;
        let limit = Duration::from_secs(federation.max_lease_seconds());
        let active_at_ms = federation.broker.read(|books| books.leases.get(&lease).map_or(0, |held| held.active_at_ms));
        let age = Duration::from_millis(now_ms().saturating_sub(active_at_ms));
        tokio::time::sleep(limit.saturating_sub(age + BEFORE_LIMIT)).await;
        federation.broker.lie(|whims| whims.is_silent = true);
        federation.broker.restart();
        let is_gone = async || {
            let grants = federation.grants().await?;
            Ok(grants.iter().all(|grant| grant.lease != lease).then_some(()))
        };
        let longest = limit.saturating_sub(age) + SOME_TIME;
        if until("the end of the prolonged lease", longest, is_gone).await.is_err() {
            self.ledger.violate(format!("{DONOR_CLUSTER} grants {lease} beyond its own limit while no broker answers"));
        }
    }

    /// Gives one state the highest revision. Honest ones, all of which are lower, have to count again.
    pub(crate) async fn highest_revision(&mut self) {
        let federation: &HostileFederation = self.federation;
        let victim = self.victim();
        federation.broker.tamper(move |cluster, desired| {
            if cluster == victim {
                desired.revision = u64::MAX;
            }
        });
        self.pause().await;
        federation.broker.be_honest();
        if let Err(error) = federation.active_lease(1).await {
            self.ledger.violate(format!("after the highest revision no honest lease becomes active: {error:#}"));
        }
    }
}
