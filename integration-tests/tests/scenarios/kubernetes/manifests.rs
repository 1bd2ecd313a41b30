//! The manifests in `deploy/` are valid YAML, consistent, and grant only the documented rights. The scenario `pods`
//! tests that they work.

use std::path::{Path, PathBuf};

use comity_agent::config::{Config, UsageSettings};
use comity_agent::services::device_reader::DEVICE_READERS_AUDIENCE;
use comity_agent_liqo::donor::pod_metrics::PodMetricsSettings;
use comity_scenarios::deploy;
use serde_json::{Value, json};

fn yaml_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_yaml = path.extension().is_some_and(|kind| kind == "yaml") || path.ends_with("Kustomization");
        match path.is_dir() {
            // Pipelines of Git servers.
            true if path.ends_with("gitops") => {}
            true => yaml_files(&path, found),
            false if is_yaml => found.push(path),
            false => {}
        }
    }
}

fn documents(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// The one object of a kind and name in a file.
fn object(file: &str, kind: &str, name: &str) -> Value {
    let mut found = documents(&deploy().join(file));
    found.retain(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    assert_eq!(found.len(), 1, "{kind} {name} in {file}");
    found.remove(0)
}

#[test]
fn every_file_is_yaml_of_kubernetes_and_every_kustomization_finds_its_files() {
    let mut files = Vec::new();
    yaml_files(&deploy(), &mut files);
    assert!(files.len() > 10, "{files:?}");
    for file in files {
        let documents = documents(&file);
        assert!(!documents.is_empty(), "{}", file.display());
        for document in documents {
            assert!(document["apiVersion"].is_string() && document["kind"].is_string(), "{}", file.display());
            let patches =
                document["patches"].as_array().into_iter().flatten().filter_map(|patch| patch["path"].as_str());
            for named in document["resources"].as_array().into_iter().flatten().filter_map(Value::as_str).chain(patches)
            {
                assert!(file.with_file_name(named).exists(), "{} names {named}", file.display());
            }
        }
    }
}

/// Pod Security `restricted`, and more: no writable root, one user, one group.
fn is_restricted(pod: &Value) {
    assert_eq!(
        pod["securityContext"],
        json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"}})
    );
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[host].is_null(), "{host}");
    }
    let containers = ["initContainers", "containers"].map(|kind| pod[kind].as_array().cloned().unwrap_or_default());
    for container in containers.concat() {
        assert_eq!(
            container["securityContext"],
            json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
        );
        assert!(container["resources"]["limits"]["memory"].is_string(), "{container}");
        // Registries that the user must replace: nobody can push an image there.
        assert!(container["image"].as_str().unwrap().starts_with("registry.example/comity-"), "{container}");
    }
    for volume in pod["volumes"].as_array().into_iter().flatten() {
        assert!(volume["hostPath"].is_null(), "{volume}");
    }
}

#[test]
fn brokers_have_no_rights_in_their_cluster() {
    let set = object("broker/brokers.yaml", "StatefulSet", "comity-broker");
    let pod = &set["spec"]["template"]["spec"];
    is_restricted(pod);
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert!(pod["serviceAccountName"].is_null());
    // Only the first init container sees the founding credentials.
    let running = pod["containers"].as_array().unwrap();
    assert!(running.iter().all(|container| !container["volumeMounts"].to_string().contains("founding")), "{running:?}");
    let namespace = object("broker/brokers.yaml", "Namespace", "comity-brokers");
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
}

#[test]
fn brokers_admit_clients_brokers_and_monitoring() {
    let deny = object("broker/network-policy.yaml", "NetworkPolicy", "deny");
    assert_eq!(deny["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    let allow = object("broker/network-policy.yaml", "NetworkPolicy", "comity-broker");
    let brokers = json!({"podSelector": {"matchLabels": {"app.kubernetes.io/name": "comity-broker"}}});
    for rule in allow["spec"]["ingress"].as_array().unwrap() {
        let from = match rule["ports"][0]["port"].as_str().unwrap() {
            "client" => Value::Null,
            "raft" => json!([brokers]),
            "admin" => json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]),
            other => panic!("nobody needs {other}"),
        };
        assert_eq!((rule["ports"].as_array().unwrap().len(), &rule["from"]), (1, &from));
    }
}

