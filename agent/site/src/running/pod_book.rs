//! The pods of all leases: what they ask, what they hold, and how they are. Each is a file, so that a restarted agent
//! knows them.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use comity_runtime::atomic_file;
use comity_runtime::clock::Clock;
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::held::Held;
use crate::record_files;

/// Most pods of one lease, those that have ended included.
pub(crate) const MAX_PODS: usize = 128;
/// Changes that a watch can catch up on.
const MAX_HISTORY: usize = 256;
const MAX_STORED_POD_BYTES: u64 = 4 << 20;
const PODS_FOLDER: &str = "pods";

/// A pod's name within its lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct PodKey {
    pub(crate) lease: LeaseId,
    pub(crate) name: String,
}

/// How a pod is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    pub(crate) grace: Duration,
}

#[derive(Clone, Serialize, Deserialize)]
struct StoredPod {
    lease: LeaseId,
    pod: Pod,
    held: Held,
    /// Resource that counts the lease's devices.
    resource: String,
}

#[derive(Clone)]
pub(crate) struct PodEntry {
    pub(crate) pod: Arc<Pod>,
    pub(crate) held: Held,
    pub(crate) resource: String,
    pub(crate) stop: watch::Sender<Option<Stop>>,
}

impl PodEntry {
    /// Its uid.
    pub(crate) fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Whether its containers have ended for good.
    pub(crate) fn has_ended(&self) -> bool {
        let phase = self.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Succeeded" | "Failed"))
    }
}

/// Kind of a change, as watches of Kubernetes name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) kind: ChangeKind,
    pub(crate) pod: Arc<Pod>,
    /// The pod before a modification.
    pub(crate) before: Option<Arc<Pod>>,
}

/// Why a pod is not stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BookError {
    #[error("there is one of this name already")]
    Exists,
    #[error("the lease has {MAX_PODS} pods; delete those that have ended")]
    TooMany,
    #[error("{0}")]
    Quota(String),
    #[error("it cannot be stored: {0}")]
    Disk(String),
}

/// Changes of one lease's pods.
struct History {
    /// The newest version whose change is not among them.
    forgotten: u64,
    changes: VecDeque<Change>,
}

struct Pods {
    version: u64,
    /// The version at which this agent began.
    began: u64,
    all: BTreeMap<PodKey, PodEntry>,
    history: BTreeMap<LeaseId, History>,
}

/// All pods.
pub(crate) struct PodBook {
    dir: PathBuf,
    pods: Mutex<Pods>,
    version: watch::Sender<u64>,
}

impl PodBook {
    /// Reads all files. Blocks.
    pub(crate) fn open(state: &Path, clock: &dyn Clock) -> Result<Self, String> {
        let dir = state.join(PODS_FOLDER);
        let mut all = BTreeMap::new();
        // Containers of a record that cannot be read go as those of pods without a record do.
        for stored in record_files::read_all(&dir, MAX_STORED_POD_BYTES)? {
            let StoredPod { lease, pod, held, resource } = stored;
            let key = PodKey { lease, name: pod.metadata.name.clone().unwrap_or_default() };
            let stop = watch::Sender::new(stop_of(&pod));
            all.insert(key, PodEntry { pod: Arc::new(pod), held, resource, stop });
        }
        // Higher than every version that an agent before this one gave out.
        let version = clock.unix_ms().saturating_mul(1_000);
        let pods = Pods { version, began: version, all, history: BTreeMap::new() };
        Ok(Self { dir, pods: Mutex::new(pods), version: watch::Sender::new(version) })
    }

    /// Adds a pod, unless it is only tried. `hold` says what it gets of the lease, given what the others hold.
    pub(crate) fn add(
        &self,
        key: &PodKey,
        mut pod: Pod,
        resource: &str,
        dry_run: bool,
        hold: impl FnOnce(&[&Held]) -> Result<Held, String>,
    ) -> Result<Arc<Pod>, BookError> {
        let mut pods = self.lock();
        if pods.all.contains_key(key) {
            return Err(BookError::Exists);
        }
        let ours: Vec<&PodEntry> =
            pods.all.iter().filter(|(other, _)| other.lease == key.lease).map(|(_, entry)| entry).collect();
        if ours.len() >= MAX_PODS {
            return Err(BookError::TooMany);
        }
        let others: Vec<&Held> = ours.iter().filter(|entry| !entry.has_ended()).map(|entry| &entry.held).collect();
        let held = hold(&others).map_err(BookError::Quota)?;
        if dry_run {
            return Ok(Arc::new(pod));
        }
        let version = pods.version + 1;
        pod.metadata.resource_version = Some(version.to_string());
        self.write(key.lease, &pod, &held, resource)?;
        let pod = Arc::new(pod);
        let entry =
            PodEntry { pod: Arc::clone(&pod), held, resource: resource.to_owned(), stop: watch::Sender::new(None) };
        pods.all.insert(key.clone(), entry);
        self.record(&mut pods, ChangeKind::Added, key.lease, Arc::clone(&pod), None);
        Ok(pod)
    }

    /// Changes a pod's status.
    pub(crate) fn change_status(&self, key: &PodKey, change: impl FnOnce(&mut PodStatus)) -> Result<(), BookError> {
        self.change(key, |pod| change(pod.status.get_or_insert_default()))
    }

