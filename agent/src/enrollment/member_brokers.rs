//! Addresses of the brokers in the state directory: those of the join, and those that brokers listed since. So an agent
//! reaches a group whose first brokers are down.

use std::path::{Path, PathBuf};

use comity_runtime::atomic_file::{self, FileError, PRIVATE};
use comity_runtime::tls::BrokerLists;
use comity_runtime::{BrokerEndpoints, KnownBrokers};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::join_error::JoinError;

/// File with the addresses in the join token.
pub(crate) const BROKERS_FILE: &str = "brokers";
/// File with the addresses that brokers listed.
pub(crate) const LEARNT_BROKERS_FILE: &str = "learnt-brokers";
/// Largest size of one of them.
const BROKERS_MAX_BYTES: u64 = 16 << 10;

/// The configured brokers, or those of the token with which the cluster joined; and those that brokers listed since.
///
/// # Errors
/// [`JoinError::File`] or [`JoinError::Brokers`].
pub fn brokers_of_member(state: &Path, configured: &[String]) -> Result<KnownBrokers, JoinError> {
    let configured: BrokerEndpoints = match configured {
        [] => {
            let list = atomic_file::read_bounded(&state.join(BROKERS_FILE), BROKERS_MAX_BYTES)?;
            String::from_utf8_lossy(&list).parse()?
        }
        configured => BrokerEndpoints::new(configured)?,
    };
    let known = KnownBrokers::new(configured);
    if let Some(learnt) = read_learnt(state) {
        known.learn(&learnt);
    }
    Ok(known)
}

/// Keeps the addresses in the join token, and forgets those that brokers of an earlier federation listed.
pub(super) fn keep_joined(state: &Path, brokers: &BrokerEndpoints) -> Result<(), FileError> {
    // A file that stays does no harm: no broker of this federation proves itself there.
    let _ = std::fs::remove_file(state.join(LEARNT_BROKERS_FILE));
    atomic_file::write(&state.join(BROKERS_FILE), brokers.to_string().as_bytes(), PRIVATE)
}

/// The learnt addresses; `None` if there are none, or the file is unreadable.
fn read_learnt(state: &Path) -> Option<BrokerEndpoints> {
    let list = atomic_file::read_bounded(&state.join(LEARNT_BROKERS_FILE), BROKERS_MAX_BYTES).ok()?;
    String::from_utf8(list).ok()?.parse().ok()
}

fn write_learnt(state: &Path, learnt: &[String]) -> Result<(), FileError> {
    atomic_file::write(&state.join(LEARNT_BROKERS_FILE), learnt.join(",").as_bytes(), PRIVATE)
}

/// Keeps the learnt addresses whenever they change from now on, until stopped.
pub fn keep_learnt(
    brokers: &KnownBrokers,
    state: PathBuf,
    stop: CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let lists = brokers.subscribe();
    follow(lists, state, stop)
}

async fn follow(mut lists: watch::Receiver<BrokerLists>, state: PathBuf, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = lists.changed() => {}
            else => return,
        }
        let (state, learnt) = (state.clone(), lists.borrow_and_update().learnt().to_vec());
        tracing::info!(learnt = learnt.join(","), "the addresses of the brokers changed");
        let written = tokio::task::spawn_blocking(move || write_learnt(&state, &learnt)).await;
        if let Ok(Err(error)) = written {
            tracing::warn!(%error, "cannot keep the addresses of the brokers");
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn learnt_addresses_are_kept_and_follow_the_configured_ones() {
        let state = tempfile::tempdir().unwrap();
        let configured = ["b1:7443".to_owned()];
        let known = brokers_of_member(state.path(), &configured).unwrap();
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_learnt(&known, state.path().to_owned(), stop.clone()));
        let kept = async |expected: &str| {
            let wait = async {
                while brokers_of_member(state.path(), &configured).unwrap().endpoints().to_string() != expected {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap();
        };
        known.learn(&"b1:7443,b2:7443".parse().unwrap());
        kept("b1:7443,b2:7443").await;
        let mode = std::fs::metadata(state.path().join(LEARNT_BROKERS_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        known.learn(&"b1:7443".parse().unwrap());
        kept("b1:7443").await;
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn a_join_forgets_what_an_earlier_federation_taught() {
        let state = tempfile::tempdir().unwrap();
        write_learnt(state.path(), &["old:7443".to_owned()]).unwrap();
        keep_joined(state.path(), &"b1:7443".parse().unwrap()).unwrap();
        assert_eq!(brokers_of_member(state.path(), &[]).unwrap().endpoints().to_string(), "b1:7443");
    }

    #[test]
    fn a_damaged_file_counts_as_none() {
        let state = tempfile::tempdir().unwrap();
        for text in ["", "b2", "b2:7443,b 3:7443", &"b:1,".repeat(17)] {
            std::fs::write(state.path().join(LEARNT_BROKERS_FILE), text).unwrap();
            let known = brokers_of_member(state.path(), &["b1:7443".to_owned()]).unwrap();
            assert_eq!(known.endpoints().to_string(), "b1:7443", "{text}");
        }
    }
}
