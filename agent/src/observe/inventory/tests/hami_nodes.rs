//! Nodes whose GPUs HAMi shares, with the annotations that HAMi 2.10 wrote over a stand-in for NVML. Its own programs
//! cannot be installed here.

use super::*;

const REGISTER: &str = r#"[
    {"id":"GPU-0","count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3","health":true},
    {"id":"GPU-1","index":1,"count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3","health":true}]"#;

/// Two H100 with room for twenty containers each.
fn hami_node() -> Value {
    let mut node = raw_node("gpu-1");
    set_counts(&mut node, &[("nvidia.com/gpu", "40")]);
    set_labels(&mut node, &[("gpu.count", "2")]);
    node["metadata"]["annotations"] = json!({
        "hami.io/node-nvidia-register": REGISTER, "hami.io/node-handshake": "Requesting_2026-11-24 10:11:12",
    });
    node
}

fn hami_pod(namespace: &str, shares: Option<&str>) -> Value {
    let mut pod = raw_pod(namespace, "p", "gpu-1", "nvidia.com/gpu", 1);
    if let Some(shares) = shares {
        pod["metadata"]["annotations"] = json!({ "hami.io/vgpu-devices-allocated": shares });
    }
    pod
}

fn reasons(node: Value, pods: &[Value]) -> Vec<String> {
    let built = look_with(&[node], pods, &Guests::default(), &LocalReserve::default());
    built.not_offered.into_iter().map(|left| format!("{}: {}", left.resource, left.reason)).collect()
}

#[test]
fn devices_are_fractional_in_twentieths() {
    let node = &build(&[hami_node()], &[])[0];
    assert_eq!(node.devices.len(), 2);
    let device = &node.devices[1];
    assert!(matches!(mode(device), sharing::Mode::Fractional(fractional) if fractional.step_milli == 50));
    assert_eq!((device.product_name.as_str(), device.memory_mib), ("NVIDIA-H100-80GB-HBM3", 81_559));
    assert_eq!((device.architecture.as_str(), device.resource_name.as_str()), ("Hopper", "nvidia.com/gpu"));
    // Without GPU Feature Discovery HAMi alone describes the device.
    let mut bare = hami_node();
    bare["metadata"]["labels"] = json!({});
    let bare = &build(&[bare], &[])[0];
    assert_eq!(
        (bare.devices[0].product_name.as_str(), bare.devices[0].architecture.as_str()),
        ("NVIDIA-H100-80GB-HBM3", "")
    );
}

#[test]
fn local_use_is_known_by_device_and_leases_are_none() {
    let pods = [
        hami_pod("research", Some("GPU-1,NVIDIA,20000,30:;")),
        hami_pod("research", Some("GPU-1,NVIDIA,20000,0:;")),
        hami_pod("comity-lease-1", Some("GPU-0,NVIDIA,4077,5:;")),
    ];
    assert_eq!(local_use(&build(&[hami_node()], &pods)[0]), [0, 300 + 246]);
}

#[test]
fn a_pod_without_a_readable_annotation_counts_as_whole_gpus() {
    for (shares, part) in [
        (None, "it is absent"),
        (Some("GPU-0,NVIDIA"), "2 fields"),
        (Some("GPU-9,NVIDIA,1,1:;"), "GPU-9 is none of the node's devices"),
    ] {
        let pods = [hami_pod("research", shares)];
        assert_eq!(local_use(&build(&[hami_node()], &pods)[0]), [0, 1_000], "{shares:?}");
        let reasons = reasons(hami_node(), &pods);
        assert!(reasons.len() == 1 && reasons[0].contains(part) && reasons[0].contains("research"), "{reasons:?}");
    }
}

#[test]
fn unhealthy_cordoned_and_reserved_devices_are_not_lent() {
    let mut node = hami_node();
    node["metadata"]["annotations"]["hami.io/device-cordon"] = json!("GPU-7, GPU-0");
    assert_eq!(local_use(&build(&[node], &[])[0]), [1_000, 0]);
    let mut sick = hami_node();
    sick["metadata"]["annotations"]["hami.io/node-nvidia-register"] =
        json!(REGISTER.replacen("\"health\":true", "\"health\":false", 1));
    let healthy: Vec<bool> = build(&[sick], &[])[0].devices.iter().map(|device| device.healthy).collect();
    assert_eq!(healthy, [false, true]);
    let reserve = LocalReserve { gpus_per_node: 1, ..LocalReserve::default() };
    assert_eq!(local_use(&look_with(&[hami_node()], &[], &Guests::default(), &reserve).nodes[0]), [0, 1_000]);
}

#[test]
fn a_node_that_hami_does_not_serve_is_not_offered() {
    type Change = fn(&mut Value);
    let cases: [(Change, &str); 6] = [
        (
            |node| node["metadata"]["annotations"]["hami.io/node-handshake"] = json!("Deleted_2026-11-24 10:11:12"),
            "removed the node",
        ),
        (|node| node["metadata"]["annotations"]["hami.io/node-handshake"] = json!(""), "is absent"),
        (|node| node["status"]["allocatable"]["nvidia.com/gpu"] = json!("0"), "serves no nvidia.com/gpu"),
        (|node| node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = json!("nonsense"), "1 fields"),
        (|node| set_labels(node, &[("gpu.memory", "40960")]), "deviceMemoryScaling"),
        (|node| set_labels(node, &[("gpu-driver-upgrade-state", "drain-required")]), "driver is being upgraded"),
    ];
    for (change, part) in cases {
        let mut node = hami_node();
        change(&mut node);
        assert!(build(&[node.clone()], &[]).is_empty(), "{part}");
        let reasons = reasons(node, &[]);
        assert!(reasons.len() == 1 && reasons[0].contains(part), "{reasons:?}");
    }
    let mut facts = NodeFacts::of(&read::<core::Node>(&hami_node())).unwrap();
    facts.hami.as_mut().unwrap().is_silent = true;
    let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    let built = build_nodes(&[facts], [], &Guests::default(), &BTreeMap::new(), &DraDevices::default(), &settings);
    assert!(built.nodes.is_empty() && built.not_offered[0].reason.contains("for a minute"), "{built:?}");
}
