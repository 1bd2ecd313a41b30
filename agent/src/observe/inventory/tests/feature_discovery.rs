//! Label sets that NVIDIA's GPU Feature Discovery 0.19 wrote on a stand-in NVML library, with the counts that NVIDIA's
//! device plugin 0.19 gave a kubelet of the same machine.

use super::*;

/// What is expected of one node.
struct Case {
    /// File in `gfd/`.
    labels: &'static str,
    /// Resources: name, capacity, allocatable.
    counts: &'static [(&'static str, u32, u32)],
    /// The offered devices, one text each; or part of the reason why a resource is not offered, and no device is
    /// healthy.
    offered: Result<&'static [&'static str], &'static str>,
}

const fn case(
    labels: &'static str,
    counts: &'static [(&'static str, u32, u32)],
    offered: Result<&'static [&'static str], &'static str>,
) -> Case {
    Case { labels, counts, offered }
}

const GPU: &str = "nvidia.com/gpu";
const SHARED: &str = "nvidia.com/gpu.shared";
const H100: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu whole";
const H100_SICK: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu whole unhealthy";
const H100_TS4: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu time-slicing 4";
const H100_TS4_RENAMED: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu.shared time-slicing 4";
const H100_MPS8: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu mps 8";
const H100_MPS8_RENAMED: &str = "NVIDIA-H100-80GB-HBM3 81559 MiB nvidia.com/gpu.shared mps 8";
const H100_2X3G: &str = "NVIDIA-H100-80GB-HBM3 40448 MiB nvidia.com/gpu mig 3g.40gb 2";
const MIXED: &[&str] = &[
    H100,
    "NVIDIA-H100-80GB-HBM3 9984 MiB nvidia.com/mig mig 1g.10gb+me 1",
    "NVIDIA-H100-80GB-HBM3 20096 MiB nvidia.com/mig mig 2g.20gb 1",
    "NVIDIA-H100-80GB-HBM3 40448 MiB nvidia.com/mig mig 3g.40gb 1",
];

const CASES: &[Case] = &[
    case("whole", &[(GPU, 2, 2)], Ok(&[H100, H100])),
    case("whole", &[(GPU, 2, 1)], Ok(&[H100, H100_SICK])),
    case("whole", &[(GPU, 2, 0)], Ok(&[H100_SICK, H100_SICK])),
    case("ts4", &[(GPU, 8, 8)], Ok(&[H100_TS4, H100_TS4])),
    case("mps8", &[(GPU, 16, 16)], Ok(&[H100_MPS8, H100_MPS8])),
    case("ts4-renamed", &[(SHARED, 8, 8)], Ok(&[H100_TS4_RENAMED, H100_TS4_RENAMED])),
    case("mps8-renamed", &[(SHARED, 16, 16)], Ok(&[H100_MPS8_RENAMED, H100_MPS8_RENAMED])),
    // A new configuration on a running node: the kubelet keeps the old name with nothing allocatable.
    case("ts4-renamed", &[(GPU, 8, 0), (SHARED, 8, 8)], Ok(&[H100_TS4_RENAMED, H100_TS4_RENAMED])),
    case("ts4", &[(GPU, 8, 8), (SHARED, 8, 0)], Ok(&[H100_TS4, H100_TS4])),
    case("whole", &[(GPU, 2, 2), (SHARED, 8, 0)], Ok(&[H100, H100])),
    case("whole", &[(GPU, 2, 2), ("nvidia.com/mig-3g.40gb", 2, 0)], Ok(&[H100, H100])),
    case(
        "mig-mixed-me",
        &[(GPU, 1, 0), ("nvidia.com/mig-1g.10gb", 1, 1)],
        Ok(&["NVIDIA-H100-80GB-HBM3 9984 MiB nvidia.com/mig mig 1g.10gb+me 1"]),
    ),
    // The labels follow the plugin after seconds; until then nothing is offered as something else.
    case("whole", &[(GPU, 8, 8)], Err("describe 2")),
    case("whole", &[(GPU, 2, 0), (SHARED, 8, 8)], Err("labels describe another resource")),
    case("whole", &[(GPU, 2, 0), ("nvidia.com/mig-3g.40gb", 2, 2)], Err("no label nvidia.com/mig-3g.40gb.product")),
    case("ts4-one", &[(GPU, 5, 5)], Err("only some of its GPUs are shared")),
    case("two-kinds", &[(GPU, 2, 2)], Err("several kinds of GPU")),
    case("mig-none", &[(GPU, 2, 2)], Err("strategy is none")),
    case("mig-single", &[(GPU, 4, 4)], Ok(&[H100_2X3G, H100_2X3G])),
    case("mig-single-me", &[(GPU, 1, 1)], Ok(&["NVIDIA-H100-80GB-HBM3 9984 MiB nvidia.com/gpu mig 1g.10gb+me 1"])),
    case("mig-single-ts2", &[(GPU, 8, 8)], Err("time-sliced")),
    case("mig-single-different", &[(GPU, 2, 0)], Err("invalid MIG layout")),
    case("mig-single-empty", &[(GPU, 2, 0)], Err("invalid MIG layout")),
    case("mig-single-half", &[(GPU, 2, 0)], Err("invalid MIG layout")),
    case(
        "mig-mixed",
        &[
            (GPU, 1, 1),
            ("nvidia.com/mig-1g.10gb", 1, 1),
            ("nvidia.com/mig-2g.20gb", 1, 1),
            ("nvidia.com/mig-3g.40gb", 1, 1),
        ],
        Ok(MIXED),
    ),
    case("mig-mixed-ts2", &[("nvidia.com/mig-3g.40gb", 2, 2)], Err("time-sliced")),
    case("nvl", &[(GPU, 2, 2)], Ok(&["NVIDIA-B200 183359 MiB nvidia.com/gpu whole in a clique"; 2])),
    case("rtx", &[(GPU, 1, 1)], Ok(&["NVIDIA-GeForce-RTX-4090 24564 MiB nvidia.com/gpu whole"])),
    case("nogpus", &[], Ok(&[])),
];

