//! Pods of every node reach the other cluster's pods over their gateway: two clusters of two nodes each, with Liqo,
//! whose pods have the same addresses.

use std::net::Ipv4Addr;
use std::time::Instant;

use comity_scenarios::burst::{Burst, BurstConfig, NAMESPACE};
use comity_scenarios::pods::{AGENT_NAMESPACE, image_name, image_of};
use comity_scenarios::{PATIENCE, deploy, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{RealCluster, RealClusters, requirements};
use serde_json::Value;

use crate::OrLogs as _;
use crate::control_planes::pod;

/// An address of no pod.
const FOREIGN: &str = "192.0.2.77";
const MEBIBYTE: usize = 1 << 20;
/// Root with `CAP_NET_ADMIN` alone, who cannot get more; system calls are filtered.
const NODE: [&str; 4] = ["CapEff:\t0000000000001000", "CapBnd:\t0000000000001000", "NoNewPrivs:\t1", "Seccomp:\t2"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes of its own: ./test long runs it"]
async fn pods_of_every_node_reach_leased_pods_and_nothing_else() {
    if !requirements::met("clusters of several nodes", &RealClusters::missing()) {
        return;
    }
    let began = Instant::now();
    let said = |what: &str| println!("{:>7} ms  {what}", began.elapsed().as_millis());
    let config =
        BurstConfig { nodes: 2, pods_overlap: true, donor_gpus: 2, peering_idle: "5s", ..BurstConfig::default() };
    let mut burst = Burst::clusters(&config).await.unwrap();
    let work = tempfile::tempdir().unwrap();
    let image = image_of("agent", work.path()).await.unwrap();
    for real in [&burst.clusters.origin, &burst.clusters.donor] {
        as_strict_nodes_are(real).await;
        real.import_image(&image).await.unwrap();
        // The virtual-kubelet and the guests run on the second nodes.
        real.kubectl(&["cordon", &real.node_name()]).await.unwrap();
        real.kubectl(&["label", "node", &real.node_name(), "comity.dev/gateway=true"]).await.unwrap();
    }
    burst.federate(&config).await.unwrap();
    for real in [&burst.clusters.origin, &burst.clusters.donor] {
        agents_of_nodes(real, &burst).await;
    }
    said("a gateway and the agent of another node run in both clusters");

    let RealClusters { origin, donor, .. } = &*burst.clusters;
    let federation = burst.federation();
    origin.kubectl_with_input(&["apply", "-f", "-"], &services_and_home(origin)).await.unwrap();
    let phases = burst.run_job("train", 1, &["serve", "3600"]).await.or_logs(federation);
    println!("a burst from the second node of one cluster to the second of the other:\n{phases}");
    let nodes =
        donor.kubectl(&["get", "pods", "-A", "-l", "app=train", "-o", "jsonpath={.items[*].spec.nodeName}"]).await;
    assert_eq!(nodes.unwrap(), donor.nth_node_name(2));
    let kubelets = origin.kubectl(&["get", "pods", "-A", "-o", "wide"]).await.unwrap();
    let kubelet =
        kubelets.lines().find(|line| line.starts_with("liqo-tenant-")).unwrap_or_else(|| panic!("{kubelets}"));
    assert!(kubelet.contains(&origin.nth_node_name(2)), "{kubelet}");
    said("the guest runs on the donor's second node, its log comes by a virtual-kubelet on the origin's second");

    // By the names of Services, both ways.
    let there = until("the guest to answer", PATIENCE, async || Ok(Some(ask(&burst, "home", "train", "").await?)));
    assert!(there.await.or_logs(federation).contains("device="));
    let guest = guest(&burst).await;
    let back = until("the origin's pod to answer its guest", PATIENCE, async || {
        Ok(Some(ask(&burst, &guest, "home", "").await?))
    });
    assert!(back.await.or_logs(federation).contains("host=home"));
    for (from, to) in [("home", "train"), (guest.as_str(), "home")] {
        let began = Instant::now();
        let bytes = ask(&burst, from, to, &format!("bytes?n={MEBIBYTE}")).await.or_logs(federation);
        assert_eq!(bytes.len(), MEBIBYTE);
        println!("{:>7} ms  1 MiB from {to} to {from}, kubectl exec included", began.elapsed().as_millis());
    }
    for real in [origin, donor] {
        for node in [1, 2] {
            let said = real.exec_in_nth_node(node, &["ip", "-s", "link", "show", "comity0v"]).await.unwrap();
            assert!(said.contains("mtu 1420"), "{said}");
        }
    }
    said("Services answer by name both ways, and 1 MiB passes each way");

    only_what_was_lent(&burst, &guest).await;
    said("the donor's own pods are out of reach, and a foreign source ends at the gateway");
    scribbled(&burst).await;
    said("a node names invalid data and does not follow it, and the gateway restores it");
    killed(&burst).await;
    said("a killed agent of a node is replaced, and so are its leftovers");

    origin.kubectl(&["-n", NAMESPACE, "delete", "job", "train", "--timeout=120s"]).await.or_logs(federation);
    burst.no_lease().await.or_logs(federation);
    federation.no_peering(PATIENCE).await.or_logs(federation);
    for real in [origin, donor] {
        fabric_is_gone(real).await.or_logs(federation);
    }
    burst.nothing_left().await.or_logs(federation);
    said("the peering has ended, and the nodes have removed their part of it");
    burst.stop().await.unwrap();
}

/// Waits until the gateway publishes no networks, and the second node has no device, route or rule of the fabric.
async fn fabric_is_gone(real: &RealCluster) -> anyhow::Result<()> {
    until("the node to remove its part of the fabric", PATIENCE, async || {
        let told = real
            .kubectl(&["-n", AGENT_NAMESPACE, "get", "configmap", "comity-fabric", "-o", "jsonpath={.data}"])
            .await?;
        anyhow::ensure!(told.contains("podNetworks\\\":[]"), "{told}");
        let left = real.exec_in_nth_node(2, &["sh", "-c", "ip link; ip route; ip rule; nft list ruleset"]).await?;
        anyhow::ensure!(
            !left.contains("comity0v") && !left.contains("comity_node") && !left.contains("51872"),
            "{left}"
        );
        Ok(Some(()))
    })
    .await
}

/// Reverse path filtering is strict, and a network plugin hides pods that talk to the outside behind their node, as
/// many do.
async fn as_strict_nodes_are(real: &RealCluster) {
    for node in [1, 2] {
        let rules = format!(
            "for f in all default eth0 cni0; do [ ! -e /proc/sys/net/ipv4/conf/$f ] || sysctl -qw net.ipv4.conf.$f.rp_filter=1; done
             nft 'add table ip plugin; add chain ip plugin post {{ type nat hook postrouting priority 100; }}; \
             add rule ip plugin post ip saddr {} ip daddr != {} masquerade'",
            real.nth_pod_cidr(node),
            real.pod_cidr(),
        );
        real.exec_in_nth_node(node, &["sh", "-c", &rules]).await.unwrap();
    }
}

/// As in the manifest, except for the name of the image.
async fn agents_of_nodes(real: &RealCluster, burst: &Burst) {
    let manifest = std::fs::read_to_string(deploy().join("agent/tun/nodes.yaml")).unwrap();
    let chosen = manifest.replace("registry.example/comity-agent:0.1.0", &image_name("agent"));
    assert_ne!(chosen, manifest);
    real.kubectl_with_input(&["apply", "-f", "-"], &chosen).await.unwrap();
    let wait = ["-n", AGENT_NAMESPACE, "rollout", "status", "daemonset/comity-agent-node", "--timeout=110s"];
    if let Err(error) = real.kubectl(&wait).await {
        let seen = real.kubectl(&["-n", AGENT_NAMESPACE, "get", "pods,events", "-o", "wide"]).await.unwrap_or_default();
        panic!("{error}\n{seen}\n{}\n{}", logs_of_nodes(real).await, burst.federation().logs());
    }
    let pods = real
        .kubectl(&["-n", AGENT_NAMESPACE, "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"])
        .await
        .unwrap();
    assert_eq!(pods, real.nth_node_name(2), "one agent of a node, and none on the gateway");
    let status = real.exec_in_nth_node(2, &["sh", "-c", "cat /proc/$(pgrep -x comity-agent)/status"]).await.unwrap();
    assert!(NODE.iter().all(|held| status.contains(held)), "{status}");
}

async fn logs_of_nodes(real: &RealCluster) -> String {
    let logs = ["-n", AGENT_NAMESPACE, "logs", "--tail=40", "--selector=app.kubernetes.io/name=comity-agent-node"];
    real.kubectl(&logs).await.unwrap_or_else(|error| error.to_string())
}

/// A client on the origin's second node that also serves, and the Services of both sides.
fn services_and_home(origin: &RealCluster) -> String {
    let service = |name: &str| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}", "namespace": "{NAMESPACE}"}},
            "spec": {{"selector": {{"app": "{name}"}}, "ports": [{{"port": 80, "targetPort": 8080}}]}}}}"#
        )
    };
    format!(
        r#"{{"apiVersion": "v1", "kind": "List", "items": [{}, {},
          {{"apiVersion": "v1", "kind": "Pod", "metadata": {{"name": "home", "namespace": "{NAMESPACE}", "labels": {{"app": "home"}}}},
            "spec": {{"nodeName": "{}", "containers": [{{"name": "work", "image": "{PROBE_IMAGE}", "imagePullPolicy": "IfNotPresent"}}]}}}}]}}"#,
        service("train"),
        service("home"),
        origin.nth_node_name(2),
    )
}

