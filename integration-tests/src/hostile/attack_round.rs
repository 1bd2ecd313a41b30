//! One round: an honest lease is active, the broker attacks, and everything is honest again.

mod attacks_on_arithmetic;
mod attacks_on_binding;
mod attacks_on_messages;
mod attacks_on_numbers;
mod attacks_on_policy;
mod attacks_on_trust;
mod attacks_without_end;

use std::time::Duration;

use anyhow::Result;
use comity_proto::v1;

use super::books::PeeringEntry;
use super::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use super::hostile_federation::HostileFederation;
use super::hostile_ledger::HostileLedger;
use crate::chaos::dice::Dice;
use crate::wait::{PATIENCE, until};
use crate::watch::now_ms;

/// Time in which agents act on an attack. Most steps take a few milliseconds.
const ATTACK_TIME: Duration = Duration::from_millis(800);
/// Limit of a handshake that an agent may refuse silently.
pub(super) const HANDSHAKE_TIME: Duration = Duration::from_secs(2);
/// Limit of cleaning up after an attack.
const CLEAN_UP_TIME: Duration = Duration::from_secs(10);

/// Donors take no lease with a token so far above the last one.
const UNTAKEN_TOKEN: u64 = 1 << 40;

/// The honest lease that is active, or a new one.
async fn honest_lease(federation: &HostileFederation) -> Result<String> {
    let active = federation.broker.read(|books| {
        let is_active = |lease: &&v1::Lease| lease.state() == v1::LeaseState::Active && is_honest(lease);
        books.leases.values().find(is_active).map(|lease| lease.id.clone())
    });
    match active {
        // An earlier attack may have taken it down without a report.
        Some(lease) if is_served(federation, &lease).await? => Ok(lease),
        Some(lease) => {
            federation.broker.change(|books| books.release(&lease));
            federation.active_lease(1).await
        }
        None => federation.active_lease(1).await,
    }
}

/// A round.
pub(crate) struct AttackRound<'a> {
    /// The agents and their broker.
    pub(crate) federation: &'a HostileFederation,
    /// What must not happen.
    pub(crate) ledger: &'a mut HostileLedger,
    /// Parameters.
    pub(crate) dice: &'a mut Dice,
    /// An honest lease that is active at the start.
    pub(crate) lease: String,
}

impl<'a> AttackRound<'a> {
    /// Begins with an honest lease, which is made unless one is active.
    ///
    /// # Errors
    /// When it does not become active, another one does not end, or their peering does not come up again: an earlier
    /// attack had a lasting effect.
    pub(crate) async fn begin(
        federation: &'a HostileFederation,
        ledger: &'a mut HostileLedger,
        dice: &'a mut Dice,
    ) -> Result<Self> {
        federation.tend();
        federation.leases_ended().await?;
        let lease = until("an honest lease over an established peering", PATIENCE, async || {
            let lease = honest_lease(federation).await?;
            // The donor may still refuse it because of what an earlier attack said.
            Ok(federation.peering_established(&lease).await?.then_some(lease))
        })
        .await?;
        Ok(Self { federation, ledger, dice, lease })
    }

    /// Gives the agents time to act.
    pub(crate) async fn pause(&self) {
        tokio::time::sleep(ATTACK_TIME).await;
    }

    /// Peering of the honest lease.
    pub(crate) fn peering(&self) -> String {
        let lease = &self.lease;
        self.federation
            .broker
            .read(|books| books.leases.get(lease).map(|lease| lease.peering.clone()))
            .unwrap_or_default()
    }

    /// Changes a peering.
    pub(crate) fn with_peering(&self, peering: &str, change: impl FnOnce(&mut PeeringEntry)) {
        self.federation.broker.change(|books| {
            if let Some(entry) = books.peerings.get_mut(peering) {
                change(entry);
            }
        });
    }

    /// Proposes a peering whose other side the broker plays, under a later epoch, and waits for its handshake.
    pub(crate) async fn forged_peering(&mut self, origin: &str, donor: &str, played: v1::Side) -> String {
        let epoch = u32::try_from(self.dice.within(2..=9)).unwrap_or(2);
        let peering = self.federation.broker.change(|books| {
            let peering = books.propose(origin, donor, Some(played));
            if let Some(entry) = books.peerings.get_mut(&peering) {
                entry.begin_epoch(epoch);
            }
            peering
        });
        self.handshake(&peering).await;
        peering
    }

