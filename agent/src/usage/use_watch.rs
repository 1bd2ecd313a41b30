//! Watches the pods of leases, and keeps the use of each lease current.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_model::desired::Update;
use comity_agent_model::lent::{LentLeases, PodOwners};
use comity_runtime::Clock;
use comity_types::LeaseId;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::gpu_load::{GpuLoad, Load};
use super::lease_pod::{LeasePod, Owner};
use super::lease_uses::LeaseUses;
use crate::observe::partial_object::Partial;

/// A watch that has been broken for longer says nothing: all leases count as in use.
const TRUSTED: Duration = Duration::from_secs(60);
/// How often a broken watch is looked at.
const BROKEN_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Dependencies of the watch.
pub(crate) struct UseContext {
    /// This cluster.
    pub(crate) cluster: String,
    /// Its API server.
    pub(crate) client: kube::Client,
    /// Desired states from the broker.
    pub(crate) desired: watch::Receiver<Update>,
    /// Leases in force.
    pub(crate) lent: watch::Receiver<LentLeases>,
    /// Receives the use of leases.
    pub(crate) uses: watch::Sender<LeaseUses>,
    /// Time.
    pub(crate) clock: Arc<dyn Clock>,
}

/// Runs until stopped. Watches nothing before this cluster lends a lease that is released when idle.
/// `load` is absent if nothing tells it.
pub(super) async fn run(context: UseContext, load: Option<watch::Receiver<GpuLoad>>, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = follow(context, load) => {}
    }
}

async fn follow(context: UseContext, load: Option<watch::Receiver<GpuLoad>>) {
    let UseContext { cluster, client, mut desired, mut lent, uses, clock } = context;
    let needs_use = |update: &Update| {
        let leases = update.state.iter().flat_map(|state| &state.leases);
        leases
            .filter(|lease| lease.release_idle_ms > 0)
            .any(|lease| lease.placement.as_ref().is_some_and(|placement| placement.donor.as_str() == cluster))
    };
    if desired.wait_for(needs_use).await.is_err() {
        return;
    }
    let config = watcher::Config::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    let mut events = watcher::watcher(Api::<Partial<Pod>>::all(client), config).default_backoff().boxed();
    let mut seen = SeenPods::default();
    // Without exporters the branch never wakes.
    let mut loads = load.clone().unwrap_or_else(|| watch::channel(GpuLoad::default()).1);
    loop {
        let broken = seen.broken_since.is_some();
        let changed = tokio::select! {
            event = events.next() => match event {
                Some(event) => seen.take(event, clock.elapsed()),
                None => return,
            },
            Ok(()) = lent.changed() => true,
            Ok(()) = loads.changed() => true,
            () = clock.sleep(BROKEN_CHECK_INTERVAL), if broken => true,
        };
        if !changed || !seen.pods.is_complete() {
            continue;
        }
        let Some(leases) = lent.borrow_and_update().clone() else { continue };
        let lent_ids: BTreeSet<LeaseId> = leases.keys().copied().collect();
        let now = clock.elapsed();
        let in_use = if seen.is_trusted(now) {
            let load = load.as_ref().map(|load| load.borrow().clone());
            leases_in_use(seen.pods.facts(), &PodOwners::of(&leases), load.as_ref())
        } else {
            lent_ids.clone()
        };
        uses.send_if_modified(|uses| uses.observe(&lent_ids, &in_use, now));
    }
}

/// Unfinished pods of leases, and since when the watch has been broken.
#[derive(Default)]
struct SeenPods {
    pods: WatchCache<LeasePod>,
    broken_since: Option<Duration>,
}

impl SeenPods {
    fn take(&mut self, event: watcher::Result<Event<Partial<Pod>>>, now: Duration) -> bool {
        match event {
            Ok(event) => {
                let mended = self.broken_since.take().is_some();
                self.pods.take(event, |Partial(pod)| LeasePod::entry(pod)) || mended
            }
            Err(error) => {
                tracing::debug!(%error, "the watch of the pods of leases broke; it restarts");
                self.broken_since.get_or_insert(now);
                false
            }
        }
    }

    fn is_trusted(&self, now: Duration) -> bool {
        self.broken_since.is_none_or(|since| now.saturating_sub(since) < TRUSTED)
    }
}

/// Leases with work. Without figures of the load, every unfinished pod is work.
fn leases_in_use<'p>(
    pods: impl Iterator<Item = &'p LeasePod>,
    owners: &PodOwners<'_>,
    load: Option<&GpuLoad>,
) -> BTreeSet<LeaseId> {
    let mut by_lease: BTreeMap<LeaseId, Vec<&LeasePod>> = BTreeMap::new();
    for pod in pods {
        let lease = match &pod.owner {
            Owner::Namespace(lease) => owners.by_namespace(*lease),
            Owner::Creator(user) => owners.by_user(user),
        };
        if let Some(lease) = lease {
            by_lease.entry(lease).or_default().push(pod);
        }
    }
    let works = |pods: &[&LeasePod]| load.is_none_or(|load| have_load(pods, load));
    by_lease.into_iter().filter(|(_, pods)| works(pods)).map(|(lease, _)| lease).collect()
}

