//! Attacks on what agents remember: epochs and fencing tokens far above the true ones, and ends that the broker
//! acknowledges and does not write down.

use comity_proto::v1;

use super::{AttackRound, HANDSHAKE_TIME};
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::wait::until;
use crate::watch::now_ms;

/// Almost the highest step of a fencing token that a donor takes: the books may be a little ahead of it.
const TOKEN_STEP: u64 = (1 << 26) - (1 << 16);
/// Leases that end before they exist. An honest broker that grants one of them waits until its hold is over.
const EARLY_LEASES: u64 = 1;

impl AttackRound<'_> {
    /// Lets a handshake of the highest epoch succeed, then goes on with the true one.
    pub(crate) async fn huge_epoch(&mut self) {
        let peering = self.peering();
        let entry = self.federation.broker.read(|books| books.peerings.get(&peering).cloned());
        let Some(before) = entry.map(|entry| entry.peering.epoch) else { return };
        let huge = u32::MAX - u32::try_from(self.dice.within(0..=1)).unwrap_or(0);
        self.with_peering(&peering, |entry| entry.begin_epoch(huge));
        self.handshake(&peering).await;
        self.pause().await;
        self.with_peering(&peering, |entry| entry.begin_epoch(before.saturating_add(1)));
    }

    /// Grants a lease with almost the highest token that the donor takes, and goes on with the true ones.
    pub(crate) async fn skip_tokens(&mut self) {
        let broker = &self.federation.broker;
        let (peering, placement) = (self.peering(), broker.read(|books| books.place(DONOR_CLUSTER, 1)));
        let lease = self.invent(&peering, placement, |lease| lease.fencing_token += TOKEN_STEP);
        let is_taken =
            |books: &crate::hostile::books::Books| books.leases.get(&lease).is_none_or(|held| held.donor_ready);
        // The donor may refuse it for another reason.
        let _ = until("the donor to take it", HANDSHAKE_TIME, async || Ok(broker.read(is_taken).then_some(()))).await;
    }

    /// Says that the next leases end, before they exist, under tokens that no lease has yet.
    pub(crate) async fn early_fencing_tokens(&mut self) {
        let broker = &self.federation.broker;
        let early: Vec<v1::Lease> = broker.read(|books| {
            let (mut copy, placement) = (books.clone(), books.place(DONOR_CLUSTER, 1));
            let peering = books.leases.get(&self.lease).map(|lease| lease.peering.clone()).unwrap_or_default();
            let draft = |_| v1::Lease {
                state: v1::LeaseState::Ending.into(),
                fencing_token: u64::MAX,
                ..copy.draft(ORIGIN_CLUSTER, &peering, placement.clone(), now_ms())
            };
            (0..EARLY_LEASES).map(draft).collect()
        });
        broker.tamper(move |_, desired| desired.leases.extend(early.iter().cloned()));
        self.pause().await;
        broker.be_honest();
        if let Err(error) = self.federation.active_lease(1).await {
            self.ledger.violate(format!("after early ends no honest lease becomes active: {error:#}"));
        }
    }

    /// Grants a lease under a token that the donor has seen.
    pub(crate) fn late_fencing_token(&mut self) {
        let broker = &self.federation.broker;
        let (peering, placement) = (self.peering(), broker.read(|books| books.place(DONOR_CLUSTER, 1)));
        let highest = broker.read(|books| books.leases.get(&self.lease).map_or(1, |lease| lease.fencing_token));
        let token = self.dice.within(1..=highest.max(1));
        let reason = "its fencing token is not above those that the donor admitted";
        self.invent_forbidden(&peering, placement, reason, |lease| lease.fencing_token = token);
    }

    /// Ends the honest lease, and lets both agents report it; then another process knows only that it is to end.
    pub(crate) async fn forget_ends(&mut self) {
        let (broker, lease) = (&self.federation.broker, self.lease.clone());
        let before = broker.change(|books| {
            books.release(&lease);
            books.clone()
        });
        let is_gone = |books: &crate::hostile::books::Books| !books.leases.contains_key(&lease);
        let _ = until("both reports", HANDSHAKE_TIME, async || Ok(broker.read(is_gone).then_some(()))).await;
        broker.change(|books| books.go_back(before));
        broker.restart();
    }
}