/// The answer of a Service to a pod of the origin, wherever the pod runs.
async fn ask(burst: &Burst, from: &str, service: &str, path: &str) -> anyhow::Result<String> {
    let url = format!("http://{service}/{path}");
    get(burst, from, &url).await
}

async fn get(burst: &Burst, from: &str, url: &str) -> anyhow::Result<String> {
    let get = ["-n", NAMESPACE, "exec", from, "--", "/probe", "get", url];
    Ok(burst.clusters.origin.kubectl(&get).await?)
}

/// The Job's pod.
async fn guest(burst: &Burst) -> String {
    let name = ["-n", NAMESPACE, "get", "pods", "-l", "app=train", "-o", "jsonpath={.items[0].metadata.name}"];
    burst.clusters.origin.kubectl(&name).await.unwrap()
}

/// The donor's own pods stay unreachable, and packets with foreign source addresses are dropped.
async fn only_what_was_lent(burst: &Burst, guest: &str) {
    let RealClusters { origin, donor, .. } = &*burst.clusters;
    for (name, node) in [("own-1", 1), ("own-2", 2)] {
        let own = pod(name, 0, PROBE_IMAGE)
            .replace("\"spec\": {", &format!("\"spec\": {{\"nodeName\": \"{}\",", donor.nth_node_name(node)));
        donor.kubectl_with_input(&["-n", "default", "apply", "-f", "-"], &own).await.unwrap();
    }
    donor.kubectl(&["wait", "--for=condition=Ready", "pod/own-1", "pod/own-2", "--timeout=110s"]).await.unwrap();
    let address = ["-n", NAMESPACE, "get", "pod", guest, "-o", "jsonpath={.status.podIP}"];
    let lent = origin.kubectl(&address).await.unwrap();
    assert!(get(burst, "home", &format!("http://{lent}:8080/")).await.is_ok());
    let own = async |name: &str| {
        let address = donor.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.podIP}"]).await.unwrap();
        let address = seen_by_origin(burst, &lent, &address).await;
        let answer = get(burst, "home", &format!("http://{address}:8080/")).await;
        assert!(answer.is_err(), "{name} answers: {answer:?}");
    };
    tokio::join!(own("own-1"), own("own-2"));

    // After the gateway's own rules: packets into the tunnel.
    let count = format!(
        "nft 'add table inet spy; add chain inet spy before {{ type filter hook prerouting priority -300; }}; \
         add chain inet spy behind {{ type filter hook forward priority 10; }}; \
         add rule inet spy before iifname comity0v ip saddr {FOREIGN} counter; \
         add rule inet spy behind oifname comity0 ip saddr {FOREIGN} counter'"
    );
    origin.exec_in_node(&["sh", "-c", &count]).await.unwrap();
    let inside = |words: &str| format!("nsenter --target $(pgrep -xo probe) --net -- sh -c '{words}'");
    let foreign = inside(&format!(
        "ip address add {FOREIGN}/32 dev lo; ip route add {lent}/32 via $(ip route show default | cut -d\" \" -f3) src {FOREIGN}"
    ));
    // Otherwise the node's own filter would drop it first.
    let open = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done";
    origin.exec_in_nth_node(2, &["sh", "-c", &format!("{open}; {foreign}")]).await.unwrap();
    let answer = get(burst, "home", &format!("http://{lent}:8080/")).await;
    assert!(answer.is_err(), "{answer:?}");
    let seen = origin.exec_in_node(&["nft", "list", "table", "inet", "spy"]).await.unwrap();
    let packets: Vec<u64> = (seen.lines().filter(|line| line.contains("counter packets")))
        .map(|line| line.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse().unwrap())
        .collect();
    assert!(matches!(packets[..], [arrived, 0] if arrived > 0), "{seen}");
    let undo = inside(&format!("ip route del {lent}/32; ip address del {FOREIGN}/32 dev lo"));
    origin.exec_in_nth_node(2, &["sh", "-c", &undo]).await.unwrap();
    assert!(get(burst, "home", &format!("http://{lent}:8080/")).await.is_ok());
}

