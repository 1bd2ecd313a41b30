//! What a guest cannot do.

use comity_agent_delivery::DonorDelivery as _;
use comity_types::LeaseId;
use serde_json::{Value, json};

use crate::host_under_test::{HostUnderTest, can_run};

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_is_nobody_on_the_host_and_has_no_way_out() {
    if !can_run("a_guest_is_nobody_on_the_host_and_has_no_way_out") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    let script = "while read line; do echo \"$line\"; done < /proc/self/status; read a b c < /proc/self/uid_map; \
                  echo uids $a $b $c; for path in /sys/class/net/*; do echo net $path; done; \
                  for path in /proc/[0-9]*; do echo process $path; done";
    lease.run("look", script, json!({ "spec": { "securityContext": { "runAsUser": 0 } } })).await.unwrap();
    let (phase, _, log) = lease.ended("look").await;
    assert_eq!(phase, "Succeeded", "{log}");
    let field = |name: &str| log.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1", "2"));
    let capabilities = u64::from_str_radix(field("CapBnd:"), 16).unwrap();
    // capabilities(7): NET_RAW 13, SYS_ADMIN 21, MKNOD 27, NET_ADMIN 12, SYS_PTRACE 19, DAC_READ_SEARCH 2.
    for number in [2, 12, 13, 19, 21, 27] {
        assert_eq!(capabilities >> number & 1, 0, "capability {number}");
    }
    let uids: Vec<u64> = field("uids ").split(' ').map(|id| id.parse().unwrap()).collect();
    assert!(uids[0] == 0 && uids[1] >= 65_536 && uids[2] == 65_536, "root is another user of the host: {uids:?}");
    let interfaces: Vec<&str> = log.lines().filter(|line| line.starts_with("net ")).collect();
    assert_eq!(interfaces, ["net /sys/class/net/lo"]);
    assert!(log.lines().filter(|line| line.starts_with("process ")).count() <= 2, "{log}");
    // podman's own files in a container lie on the host's disk.
    let write = "for file in /etc/hosts /etc/hostname /etc/resolv.conf /run/.containerenv; do \
                 if (echo x >> $file) 2> /dev/null; then echo writable $file; fi; done; echo checked";
    lease.run("write", write, json!({})).await.unwrap();
    assert_eq!(lease.ended("write").await.2, "checked\n");
    // No image comes from this host, or from its network.
    let foreign = json!({ "spec": { "containers": [{ "image": "127.0.0.1:1/owners:1" }] } });
    let error = lease.run("foreign", "true", foreign).await.map(drop).unwrap_err().to_string();
    let expected = "spec.containers[0].image: this host pulls from docker.io";
    assert!(error.contains(expected) && error.contains("and not from 127.0.0.1:1"), "{error}");
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
    let container = |fields: Value| json!({ "spec": { "containers": [fields] } });
    let volume = |source: Value| {
        let mut volume = source;
        volume["name"] = "v".into();
        json!({ "spec": { "volumes": [volume], "containers": [{ "volumeMounts": [
            { "name": "v", "mountPath": "/v", "subPath": "x" }] }] } })
    };
    for (more, expected) in [
        (json!({ "spec": { "hostNetwork": true } }), "spec.hostNetwork"),
        (json!({ "spec": { "hostPID": true } }), "spec.hostPID"),
        (
            container(json!({ "securityContext": { "privileged": true } })),
            "spec.containers[0].securityContext.privileged",
        ),
        (
            container(json!({ "securityContext": { "capabilities": { "add": ["SYS_ADMIN"] } } })),
            "securityContext.capabilities.add",
        ),
        (container(json!({ "imagePullPolicy": "Never" })), "spec.containers[0].imagePullPolicy"),
        (container(json!({ "env": [{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "all" }] })), "env[0].name"),
        (container(json!({ "image": "--privileged" })), "spec.containers[0].image"),
        (container(json!({ "image": "oci:/etc" })), "spec.containers[0].image"),
        (container(json!({ "image": "docker-archive:/etc/passwd" })), "spec.containers[0].image"),
        (volume(json!({ "hostPath": { "path": "/" } })), "spec.volumes[0].hostPath"),
        (volume(json!({ "persistentVolumeClaim": { "claimName": "c" } })), "spec.volumes[0].persistentVolumeClaim"),
        (volume(json!({ "emptyDir": {} })), "volumeMounts[0].subPath"),
        (volume(json!({ "nfs": { "server": "s", "path": "/" } })), "spec.volumes[0].nfs"),
        (container(json!({ "lifecycle": { "preStop": { "exec": { "command": ["x"] } } } })), "containers[0].lifecycle"),
        (json!({ "spec": { "containers": [{}, { "name": "b", "image": "i" }] } }), "spec.containers"),
    ] {
        let error = lease.run("x", "true", more.clone()).await.map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
    host.assert_empty();
}
