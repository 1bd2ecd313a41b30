//! One pull: the head of the branch, and the objects to judge it by.

use std::path::Path;
use std::time::Duration;

use comity_provenance::ObjectId;

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
