//! Takes up the next intermediate, and changed roots, from the files of the authority while the broker runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comity_runtime::ca::{CaError, CertificateAuthority, LiveAuthority};
use comity_runtime::clock::Clock;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Interval of looks at the files.
const AUTHORITY_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of reminders that the next intermediate is due.
const REMINDER_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// Follows the files of one authority.
#[derive(Debug)]
pub struct FollowAuthority {
    /// Directory of the authority.
    pub dir: PathBuf,
    /// Directory of the copy that the commands of a stopped broker use, if `dir` is another authority's.
    pub copy: Option<PathBuf>,
    /// Where the broker takes it from.
    pub ca: LiveAuthority,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Shows when it ends.
    pub metrics: Metrics,
}

/// What the files hold now.
enum Found {
    /// What is in force.
    Same,
    Next(Box<CertificateAuthority>),
}

impl FollowAuthority {
    /// Loads the authority at the start of a broker, and copies it.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn load(dir: &Path, copy: Option<&Path>) -> Result<CertificateAuthority, CaError> {
        let authority = CertificateAuthority::load(dir)?;
        if let Some(copy) = copy {
            // A broken copy is replaced, so nothing is known about its roots.
            if let Ok(earlier) = CertificateAuthority::load(copy) {
                report_returning_roots(&authority, &earlier, dir);
            }
            authority.replace(copy)?;
        }
        Ok(authority)
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (mut failures, mut reminded) = (0_u32, None);
        loop {
            self.remind(&mut reminded);
            tokio::select! {
                () = self.clock.sleep(AUTHORITY_CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
            match self.take_up().await {
                Ok(Found::Same) => failures = 0,
                Ok(Found::Next(next)) => {
                    (failures, reminded) = (0, None);
                    self.put_into_force(*next);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    // Files that are being replaced may not fit together for a moment.
                    if failures == 2 {
                        tracing::error!(%error, dir = %self.dir.display(), "the authority's files are not taken up; \
                            the broker goes on with the earlier ones");
                    }
                }
            }
        }
    }

    async fn take_up(&self) -> Result<Found, String> {
        let (dir, copy, current) = (self.dir.clone(), self.copy.clone(), self.ca.current());
        let read = move || -> Result<Found, CaError> {
            let found = CertificateAuthority::load(&dir)?;
            if found.is_same_as(&current) {
                return Ok(Found::Same);
            }
            if let Some(copy) = copy {
                found.replace(&copy)?;
            }
            Ok(Found::Next(Box::new(found)))
        };
        let read = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?;
        read.map_err(|error| error.to_string())
    }

    fn put_into_force(&self, next: CertificateAuthority) {
        let (root, not_after) = (next.root_sha256(), unix_seconds(next.not_after()));
        report_returning_roots(&next, &self.ca.current(), &self.dir);
        match self.ca.replace(next) {
            Ok(()) => tracing::warn!(%root, not_after, "the next intermediate is in force"),
            Err(error) => tracing::error!(%error, dir = %self.dir.display(), "the authority is not taken up"),
        }
    }

    /// Warns in the last third of the intermediate's life, once a day.
    fn remind(&self, reminded: &mut Option<Duration>) {
        let ca = self.ca.current();
        let not_after = unix_seconds(ca.not_after());
        self.metrics.authority_ends(not_after);
        let now = self.clock.elapsed();
        if self.clock.now() < ca.renew_at() || reminded.is_some_and(|at| now.saturating_sub(at) < REMINDER_INTERVAL) {
            return;
        }
        *reminded = Some(now);
        tracing::warn!(
            not_after,
            "the intermediate of this broker ends soon: make the next one with `comity-broker ca intermediate`, and \
             install it on every broker with `comity-broker ca install`"
        );
    }
}

/// Files of another authority, or old ones put back, may bring back a root that was dropped because it was stolen.
fn report_returning_roots(next: &CertificateAuthority, earlier: &CertificateAuthority, dir: &Path) {
    for root in next.returning_roots(earlier) {
        tracing::error!(%root, dir = %dir.display(), "trust in a root begins again that is older than the newest one \
            that was in force: whoever has an intermediate of it is let in. If it was dropped, remove it from ca.crt");
    }
}

fn unix_seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::ca::{PreviousRoot, RootAuthority};
    use comity_runtime::clock::SystemClock;
    use comity_runtime::spiffe::TrustDomain;

    use super::*;
    use crate::group::tests::warnings;

    #[tokio::test]
    async fn changed_files_come_into_force_and_broken_ones_do_not() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (dir, copy) = (home.path().join("mounted"), home.path().join("ca"));
        let root = RootAuthority::create(TrustDomain::new("dev.test").unwrap(), now).unwrap();
        let make = || root.intermediate(Duration::from_secs(3600), PreviousRoot::Trusted, now).unwrap();
        make().save(&dir).unwrap();
        let ca = LiveAuthority::new(FollowAuthority::load(&dir, Some(&copy)).unwrap());
        let follow = FollowAuthority {
            dir: dir.clone(),
            copy: Some(copy.clone()),
            ca: ca.clone(),
            clock: Arc::new(SystemClock::new()),
            metrics: Metrics::new(),
        };
        assert!(matches!(follow.take_up().await, Ok(Found::Same)));
        let next = make();
        next.replace(&dir).unwrap();
        let Ok(Found::Next(found)) = follow.take_up().await else { panic!("the files changed") };
        follow.put_into_force(*found);
        assert!(ca.current().is_same_as(&next) && CertificateAuthority::load(&copy).unwrap().is_same_as(&next));

        // Half of a change, as with files that are written one after the other.
        std::fs::write(dir.join("tls.crt"), make().chain_pem()).unwrap();
        assert!(follow.take_up().await.is_err());
        assert!(ca.current().is_same_as(&next) && CertificateAuthority::load(&copy).unwrap().is_same_as(&next));
    }

    #[tokio::test]
    async fn a_root_that_comes_back_is_reported() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (dir, copy) = (home.path().join("mounted"), home.path().join("ca"));
        let stolen = RootAuthority::create(TrustDomain::new("dev.test").unwrap(), now).unwrap();
        let root = stolen.successor(now).unwrap();
        let made = |previous| root.intermediate(Duration::from_secs(3600), previous, now).unwrap();
        made(PreviousRoot::Dropped).save(&dir).unwrap();
        let follow = FollowAuthority {
            dir: dir.clone(),
            copy: Some(copy.clone()),
            ca: LiveAuthority::new(FollowAuthority::load(&dir, Some(&copy)).unwrap()),
            clock: Arc::new(SystemClock::new()),
            metrics: Metrics::new(),
        };
        warnings::keep();
        let said = || warnings::with("trust in a root begins again", &stolen.sha256().to_string()).len();
        made(PreviousRoot::Trusted).replace(&dir).unwrap();
        let Ok(Found::Next(found)) = follow.take_up().await else { panic!("the files changed") };
        assert_eq!(said(), 0);
        follow.put_into_force(*found);
        assert_eq!(said(), 1);

        // Files that were put back while the broker was down.
        made(PreviousRoot::Dropped).replace(&copy).unwrap();
        FollowAuthority::load(&dir, Some(&copy)).unwrap();
        assert_eq!(said(), 2);
    }
}
