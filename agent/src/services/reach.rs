//! Allows traffic through the tunnels: only between offloaded pods and their origin.
//!
//! ```text
//! donor:  pods in the namespaces that Liqo made for an origin ─▶ with all pods of that origin
//! origin: pods on virtual nodes, at the donor's addresses     ─▶ with all pods of this cluster
//! ```
//!
//! On the origin, Liqo's own pods also use the donor's API: its controllers, and the virtual-kubelets of that donor.
//!
//! The fabric denies everything else. Addresses come from the API server and signed bundles: a pod's address outside
//! the other side's network, or on the donor outside this cluster's, is ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use comity_agent_fabric::Reach;
use comity_agent_kubernetes::watch_cache::WatchCache;
use comity_agent_liqo::REMOTE_CLUSTER_LABEL;
use comity_agent_state::record::Records;
use comity_types::{Delivery, PeeringId, Side};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodStatus};
use kube::core::PartialObjectMeta;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio_stream::StreamMap;
use tokio_util::sync::CancellationToken;

use crate::reconcile::parts::{Parts, Ranges, Tunnels};

/// Label selector of offloaded pods on the donor.
const GUESTS: &str = "liqo.io/managed-by=shadowpod";
/// Changes are collected for this long: a Job starts many pods at once.
const POD_BATCH_WINDOW: Duration = Duration::from_millis(20);
/// Interval of checks without a change: a tunnel may have been replaced.
const AT_LEAST_EVERY: Duration = Duration::from_secs(5);

/// A pod that may use a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodAddress {
    namespace: String,
    address: Ipv4Addr,
}

/// A namespace that Liqo made for an origin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GuestNamespace {
    name: String,
    origin_liqo_id: String,
}

/// The observed pods and namespaces of this cluster.
#[derive(Default)]
struct ObservedPods {
    guests: WatchCache<PodAddress>,
    namespaces: WatchCache<GuestNamespace>,
    /// Own pods on each virtual node.
    offloaded: BTreeMap<String, WatchCache<PodAddress>>,
    /// Addresses of the pods of each namespace of Liqo's.
    liqo: BTreeMap<String, WatchCache<BTreeSet<IpAddr>>>,
}

/// Addresses of this cluster's pods that may use a tunnel.
#[derive(Default)]
struct PodAddresses {
    /// Of guests, by their origin.
    guests: BTreeMap<String, BTreeSet<Ipv4Addr>>,
    offloaded: BTreeSet<Ipv4Addr>,
    /// Of Liqo's own pods, by their namespace.
    liqo: BTreeMap<String, BTreeSet<IpAddr>>,
}

/// Computes the allowed addresses of each peering's tunnel. Pure.
fn reaches(
    records: &Records,
    ranges: &Ranges,
    tunnels: &BTreeMap<PeeringId, u32>,
    own: &BTreeSet<Ipv4Net>,
    pods: &PodAddresses,
    liqo_namespace: &str,
) -> BTreeMap<PeeringId, (u32, Reach)> {
    let mut reaches = BTreeMap::new();
    for (&peering, epoch) in tunnels {
        let remote = records.peering(peering, *epoch).and_then(|keys| keys.remote.as_ref());
        let networks = remote.map(|remote| ranges.networks(&remote.cluster, &remote.network.pod_cidrs));
        // Pods of this cluster, and objects in it, have the other side's addresses as this cluster sees them.
        let cidrs: BTreeSet<Ipv4Net> = networks.into_iter().flatten().map(|network| network.here).collect();
        let hosts = |addresses: &mut dyn Iterator<Item = Ipv4Addr>, within: &BTreeSet<Ipv4Net>| -> BTreeSet<Ipv4Net> {
            addresses.filter(|address| within.iter().any(|net| net.contains(address))).map(Ipv4Net::from).collect()
        };
        let reach = match records.liqo.get(&peering) {
            Some(record) if record.side == Side::Donor => {
                let mut guests = pods.guests.get(&record.liqo_id).into_iter().flatten().copied();
                Reach { remote: cidrs, local: hosts(&mut guests, own), ..Reach::default() }
            }
            Some(record) => {
                let namespaces = [liqo_namespace, &record.peer().tenant_namespace()].map(|name| pods.liqo.get(name));
                let api_clients = namespaces.into_iter().flatten().flatten().copied().collect();
                let remote = hosts(&mut pods.offloaded.iter().copied(), &cidrs);
                Reach { remote, local: own.clone(), api_clients }
            }
            None => Reach::default(),
        };
        // If one side is empty nothing is allowed, so the other side is emptied as well.
        let nobody = reach.remote.is_empty() || reach.local.is_empty();
        let api_clients = reach.api_clients.clone();
        let reach = if nobody { Reach { api_clients, ..Reach::default() } } else { reach };
        reaches.insert(peering, (*epoch, reach));
    }
    reaches
}

