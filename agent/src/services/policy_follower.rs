//! Follows the commit in force of the policy: judges each new one, keeps what is verified, and publishes it.

mod verdict_pace;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_model::desired::Update;
use comity_agent_state::store::{Store, StoreError};
use comity_runtime::atomic_file::FileError;
use comity_runtime::{ClientTls, KnownBrokers, tls};
use comity_types::printable_line;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::verdict_pace::{TryOutcome, VerdictPace};
use crate::config::SignedPolicySettings;
use crate::metrics::Metrics;
use crate::reconcile::parts::Parts;
use crate::signed_policy::fetch::fetch;
use crate::signed_policy::policy_anchor::{self, AnchorError, PolicyAnchor};
use crate::signed_policy::verify::{KnownPolicy, PolicyFinding, verify};
use crate::signed_policy::{NO_COMMIT, SignedPolicy, Standing};

/// Characters of a reason that a broker wrote parts of.
const MAX_REASON_CHARS: usize = 1_024;

/// What is verified cannot be kept.
#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What is verified at the start: what was kept, or the commit that the configuration pins.
///
/// # Errors
/// [`AnchorError`].
pub(crate) async fn policy_at_start(
    store: &Store,
    state: &Path,
    settings: &SignedPolicySettings,
) -> Result<SignedPolicy, AnchorError> {
    let kept = policy_anchor::anchor(store);
    let anchor = match settings.commit {
        Some(pinned) => match kept {
            Ok(Some(kept)) if kept.pinned == Some(pinned) && kept.folder == settings.folder => Some(kept),
            // The pin replaces whatever was kept.
            Ok(_) | Err(AnchorError::Unreadable(_)) => {
                let (folder, taken_names) = (settings.folder.clone(), Default::default());
                let anchor = PolicyAnchor { commit: pinned, folder, taken_names, pinned: Some(pinned) };
                policy_anchor::keep(store, &anchor).await?;
                tracing::info!(commit = %pinned, "new leases need a policy that descends from the pinned commit");
                Some(anchor)
            }
            Err(error) => return Err(error),
        },
        None => match kept? {
            Some(kept) if kept.pinned.is_some() => {
                let unpinned = PolicyAnchor { pinned: None, ..kept };
                policy_anchor::keep(store, &unpinned).await?;
                Some(unpinned)
            }
            kept => kept,
        },
    };
    let bundle = anchor.as_ref().and_then(|anchor| policy_anchor::documents(state, anchor.commit));
    Ok(SignedPolicy { anchor: anchor.map(Arc::new), bundle: bundle.map(Arc::new), ..SignedPolicy::default() })
}

/// Follows the commit in force.
pub(crate) struct PolicyFollower {
    /// Store, clock and randomness.
    pub(crate) parts: Parts,
    /// Counters.
    pub(crate) metrics: Metrics,
    /// The state directory.
    pub(crate) state: PathBuf,
    /// Who shows the history.
    pub(crate) brokers: KnownBrokers,
    /// TLS for connections to them.
    pub(crate) tls: ClientTls,
    /// Desired states, which name the commit in force.
    pub(crate) desired: watch::Receiver<Update>,
    /// Time in which brokers can show a commit that they announce; until then, new leases wait.
    pub(crate) shown_within: Duration,
}

/// A commit that a broker announced, and that is not judged.
struct Sought {
    commit: String,
    /// When it was announced, on the monotonic clock.
    since: Duration,
    /// Why the last try led to no verdict about it.
    failure: Option<String>,
}

