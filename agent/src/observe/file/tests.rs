#![expect(clippy::unwrap_used, reason = "tests")]

use comity_types::is_printable;

use super::*;
use crate::observe::TEST_SALT;

const GOOD: &str = "\
nodes:
  - name: titan
    cpu: 32
    memory: 128Gi
    localUse: {cpu: 500m, memory: 2Gi, gpus: 1}
    gpus:
      - count: 2
        product: NVIDIA-GeForce-RTX-4090
        memoryMiB: 24564
        architecture: ada-lovelace
        computeCapability: 8.9
        driverVersion: 550.107.02
      - count: 1
        product: NVIDIA-A100-SXM4-40GB
        memoryMiB: 40960
        architecture: ampere
        computeCapability: \"8.0\"
        driverVersion: 550.107.02
        sharing:
          mig: {instances: {1g.5gb: 3, 4g.20gb: 1}}
";

fn read(text: &str) -> Result<Vec<v1::Node>, InventoryFileError> {
    parse(Path::new("inventory.yaml"), text, &TEST_SALT, &LocalReserve::default())
}

#[test]
fn a_file_describes_nodes_and_devices() {
    let node = &read(GOOD).unwrap()[0];
    assert_eq!(
        (node.id.as_str(), node.cpu_milli, node.memory_mib),
        (TEST_SALT.node_id("titan").as_str(), 32_000, 131_072)
    );
    assert_eq!((node.local_cpu_milli, node.local_memory_mib, node.schedulable), (500, 2_048, true));
    let used: Vec<u32> = node.devices.iter().map(|device| device.local_use_milli).collect();
    assert_eq!(used, [0, 0, 1_000]);
    assert_eq!((node.devices[0].cuda_compute_capability.as_str(), node.devices[2].index), ("8.9", 2));
    assert_eq!(node.devices[2].resource_name, "nvidia.com/mig");
}

#[test]
fn each_way_of_sharing_can_be_written() {
    for (sharing, part) in [
        ("exclusive", "Exclusive"),
        ("{timeSlicing: {replicas: 4}}", "replicas: 4"),
        ("{mps: {shares: 10}}", "shares: 10"),
        ("{fractional: {stepMilli: 50}}", "step_milli: 50"),
    ] {
        let text = GOOD.replace(
            "driverVersion: 550.107.02\n      - ",
            &format!("driverVersion: 550.107.02\n        sharing: {sharing}\n      - "),
        );
        let nodes = read(&text).unwrap();
        assert!(format!("{:?}", nodes[0].devices[0].sharing).contains(part), "{nodes:?}");
    }
}

