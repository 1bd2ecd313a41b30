//! One pull: the head of the branch, and the objects to judge it by, or documents without commits.

use std::path::Path;
use std::time::Duration;

use comity_provenance::ObjectId;
use tokio::time::Instant;

use crate::policy_source::access::PolicyAccess;
use crate::policy_source::blocking::blocking;
use crate::policy_source::credentials::authorization;
use crate::policy_source::http_host::{HttpHost, tls};
use crate::policy_source::https::GitHost;
use crate::policy_source::local_refs::LocalRepository;
use crate::policy_source::object_database::{Cache, ObjectDatabase};
use crate::policy_source::oci::pull_artifact;
use crate::policy_source::pull_error::PullError;
use crate::policy_source::pulled::{Pulled, PulledBranch};
use crate::policy_source::repository::{Branch, Repository};
use crate::policy_source::ssh::SshHost;
use crate::policy_source::upload_pack::Remote;

/// Pause after a fetch for an agent that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

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

/// What an agent asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The commit in force.
    pub(crate) commit: ObjectId,
    /// The commit that the agent has verified. If this broker has it, a fetch needs only what is newer.
    pub(crate) verified: Option<ObjectId>,
}

/// The objects of a repository with a commit, for an agent. A change of the policy makes every agent ask: if this broker
/// lacks the commit, one call fetches it for all, and none does soon after a failure. The deadline covers
/// the wait for its turn and the fetch.
pub(crate) async fn objects_with(
    access: &PolicyAccess,
    repository: &Repository,
    branch: &Branch,
    wanted: Wanted,
    deadline: Duration,
) -> Result<ObjectDatabase, PullError> {
    let Wanted { commit, verified } = wanted;
    if let Some(objects) = held_with(access, repository, commit).await? {
        return Ok(objects);
    }
    let until = Instant::now() + deadline;
    let Ok(mut failed) = tokio::time::timeout_at(until, access.fetching.lock()).await else {
        let reason = format!("others fetched the policy's repository for {} s", deadline.as_secs());
        return Err(PullError::new(reason, "ask again in a few seconds"));
    };
    if let Some(objects) = held_with(access, repository, commit).await? {
        return Ok(objects);
    }
    if failed.is_some_and(|at| at.elapsed() < AFTER_FAILURE) {
        let reason = "a fetch of the policy's repository failed a few seconds ago";
        return Err(PullError::new(reason, "see `comity policy source show`, and ask again"));
    }
    let held: Vec<ObjectId> = verified.into_iter().collect();
    let left = until.saturating_duration_since(Instant::now());
    let pulled = pull_in_turn(access, repository, branch, &held, left).await;
    let found = pulled.and_then(|pulled| {
        let Pulled::Branch(pulled) = pulled else {
            let reason = format!("{repository} has no commits");
            return Err(PullError::new(reason, "let every broker have the repository there"));
        };
        let reason = format!("branch {branch} of {repository} has no commit {commit}");
        let remedy = "push a branch that contains the commit in force";
        if pulled.objects.has(commit) { Ok(pulled.objects) } else { Err(PullError::new(reason, remedy)) }
    });
    *failed = found.is_err().then(Instant::now);
    found
}

/// The objects that need no fetch, if a commit is among them.
async fn held_with(
    access: &PolicyAccess,
    repository: &Repository,
    commit: ObjectId,
) -> Result<Option<ObjectDatabase>, PullError> {
    let (cache, at) = (access.cache.clone(), repository.clone());
    let held = blocking(move || match at {
        Repository::Path(path) => ObjectDatabase::open(&LocalRepository::must_be_at(&path)?.objects()).map(Some),
        Repository::Https { .. } | Repository::Ssh { .. } | Repository::Oci(_) => {
            Cache::held(&cache, &at.to_string()).map(|cache| cache.open()).transpose()
        }
    });
    Ok(held.await?.filter(|objects| objects.has(commit)))
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
            let server = HttpHost { host: host.clone(), port: *port, tls: Some(tls) };
            let server = GitHost { server, authorization };
            let remote = Remote::Https { server, path: path.clone() };
            within(deadline, host, fetch(access, repository, remote, branch, held)).await
        }
        Repository::Ssh { user, host, port, path } => {
            let (key, known_hosts) = (access.ssh_key.as_deref(), access.known_hosts.as_deref());
            let server = SshHost::with_files(user, host, *port, key, known_hosts)?;
            let fetching = async {
                let remote = Remote::Ssh(server.upload_pack(path).await?);
                fetch(access, repository, remote, branch, held).await
            };
            within(deadline, host, fetching).await
        }
        Repository::Oci(address) => within(deadline, &address.host, pull_artifact(access, address, branch)).await,
    }
}

async fn within(
    deadline: Duration,
    host: &str,
    fetching: impl Future<Output = Result<Pulled, PullError>>,
) -> Result<Pulled, PullError> {
    tokio::time::timeout(deadline, fetching).await.unwrap_or_else(|_| {
        let reason = format!("{host} did not send the policy within {} s", deadline.as_secs());
        Err(PullError::new(reason, "check whether the leader's machine reaches the server, and how fast"))
    })
}

fn read(path: &Path, branch: &Branch) -> Result<Pulled, PullError> {
    let Some(repository) = LocalRepository::at(path)? else { return Ok(Pulled::Directory(path.to_owned())) };
    let head = repository.head(branch)?;
    Ok(Pulled::Branch(PulledBranch { head, artifact: None, objects: ObjectDatabase::open(&repository.objects())? }))
}

async fn fetch(
    access: &PolicyAccess,
    repository: &Repository,
    mut remote: Remote,
    branch: &Branch,
    held: &[ObjectId],
) -> Result<Pulled, PullError> {
    let head = remote.head(branch).await?;
    let (folder, name) = (access.cache.clone(), repository.to_string());
    let candidates = held.to_vec();
    let (cache, objects, held) = blocking(move || {
        let cache = Cache::of(&folder, &name)?;
        let objects = cache.open()?;
        let held: Vec<ObjectId> = candidates.into_iter().filter(|commit| objects.has(*commit)).collect();
        Ok((cache, objects, held))
    })
    .await?;
    if objects.has(head) {
        return Ok(Pulled::Branch(PulledBranch { head, artifact: None, objects }));
    }
    let pack = remote.pack(head, &held).await?;
    let objects = blocking(move || {
        cache.add(&pack)?;
        cache.open()
    })
    .await?;
    Ok(Pulled::Branch(PulledBranch { head, artifact: None, objects }))
}