/// The status of a running pod in the pod network.
fn running(pod: &Pod) -> Option<&PodStatus> {
    let status = pod.status.as_ref()?;
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or(false);
    (!over && !on_host).then_some(status)
}

/// The address of a running pod in the pod network.
fn pod_address(pod: &Pod) -> Option<PodAddress> {
    let address = running(pod)?.pod_ip.as_ref()?.parse().ok()?;
    Some(PodAddress { namespace: pod.namespace()?, address })
}

/// All addresses of a running pod of Liqo's in the pod network, of either family.
fn liqo_entry(pod: &Pod) -> Option<(String, Option<BTreeSet<IpAddr>>)> {
    let addresses = running(pod).map(|status| {
        let all = status.pod_ips.iter().flatten().map(|address| &address.ip).chain(&status.pod_ip);
        all.filter_map(|address| address.parse().ok()).collect()
    });
    Some((pod.name_any(), addresses))
}

fn pod_entry(pod: &Pod) -> Option<(String, Option<PodAddress>)> {
    Some((format!("{}/{}", pod.namespace()?, pod.name_any()), pod_address(pod)))
}

fn namespace_entry(namespace: &PartialObjectMeta<Namespace>) -> Option<(String, Option<GuestNamespace>)> {
    let name = namespace.name_any();
    let origin_liqo_id = namespace.labels().get(REMOTE_CLUSTER_LABEL)?.clone();
    Some((name.clone(), Some(GuestNamespace { name, origin_liqo_id })))
}

impl ObservedPods {
    /// Addresses of guests, by their origin.
    fn guests(&self) -> BTreeMap<String, BTreeSet<Ipv4Addr>> {
        let origins: BTreeMap<&str, &str> = self
            .namespaces
            .facts()
            .map(|namespace| (namespace.name.as_str(), namespace.origin_liqo_id.as_str()))
            .collect();
        let mut guests: BTreeMap<String, BTreeSet<Ipv4Addr>> = BTreeMap::new();
        for guest in self.guests.facts() {
            if let Some(origin) = origins.get(guest.namespace.as_str()) {
                guests.entry((*origin).to_owned()).or_default().insert(guest.address);
            }
        }
        guests
    }

    fn addresses(&self) -> PodAddresses {
        let of = |pods: &WatchCache<BTreeSet<IpAddr>>| pods.facts().flatten().copied().collect();
        PodAddresses {
            guests: self.guests(),
            offloaded: self.offloaded.values().flat_map(WatchCache::facts).map(|pod| pod.address).collect(),
            liqo: self.liqo.iter().map(|(namespace, pods)| (namespace.clone(), of(pods))).collect(),
        }
    }
}

type Pods = BoxStream<'static, watcher::Result<Event<Pod>>>;

fn pods(pods: Api<Pod>, config: watcher::Config) -> Pods {
    watcher(pods, config).default_backoff().boxed()
}