fn raw(case: &Case) -> Value {
    let path = format!("{}/src/observe/inventory/tests/gfd/{}.txt", env!("CARGO_MANIFEST_DIR"), case.labels);
    let mut node = raw_node("gpu-1");
    let labels = std::fs::read_to_string(path).unwrap();
    node["metadata"]["labels"] = labels.lines().map(|line| line.split_once('=').unwrap()).collect();
    set_counts(&mut node, &[]);
    for (resource, capacity, allocatable) in case.counts {
        node["status"]["capacity"][resource] = json!(capacity.to_string());
        node["status"]["allocatable"][resource] = json!(allocatable.to_string());
    }
    node
}

fn text(device: &Device) -> String {
    let mode = match mode(device) {
        sharing::Mode::Exclusive(_) => "whole".to_owned(),
        sharing::Mode::TimeSlicing(slices) => format!("time-slicing {}", slices.replicas),
        sharing::Mode::Mps(mps) => format!("mps {}", mps.shares),
        sharing::Mode::Mig(mig) => format!("mig {} {}", mig.instances[0].profile, mig.instances[0].count),
        sharing::Mode::Fractional(_) => "fractional".to_owned(),
    };
    let unhealthy = if device.healthy { "" } else { " unhealthy" };
    let clique = if device.nvlink_clique.is_empty() { "" } else { " in a clique" };
    let (product, memory, resource) = (&device.product_name, device.memory_mib, &device.resource_name);
    format!("{product} {memory} MiB {resource} {mode}{unhealthy}{clique}")
}

#[test]
fn labels_of_nvidias_own_programs_give_these_devices() {
    for case in CASES {
        let built = look_with(&[raw(case)], &[], &Guests::default(), &LocalReserve::default());
        let devices: Vec<String> = built.nodes.iter().flat_map(|node| &node.devices).map(text).collect();
        let place = format!("{} with {:?}", case.labels, case.counts);
        match case.offered {
            Ok(expected) => {
                assert_eq!(devices, expected, "{place}");
                assert_eq!(built.not_offered, [], "{place}");
            }
            Err(reason) => {
                let healthy = built.nodes.iter().flat_map(|node| &node.devices).any(|device| device.healthy);
                assert!(!healthy, "{place}: {devices:?}");
                let reasons: Vec<&str> = built.not_offered.iter().map(|left| left.reason.as_str()).collect();
                assert!(reasons.len() == 1 && reasons[0].contains(reason), "{place}: {reasons:?}");
            }
        }
    }
}
