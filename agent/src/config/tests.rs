#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

fn read(text: &str) -> Result<Config, ConfigError> {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("agent.yaml");
    std::fs::write(&path, text).unwrap();
    Config::read(&path)
}

#[test]
fn what_is_dumped_reads_back() {
    let text = "stateDir: /tmp/a\ninventoryFile: /tmp/nodes.yaml\nbrokers: ['b:7443']\nsharing:\n  maxLentGpus: \
        4\nfabric:\n  endpoints: ['gw:0']\n  mode: tun\n  tun: {mtu: 1380}\n";
    let config = read(text).unwrap();
    config.check().unwrap();
    assert_eq!(config.sharing.max_lent_gpus, Some(4));
    let tun = TunSettings { mtu: 1380, ..TunSettings::default() };
    assert_eq!(config.fabric.fabric_mode(), FabricMode::Tun(tun));
    assert_eq!(config.fabric_endpoints("0.0.0.0:5".parse().unwrap()), ["gw:5"]);
    assert_eq!(read(&config.dump()).unwrap(), config);
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_field_and_line() {
    for (text, parts) in [
        ("sharing:\n  maxLentGpus: many\n", ["sharing.maxLentGpus", "line 2", "many"]),
        ("fabric:\n  keepaliveSeconds: [1]\n", ["fabric.keepaliveSeconds", "line 2", "[1]"]),
        ("burst: {enabled: perhaps}\n", ["burst.enabled", "line 1", "perhaps"]),
        ("adminListen: localhost\n", ["adminListen", "line 1", "localhost"]),
        ("stateDir: /a\nliqo:\n  podCidrs:\n    - 10.0.0.0\n", ["liqo.podCidrs[0]", "line 4", "10.0.0.0"]),
        ("burst:\n  enabeld: true\n", ["burst", "line 2", "enabeld"]),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn advice_for_programmers_is_left_out() {
    for text in ["stateDir: /a\n---\nstateDir: /b\n", "a: [", "\t", "burst: {enabled: yes}\n", "stateDir: null\n"] {
        let Err(error) = read(text) else { continue };
        let error = error.to_string();
        let advice = ["from_str", "Options", "Deserialize", "serde", "with_"];
        assert!(!advice.iter().any(|word| error.contains(word)) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn all_mistakes_of_the_file_are_reported_with_the_nearest_names() {
    let text = "stateDri: /a\nfabric:\n  keepAliveSecond: 5\nsharing:\n  maxLentGpus: many\nlog: {fliter: info}\n";
    let error = read(text).unwrap_err().to_string();
    for part in [
        "did you mean \"stateDir\"?",
        "line 1",
        "did you mean \"keepaliveSeconds\"?",
        "line 3",
        "sharing.maxLentGpus: expected a whole number at line 5",
        "did you mean \"filter\"?",
        "line 6",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn all_invalid_values_are_reported_together() {
    let error =
        read("kubernetes: {}\nliqo: {namespace: Liqo, apiServer: nowhere}\nburst: {maxGpus: 0, maxRequests: 0}\n");
    let error = error.unwrap().check().unwrap_err().to_string();
    for field in ["liqo.namespace", "liqo.apiServer", "burst.maxGpus", "burst.maxRequests"] {
        assert!(error.contains(field), "{field}: {error}");
    }
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn sharing_settings_are_checked() {
    let with = |source: &str, sharing: &str| read(&format!("{source}\nsharing: {{{sharing}}}\n")).unwrap().check();
    with("kubernetes: {}", "hold: true").unwrap();
    for (source, sharing, field) in [
        ("inventoryFile: /tmp/nodes.yaml", "hold: true", "sharing.hold"),
        ("inventoryFile: /tmp/nodes.yaml", "cleanNodes: true", "sharing.cleanNodes"),
        ("kubernetes: {}", "hold: true, placeholderImage: ''", "sharing.placeholderImage"),
        ("kubernetes: {}", "reclaimForPending: {afterSeconds: 0}", "sharing.reclaimForPending.afterSeconds"),
        ("kubernetes: {}", "reclaimForPending: {namespaces: [Team]}", "sharing.reclaimForPending.namespaces"),
    ] {
        let error = with(source, sharing).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn canaries_need_an_image_and_pods() {
    let with = |source: &str, canary: &str| read(&format!("{source}\ncanary: {canary}\n")).unwrap();
    let config = with("kubernetes: {}", "{image: registry.example/canary:1}");
    config.check().unwrap();
    assert_eq!(read(&config.dump()).unwrap(), config);
    assert_eq!(config.network_policies(), "proved on each node before it lends");
    let accepted = with("kubernetes: {}", "{image: a, networkPolicies: not-enforced}");
    assert_eq!(accepted.network_policies(), "not enforced: guests reach this cluster's networks");
    assert_eq!(
        read("kubernetes: {}\n").unwrap().network_policies(),
        "not proved: guests may reach this cluster's networks"
    );
    assert_eq!(read("kubernetes: {}\nsharing: {enabled: false}\n").unwrap().network_policies(), "");
    for (source, canary, field) in [
        ("inventoryFile: /tmp/nodes.yaml", "{image: a}", "canaries are pods"),
        ("kubernetes: {}", "{}", "canary.image"),
        ("kubernetes: {}", "{image: a, everySeconds: 5}", "canary.everySeconds"),
    ] {
        let error = with(source, canary).check().unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn data_settings_are_checked_and_become_a_section_of_the_offer() {
    let text = |data: &str| format!("inventoryFile: /tmp/nodes.yaml\ndata: {data}\n");
    assert_eq!(read(&text("{}")).unwrap().data.site(), None);
    let config = read(&text("{datasets: [laion], egressMbits: 10000, egressMbitsTo: {eos: 100000}}")).unwrap();
    config.check().unwrap();
    let site = config.data.site().unwrap();
    assert_eq!((site.datasets, site.egress_mbits), (vec!["laion".to_owned()], 10_000));
    assert_eq!((site.egress_to[0].cluster.as_str(), site.egress_to[0].mbits), ("eos", 100_000));
    for (data, field) in [
        ("{datasets: ['a b']}", "data.datasets"),
        ("{egressMbits: 1000000000}", "data.egressMbits"),
        ("{egressMbitsTo: {eos: 0}}", "data.egressMbitsTo"),
        ("{egressMbitsTo: {E: 1}}", "data.egressMbitsTo"),
    ] {
        let error = read(&text(data)).unwrap().check().unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
}

#[test]
fn the_load_of_gpus_is_read_over_http_where_there_are_pods() {
    let config = read("kubernetes: {}\nusage: {dcgm: 'http://dcgm.gpu-operator:9400'}\n").unwrap();
    config.check().unwrap();
    assert_eq!(read(&config.dump()).unwrap(), config);
    assert!(config.dump().contains("http://dcgm.gpu-operator:9400/metrics"));
    let refused = read("usage: {dcgm: 'https://dcgm/metrics'}\n").unwrap_err().to_string();
    for part in ["usage.dcgm", "https://dcgm/metrics", "http://host:port/metrics"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let host = read("inventoryFile: /a\nusage: {dcgm: 'http://dcgm:9400'}\n").unwrap().check().unwrap_err().to_string();
    assert!(host.contains("usage.dcgm") && host.contains("no pods"), "{host}");
    let file = |text: &str| read(text).unwrap().usage.devices_token_file;
    assert_eq!(file("usage: {devicesTokenFile: /a/token}\n"), Path::new("/a/token"));
    assert_eq!(file("usage: {devices: 'http://readers:7484'}\n"), UsageSettings::default().devices_token_file);
}

#[test]
fn functions_of_networks_are_mapped_and_checked() {
    let text = |rdma: &str| format!("kubernetes: {{}}\nrdma: {rdma}\n");
    let config = read(&text("[{resource: nvidia.com/ib_vf, network: ib-fabric, gbits: 50}]")).unwrap();
    config.check().unwrap();
    assert_eq!((config.rdma[0].network.as_str(), config.rdma[0].gbits), ("ib-fabric", 50));
    assert_eq!(read(&config.dump()).unwrap(), config);
    for (rdma, said) in [
        ("[{resource: nvidia.com/ib_vf, network: ib, gbits: 0}]", ["rdma.gbits", "\"0\"", "1 to 1000000"]),
        ("[{resource: ib_vf, network: ib, gbits: 5}]", ["rdma.resource", "ib_vf", "as in nvidia.com/ib_vf"]),
        ("[{resource: nvidia.com/gpu, network: ib, gbits: 5}]", ["rdma.resource", "nvidia.com/gpu", "counts GPUs"]),
        ("[{resource: a.b/c, network: 'i b', gbits: 5}]", ["rdma.network", "i b", "without spaces"]),
        (
            "[{resource: a.b/c, network: ib, gbits: 5}, {resource: a.b/c, network: eth, gbits: 5}]",
            ["rdma.resource", "a.b/c", "listed twice"],
        ),
    ] {
        let error = read(&text(rdma)).unwrap().check().unwrap_err().to_string();
        assert!(said.iter().all(|part| error.contains(part)), "{rdma}: {error}");
    }
    let unknown = read(&text("[{resource: a.b/c, network: ib, gbit: 5}]")).unwrap_err().to_string();
    assert!(unknown.contains("rdma[0]") && unknown.contains("gbit"), "{unknown}");
    let of_a_file = "inventoryFile: /a\nrdma: [{resource: a.b/c, network: ib, gbits: 5}]\n";
    assert!(read(of_a_file).unwrap().check().unwrap_err().to_string().contains("inventory file"));
}

#[test]
fn cutting_names_the_config_map_of_the_mig_manager() {
    let text = |mig: &str| format!("kubernetes: {{}}\nmig: {mig}\n");
    let config = read(&text("{repartition: true, configMap: gpu-operator/mig-parted-config}")).unwrap();
    config.check().unwrap();
    assert_eq!(config.mig.namespace_and_name(), Some(("gpu-operator", "mig-parted-config")));
    assert_eq!((config.mig.key.as_str(), config.mig.empty_seconds), ("config.yaml", 300));
    assert_eq!(read(&config.dump()).unwrap(), config);
    assert!(!read("kubernetes: {}\n").unwrap().mig.repartition, "off unless the owner wants it");
    for (mig, said) in [
        ("{repartition: true}", ["mig.configMap is missing", "NAMESPACE/NAME"]),
        ("{repartition: true, configMap: a/b/c}", ["mig.configMap", "\"a/b/c\""]),
        ("{repartition: true, configMap: a/b, key: ''}", ["mig.key", "config.yaml"]),
        ("{repartition: true, configMap: a/b, changeSeconds: 1}", ["mig.changeSeconds", "10 to 86400"]),
        ("{repartition: true, configMap: a/b, backoffSeconds: 0}", ["mig.backoffSeconds", "\"0\""]),
    ] {
        let error = read(&text(mig)).unwrap().check().unwrap_err().to_string();
        assert!(said.iter().all(|part| error.contains(part)), "{mig}: {error}");
    }
    let of_a_file = "inventoryFile: /a\nmig: {repartition: true, configMap: a/b}\n";
    assert!(read(of_a_file).unwrap().check().unwrap_err().to_string().contains("inventory file"));
}

#[test]
fn a_bad_configuration_is_one_sentence_that_names_the_field() {
    let error = read("stateDirectory: /tmp/a\n").unwrap_err().to_string();
    assert!(error.contains("stateDirectory") && !error.contains('\n'), "{error}");
    for (text, field) in [
        ("stateDir: /tmp/a\n", "kubernetes is missing: write kubernetes: {}"),
        ("kubernetes: {kubeconfig: ''}\n", "kubernetes.kubeconfig is missing: name the file"),
        ("inventoryFile: ''\n", "inventoryFile is missing: name the file"),
        ("inventoryFile: /a\nburst: {maxGpus: 0}\n", "burst.maxGpus \"0\" is refused: "),
        ("inventoryFile: /a\nkubernetes: {}\n", "inventoryFile"),
        ("inventoryFile: /a\nbrokers: ['nowhere']\n", "brokers"),
        ("inventoryFile: /a\nfabric: {endpoints: ['gw']}\n", "fabric.endpoints"),
        ("inventoryFile: /a\nfabric: {keepaliveSeconds: 0}\n", "fabric.keepaliveSeconds"),
        ("inventoryFile: /a\naccess: {listen: 0.0.0.0}\n", "access.listen"),
        ("inventoryFile: /a\naccess: {host: 'agent:1'}\n", "access.host"),
        ("inventoryFile: /a\nliqo: {enabled: true}\n", "liqo.enabled"),
        ("kubernetes: {}\nliqo: {namespace: Liqo}\n", "liqo.namespace"),
        ("kubernetes: {}\nliqo: {podCidrs: [10.0.0.1/8]}\n", "liqo.podCidrs"),
        ("kubernetes: {}\nliqo: {podCidrs: [0.0.0.0/0]}\n", "liqo.podCidrs"),
        ("kubernetes: {}\nliqo: {namespace: 'liqo-'}\n", "liqo.namespace"),
        ("kubernetes: {}\nliqo: {apiServer: 'api example:6443'}\n", "liqo.apiServer"),
        ("inventoryFile: /a\nfabric: {endpoints: ['gw example:1']}\n", "fabric.endpoints"),
        ("inventoryFile: /a\nbrokers: ['b example:7443']\n", "brokers"),
        ("kubernetes: {}\nburst: {cpuMilliPerGpu: 1000000001}\n", "burst.cpuMilliPerGpu"),
        ("kubernetes: {}\nburst: {memoryMibPerGpu: 99999999999}\n", "burst.memoryMibPerGpu"),
        ("kubernetes: {}\nliqo: {podMetrics: {listen: '0.0.0.0:7481'}}\n", "liqo.podMetrics.listen"),
        ("inventoryFile: /a\nadminListen: '127.0.0.1:7482'\nfabric: {mode: tun}\n", "the fabric's port"),
        (
            "inventoryFile: /a\nfabric: {mode: tun, listen: '0.0.0.0:7', tun: {overlay: {port: 7}}}\n",
            "fabric.tun.overlay.port",
        ),
        ("inventoryFile: /a\npinnedInstitutions: {poly: {keys: []}}\n", "pinnedInstitutions"),
        ("inventoryFile: /a\nrequireVouchers: true\n", "requireVouchers"),
        ("inventoryFile: /a\nlog: {filter: 'comity=loud'}\n", "log.filter"),
        ("kubernetes: {}\nliqo: {apiServer: 'https://a:1'}\n", "liqo.apiServer"),
        ("kubernetes: {}\nliqo: {tokenRotationSeconds: 14}\n", "liqo.tokenRotationSeconds"),
        ("kubernetes: {}\nliqo: {podMetrics: {service: {namespace: a, name: 'B'}}}\n", "liqo.podMetrics.service"),
        ("kubernetes: {}\nliqo: {network: liqo, podCidrs: [10.1.0.0/16]}\n", "liqo.podCidrs"),
        ("kubernetes: {}\nliqo: {gateway: {port: 0}}\n", "liqo.gateway.port"),
        ("kubernetes: {}\nliqo: {gateway: {nodePort: 30840}}\n", "liqo.gateway.nodePort"),
        ("kubernetes: {}\nliqo: {gateway: {serviceType: NodePort, nodePort: 80}}\n", "liqo.gateway.nodePort"),
        (
            "kubernetes: {}\nliqo: {gateway: {serviceType: ClusterIP, loadBalancerIp: 192.0.2.1}}\n",
            "liqo.gateway.loadBalancerIp",
        ),
        ("kubernetes: {}\nliqo: {gateway: {mtu: 1279}}\n", "liqo.gateway.mtu"),
        ("kubernetes: {}\nliqo: {gateway: {serverTemplate: 'A b'}}\n", "liqo.gateway.serverTemplate"),
        ("kubernetes: {}\nburst: {enabled: true}\n", "burst.enabled"),
        ("kubernetes: {}\nburst: {maxGpus: 0}\n", "burst.maxGpus"),
        ("inventoryFile: /a\nfabric: {mode: tun, tun: {mtu: 900}}\n", "fabric.tun.mtu"),
        ("inventoryFile: /a\nfabric: {tun: {name: 'a device/name'}}\n", "fabric.tun.name"),
        ("inventoryFile: /a\nfabric: {tun: {name: comity-fabric-0}}\n", "fabric.tun.name"),
        ("inventoryFile: /a\nfabric: {tun: {overlay: {vni: 0}}}\n", "fabric.tun.overlay.vni"),
        ("inventoryFile: /a\nfabric: {tun: {overlay: {port: 0}}}\n", "fabric.tun.overlay.port"),
    ] {
        let error = read(text).unwrap().check().unwrap_err().to_string();
        assert!(error.starts_with(field) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn a_cluster_belongs_to_one_pinned_institution() {
    let key = comity_runtime::IdentityKey::generate(&comity_runtime::SeededEntropy::new(1)).public();
    let pinned = |first: &str, second: &str| {
        let pin = |clusters: &str| format!("{{keys: ['{key}'], clusters: [{clusters}]}}");
        let (first, second) = (pin(first), pin(second));
        read(&format!("inventoryFile: /a\npinnedInstitutions: {{a: {first}, b: {second}}}\nrequireVouchers: true\n"))
    };
    let config = pinned("x, y", "z").unwrap();
    config.check().unwrap();
    assert!(config.pins().require_vouchers && config.pins().institutions["a"].clusters.contains("y"));
    let error = pinned("x, y", "y").unwrap().check().unwrap_err().to_string();
    assert!(error.contains("institutions a and b both list it"), "{error}");
    assert!(pinned("No Label", "z").unwrap().check().is_err());
}

/// The section of the book that lists all fields with their defaults.
#[test]
fn the_book_has_the_defaults() {
    let page = include_str!("../../../docs/join.md");
    let mut blocks = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let example = strict_yaml::read::<Config>(blocks.next().unwrap()).unwrap();
    example.check().unwrap();
    let said = strict_yaml::read::<Config>(blocks.next().unwrap()).unwrap();
    assert_eq!(said, Config::default());
}
