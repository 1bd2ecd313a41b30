//! Attacks on what agents trust: wrong renewals, roots that are planted or taken away, and another history of the audit
//! log.

use std::time::Duration;

use anyhow::Context as _;

use super::AttackRound;
use crate::hostile::books::{DONOR_CLUSTER, ORIGIN_CLUSTER};
use crate::hostile::broker_core::WrongRenewal;
use crate::hostile::hostile_federation::SOON;
use crate::wait::until;

/// Limit of a wait for renewals. Where certificates live longer, an attack on renewals goes by without one.
const RENEWAL_TIME: Duration = Duration::from_secs(60);
/// Renewals that such an attack waits for: one of each agent, or two tries of one.
const RENEWALS_AWAITED: u64 = 2;

impl AttackRound<'_> {
    /// Renews with certificates of somebody else, or ones that end at once.
    pub(crate) async fn renew_wrongly(&mut self) {
        let whims = [WrongRenewal::Key, WrongRenewal::Cluster, WrongRenewal::Authority, WrongRenewal::Short];
        let renewal = whims[self.dice.index(whims.len())];
        self.renew_with(renewal).await;
    }

    /// Names a root of its own in renewals.
    pub(crate) async fn plant_root(&mut self) {
        self.renew_with(WrongRenewal::PlantedRoot).await;
    }

    /// Lets the federation move to its next root. Once both agents trust it, it renews them with the first one alone.
    pub(crate) async fn take_next_root_away(&mut self) {
        let federation = self.federation;
        federation.broker.be_honest();
        federation.broker.rotate();
        let all = federation.broker.roots().hashes().count();
        let knows_all = |cluster| Ok::<_, anyhow::Error>(federation.trusted_roots(cluster)?.len() == all);
        let both = async || Ok((knows_all(ORIGIN_CLUSTER)? && knows_all(DONOR_CLUSTER)?).then_some(()));
        if let Err(error) = until("both agents to trust the next root", RENEWAL_TIME, both).await {
            self.ledger.violate(format!("an honest next root is not trusted: {error:#}"));
            return;
        }
        // Otherwise the ledger could not tell that it was there.
        if let Err(error) = self.ledger.check(federation).await {
            self.ledger.violate(format!("a check failed: {error:#}"));
        }
        self.renew_with(WrongRenewal::FirstRoot).await;
    }

    /// Opens the streams of both agents again, and shows an audit log whose first record is another one than before.
    pub(crate) async fn rewrite_audit_history(&mut self) {
        for cluster in [ORIGIN_CLUSTER, DONOR_CLUSTER] {
            if let Err(error) = self.rewrite_history_for(cluster).await {
                self.ledger.violate(format!("{cluster}, shown another audit log: {error:#}"));
            }
        }
    }

    async fn rewrite_history_for(&mut self, cluster: &'static str) -> anyhow::Result<()> {
        let federation = self.federation;
        let anchored = async || Ok(federation.status(cluster).await?.audit_anchor);
        until("an anchor of the audit log", SOON, anchored).await?;
        federation.broker.lie(|whims| whims.rewrites_audit_log = true);
        federation.broker.restart();
        let refused = async || Ok(federation.status(cluster).await?.refused_audit_head);
        let reason = until("the refusal of the rewritten log", SOON, refused).await;
        // A welcome from before the lie may still have moved it.
        let anchor = anchored().await?.context("its anchor is gone")?;
        federation.broker.be_honest();
        anyhow::ensure!(federation.broker.has_shown(&anchor)?, "its anchor became {anchor}");
        reason.map(drop)
    }

    async fn renew_with(&self, renewal: WrongRenewal) {
        let broker = &self.federation.broker;
        let before = broker.renewals();
        broker.lie(|whims| whims.renewals = vec![renewal]);
        let renewed = async || Ok((broker.renewals() >= before + RENEWALS_AWAITED).then_some(()));
        let _ = until("renewals", RENEWAL_TIME, renewed).await;
    }
}
