//! GPUs of AMD and Intel, by the labels that their labellers write.

use comity_proto::v1::sharing::Mode;

use super::*;

fn node(labels: Value, counts: &[(&str, &str)]) -> Value {
    let mut node = raw_node("gpu-1");
    node["metadata"]["labels"] = labels;
    set_counts(&mut node, counts);
    node
}

fn amd(partition: &str) -> Value {
    json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G",
        "amd.com/gpu.compute-memory-partition": partition })
}

fn intel(count: &str) -> Value {
    json!({ "gpu.intel.com/product": "Max_1550", "gpu.intel.com/family": "Max_Series", "gpu.intel.com/device.count": count })
}

/// The reason why a node's only resource is not offered.
fn reason(node: &Value) -> String {
    let built = look_with(std::slice::from_ref(node), &[], &one_lease(), &LocalReserve::default());
    assert!(built.nodes.iter().all(|node| node.devices.is_empty()), "{:?}", built.nodes);
    built.not_offered.iter().map(|not| not.reason.as_str()).collect::<Vec<_>>().join("\n")
}

#[test]
fn amd_gpus_are_offered_whole_only() {
    let nodes = build(&[node(amd("spx_nps1"), &[("amd.com/gpu", "8")])], &[]);
    assert_eq!((nodes[0].devices.len(), nodes[0].devices[0].memory_mib), (8, 192 * 1_024));
    let partitions = [
        node(amd("cpx_nps4"), &[("amd.com/gpu", "64")]),
        node(amd("cpx_nps4"), &[("amd.com/cpx_nps4", "64")]),
        node(amd("dpx_nps1"), &[("amd.com/dpx_nps1", "16")]),
    ];
    for partitioned in partitions {
        assert!(reason(&partitioned).contains("set their compute partition to spx"), "{partitioned}");
    }
}

#[test]
fn intel_gpus_are_whole_if_the_plugin_counts_each_once() {
    for resource in ["gpu.intel.com/i915", "gpu.intel.com/xe"] {
        let mut four = node(intel("4"), &[(resource, "4"), ("gpu.intel.com/i915_monitoring", "1")]);
        four["status"]["allocatable"][resource] = json!("3");
        let nodes = build(&[four], &[raw_pod("research", "a", "gpu-1", resource, 1)]);
        let devices = &nodes[0].devices;
        let healthy = devices.iter().filter(|device| device.healthy).count();
        assert_eq!((devices.len(), healthy, devices[0].memory_mib), (4, 3, 128 * 1_024));
        assert_eq!((devices[0].product_name.as_str(), devices[0].resource_name.as_str()), ("Max_1550", resource));
        assert!(matches!(mode(&devices[0]), Mode::Exclusive(_)));
        assert_eq!(local_use(&nodes[0]).iter().sum::<u32>(), 1_000);
    }
}

#[test]
fn intel_gpus_that_the_plugin_counts_several_times_are_time_slices() {
    let nodes = build(&[node(intel("2"), &[("gpu.intel.com/i915", "10")])], &[]);
    assert_eq!(nodes[0].devices.len(), 2);
    for device in &nodes[0].devices {
        assert!(matches!(mode(device), Mode::TimeSlicing(slices) if slices.replicas == 5));
    }
}

#[test]
fn intel_gpus_whose_sharing_is_unknown_are_not_offered() {
    let cases = [
        (json!({ "gpu.intel.com/product": "Max_1550" }), vec![("gpu.intel.com/i915", "4")], "Node Feature Discovery"),
        (json!({ "gpu.intel.com/device.count": "4" }), vec![("gpu.intel.com/i915", "4")], "Node Feature Discovery"),
        (intel("4"), vec![("gpu.intel.com/i915", "7")], "7 units of 4 devices"),
        (intel("4"), vec![("gpu.intel.com/i915", "3")], "3 units of 4 devices"),
        (intel("1"), vec![("gpu.intel.com/xe", "65")], "65 units of 1 devices"),
        (intel("2"), vec![("gpu.intel.com/i915", "1"), ("gpu.intel.com/xe", "1")], "two drivers"),
    ];
    for (labels, counts, part) in cases {
        let reason = reason(&node(labels, &counts));
        assert!(reason.contains(part), "{reason}");
    }
}