/// The agent's configuration in a file's ConfigMap, as the agent reads it.
fn shipped_config(file: &str) -> Config {
    let map = object(file, "ConfigMap", "comity-agent");
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("agent.yaml");
    std::fs::write(&path, map["data"]["agent.yaml"].as_str().unwrap()).unwrap();
    let config = Config::read(&path).unwrap();
    config.check().unwrap();
    config
}

#[test]
fn the_agent_has_its_account_and_nothing_else() {
    let deployment = object("agent/netstack/agent.yaml", "Deployment", "comity-agent");
    assert_eq!(deployment["spec"]["strategy"], json!({"type": "Recreate"}));
    let pod = &deployment["spec"]["template"]["spec"];
    is_restricted(pod);
    assert_eq!(pod["serviceAccountName"], "comity-agent");
    shipped_config("agent/netstack/agent.yaml");
}

/// One folder installs everything beside Liqo, and the API server reaches the webhook.
#[test]
fn beside_liqo_one_folder_has_every_right_and_the_webhook_is_found() {
    let rights = documents(&deploy().join("agent/Kustomization")).remove(0);
    let listed: Vec<_> = rights["resources"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for entry in std::fs::read_dir(deploy().join("agent")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // The donor writes its own names and programs into these, or chooses them by usage.devices.
        let is_optional = matches!(name.as_str(), "mig.yaml" | "clean.yaml" | "devices.yaml" | "kueue.yaml");
        assert!(
            is_optional || !name.ends_with(".yaml") || listed.contains(&name.as_str()),
            "{name} is not in {listed:?}"
        );
    }
    let all = documents(&deploy().join("liqo/Kustomization")).remove(0);
    assert_eq!(all["resources"], json!(["../crds", "../agent", "../agent/tun"]));

    let config = shipped_config("liqo/config.yaml");
    let webhook = config.webhook.unwrap();
    let service = webhook.service.unwrap();
    let shipped = object("agent/netstack/agent.yaml", "Service", &service.name);
    assert_eq!(shipped["metadata"]["namespace"], service.namespace.as_str());
    assert_eq!(shipped["spec"]["ports"][0]["port"], service.port);
    assert_eq!(shipped["spec"]["ports"][0]["targetPort"], webhook.listen.port());
    let metrics = PodMetricsSettings::default();
    let shipped_metrics = object("liqo/pod-metrics/pod-metrics.yaml", "Service", &metrics.service.name);
    assert_eq!(shipped_metrics["metadata"]["namespace"], metrics.service.namespace.as_str());
    assert_eq!(shipped_metrics["spec"]["ports"][0]["targetPort"], metrics.listen.port());
    let deployment = object("agent/netstack/agent.yaml", "Deployment", "comity-agent");
    for service in [shipped, shipped_metrics] {
        // An API server cannot call a Service without an address.
        assert!(service["spec"]["clusterIP"].is_null());
        assert_eq!(service["spec"]["selector"], deployment["spec"]["template"]["metadata"]["labels"]);
    }
}

#[test]
fn a_gateway_has_one_capability_and_one_device() {
    let patch = object("agent/tun/gateway.yaml", "Deployment", "comity-agent");
    let pod = &patch["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["nodeSelector"], json!({"comity.dev/gateway": "true"}));
    let [agent] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    // An overlay of the other: capabilities that the base drops stay dropped.
    assert_eq!(agent["securityContext"], json!({"capabilities": {"add": ["NET_ADMIN"]}}));
    assert_eq!(pod["volumes"], json!([{"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}}]));
}

#[test]
fn the_agent_of_a_node_has_one_capability_and_sees_one_config_map() {
    let file = "agent/tun/nodes.yaml";
    let set = object(file, "DaemonSet", "comity-agent-node");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!((&pod["hostNetwork"], &pod["hostPID"]), (&json!(true), &Value::Null));
    let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let elsewhere = json!({"key": "comity.dev/gateway", "operator": "NotIn", "values": ["true"]});
    assert_eq!(affinity["nodeSelectorTerms"][0]["matchExpressions"][0], elsewhere);
    assert_eq!(affinity["nodeSelectorTerms"].as_array().unwrap().len(), 1, "terms are alternatives");
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    let [node] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    assert_eq!(
        node["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}})
    );
    assert!(pod["volumes"].is_null() && node["volumeMounts"].is_null(), "{pod}");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        assert_eq!(node[probe]["httpGet"]["host"], "127.0.0.1");
    }

    for (role, account, verbs) in [
        ("comity-agent-fabric", "comity-agent", json!(["get", "create", "patch"])),
        ("comity-agent-node", "comity-agent-node", json!(["get", "list", "watch"])),
    ] {
        let one = json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["comity-fabric"], "verbs": verbs}]);
        assert_eq!(object(file, "Role", role)["rules"], one);
        let subjects = json!([{"kind": "ServiceAccount", "name": account, "namespace": "comity-system"}]);
        assert_eq!(object(file, "RoleBinding", role)["subjects"], subjects);
    }
    assert_eq!(pod["serviceAccountName"], "comity-agent-node");
    let kinds: Vec<Value> = documents(&deploy().join(file)).iter().map(|document| document["kind"].clone()).collect();
    assert_eq!(kinds.len(), 6, "no rights beside these: {kinds:?}");
}

/// A standby's rights are to objects that the manifest makes, by name; none lets it create another.
#[test]
fn replicas_share_one_lease_and_one_secret() {
    let file = "agent/standby/rbac.yaml";
    let role = object(file, "Role", "comity-agent-standby");
    let rights: Vec<_> =
        role["rules"].as_array().unwrap().iter().map(|rule| (&rule["resourceNames"], &rule["verbs"])).collect();
    assert_eq!(rights[0], (&json!(["comity-agent"]), &json!(["get", "update"])));
    assert_eq!(rights[1], (&json!(["comity-agent-state"]), &json!(["get", "update"])));
    assert_eq!(rights[2].0, &json!(["comity-agent", "comity-agent-webhook", "comity-agent-fabric"]));
    assert_eq!(rights.len(), 3);
    object(file, "Lease", "comity-agent");
    object(file, "Secret", "comity-agent-state");
    let policy = object("agent/admission.yaml", "ValidatingAdmissionPolicy", "comity-agent").to_string();
    assert!(policy.contains("request.name == 'comity-agent-state'"), "{policy}");
    let patch = object("agent/standby/replicas.yaml", "Deployment", "comity-agent");
    assert_eq!(patch["spec"]["replicas"], 2);
    let spread = &patch["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"];
    let term = &spread["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(term["topologyKey"], "kubernetes.io/hostname");
}

#[test]
fn a_device_reader_has_one_folder_of_its_node_and_reviews_tokens() {
    let file = "agent/devices.yaml";
    let pod = &object(file, "DaemonSet", "device-reader")["spec"]["template"]["spec"];
    assert_eq!(pod["serviceAccountName"], "device-reader");
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod[host].is_null(), "{host}");
    }
    let [reader] = pod["containers"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    assert_eq!(
        reader["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    let [volume] = pod["volumes"].as_array().unwrap().as_slice() else { panic!("{pod}") };
    let folder = "/var/lib/kubelet/pod-resources";
    assert_eq!(volume["hostPath"], json!({"path": folder, "type": "Directory"}));
    let mounts = json!([{"name": volume["name"], "mountPath": folder, "readOnly": true}]);
    assert_eq!(reader["volumeMounts"], mounts);

    let service = object(file, "Service", "device-readers");
    assert_eq!(service["spec"]["clusterIP"], "None", "the agent reads every address of the name");
    assert_eq!(
        service["spec"]["selector"],
        object(file, "DaemonSet", "device-reader")["spec"]["selector"]["matchLabels"]
    );
    assert_eq!(service["spec"]["ports"][0]["port"], reader["ports"][0]["containerPort"]);
    let role = object(file, "ClusterRole", "comity-device-reader");
    let reviews = json!([{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]);
    assert_eq!(role["rules"], reviews, "no other rights");
    let roles = documents(&deploy().join(file)).into_iter().filter(|document| {
        let kind = document["kind"].as_str().unwrap_or_default();
        kind.ends_with("Role") || kind.ends_with("Binding")
    });
    assert_eq!(roles.count(), 2, "one role, bound once");
}

/// Tenants' pods share a cluster's network with the readers.
#[test]
fn only_the_agent_reaches_device_readers_and_it_has_a_token_for_them() {
    let policy = object("agent/devices.yaml", "NetworkPolicy", "device-reader");
    let agents = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "comity-system"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "comity-agent"}},
    });
    let ingress = json!([{"ports": [{"protocol": "TCP", "port": 7484}], "from": [agents]}]);
    assert_eq!(policy["spec"], json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress}));

    let deployment = object("agent/netstack/agent.yaml", "Deployment", "comity-agent");
    let pod = &deployment["spec"]["template"]["spec"];
    let volumes = pod["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|volume| volume["name"] == "devices-token").unwrap();
    let token = &volume["projected"]["sources"][0]["serviceAccountToken"];
    assert_eq!(token["audience"], DEVICE_READERS_AUDIENCE);
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    let mount = mounts.iter().find(|mount| mount["name"] == "devices-token").unwrap();
    let file = Path::new(mount["mountPath"].as_str().unwrap()).join(token["path"].as_str().unwrap());
    assert_eq!(file, UsageSettings::default().devices_token_file);
}

/// The agent binds the role with rights on gateways and keys itself, in namespaces that an admission policy allows.
#[test]
fn the_agent_holds_no_right_on_gateways_but_in_tenant_namespaces() {
    let file = "agent/liqo-network.yaml";
    let role = object(file, "ClusterRole", "comity-liqo-network");
    for rule in role["rules"].as_array().unwrap() {
        assert_eq!(rule["apiGroups"], json!(["rbac.authorization.k8s.io"]));
        assert_eq!(rule["resourceNames"], json!(["comity-liqo-network-tenant"]));
    }
    let tenant = object(file, "ClusterRole", "comity-liqo-network-tenant");
    let secrets: Vec<&Value> =
        tenant["rules"].as_array().unwrap().iter().filter(|rule| rule["resources"] == json!(["secrets"])).collect();
    assert_eq!(secrets.iter().map(|rule| &rule["verbs"]).collect::<Vec<_>>(), [&json!(["get"])]);
    let bound = documents(&deploy().join(file)).into_iter().filter(|document| {
        let kind = document["kind"].as_str().unwrap_or_default();
        kind.ends_with("Binding") && document["roleRef"]["name"] == "comity-liqo-network-tenant"
    });
    assert_eq!(bound.count(), 0, "the agent binds it, and only where the policy comity-agent lets it");
    let policy = object("agent/admission.yaml", "ValidatingAdmissionPolicy", "comity-agent").to_string();
    assert!(policy.contains("variables.isTenant && request.resource.resource in ['secrets', 'rolebindings']"));
}

/// Users may answer a reclaim on a GpuLease but not write its status; NUMA objects are read-only.
#[test]
fn reclaims_and_numa_nodes_take_no_more_rights_than_they_need() {
    let edit = object("agent/burst.yaml", "ClusterRole", "comity-edit");
    let on_leases: Vec<&Value> = edit["rules"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|rule| rule["resources"].to_string().contains("gpuleases"))
        .collect();
    assert_eq!(on_leases, [&json!({"apiGroups": ["comity.dev"], "resources": ["gpuleases"], "verbs": ["patch"]})]);
    let read = object("agent/node-topology.yaml", "ClusterRole", "comity-node-topology");
    let only = json!({"apiGroups": ["topology.node.k8s.io"], "resources": ["noderesourcetopologies"], "verbs": ["get", "list", "watch"]});
    assert_eq!(read["rules"], json!([only]));
    // Claims of leases end with their namespace; the agent changes none.
    let claims = object("agent/dra.yaml", "ClusterRole", "comity-dra")["rules"][1].clone();
    assert_eq!(
        claims,
        json!({"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get", "list", "watch", "create"]})
    );
    // In namespaces that did not opt in: only annotations, and only of pods on a lease's node.
    let policy = object("agent/admission.yaml", "ValidatingAdmissionPolicy", "comity-agent-burst").to_string();
    assert!(policy.contains("oldObject.spec.nodeName.matches('^lease-[0-9]+$')"), "{policy}");
}
