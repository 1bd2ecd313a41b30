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
    /// Loads the authority at the start of a broker, and copies it. One that members would refuse is reported, and the
    /// copy of the earlier one is used.
    ///
    /// # Errors
    /// [`CaError`].
    pub fn load(dir: &Path, copy: Option<&Path>) -> Result<CertificateAuthority, CaError> {
        let authority = CertificateAuthority::load(dir)?;
        let Some(copy) = copy else { return Ok(authority) };
        // A broken copy is replaced, so nothing is known about its roots.
        if let Ok(earlier) = CertificateAuthority::load(copy) {
            if let Some(error) = refusal(&authority, &earlier) {
                tracing::error!(%error, dir = %dir.display(), "the authority's files are not taken up; the broker \
                    starts with the earlier ones");
                return Ok(earlier);
            }
            report_returning_roots(&authority, &earlier, dir);
        }
        authority.replace(copy)?;
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
        let read = move || -> Result<Found, String> {
            let found = CertificateAuthority::load(&dir).map_err(|error| error.to_string())?;
            if found.is_same_as(&current) {
                return Ok(Found::Same);
            }
            if let Some(refusal) = refusal(&found, &current) {
                return Err(refusal);
            }
            if let Some(copy) = copy {
                found.replace(&copy).map_err(|error| error.to_string())?;
            }
            Ok(Found::Next(Box::new(found)))
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
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
        if self.copy.is_some() {
            let dir = self.dir.display();
            tracing::warn!(not_after, %dir, "the intermediate of this broker ends soon; the directory has no later one");
            return;
        }
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

/// Why members who know the earlier authority would refuse what the next one issues.
fn refusal(next: &CertificateAuthority, earlier: &CertificateAuthority) -> Option<String> {
    let root = next.dropped_root(earlier)?;
    Some(format!(
        "ca.crt drops the root {root}, the newest one in force, which signed none of its roots: agents and users would \
         refuse this broker; put that root into ca.crt too, and its cross certificate for the next root into tls.crt"
    ))
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

    #[tokio::test]
    async fn a_root_that_no_member_knows_is_not_taken_up() {
        let (home, now) = (tempfile::tempdir().unwrap(), SystemTime::now());
        let (dir, copy) = (home.path().join("mounted"), home.path().join("ca"));
        let make = || {
            let root = RootAuthority::create(TrustDomain::new("dev.test").unwrap(), now).unwrap();
            root.intermediate(Duration::from_secs(3600), PreviousRoot::Trusted, now).unwrap()
        };
        let first = make();
        first.save(&dir).unwrap();
        let ca = LiveAuthority::new(FollowAuthority::load(&dir, Some(&copy)).unwrap());
        let (clock, metrics) = (Arc::new(SystemClock::new()), Metrics::new());
        let follow = FollowAuthority { dir: dir.clone(), copy: Some(copy.clone()), ca, clock, metrics };
        make().replace(&dir).unwrap();
        let Err(refused) = follow.take_up().await else { panic!("members do not know the root") };
        assert!(refused.contains(&first.root_sha256().to_string()), "{refused}");
        // Nor at the next start.
        assert!(FollowAuthority::load(&dir, Some(&copy)).unwrap().is_same_as(&first));
        assert!(CertificateAuthority::load(&copy).unwrap().is_same_as(&first));
    }
}