/// The address at which the origin would see a pod of the donor; `lent` is the guest's.
async fn seen_by_origin(burst: &Burst, lent: &str, pod: &str) -> Ipv4Addr {
    let guests = ["get", "pods", "-A", "-l", "app=train", "-o", "jsonpath={.items[*].status.podIP}"];
    let guest = burst.clusters.donor.kubectl(&guests).await.unwrap();
    let bits = |address: &str| address.parse::<Ipv4Addr>().unwrap().to_bits();
    assert_ne!(lent, guest, "the donor's pods are remapped");
    Ipv4Addr::from_bits(bits(lent) - bits(&guest) + bits(pod))
}

/// Invalid data in the objects that nodes follow does no harm.
async fn scribbled(burst: &Burst) {
    let origin = &burst.clusters.origin;
    let read = ["-n", AGENT_NAMESPACE, "get", "configmap", "comity-fabric", "-o", "json"];
    let mut map: Value = serde_json::from_str(&origin.kubectl(&read).await.unwrap()).unwrap();
    let published = map["data"]["fabric.json"].as_str().unwrap().to_owned();
    let nonsense = published.replace(&format!("\"gateway\":\"{}\"", origin.node_ip()), "\"gateway\":\"nowhere\"");
    assert_ne!(nonsense, published);
    map["data"]["fabric.json"] = nonsense.into();
    origin.kubectl_with_input(&["replace", "-f", "-"], &map.to_string()).await.unwrap();
    until("the node to say so", PATIENCE, async || {
        let logs = logs_of_nodes(origin).await;
        anyhow::ensure!(logs.contains("gateway \\\"nowhere\\\" is refused"), "{logs}");
        Ok(Some(()))
    })
    .await
    .or_logs(burst.federation());
    assert!(ask(burst, "home", "train", "").await.is_ok(), "what it had is still there");
    until("the gateway to write it again", PATIENCE, async || {
        let now: Value = serde_json::from_str(&origin.kubectl(&read).await?)?;
        let now = now["data"]["fabric.json"].as_str().unwrap_or_default();
        anyhow::ensure!(now.contains(&format!("\"gateway\":\"{}\"", origin.node_ip())), "{now}");
        Ok(Some(()))
    })
    .await
    .or_logs(burst.federation());
    let wait = ["-n", AGENT_NAMESPACE, "rollout", "status", "daemonset/comity-agent-node", "--timeout=110s"];
    origin.kubectl(&wait).await.or_logs(burst.federation());
}

/// Routes of pods stay while their node's agent is dead, and the restarted agent takes over.
async fn killed(burst: &Burst) {
    let origin = &burst.clusters.origin;
    let leftover = "ip route add 10.99.0.0/24 dev comity0v && nft add chain inet comity_node leftover";
    let script = format!("{leftover} && pkill -KILL -x comity-agent");
    origin.exec_in_nth_node(2, &["sh", "-c", &script]).await.unwrap();
    assert!(ask(burst, "home", "train", "").await.is_ok(), "while it is dead");
    until("the next agent to replace what the killed one left", PATIENCE, async || {
        let seen = origin.exec_in_nth_node(2, &["sh", "-c", "ip route; nft list table inet comity_node"]).await?;
        anyhow::ensure!(!seen.contains("10.99.0.0/24") && !seen.contains("leftover"), "{seen}");
        anyhow::ensure!(seen.contains("dev comity0v"), "{seen}");
        Ok(Some(()))
    })
    .await
    .or_logs(burst.federation());
    until("the Service to answer after that", PATIENCE, async || Ok(Some(ask(burst, "home", "train", "").await?)))
        .await
        .or_logs(burst.federation());
}