/// Keeps the fabric's reachability up to date until stopped; `liqo_namespace` is that of Liqo's controllers.
pub async fn run(parts: Parts, client: Client, liqo_namespace: String, stop: CancellationToken) {
    let mut guests = pods(Api::all(client.clone()), watcher::Config::default().labels(GUESTS));
    let namespaces = Api::<PartialObjectMeta<Namespace>>::all(client.clone());
    let config = watcher::Config::default().labels(REMOTE_CLUSTER_LABEL);
    let mut namespaces = watcher(namespaces, config).default_backoff().boxed();
    let mut offloaded: StreamMap<String, Pods> = StreamMap::new();
    let mut liqo: StreamMap<String, Pods> = StreamMap::new();
    let Parts { member, store, tunnels, remap_book, .. } = parts;
    let (mut records, ranges) = (store.subscribe(), remap_book.subscribe());
    let own: BTreeSet<Ipv4Net> = member.pod_networks().into_iter().collect();
    let (mut seen, mut applied) = (ObservedPods::default(), BTreeMap::new());
    loop {
        {
            let records = records.borrow_and_update();
            follow_nodes(&client, &records, &mut offloaded, &mut seen);
            follow_liqo(&client, &liqo_namespace, &records, &mut liqo, &mut seen);
        }
        let chosen = ranges.borrow().clone();
        let now = reaches(&store.records(), &chosen, &tunnels.epochs(), &own, &seen.addresses(), &liqo_namespace);
        apply(&tunnels, now, &mut applied);
        tokio::select! {
            () = stop.cancelled() => return,
            Some(event) = guests.next() => take_event(event, |event| seen.guests.take(event, pod_entry)),
            Some(event) = namespaces.next() => take_event(event, |event| seen.namespaces.take(event, namespace_entry)),
            Some((node, event)) = offloaded.next(), if !offloaded.is_empty() => {
                take_event(event, |event| seen.offloaded.entry(node).or_default().take(event, pod_entry));
            }
            Some((namespace, event)) = liqo.next(), if !liqo.is_empty() => {
                take_event(event, |event| seen.liqo.entry(namespace).or_default().take(event, liqo_entry));
            }
            Ok(()) = records.changed() => {}
            () = tunnels.reach_due.notified() => {}
            () = tokio::time::sleep(AT_LEAST_EVERY) => {}
        }
        tokio::time::sleep(POD_BATCH_WINDOW).await;
    }
}

fn take_event<K>(event: watcher::Result<Event<K>>, take: impl FnOnce(Event<K>) -> bool) {
    match event {
        Ok(event) => {
            take(event);
        }
        Err(error) => tracing::debug!(%error, "a watch for the fabric broke; it restarts"),
    }
}

/// One watch for each virtual node: there are few, and each is small compared with all pods of a cluster.
fn follow_nodes(client: &Client, records: &Records, watches: &mut StreamMap<String, Pods>, seen: &mut ObservedPods) {
    let is_node = |delivery, removed: bool| delivery == Delivery::VirtualNode && !removed;
    let borrowed = records.origins.values().filter(|record| is_node(record.delivery, record.removed));
    let wanted: BTreeSet<String> = borrowed.map(|record| record.node()).collect();
    follow(&wanted, watches, &mut seen.offloaded, |node| {
        pods(Api::all(client.clone()), watcher::Config::default().fields(&format!("spec.nodeName={node}")))
    });
}

/// Namespaces in which Liqo's own pods use a donor's API: that of its controllers, and those of the donors' virtual-kubelets.
fn liqo_namespaces(liqo_namespace: &str, records: &Records) -> BTreeSet<String> {
    let donors = records.liqo.values().filter(|record| record.side == Side::Origin);
    let tenants: BTreeSet<String> = donors.map(|record| record.peer().tenant_namespace()).collect();
    let controllers = (!tenants.is_empty()).then(|| liqo_namespace.to_owned());
    tenants.into_iter().chain(controllers).collect()
}

fn follow_liqo(
    client: &Client,
    liqo_namespace: &str,
    records: &Records,
    watches: &mut StreamMap<String, Pods>,
    seen: &mut ObservedPods,
) {
    follow(&liqo_namespaces(liqo_namespace, records), watches, &mut seen.liqo, |namespace| {
        pods(Api::namespaced(client.clone(), namespace), watcher::Config::default())
    });
}

/// Ends the watches that are no longer wanted, with what they saw, and begins new ones.
fn follow<F>(
    wanted: &BTreeSet<String>,
    watches: &mut StreamMap<String, Pods>,
    seen: &mut BTreeMap<String, WatchCache<F>>,
    watch: impl Fn(&str) -> Pods,
) {
    let gone: Vec<String> = watches.keys().filter(|key| !wanted.contains(*key)).cloned().collect();
    for key in gone {
        watches.remove(&key);
        seen.remove(&key);
    }
    for key in wanted {
        if !watches.contains_key(key) {
            watches.insert(key.clone(), watch(key));
        }
    }
}

