//! What a guest cannot do.

use comity_agent_delivery::DonorDelivery as _;
use comity_types::LeaseId;
use serde_json::{Value, json};

use crate::host_under_test::{HostUnderTest, LentLease, can_run};

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_nobody_on_the_host_and_has_no_way_out() {
    if !can_run("a_guest_is_nobody_on_the_host_and_has_no_way_out") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    let script = "while read line; do echo \"$line\"; done < /proc/self/status; \
                  for path in /proc/[0-9]*; do echo process $path; done";
    let log = output_of(&lease, "look", script).await;
    let field = |name: &str| log.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"));
    let capabilities = u64::from_str_radix(field("CapBnd:"), 16).unwrap();
    // capabilities(7): NET_RAW 13, SYS_ADMIN 21, MKNOD 27, NET_ADMIN 12, SYS_PTRACE 19, DAC_READ_SEARCH 2.
    for number in [2, 12, 13, 19, 21, 27] {
        assert_eq!(capabilities >> number & 1, 0, "capability {number}");
    }
    assert!(log.lines().filter(|line| line.starts_with("process ")).count() <= 2, "{log}");
    guest_is_root_on_the_host(&lease).await;
    guest_reaches_the_network_of_the_host(&lease).await;
    guest_fills_the_hosts_memory_through_podmans_files(&lease).await;
    guest_probes_the_hosts_network_by_names_of_images(&lease).await;
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_reaches_the_host_is_refused_by_its_field() {
    if !can_run("what_reaches_the_host_is_refused_by_its_field") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    guest_mounts_a_folder_of_the_host_through_a_link(&lease).await;
    guest_reads_a_file_of_the_host_as_an_image(&lease).await;
    for (more, expected) in [
        (json!({ "spec": { "hostNetwork": true } }), "spec.hostNetwork"),
        (json!({ "spec": { "hostPID": true } }), "spec.hostPID"),
        (
            container(&json!({ "securityContext": { "privileged": true } })),
            "spec.containers[0].securityContext.privileged",
        ),
        (
            container(&json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } })),
            "securityContext.capabilities.add",
        ),
        (container(&json!({ "imagePullPolicy": "Never" })), "spec.containers[0].imagePullPolicy"),
        (container(&json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] })), "env[0].name"),
        (volume(&json!({ "hostPath": { "path": "/" } })), "spec.volumes[0].hostPath"),
        (volume(&json!({ "persistentVolumeClaim": { "claimName": "c" } })), "spec.volumes[0].persistentVolumeClaim"),
        (volume(&json!({ "nfs": { "server": "s", "path": "/" } })), "spec.volumes[0].nfs"),
        (
            container(&json!({ "lifecycle": { "preStop": { "exec": { "command": ["x"] } } } })),
            "containers[0].lifecycle",
        ),
        (json!({ "spec": { "containers": [{}, { "name": "b", "image": "i" }] } }), "spec.containers"),
    ] {
        is_refused(&lease, more, expected).await;
    }
    host.assert_empty();
}

/// What a script prints as the container's root.
async fn output_of(lease: &LentLease, name: &str, script: &str) -> String {
    let root = json!({ "spec": { "securityContext": { "runAsUser": 0 } } });
    lease.run(name, script, root).await.unwrap();
    let (phase, _, log) = lease.ended(name).await;
    assert_eq!(phase, "Succeeded", "{log}");
    log
}

async fn guest_is_root_on_the_host(lease: &LentLease) {
    let log = output_of(lease, "users", "read a b c < /proc/self/uid_map; echo $a $b $c").await;
    let uids: Vec<u64> = log.trim().split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(uids[0] == 0 && uids[1] >= 65_536 && uids[2] == 65_536, "root is another user of the host: {uids:?}");
}

async fn guest_reaches_the_network_of_the_host(lease: &LentLease) {
    let log = output_of(lease, "network", "for path in /sys/class/net/*; do echo $path; done").await;
    assert_eq!(log, "/sys/class/net/lo\n");
}

async fn guest_fills_the_hosts_memory_through_podmans_files(lease: &LentLease) {
    // podman's own files in a container lie on the host's disk.
    let write = "for file in /etc/hosts /etc/hostname /etc/resolv.conf /run/.containerenv; do \
                 if (echo x >> $file) 2> /dev/null; then echo writable $file; fi; done; echo checked";
    assert_eq!(output_of(lease, "write", write).await, "checked\n");
}

async fn guest_probes_the_hosts_network_by_names_of_images(lease: &LentLease) {
    // No image comes from this host, or from its network.
    let foreign = json!({ "spec": { "containers": [{ "image": "127.0.0.1:1/owners:1" }] } });
    let error = lease.run("foreign", "true", foreign).await.map(drop).unwrap_err().to_string();
    let expected = "spec.containers[0].image: this host pulls from docker.io";
    assert!(error.contains(expected) && error.contains("and not from 127.0.0.1:1"), "{error}");
}

fn container(fields: &Value) -> Value {
    json!({ "spec": { "containers": [fields] } })
}

fn volume(source: &Value) -> Value {
    let mut volume = source.clone();
    volume["name"] = "v".into();
    json!({ "spec": { "volumes": [volume], "containers": [{ "volumeMounts": [
        { "name": "v", "mountPath": "/v", "subPath": "x" }] }] } })
}

async fn is_refused(lease: &LentLease, more: Value, expected: &str) {
    let error = lease.run("x", "true", more.clone()).await.map(drop).unwrap_err().to_string();
    assert!(error.contains(expected), "{more}: {error}");
}

async fn guest_mounts_a_folder_of_the_host_through_a_link(lease: &LentLease) {
    is_refused(lease, volume(&json!({ "emptyDir": {} })), "volumeMounts[0].subPath").await;
}

async fn guest_reads_a_file_of_the_host_as_an_image(lease: &LentLease) {
    for image in ["--privileged", "oci:/etc", "docker-archive:/etc/passwd", "dir:etc"] {
        is_refused(lease, container(&json!({ "image": image })), "spec.containers[0].image: \"").await;
    }
}