/// Whether the pods of a lease use GPUs, or may: a pod that waits, a GPU without a figure, or no GPU at all is use.
fn have_load(pods: &[&LeasePod], load: &GpuLoad) -> bool {
    let mut has_idle_gpu = false;
    for pod in pods {
        match load.of(&pod.namespace, &pod.name) {
            Load::Busy => return true,
            Load::Unknown if pod.requests_gpus || !pod.runs => return true,
            Load::Unknown => {}
            Load::Idle if pod.runs => has_idle_gpu = true,
            Load::Idle => return true,
        }
    }
    !has_idle_gpu
}

#[cfg(test)]
mod tests {
    use comity_agent_model::lent::{LentLease, NodeMark, PodsOf};

    use super::*;

    fn pod(name: &str, runs: bool, requests_gpus: bool) -> LeasePod {
        let namespace = "comity-lease-7".to_owned();
        LeasePod { owner: Owner::Namespace(LeaseId(7)), namespace, name: name.to_owned(), runs, requests_gpus }
    }

    fn load(pods: &[(&str, u32)]) -> GpuLoad {
        let mut load = GpuLoad::default();
        for (pod, value) in pods {
            load.add(&format!("DCGM_FI_DEV_GPU_UTIL{{namespace=\"comity-lease-7\",pod=\"{pod}\"}} {value}\n"));
        }
        load
    }

    /// One lease in force.
    fn lent(id: u64, pods: PodsOf) -> BTreeMap<LeaseId, LentLease> {
        let (resource, nodes) = ("nvidia.com/gpu".to_owned(), BTreeMap::new());
        BTreeMap::from([(LeaseId(id), LentLease { pods, mark: NodeMark::Nothing, resource, is_wanted: true, nodes })])
    }

    fn is_in_use(pods: &[LeasePod], load: Option<&GpuLoad>) -> bool {
        !leases_in_use(pods.iter(), &PodOwners::of(&lent(7, PodsOf::Namespace)), load).is_empty()
    }

    #[test]
    fn without_figures_every_unfinished_pod_is_work() {
        assert!(!is_in_use(&[], None));
        for pod in [pod("a", true, true), pod("a", false, true), pod("a", true, false)] {
            assert!(is_in_use(&[pod], None));
        }
    }

    #[test]
    fn a_lease_is_idle_only_if_all_its_gpus_are_known_to_be() {
        let (a, b, plain) = (pod("a", true, true), pod("b", true, true), pod("c", true, false));
        let waits = pod("b", false, true);
        let idle = load(&[("a", 0), ("b", 0)]);
        assert!(!is_in_use(&[a.clone(), b.clone()], Some(&idle)));
        assert!(!is_in_use(&[a.clone(), plain.clone()], Some(&idle)), "a pod without GPUs beside an idle GPU");
        assert!(is_in_use(&[a.clone(), b.clone()], Some(&load(&[("a", 0), ("b", 3)]))));
        assert!(is_in_use(&[a.clone(), b], Some(&load(&[("a", 0)]))), "a GPU without a figure");
        assert!(is_in_use(&[a.clone(), waits], Some(&load(&[("a", 0)]))), "a pod waits");
        assert!(is_in_use(&[plain], Some(&load(&[]))), "nothing shows that a GPU is idle");
        assert!(is_in_use(&[a], Some(&GpuLoad::default())), "no exporter answers");
    }

    #[test]
    fn pods_on_a_virtual_node_belong_to_the_lease_of_their_credential() {
        let leases = lent(9, PodsOf::LiqoUser("lease-3-0a1b".to_owned()));
        let by = |owner: Owner| {
            let made = LeasePod { owner, ..pod("a", true, true) };
            leases_in_use([made].iter(), &PodOwners::of(&leases), None)
        };
        let user = |name: &str| Owner::Creator(name.to_owned());
        assert_eq!(
            by(user("lease-3-0a1b")),
            BTreeSet::from([LeaseId(9)]),
            "the slice of an earlier lease serves this one"
        );
        for other in [user("lease-3-ffff"), user(""), Owner::Namespace(LeaseId(9)), Owner::Namespace(LeaseId(4))] {
            assert!(by(other.clone()).is_empty(), "{other:?}");
        }
    }

    #[test]
    fn a_watch_that_stays_broken_says_nothing() {
        let mut seen = SeenPods::default();
        let at = Duration::from_secs;
        assert!(!seen.take(Err(watcher::Error::NoResourceVersion), at(10)));
        assert!(!seen.take(Err(watcher::Error::NoResourceVersion), at(60)));
        assert!(seen.is_trusted(at(69)) && !seen.is_trusted(at(70)));
        assert!(seen.take(Ok(Event::Init), at(80)), "mended");
        assert!(seen.is_trusted(at(1_000)));
    }
}
