//! Canaries on real kubelets: a node lends once one saw no GPU there, and not while NVIDIA's container runtime hands
//! every GPU to a container that asks for all by its image.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use comity_scenarios::{Federation, PATIENCE, until};
use comity_testkit::{Binaries, CANARY_IMAGE, RealCluster, VisibleDevices, write_canary_image};
use serde_json::Value;

use crate::OrLogs as _;
use crate::gpu_boxes::GpuNode;

/// The section of the agent's configuration.
pub(crate) fn agent_section() -> String {
    format!("canary:\n  image: {CANARY_IMAGE}\n")
}

/// Puts the image on every node, as a registry would.
pub(crate) async fn import_image(donor: &RealCluster, dir: &Path) {
    let (scratch, archive) = (dir.join("canary-image"), dir.join("canary.tar"));
    write_canary_image(&scratch, &archive).unwrap();
    donor.import_image(&archive).await.unwrap();
}

/// Every node of the cluster lends, and its canary ended well.
pub(crate) async fn prove_all(federation: &Federation, donor: &RealCluster, cluster: &str) {
    until("the nodes to lend", PATIENCE, async || {
        let offer = federation.comity_as("admin", &["offers", cluster]).await?;
        let nodes = offer["nodeDetails"].as_array().cloned().unwrap_or_default();
        ensure!(nodes.len() == usize::try_from(donor.nodes())? && nodes.iter().all(lends), "{nodes:?}");
        Ok(Some(()))
    })
    .await
    .or_logs(federation);
    let pods = canaries(donor).await.or_logs(federation);
    let ended_well = |pod: &Value| pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0;
    let proved: Vec<&Value> = pods.iter().filter(|pod| ended_well(pod)).map(|pod| &pod["spec"]["nodeName"]).collect();
    assert_eq!(proved.len(), usize::try_from(donor.nodes()).unwrap(), "{pods:#?}");
}

fn lends(node: &Value) -> bool {
    node["schedulable"] == true
}

async fn canaries(donor: &RealCluster) -> Result<Vec<Value>> {
    let pods: Value =
        serde_json::from_str(&donor.kubectl(&["-n", "comity-canary", "get", "pods", "-o", "json"]).await?)?;
    Ok(pods["items"].as_array().cloned().unwrap_or_default())
}

/// The first node's default runtime becomes NVIDIA's, with its default settings, and then with the safe one.
pub(crate) async fn an_exposed_node_does_not_lend(on: &GpuNode<'_>, binaries: &Binaries) {
    let (federation, donor) = (on.federation, on.donor);
    for (setting, expected) in [(VisibleDevices::Obeyed, false), (VisibleDevices::Ignored, true)] {
        let began = Instant::now();
        donor.use_nvidia_runtime(binaries, setting).await.or_logs(federation);
        // Neither boot nor version changed, so the agent keeps its proof until somebody removes that.
        donor.kubectl(&["-n", "comity-canary", "delete", "pods", "--all"]).await.or_logs(federation);
        until(&format!("a canary to tell that the devices are {setting:?}"), PATIENCE, async || {
            let (lends, reason) = (lends(&offered(on).await?), reasons(donor).await?);
            let is_told = reason.contains("/dev/nvidia0") && reason.contains("/dev/nvidia1");
            ensure!(lends == expected && is_told, "{lends} {reason}; {:#?}", canaries(donor).await?);
            Ok(Some(()))
        })
        .await
        .or_logs(federation);
        println!("{setting:?}: known after {:.1} s", began.elapsed().as_secs_f32());
    }
}

async fn offered(on: &GpuNode<'_>) -> Result<Value> {
    let offer = on.federation.comity_as("admin", &["offers", on.cluster]).await?;
    let nodes = offer["nodeDetails"].as_array().into_iter().flatten();
    Ok(nodes.into_iter().find(|node| node["id"] == on.id).cloned().unwrap_or_default())
}

/// What the events on the first node say.
async fn reasons(donor: &RealCluster) -> Result<String> {
    let of = format!("reason=ComityGpusExposed,involvedObject.name={}", donor.node_name());
    Ok(donor.kubectl(&["get", "events", "-A", "--field-selector", &of, "-o", "jsonpath={.items[*].message}"]).await?)
}
