//! One pull: the head of the branch, and the objects to judge it by.

use std::path::Path;
use std::time::Duration;

use comity_provenance::ObjectId;
use tokio::time::Instant;

use crate::policy_source::access::PolicyAccess;
use crate::policy_source::credentials::authorization;
use crate::policy_source::https::{GitHost, tls};
use crate::policy_source::local_refs;
use crate::policy_source::object_database::{Cache, ObjectDatabase};
use crate::policy_source::pull_error::PullError;
use crate::policy_source::repository::{Branch, Repository};
use crate::policy_source::upload_pack::Remote;

/// Time of all calls of one pull. A server that hangs costs no more.
pub(crate) const PULL_DEADLINE: Duration = Duration::from_secs(60);

/// Pause after a fetch for an agent that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

/// What a pull found.
#[derive(Debug)]
pub(crate) struct Pulled {
    /// The head of the branch.
    pub(crate) head: ObjectId,
    /// The objects, with the head and all commits before it.
    pub(crate) objects: ObjectDatabase,
}

/// Reads the head of a branch, and fetches what is missing. `held` are commits that an earlier pull may have fetched.
pub(crate) async fn pull(
    access: &PolicyAccess,
    repository: &Repository,
    branch: &Branch,
    held: &[ObjectId],
    deadline: Duration,
) -> Result<Pulled, PullError> {
    let _turn = access.fetching.lock().await;
    pull_in_turn(access, repository, branch, held, deadline).await
}

/// The objects of a repository with a commit, for an agent. A broker that lacks the commit fetches it, one at a time and
/// not soon after a failure: a change of the policy makes every agent ask.
pub(crate) async fn objects_with(
    access: &PolicyAccess,
    repository: &Repository,
    branch: &Branch,
    commit: ObjectId,
    deadline: Duration,
) -> Result<ObjectDatabase, PullError> {
    let (cache, at) = (access.cache.clone(), repository.clone());
    let held = blocking(move || match at {
        Repository::Path(path) => ObjectDatabase::open(&local_refs::git_dir(&path)?.join("objects")).map(Some),
        Repository::Https { .. } => Cache::held(&cache, &at.to_string()).map(|cache| cache.open()).transpose(),
    });
    if let Some(objects) = held.await?.filter(|objects| objects.has(commit)) {
        return Ok(objects);
    }
    let Ok(mut failed) = access.fetching.try_lock() else {
        return Err(PullError::new("the policy's repository is being fetched", "ask again in a few seconds"));
    };
    if failed.is_some_and(|at| at.elapsed() < AFTER_FAILURE) {
        let reason = "a fetch of the policy's repository failed a few seconds ago";
        return Err(PullError::new(reason, "see `comity policy source show`, and ask again"));
    }
    let pulled = pull_in_turn(access, repository, branch, &[], deadline).await;
    let found = pulled.and_then(|pulled| {
        let reason = format!("branch {branch} of {repository} has no commit {commit}");
        let remedy = "push a branch that contains the commit in force";
        if pulled.objects.has(commit) { Ok(pulled.objects) } else { Err(PullError::new(reason, remedy)) }
    });
    *failed = found.is_err().then(Instant::now);
    found
}

async fn pull_in_turn(
    access: &PolicyAccess,
    repository: &Repository,
    branch: &Branch,
    held: &[ObjectId],
    deadline: Duration,
) -> Result<Pulled, PullError> {
    match repository {
        Repository::Path(path) => {
            let (path, branch) = (path.clone(), branch.clone());
            blocking(move || read(&path, &branch)).await
        }
        Repository::Https { host, port, path } => {
            let authorization = match &access.credentials {
                Some(file) => authorization(file, host, *port)?,
                None => None,
            };
            let tls = tls(access.authorities.as_deref())?;
            let server = GitHost { host: host.clone(), port: *port, tls, authorization };
            let remote = Remote { server, path: path.clone() };
            let address = repository.to_string();
            let fetching = fetch(access, &address, &remote, branch, held);
            tokio::time::timeout(deadline, fetching).await.unwrap_or_else(|_| {
                let reason = format!("{host} did not send the branch within {} s", deadline.as_secs());
                Err(PullError::new(reason, "check whether the leader's machine reaches the server, and how fast"))
            })
        }
    }
}

fn read(path: &Path, branch: &Branch) -> Result<Pulled, PullError> {
    let git_dir = local_refs::git_dir(path)?;
    let head = local_refs::head(&git_dir, branch)?;
    Ok(Pulled { head, objects: ObjectDatabase::open(&git_dir.join("objects"))? })
}

async fn fetch(
    access: &PolicyAccess,
    repository: &str,
    remote: &Remote,
    branch: &Branch,
    held: &[ObjectId],
) -> Result<Pulled, PullError> {
    let head = remote.head(branch).await?;
    let (folder, name) = (access.cache.clone(), repository.to_owned());
    let candidates = held.to_vec();
    let (cache, objects, held) = blocking(move || {
        let cache = Cache::of(&folder, &name)?;
        let objects = cache.open()?;
        let held: Vec<ObjectId> = candidates.into_iter().filter(|commit| objects.has(*commit)).collect();
        Ok((cache, objects, held))
    })
    .await?;
    if objects.has(head) {
        return Ok(Pulled { head, objects });
    }
    let pack = remote.pack(head, &held).await?;
    let objects = blocking(move || {
        cache.add(pack)?;
        cache.open()
    })
    .await?;
    Ok(Pulled { head, objects })
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PullError> + Send + 'static,
) -> Result<T, PullError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(PullError::new("reading the repository failed", "look at the leader's log")))
}