#[test]
fn a_mig_layout_says_where_instances_are() {
    let layout =
        "{layout: [{profile: 3g.20gb, start: 4}, {profile: 1g.5gb, start: 0, local: true}], repartition: true}";
    let of = |mig: &str| {
        let nodes = read(&GOOD.replace("{instances: {1g.5gb: 3, 4g.20gb: 1}}", mig));
        nodes.map(|nodes| match nodes[0].devices[2].sharing.clone().unwrap().mode {
            Some(v1::sharing::Mode::Mig(mig)) => mig,
            other => panic!("{other:?}"),
        })
    };
    let mig = of(layout).unwrap();
    let given = mig.layout.unwrap();
    let instances: Vec<_> = given.instances.iter().map(|i| (i.profile.as_str(), i.start, i.local)).collect();
    assert_eq!(instances, [("3g.20gb", 4, false), ("1g.5gb", 0, true)]);
    assert!(given.repartition && mig.instances.is_empty());
    let idle = of("{layout: [], repartition: true}").unwrap().layout.unwrap();
    assert_eq!((idle.instances.len(), idle.repartition), (0, true));
    for (mig, part) in [
        ("{layout: []}", "instances in all 0"),
        ("{instances: {1g.5gb: 7}, repartition: true}", "repartition needs a layout"),
        ("{instances: {1g.5gb: 7}, layout: [{profile: 1g.5gb, start: 0}]}", "keep one of them"),
        ("{layout: [{profile: 1g.5gb, start: 8}]}", "start of 1g.5gb 8 is out of range"),
        ("{layout: [{profile: 1g.5gb, start: 3}, {profile: 2g.10gb, start: 3}]}", "two instances start at 3"),
    ] {
        let error = of(mig).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn errors_say_where_and_what() {
    for (from, to, line, part) in [
        ("localUse:", "localuse:", 5, "localuse"),
        ("128Gi", "128Gigs", 4, "is not an amount"),
        ("count: 2", "count: 0", 7, "1 to 128"),
        ("count: 2", "count: -2", 7, ""),
        ("1g.5gb: 3", "1g.5gb: 9", 20, "instances in all 10"),
        ("memoryMiB: 24564", "memoryMiB: lots", 9, ""),
    ] {
        let error = read(&GOOD.replace(from, to)).unwrap_err();
        let InventoryFileError::Wrong(mistakes) = &error else { panic!("{error}") };
        let InventoryMistake { line: at, column, .. } = &mistakes[0];
        assert!((line..=line + 1).contains(at) && *column >= 1, "{error}");
        assert!(error.to_string().starts_with("inventory.yaml:") && error.to_string().contains(part), "{error}");
    }
}

#[test]
fn one_reading_reports_all_mistakes() {
    let text = "\
nodes:
  - name: titan
    memory: 128Gigs
    loaclUse: {gpus: 1}
    gpus:
      - count: 200
        product: NVIDIA-GeForce-RTX-4090
        memoryMiB: 24564
        architecture: ada-lovelace
        drivreVersion: 550.107.02
        colour: green
";
    let error = read(text).unwrap_err();
    let said = error.to_string();
    assert!(said.ends_with("; and 5 more, which `comity-agent doctor` lists"), "{said}");
    let InventoryFileError::Wrong(mistakes) = error else { panic!("it can be read") };
    let found: Vec<_> = mistakes.iter().map(|mistake| (mistake.line, mistake.reason.as_str())).collect();
    for (line, part) in [
        (2, "cpu is missing; write it, as in cpu: \"64\""),
        (3, "memory \"128Gigs\" is not an amount"),
        (4, "unknown field loaclUse; did you mean localUse?"),
        (6, "computeCapability is missing"),
        (6, "driverVersion is missing"),
        (6, "count 200 is out of range"),
        (10, "unknown field drivreVersion; did you mean driverVersion?"),
        (11, "unknown field colour; the fields here are count, product"),
    ] {
        assert!(found.iter().any(|(at, reason)| *at == line && reason.contains(part)), "{part}: {found:#?}");
    }
    assert_eq!(found.len(), 8, "{found:#?}");
}

#[test]
fn the_sample_is_read_and_has_every_field() {
    let nodes = read(SAMPLE_INVENTORY).unwrap();
    assert_eq!(nodes.iter().map(|node| node.devices.len()).sum::<usize>(), 12);
    for field in mistakes::KNOWN_FIELDS.iter().copied().flatten() {
        assert!(SAMPLE_INVENTORY.contains(&format!("{field}:")), "{field}");
    }
}

#[test]
fn a_name_given_twice_is_refused() {
    let twice = format!("{GOOD}{}", GOOD.trim_start_matches("nodes:\n"));
    assert!(read(&twice).unwrap_err().to_string().contains("given twice"));
}

#[tokio::test]
async fn a_valid_change_is_read_and_an_invalid_one_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("inventory.yaml");
    let settings = InventorySettings { salt: TEST_SALT, reserve: LocalReserve::default(), rdma: Vec::new() };
    assert!(observe(&path, settings.clone(), RunsPods::Nowhere).await.is_err());
    std::fs::write(&path, GOOD).unwrap();
    let inventory = observe(&path, settings, RunsPods::Nowhere).await.unwrap();
    let mut nodes = inventory.nodes();
    assert_eq!(nodes.borrow_and_update().as_ref().unwrap()[0].cpu_milli, 32_000);
    std::fs::write(&path, "nodes: [").unwrap();
    tokio::time::sleep(POLL * 2).await;
    assert!(!nodes.has_changed().unwrap());
    std::fs::write(&path, GOOD.replace("cpu: 32", "cpu: 128")).unwrap();
    tokio::time::timeout(POLL * 5, nodes.changed()).await.unwrap().unwrap();
    assert_eq!(nodes.borrow().as_ref().unwrap()[0].cpu_milli, 128_000);
}

/// An HGX box as its owner writes it: two sockets of four GPUs each, all of them one NVLink clique.
const WIRED: &str = "\
nodes:
  - name: hgx
    cpu: 112
    memory: 2000Gi
    numa:
      0: {cpu: 56, memory: 1000Gi}
      1: {cpu: 56, memory: 1000Gi}
    rdma: {ib-fabric: 3200}
    enforces: [devices, numa]
    gpus:
      - {count: 4, product: H100, memoryMiB: 81559, architecture: hopper, computeCapability: \"9.0\", driverVersion: \"1\", numa: 0, nvlink: all}
      - {count: 4, product: H100, memoryMiB: 81559, architecture: hopper, computeCapability: \"9.0\", driverVersion: \"1\", numa: 1, nvlink: all}
";

#[test]
fn a_file_says_how_a_node_is_wired() {
    let node = &read(WIRED).unwrap()[0];
    let numa: Vec<_> = node.numa.iter().map(|has| (has.numa_node, has.cpu_milli, has.memory_mib)).collect();
    assert_eq!(numa, [(0, 56_000, 1_024_000), (1, 56_000, 1_024_000)]);
    assert_eq!(
        node.rdma,
        [v1::RdmaBandwidth { network: "ib-fabric".to_owned(), gbits: 3_200, ..v1::RdmaBandwidth::default() }]
    );
    let devices: Vec<_> = node.devices.iter().map(|device| device.numa_node).collect();
    assert_eq!(devices, [[Some(0); 4], [Some(1); 4]].concat());
    assert!(node.devices.iter().all(|device| device.nvlink_clique == "all"));
    assert_eq!(node.enforces, Some(v1::Enforcement { devices: true, numa: true }));
    let numa = &read(&WIRED.replace("[devices, numa]", "[numa]")).unwrap()[0];
    assert_eq!(numa.enforces, Some(v1::Enforcement { devices: false, numa: true }));
    let plain = &read(GOOD).unwrap()[0];
    assert!(plain.numa.is_empty() && plain.rdma.is_empty() && plain.devices[0].numa_node.is_none());
    assert_eq!(plain.enforces, None);
}

#[test]
fn invalid_wiring_is_named() {
    for (from, to, reason) in [
        ("numa: 1,", "numa: 2,", "numa 2 is no NUMA node of this node"),
        ("0: {cpu: 56,", "0: {cpu: 57,", "113000 thousandths of a core in all, and the node has 112000"),
        ("ib-fabric: 3200", "ib-fabric: 0", "ib-fabric has 0 Gbit/s; write 1 to 1000000"),
        ("nvlink: all", "nvlink: a b", "\"a b\" is not a name"),
        ("0: {cpu: 56,", "0: {cpu: many,", "cpu \"many\" is not an amount"),
        ("[devices, numa]", "[gpus]", "gpus"),
    ] {
        let error = read(&WIRED.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.starts_with("inventory.yaml:"), "{error}");
    }
}

#[test]
fn names_that_would_steer_a_terminal_are_refused() {
    for escape in ["\\e[2J", "\\u202e"] {
        let text = SAMPLE_INVENTORY.replacen("product: ", &format!("product: \"x{escape}\" # "), 1);
        let said = read(&text).unwrap_err().to_string();
        assert!(said.contains("product has control or invisible characters") && is_printable(&said), "{said}");
    }
}