    /// Waits until a handshake succeeds or fails, or for as long as one takes.
    pub(crate) async fn handshake(&self, peering: &str) {
        // An agent may also refuse without a report.
        let _ = until("the handshake", HANDSHAKE_TIME, async || {
            let state =
                self.federation.broker.read(|books| books.peerings.get(peering).map(|entry| entry.peering.state()));
            let is_over = matches!(state, Some(v1::PeeringState::Established | v1::PeeringState::Failed) | None);
            Ok(is_over.then_some(()))
        })
        .await;
    }

    /// Puts a lease into the books that no honest broker would grant; returns its id.
    pub(crate) fn invent(
        &mut self,
        peering: &str,
        placement: v1::Placement,
        change: impl FnOnce(&mut v1::Lease),
    ) -> String {
        self.federation.broker.change(|books| {
            let mut lease = books.draft(ORIGIN_CLUSTER, peering, placement, now_ms());
            change(&mut lease);
            let id = lease.id.clone();
            books.leases.insert(id.clone(), lease);
            id
        })
    }

    /// As [`invent`](Self::invent), and no agent may serve it.
    pub(crate) fn invent_forbidden(
        &mut self,
        peering: &str,
        placement: v1::Placement,
        reason: &'static str,
        change: impl FnOnce(&mut v1::Lease),
    ) -> String {
        let lease = self.invent(peering, placement, change);
        self.ledger.forbid(&lease, reason);
        lease
    }

    /// Makes the broker honest again: releases every lease but the honest one, and closes played peerings.
    pub(crate) async fn end(self) {
        let broker = &self.federation.broker;
        broker.be_honest();
        let forged: Vec<String> = broker.change(|books| {
            let others: Vec<String> = books.leases.keys().filter(|id| **id != self.lease).cloned().collect();
            others.iter().for_each(|lease| books.release(lease));
            // No donor takes note of these, not even to say that nothing is left of them.
            books.leases.retain(|_, lease| lease.fencing_token < UNTAKEN_TOKEN);
            let kept = books.leases.get(&self.lease).map(|lease| lease.peering.clone());
            for entry in books.peerings.values_mut() {
                let is_honest_pair =
                    (entry.peering.origin.as_str(), entry.peering.donor.as_str()) == (ORIGIN_CLUSTER, DONOR_CLUSTER);
                if !is_honest_pair || kept.as_ref().is_some_and(|kept| *kept != entry.peering.id) {
                    entry.peering.set_state(v1::PeeringState::Draining);
                } else if entry.played.is_some() || entry.peering.state() == v1::PeeringState::Failed {
                    (entry.played, entry.label) = (None, String::new());
                    entry.begin_epoch(entry.peering.epoch.saturating_add(1));
                }
            }
            books
                .peerings
                .values()
                .filter(|entry| entry.played.is_some())
                .map(|entry| entry.peering.id.clone())
                .collect()
        });
        // What does not end in time is forgotten, which an honest broker never does: the agents must cope.
        let _ = until("the end of the attack", CLEAN_UP_TIME, async || {
            let is_clean = broker.read(|books| {
                books.leases.keys().all(|id| *id == self.lease)
                    && books.peerings.values().all(|entry| entry.peering.state() != v1::PeeringState::Draining)
            });
            Ok(is_clean.then_some(()))
        })
        .await;
        for peering in &forged {
            broker.impostor().close(peering);
        }
        broker.change(|books| {
            books.leases.retain(|id, _| *id == self.lease);
            books
                .peerings
                .retain(|_, entry| entry.played.is_none() && entry.peering.state() != v1::PeeringState::Closed);
        });
    }
}

/// Whether both agents serve the lease.
async fn is_served(federation: &HostileFederation, lease: &str) -> Result<bool> {
    let (origin, donor) = (federation.status(ORIGIN_CLUSTER).await?, federation.status(DONOR_CLUSTER).await?);
    Ok(origin.borrowed.contains_key(lease) && donor.lent.contains_key(lease))
}

/// Whether an honest broker granted the lease. Those of attacks are gone at the end of each round.
fn is_honest(lease: &v1::Lease) -> bool {
    lease.origin == ORIGIN_CLUSTER && lease.placement.as_ref().is_some_and(|placement| placement.donor == DONOR_CLUSTER)
}