impl PolicyFollower {
    /// Runs until stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut pace = VerdictPace::new();
        let mut signed = self.parts.signed_policy.subscribe();
        let mut sought: Option<Sought> = None;
        loop {
            // First, so that no change is missed: a person may let the agent forget the policy at any time.
            signed.mark_unchanged();
            let announced = self.announced();
            self.show(announced.as_deref());
            let now = self.parts.clock.elapsed();
            sought = announced.filter(|commit| self.is_due(commit)).map(|commit| match sought.take() {
                Some(before) if before.commit == commit => before,
                _ => Sought { commit, since: now, failure: None },
            });
            let Some(Sought { commit, failure, .. }) = &mut sought else {
                tokio::select! {
                    () = stop.cancelled() => return,
                    changed = self.desired.changed() => if changed.is_err() { return },
                    _ = signed.changed() => {}
                }
                continue;
            };
            let wait = pace.wait(commit, now);
            if wait.is_zero() {
                let judged = tokio::select! {
                    () = stop.cancelled() => return,
                    judged = self.judge(commit) => judged,
                };
                let (tried, reason) = judged.unwrap_or_else(|error| {
                    tracing::warn!(%error, "cannot keep the verified policy");
                    (TryOutcome::Judged, Some(format!("this agent cannot keep the verified policy: {error}")))
                });
                *failure = reason.or(failure.take());
                pace.note(commit, tried, now..self.parts.clock.elapsed(), self.parts.entropy.as_ref());
            }
            let Some(sought) = &sought else { continue };
            let wait = pace.wait(&sought.commit, self.parts.clock.elapsed());
            let pause = self.note_late(sought).map_or(wait, |left| left.min(wait));
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.parts.clock.sleep(pause) => {}
                changed = self.desired.changed() => if changed.is_err() { return },
                _ = signed.changed() => {}
            }
        }
    }

    /// Notes a commit as unshown that was announced long enough ago; otherwise the time that is left until then.
    fn note_late(&self, Sought { commit, since, failure }: &Sought) -> Option<Duration> {
        let reason = failure.as_ref()?;
        let left = since.saturating_add(self.shown_within).saturating_sub(self.parts.clock.elapsed());
        if left.is_zero() {
            self.note_unshown(commit, reason);
            return None;
        }
        Some(left)
    }

    /// The commit in force, as a connected broker says; empty if it names none.
    fn announced(&mut self) -> Option<String> {
        let update = self.desired.borrow_and_update();
        update.state.as_ref().filter(|_| update.is_live).map(|state| state.policy_commit.clone())
    }

    fn is_due(&self, announced: &str) -> bool {
        !announced.is_empty() && !self.parts.signed_policy.borrow().is_judged(announced)
    }

    /// Shows in the metrics whether the broker's commit is another one than the verified one.
    fn show(&self, announced: Option<&str>) {
        let signed = self.parts.signed_policy.borrow();
        let verified = signed.verified().map(|(_, commit)| commit.to_string());
        let is_behind = match (announced, signed.anchor.is_some()) {
            (Some(announced), true) => {
                !matches!(signed.standing(announced), Standing::Free) && verified.as_deref() != Some(announced)
            }
            _ => false,
        };
        self.metrics.signed_policy_behind.set(i64::from(is_behind));
    }

    /// Fetches and judges what a broker shows; with the reason where that is no verdict about the announced commit.
    async fn judge(&self, announced: &str) -> Result<(TryOutcome, Option<String>), KeepError> {
        let SignedPolicy { anchor, bundle, .. } = self.parts.signed_policy.borrow().clone();
        let known = KnownPolicy { anchor, bundle };
        let trusted = known.anchor.clone();
        let channel = tls::connect(&self.brokers, &self.tls);
        let shown = match fetch(channel, trusted.as_ref().map(|anchor| anchor.commit.to_string())).await {
            Ok(Some(shown)) => shown,
            Ok(None) => return Ok((TryOutcome::NotFetched, Some(NO_COMMIT.to_owned()))),
            Err(reason) => return Ok((TryOutcome::NotFetched, Some(reason))),
        };
        let (head, now_ms) = (shown.head, self.parts.clock.unix_ms());
        let judging = tokio::task::spawn_blocking(move || verify(known, &shown, now_ms));
        let (known, finding) = judging.await?;
        let _turn = self.parts.policy_turn.lock().await;
        // A person may have let the agent forget it meanwhile.
        if self.parts.signed_policy.borrow().anchor != trusted {
            return Ok((TryOutcome::Judged, None));
        }
        self.keep(&known).await?;
        let mut found = SignedPolicy { anchor: known.anchor, bundle: known.bundle, ..SignedPolicy::default() };
        let other = (head.to_string() != announced).then(|| format!("the broker shows commit {head} instead"));
        if other.is_some() {
            found.unshown = self.parts.signed_policy.borrow().unshown.clone();
        }
        let mut tried = TryOutcome::Judged;
        match finding {
            PolicyFinding::Verified => {
                if trusted.is_none() {
                    tracing::warn!(
                        commit = %head,
                        "this policy requires signatures, and is trusted on first use: compare the commit with what the \
                         maintainers say, and pin it in signedPolicy.commit"
                    );
                } else {
                    tracing::info!(commit = %head, "all owners signed the policy");
                }
                found.judged = Some(head.to_string());
                // The same commit again, in place of the announced one, is no progress.
                if other.is_none() || found.anchor != trusted {
                    tried = TryOutcome::Verified;
                }
            }
            PolicyFinding::NotSigned => found.judged = Some(head.to_string()),
            PolicyFinding::Refused(reason) => {
                let reason = shortened(&reason);
                self.metrics.refused_policies.inc();
                tracing::error!(commit = %head, reason, "the broker's policy is refused; the last verified one decides");
                found.judged = Some(head.to_string());
                found.refused = Some(reason);
            }
            PolicyFinding::Unshown(reason) => {
                self.parts.signed_policy.send_modify(|signed| signed.bundle = found.bundle);
                self.note_unshown(announced, &reason);
                return Ok((TryOutcome::Judged, Some(reason)));
            }
        }
        self.parts.signed_policy.send_replace(found);
        Ok((tried, other))
    }

    /// Keeps what is verified: the documents first, so that a kept commit has its documents after a crash.
    async fn keep(&self, known: &KnownPolicy) -> Result<(), KeepError> {
        let KnownPolicy { anchor: Some(anchor), bundle: Some(bundle) } = known else { return Ok(()) };
        let (state, commit, bundle) = (self.state.clone(), anchor.commit, Arc::clone(bundle));
        let write = move || policy_anchor::keep_documents(&state, commit, bundle.source());
        tokio::task::spawn_blocking(write).await??;
        Ok(policy_anchor::keep(&self.parts.store, anchor).await?)
    }

    fn note_unshown(&self, announced: &str, reason: &str) {
        let reason = shortened(reason);
        let noted = Some((announced.to_owned(), reason.clone()));
        let is_new = self.parts.signed_policy.send_if_modified(|signed| {
            let is_new = signed.anchor.is_some() && signed.unshown != noted;
            if is_new {
                signed.unshown = noted;
            }
            is_new
        });
        if is_new {
            tracing::warn!(
                commit = announced,
                reason,
                "the broker does not show the signed policy; new leases are refused"
            );
        }
    }
}

/// One line of bounded length: the broker wrote parts of it.
fn shortened(reason: &str) -> String {
    printable_line(reason).chars().take(MAX_REASON_CHARS).collect()
}

#[cfg(test)]
mod tests;