    /// Marks a pod as being deleted, and has its containers ended. A shorter grace takes the place of a longer one.
    pub(crate) fn delete(&self, key: &PodKey, grace: Duration, now: Time) -> Result<Option<Arc<Pod>>, BookError> {
        let Some(entry) = self.entry(key) else { return Ok(None) };
        let sooner = entry.stop.borrow().is_none_or(|stop| grace < stop.grace);
        if sooner {
            self.change(key, |pod| {
                pod.metadata.deletion_timestamp.get_or_insert(now);
                pod.metadata.deletion_grace_period_seconds = i64::try_from(grace.as_secs()).ok();
            })?;
            _ = entry.stop.send_replace(Some(Stop { grace }));
        }
        Ok(self.entry(key).map(|entry| entry.pod))
    }

    /// Forgets a pod whose containers are gone.
    pub(crate) fn forget(&self, key: &PodKey) -> Result<(), BookError> {
        let mut pods = self.lock();
        let Some(entry) = pods.all.get(key) else { return Ok(()) };
        let before = Arc::clone(&entry.pod);
        let path = self.path(&before);
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(BookError::Disk(error.to_string()));
            }
            Ok(()) | Err(_) => {}
        }
        pods.all.remove(key);
        let mut pod = Pod::clone(&before);
        pod.metadata.resource_version = Some((pods.version + 1).to_string());
        self.record(&mut pods, ChangeKind::Deleted, key.lease, Arc::new(pod), None);
        Ok(())
    }

    /// One pod.
    pub(crate) fn entry(&self, key: &PodKey) -> Option<PodEntry> {
        self.lock().all.get(key).cloned()
    }

    /// All pods of a lease, with the version of the list.
    pub(crate) fn of_lease(&self, lease: LeaseId) -> (u64, Vec<(PodKey, PodEntry)>) {
        let pods = self.lock();
        let ours = pods.all.iter().filter(|(key, _)| key.lease == lease);
        (pods.version, ours.map(|(key, entry)| (key.clone(), entry.clone())).collect())
    }

    /// All pods.
    pub(crate) fn all(&self) -> Vec<(PodKey, PodEntry)> {
        self.lock().all.iter().map(|(key, entry)| (key.clone(), entry.clone())).collect()
    }

    /// The next version, for an object beside the pods.
    pub(crate) fn next_version(&self) -> u64 {
        let mut pods = self.lock();
        pods.version += 1;
        pods.version
    }

    /// Changes of a lease's pods after a version; `None` if some of them are not known any more.
    pub(crate) fn changes_after(&self, lease: LeaseId, version: u64) -> Option<Vec<Change>> {
        let pods = self.lock();
        let history = pods.history.get(&lease);
        let forgotten = history.map_or(pods.began, |history| history.forgotten);
        let is_known = (forgotten..=pods.version).contains(&version);
        let changes = history.into_iter().flat_map(|history| &history.changes);
        is_known.then(|| changes.filter(|change| change.version > version).cloned().collect())
    }

    /// Forgets the changes of a lease that has ended.
    pub(crate) fn end_history(&self, lease: LeaseId) {
        self.lock().history.remove(&lease);
    }

    /// Tells of new versions.
    pub(crate) fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn change(&self, key: &PodKey, change: impl FnOnce(&mut Pod)) -> Result<(), BookError> {
        let mut pods = self.lock();
        let version = pods.version + 1;
        let Some(entry) = pods.all.get_mut(key) else { return Ok(()) };
        let mut pod = Pod::clone(&entry.pod);
        change(&mut pod);
        if pod == *entry.pod {
            return Ok(());
        }
        pod.metadata.resource_version = Some(version.to_string());
        self.write(key.lease, &pod, &entry.held, &entry.resource)?;
        let pod = Arc::new(pod);
        let before = std::mem::replace(&mut entry.pod, Arc::clone(&pod));
        self.record(&mut pods, ChangeKind::Modified, key.lease, pod, Some(before));
        Ok(())
    }

    fn record(&self, pods: &mut Pods, kind: ChangeKind, lease: LeaseId, pod: Arc<Pod>, before: Option<Arc<Pod>>) {
        pods.version += 1;
        let (version, began) = (pods.version, pods.began);
        let history =
            pods.history.entry(lease).or_insert_with(|| History { forgotten: began, changes: VecDeque::new() });
        history.changes.push_back(Change { version, kind, pod, before });
        if history.changes.len() > MAX_HISTORY
            && let Some(oldest) = history.changes.pop_front()
        {
            history.forgotten = oldest.version;
        }
        self.version.send_replace(version);
    }

    fn write(&self, lease: LeaseId, pod: &Pod, held: &Held, resource: &str) -> Result<(), BookError> {
        let stored = StoredPod { lease, pod: pod.clone(), held: held.clone(), resource: resource.to_owned() };
        let bytes = serde_json::to_vec(&stored).map_err(|error| BookError::Disk(error.to_string()))?;
        if bytes.len() as u64 > MAX_STORED_POD_BYTES {
            return Err(BookError::Disk(format!("it has {} bytes", bytes.len())));
        }
        atomic_file::write(&self.path(pod), &bytes, atomic_file::PRIVATE)
            .map_err(|error| BookError::Disk(error.to_string()))
    }

    fn path(&self, pod: &Pod) -> PathBuf {
        self.dir.join(format!("{}.json", pod.metadata.uid.as_deref().unwrap_or_default()))
    }

    /// Entries are replaced as a whole, so a panic elsewhere cannot leave one half changed.
    fn lock(&self) -> MutexGuard<'_, Pods> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pod that was being deleted when the agent stopped is deleted now.
fn stop_of(pod: &Pod) -> Option<Stop> {
    pod.metadata.deletion_timestamp.as_ref()?;
    let grace = pod.metadata.deletion_grace_period_seconds.and_then(|grace| u64::try_from(grace).ok());
    Some(Stop { grace: Duration::from_secs(grace.unwrap_or_default()) })
}
