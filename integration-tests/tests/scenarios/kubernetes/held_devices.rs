//! The devices of a real kubelet's pods, as the agent tells them.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::ensure;
use comity_agent::devices::{DeviceTable, HolderOwner};
use comity_agent::services::device_reader::DEVICE_READERS_AUDIENCE;
use comity_agent::services::local_api::{SOCKET, fetch_devices};
use comity_scenarios::{Federation, PATIENCE, Process, program, until};
use comity_testkit::RealCluster;
use comity_testkit::real_clusters::PROBE_IMAGE;

use crate::OrLogs as _;
use crate::control_planes::pod;
use crate::two_classes::TenantLease;

const PORT: u16 = 7484;
const LOCAL_POD: &str = "own";

/// The section of the agent's configuration. Makes the agent's token for the reader in `folder`.
pub(crate) async fn agent_section(donor: &RealCluster, folder: &Path) -> anyhow::Result<String> {
    let audience = format!("--audience={DEVICE_READERS_AUDIENCE}");
    let account = ["-n", "comity-system", "comity-agent"];
    let token =
        donor.kubectl(&[["create", "token"].as_slice(), &account, &["--duration=3h", &audience]].concat()).await?;
    let file = folder.join("devices.token");
    std::fs::write(&file, token)?;
    let (node, file) = (donor.node_ip(), file.display());
    Ok(format!("usage: {{devices: 'http://{node}:{PORT}/metrics', devicesTokenFile: '{file}'}}\n"))
}

/// Starts the device reader of the donor's first node, in the network of the node.
pub(crate) fn start_reader(federation: &Federation, donor: &RealCluster) -> Process {
    let socket = format!("/proc/{}/root/var/lib/kubelet/pod-resources/kubelet.sock", donor.init_pid());
    let (node, listen) = (donor.node_name(), format!("0.0.0.0:{PORT}"));
    let kubeconfig = donor.admin_kubeconfig_path().display().to_string();
    let args = [
        ["read-devices", "--node", &node, "--listen", &listen].as_slice(),
        &["--socket", &socket, "--kubeconfig", &kubeconfig],
    ]
    .concat();
    let command = donor.command_in_nth_node(1, &program("comity-agent").unwrap(), &args);
    Process::start("device reader", command, &federation.dir().join("device-reader.log")).unwrap()
}

/// A pod of a lease and one of the donor's own: the agent knows the devices of both, as their containers have them.
pub(crate) async fn are_as_containers_have_them(
    federation: &Federation,
    donor: &RealCluster,
    cluster: &str,
    lease: &TenantLease,
    log: &str,
) {
    donor.kubectl_with_input(&["apply", "-f", "-"], &pod(LOCAL_POD, 1, PROBE_IMAGE)).await.or_logs(federation);
    let own = until("the donor's own pod to run", PATIENCE, async || {
        let log = donor.kubectl(&["logs", LOCAL_POD]).await?;
        Ok(Some(log).filter(|log| !visible(log).is_empty()))
    })
    .await
    .or_logs(federation);
    let leased: HolderOwner = lease.id.clone().try_into().unwrap();
    let socket = federation.agent_dir(cluster).join(SOCKET);
    until("the agent to tell both pods' devices", PATIENCE, async || {
        let table = fetch_devices(&socket).await?;
        let held = |owner| held_by(&table, &donor.node_name(), owner);
        ensure!(held(leased) == visible(log) && held(HolderOwner::Local) == visible(&own), "{}", table.text());
        ensure!(table.conflicts().is_empty() && table.of_node(&donor.node_name()).count() == 4, "{}", table.text());
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    donor.kubectl(&["delete", "pod", LOCAL_POD, "--grace-period=0", "--force"]).await.or_logs(federation);
    until("the device of the pod that is gone to be free", PATIENCE, async || {
        let table = fetch_devices(&socket).await?;
        let local = held_by(&table, &donor.node_name(), HolderOwner::Local);
        ensure!(local.is_empty(), "{}", table.text());
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
}

/// Devices of `NVIDIA_VISIBLE_DEVICES` in a container's environment, which its log shows.
fn visible(log: &str) -> BTreeSet<String> {
    let value = log.lines().find_map(|line| line.split_once("NVIDIA_VISIBLE_DEVICES=").map(|(_, value)| value));
    let ids = value.into_iter().flat_map(|value| value.split([',', ' ', '"'])).filter(|id| id.starts_with("GPU-"));
    ids.map(str::to_owned).collect()
}

fn held_by(table: &DeviceTable, node: &str, owner: HolderOwner) -> BTreeSet<String> {
    let is_held =
        |holders: &BTreeSet<comity_agent::devices::DeviceHolder>| holders.iter().any(|held| held.owner == owner);
    table.of_node(node).filter(|(_, held)| is_held(&held.holders)).map(|(device, _)| device.clone()).collect()
}
