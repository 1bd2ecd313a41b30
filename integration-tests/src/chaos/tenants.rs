//! Tenants that submit requests, use, release, cancel or let expire their leases, and repeat calls without an answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::chaos_policy::{TENANT, cluster_id};
use super::dice::Dice;
use super::federation_faults::Shape;
use super::grants::{SharedLedger, with};
use super::view::View;
use crate::comity::Comity;
use crate::federation::policy_documents::CLASS;

/// Exit code of `comity` when no broker answered: the call may have taken effect or not.
const UNAVAILABLE: i32 = 5;
/// Pause before a retry.
const TENANT_RETRY_INTERVAL: Duration = Duration::from_millis(700);

/// A tenant's plan for its lease.
#[derive(Clone, Copy, Debug)]
enum Intent {
    /// Release it after a while.
    Release(Duration),
    /// Let it expire.
    Expire,
    /// Cancel the request at once.
    Cancel(Duration),
    /// Cancel the request while the lease is in use.
    CancelInUse(Duration),
}

/// Totals over all tenants.
#[derive(Debug, Default)]
pub(super) struct Submissions {
    /// Acknowledged requests.
    pub(super) accepted: BTreeSet<String>,
    /// Calls repeated with the same key: because the answer was lost, or to check that a repetition has no effect.
    pub(super) repeated: u64,
}

/// A tenant that borrows repeatedly.
pub(super) struct Tenant {
    /// Number of the tenant.
    pub(super) number: usize,
    pub(super) dice: Dice,
    pub(super) comity: Comity,
    pub(super) shape: Shape,
    pub(super) view: watch::Receiver<View>,
    pub(super) ledger: SharedLedger,
    pub(super) submissions: Arc<Mutex<Submissions>>,
    /// Time to release everything.
    pub(super) until: Instant,
}

impl Tenant {
    /// Borrows until it is time to release everything.
    ///
    /// # Errors
    /// When a call fails in an unexpected way.
    pub(super) async fn run(mut self) -> Result<()> {
        // Spreads the first requests over time.
        self.pause(0..=8_000).await;
        for round in 0_u32.. {
            if Instant::now() >= self.until {
                break;
            }
            self.borrow(round).await.with_context(|| format!("tenant {}, request {round}", self.number))?;
            self.pause(0..=1_500).await;
        }
        Ok(())
    }

    async fn pause(&mut self, range_ms: std::ops::RangeInclusive<u64>) {
        let end = Instant::now() + self.dice.time(range_ms);
        sleep_until(end.min(self.until)).await;
    }

    async fn borrow(&mut self, round: u32) -> Result<()> {
        let (intent, term) = self.intent();
        let origin = cluster_id(self.shape, self.shape.donors + self.dice.index(self.shape.origins));
        let gpus = self.amount();
        let key = format!("tenant-{}-{round}", self.number);
        let ask = ["request", "submit", "--tenant", TENANT, "--origin", &origin, "--class", CLASS, "--gpus", gpus];
        let rest = ["--cpu-per-gpu", "1", "--memory-per-gpu", "1Gi", "--duration", &term, "--idempotency-key", &key];
        let ask = [&ask[..], &rest, &["--queue-anyway"]].concat();
        let request = self.id_of(&self.call(&ask).await?)?;
        self.note(|submissions| {
            submissions.accepted.insert(request.clone());
        });
        if self.dice.one_in(4) {
            self.note(|submissions| submissions.repeated += 1);
            let again = self.id_of(&self.call(&ask).await?)?;
            if again != request {
                with(&self.ledger, |ledger| {
                    ledger.violated(format!("{request} was repeated with its key and became {again}"))
                });
            }
        }
        let asked_at = std::time::Instant::now();
        if let Intent::Cancel(after) = intent {
            sleep_until((Instant::now() + after).min(self.until)).await;
        } else if let Some(lease) = self.active(&request, asked_at).await
            && self.in_use(intent, &request, &lease, asked_at).await?
        {
            return Ok(());
        }
        if !self.is_over(&request, asked_at) {
            self.end(&["request", "cancel", &request, "--yes"]).await?;
        }
        Ok(())
    }

    fn intent(&mut self) -> (Intent, String) {
        match self.dice.within(1..=20) {
            1..=10 => (Intent::Release(self.dice.time(4_000..=40_000)), "10m".to_owned()),
            11..=15 => (Intent::Expire, format!("{}s", self.dice.within(12..=40))),
            16..=17 => (Intent::Cancel(self.dice.time(0..=3_000)), "10m".to_owned()),
            _ => (Intent::CancelInUse(self.dice.time(2_000..=30_000)), "10m".to_owned()),
        }
    }

    /// Arguments for the amount: mostly whole GPUs, sometimes several, or shares of the last donor's GPUs.
    fn amount(&mut self) -> &'static str {
        let parts = self.dice.one_in(self.shape.donors as u64);
        let amounts = if parts { ["0.25", "0.25", "0.5", "2x0.25"] } else { ["1", "1", "2", "3"] };
        amounts[self.dice.index(amounts.len())]
    }

    /// Uses a lease as intended; returns whether it was released.
    async fn in_use(&mut self, intent: Intent, request: &str, lease: &str, since: std::time::Instant) -> Result<bool> {
        match intent {
            Intent::Expire => self.over(request, since).await,
            Intent::Release(after) | Intent::CancelInUse(after) | Intent::Cancel(after) => {
                sleep_until((Instant::now() + after).min(self.until)).await;
            }
        }
        let releases = matches!(intent, Intent::Release(_));
        if releases {
            self.end(&["lease", "release", "--yes", lease]).await?;
        }
        Ok(releases)
    }

    /// Waits for the active lease of a request; `None` if the request ends first or it is time to release.
    async fn active(&mut self, request: &str, since: std::time::Instant) -> Option<String> {
        loop {
            if let Some(lease) = self.view.borrow_and_update().active.get(request) {
                return Some(lease.clone());
            }
            if self.is_over(request, since) || timeout_at(self.until, self.view.changed()).await.is_err() {
                return None;
            }
        }
    }

    async fn over(&mut self, request: &str, since: std::time::Instant) {
        while !self.is_over(request, since) && timeout_at(self.until, self.view.changed()).await.is_ok() {}
    }

    /// Whether a poll that began after `since`, when the request was acknowledged, no longer lists it as unfinished.
    fn is_over(&self, request: &str, since: std::time::Instant) -> bool {
        let view = self.view.borrow();
        view.at > since && !view.requests.contains_key(request)
    }

    /// Repeats a changing call with its idempotency key until a broker answers.
    async fn call(&self, args: &[&str]) -> Result<Value> {
        loop {
            let (code, out, err) = self.comity.run("alice", args).await?;
            match code {
                0 => return Ok(serde_json::from_str(&out)?),
                UNAVAILABLE => self.note(|submissions| submissions.repeated += 1),
                _ => bail!("comity {} ended with {code}: {err}", args.join(" ")),
            }
            tokio::time::sleep(TENANT_RETRY_INTERVAL).await;
        }
    }

    /// Ends a request or lease that may already have ended.
    async fn end(&self, args: &[&str]) -> Result<()> {
        match self.call(args).await {
            Err(error) if format!("{error:#}").contains("wrong-state") => Ok(()),
            result => result.map(drop),
        }
    }

    fn id_of(&self, request: &Value) -> Result<String> {
        request["id"].as_str().map(str::to_owned).context("a request has an id")
    }

    fn note(&self, write: impl FnOnce(&mut Submissions)) {
        write(&mut self.submissions.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