fn apply(tunnels: &Tunnels, now: BTreeMap<PeeringId, (u32, Reach)>, applied: &mut BTreeMap<PeeringId, (u32, Reach)>) {
    applied.retain(|peering, _| now.contains_key(peering));
    for (peering, (epoch, reach)) in now {
        if applied.get(&peering) == Some(&(epoch, reach.clone())) {
            continue;
        }
        match tunnels.fabric.set_reachable(&peering.to_string(), reach.clone()) {
            Ok(()) => {
                applied.insert(peering, (epoch, reach));
            }
            // The next round repeats it; until then the earlier state is in force, or nothing is allowed.
            Err(error) => tracing::warn!(%peering, %error, "cannot set the addresses that may use a tunnel"),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use comity_agent_fabric::PodNetwork;
    use comity_agent_liqo::LiqoPeer;
    use comity_agent_state::record::{HpkePublicKey, LiqoRecord, PeeringRecord, RemoteKeys, RemoteNetwork, SecretKey};
    use comity_proto::v1;

    fn records(side: Side, exchange: bool) -> Records {
        let remote = RemoteKeys {
            cluster: "other".into(),
            wireguard_public: [3; 32],
            hpke_public: HpkePublicKey::from_bytes(&[4; HpkePublicKey::BYTES]).unwrap(),
            identity_key: comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(1)).public(),
            institution: None,
            endpoints: Vec::new(),
            network: RemoteNetwork { pod_cidrs: vec!["10.2.0.0/16".parse().unwrap()], ..RemoteNetwork::default() },
        };
        let bundle = v1::KeyBundle { peering: "peer-1".into(), epoch: 3, ..v1::KeyBundle::default() };
        let keys = PeeringRecord::new(PeeringId(1), &bundle, side, SecretKey::new([1; 32]), SecretKey::new([2; 32]));
        let keys = PeeringRecord { remote: Some(remote), ..keys };
        let mut records = Records::default();
        records.peerings.insert((PeeringId(1), 3), Arc::new(keys));
        if exchange {
            let peer = LiqoPeer { peering: "peer-1".into(), cluster: "other".into(), liqo_id: "liqo-2".into() };
            records.liqo.insert(PeeringId(1), Arc::new(LiqoRecord::new(PeeringId(1), side, &peer, "liqo-1")));
        }
        records
    }

    fn reach(records: &Records) -> (String, String) {
        reach_with(records, &Ranges::default())
    }

    fn reach_with(records: &Records, ranges: &Ranges) -> (String, String) {
        let own = BTreeSet::from(["10.1.0.0/16".parse().unwrap()]);
        let address = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        // One guest is valid, one has an address outside the pod network, and one belongs to another origin.
        let guests = BTreeMap::from([
            ("liqo-2".to_owned(), BTreeSet::from([address("10.1.0.7"), address("192.0.2.1")])),
            ("liqo-9".to_owned(), BTreeSet::from([address("10.1.0.8")])),
        ]);
        // The donor claims this cluster's own database address for one pod.
        let offloaded = BTreeSet::from([address("10.2.5.5"), address("10.1.0.99"), address("100.64.5.6")]);
        let tunnels = BTreeMap::from([(PeeringId(1), 3)]);
        let pods = PodAddresses { guests, offloaded, ..PodAddresses::default() };
        let (epoch, reach) = reaches(records, ranges, &tunnels, &own, &pods, "liqo").remove(&PeeringId(1)).unwrap();
        assert_eq!(epoch, 3);
        let text = |nets: &BTreeSet<Ipv4Net>| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        (text(&reach.remote), text(&reach.local))
    }

    #[test]
    fn a_donor_opens_its_guests_and_nothing_else_to_their_origin() {
        assert_eq!(reach(&records(Side::Donor, true)), ("10.2.0.0/16".to_owned(), "10.1.0.7/32".to_owned()));
    }

    #[test]
    fn an_origin_opens_itself_to_its_own_offloaded_pods_alone() {
        assert_eq!(reach(&records(Side::Origin, true)), ("10.2.5.5/32".to_owned(), "10.1.0.0/16".to_owned()));
    }

    #[test]
    fn only_liqos_pods_use_a_donors_api() {
        let of = |list: &[&str]| list.iter().map(|address| address.parse::<IpAddr>().unwrap()).collect::<BTreeSet<_>>();
        let liqo = BTreeMap::from([
            ("liqo".to_owned(), of(&["10.1.0.3", "fd00::3"])),
            ("liqo-tenant-liqo-2".to_owned(), of(&["10.1.0.4"])),
            ("liqo-tenant-liqo-9".to_owned(), of(&["10.1.0.5"])),
        ]);
        // A pod of a tenant runs at the donor, and talks to its own cluster through the tunnel.
        let offloaded = BTreeSet::from(["10.2.5.5".parse().unwrap()]);
        let pods = PodAddresses { liqo, offloaded, ..PodAddresses::default() };
        let own = BTreeSet::from(["10.1.0.0/16".parse().unwrap()]);
        let tunnels = BTreeMap::from([(PeeringId(1), 3)]);
        let clients = |records: &Records, pods: &PodAddresses| {
            let mut reaches = reaches(records, &Ranges::default(), &tunnels, &own, pods, "liqo");
            reaches.remove(&PeeringId(1)).unwrap().1.api_clients
        };
        let origin = records(Side::Origin, true);
        assert_eq!(clients(&origin, &pods), of(&["10.1.0.3", "10.1.0.4", "fd00::3"]));
        // Also before the first pod runs at the donor.
        let early = PodAddresses { offloaded: BTreeSet::new(), ..pods };
        assert_eq!(clients(&origin, &early), of(&["10.1.0.3", "10.1.0.4", "fd00::3"]));
        assert_eq!(clients(&records(Side::Origin, false), &early), of(&[]));
        assert_eq!(clients(&records(Side::Donor, true), &early), of(&[]), "a donor's pods have no use for it");
        assert_eq!(liqo_namespaces("liqo", &origin), ["liqo", "liqo-tenant-liqo-2"].map(str::to_owned).into());
        assert!(liqo_namespaces("liqo", &records(Side::Donor, true)).is_empty());
    }

    #[test]
    fn a_remapped_network_is_open_at_its_range_here() {
        let network = PodNetwork { there: "10.2.0.0/16".parse().unwrap(), here: "100.64.0.0/16".parse().unwrap() };
        let ranges = Ranges([("other".to_owned(), vec![network])].into());
        let donor = reach_with(&records(Side::Donor, true), &ranges);
        assert_eq!(donor, ("100.64.0.0/16".to_owned(), "10.1.0.7/32".to_owned()));
        let origin = reach_with(&records(Side::Origin, true), &ranges);
        assert_eq!(origin, ("100.64.5.6/32".to_owned(), "10.1.0.0/16".to_owned()));
    }

    #[test]
    fn without_an_exchange_nobody_talks() {
        for side in [Side::Donor, Side::Origin] {
            assert_eq!(reach(&records(side, false)), (String::new(), String::new()));
        }
    }

    #[test]
    fn finished_pods_and_those_of_the_host_have_no_say() {
        let pod = |phase: &str, host: bool| {
            let text = serde_json::json!({
                "metadata": { "name": "p", "namespace": "n" },
                "spec": { "containers": [], "hostNetwork": host },
                "status": { "phase": phase, "podIP": "10.1.0.7" }
            });
            serde_json::from_value::<Pod>(text).unwrap()
        };
        assert_eq!(pod_address(&pod("Running", false)).unwrap().address, Ipv4Addr::new(10, 1, 0, 7));
        let address = IpAddr::from([10, 1, 0, 7]);
        assert_eq!(liqo_entry(&pod("Running", false)).unwrap().1.unwrap(), BTreeSet::from([address]));
        for silent in [pod("Succeeded", false), pod("Failed", false), pod("Running", true)] {
            assert_eq!((pod_address(&silent), liqo_entry(&silent).unwrap().1), (None, None));
        }
    }
}
