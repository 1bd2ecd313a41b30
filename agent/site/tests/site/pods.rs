//! Pods of a lease, from their start to their end.

use std::time::{Duration, Instant};

use comity_agent_delivery::DonorDelivery as _;
use comity_agent_site::SiteSettings;
use comity_testkit::{OciRegistry, requirements};
use comity_types::LeaseId;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use serde_json::{Value, json};

use crate::host_under_test::{HostUnderTest, IMAGE, LentLease, can_run, has_ended, is_running};

/// Limits of a container.
fn limits(cpu: &str, memory: &str, gpus: u32) -> Value {
    json!({ "spec": { "terminationGracePeriodSeconds": 2, "containers": [{ "resources": {
        "limits": { "cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus.to_string() },
    } }] } })
}

/// Of GPUs 0 to 2 the lease has the first and the last one.
async fn guest_takes_a_device_of_another_lease(lease: &LentLease) {
    let mut seen = Vec::new();
    for name in ["first", "second"] {
        lease.wait(name, is_running).await;
        let log = async {
            loop {
                let log = lease.pods().logs(name, &LogParams::default()).await.unwrap();
                if log.lines().count() > 1 {
                    return log.lines().next().unwrap_or_default().to_owned() + may_use(&log);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        seen.push(tokio::time::timeout(Duration::from_secs(30), log).await.unwrap());
    }
    assert_eq!(seen, ["gpu 0 may be used", "gpu 2 may be used"]);
}

/// What opening a device without a driver says.
fn may_use(log: &str) -> &'static str {
    if log.contains("No such device or address") { " may be used" } else { " is forbidden" }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_run_on_exactly_the_devices_of_their_lease() {
    if !can_run("pods_run_on_exactly_the_devices_of_their_lease") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0, 2]).await;
    let look = format!(
        "for gpu in 0 1 2; do if [ -e {path}$gpu ]; then echo gpu $gpu; (: < {path}$gpu) 2>&1; fi; done; exec /bin/sleep 60",
        path = host.gpu_path()
    );
    let look = look.as_str();
    for name in ["first", "second"] {
        lease.run(name, look, limits("500m", "64Mi", 1)).await.unwrap();
    }
    guest_takes_a_device_of_another_lease(&lease).await;
    let error = lease.run("third", look, limits("500m", "64Mi", 1)).await.unwrap_err().to_string();
    assert!(error.contains("exceeded quota") && error.contains("requests.nvidia.com/gpu=1"), "{error}");
    // Another lease has its own device, and sees no pod of this one.
    let other = host.lend(2, &[1]).await;
    other.run("first", look, limits("500m", "64Mi", 1)).await.unwrap();
    other.wait("first", is_running).await;
    assert_eq!(other.pods().list(&ListParams::default()).await.unwrap().items.len(), 1);
    // A device is free as soon as its pod is gone; a pod that asks for none sees none.
    lease.delete("second", 0).await;
    lease
        .run("none", look, json!({"spec": {"containers": [{"resources": {"limits": {"memory": "64Mi", "cpu": "1"}}}]}}))
        .await
        .unwrap();
    lease.wait("none", is_running).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(lease.pods().logs("none", &LogParams::default()).await.unwrap(), "");
    lease.run("third", look, limits("500m", "64Mi", 1)).await.unwrap();
    lease.wait("third", is_running).await;
    for id in [1, 2] {
        host.site().remove(LeaseId(id)).await.unwrap();
    }
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_its_variables_files_and_arguments_and_its_end_is_told() {
    if !can_run("a_pod_gets_its_variables_files_and_arguments_and_its_end_is_told") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    let script = "echo \"$GREETING|$TOKEN|$POD|$ALL_a|$0|$1\"; read line < /etc/settings/deep/config; echo $line; \
                  read line < /etc/keys/token; echo $line; read line < /scratch/made-by-init; echo $line; \
                  echo more > /scratch/x && exit 3";
    let more = json!({ "metadata": { "labels": { "app": "t" } }, "spec": {
        "initContainers": [{ "name": "prepare", "image": IMAGE,
            "command": ["/bin/sh", "-c", "echo prepared > /scratch/made-by-init"],
            "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }] }],
        "volumes": [
            { "name": "scratch", "emptyDir": {} },
            { "name": "shm", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
            { "name": "settings", "configMap": { "name": "settings", "items": [{ "key": "a", "path": "deep/config" }] } },
            { "name": "keys", "secret": { "secretName": "keys", "defaultMode": 256 } },
        ],
        "containers": [{
            "args": ["$(NAME)", "$$(NAME)"],
            "env": [
                { "name": "NAME", "value": "World" },
                { "name": "GREETING", "value": "hello $(NAME)" },
                { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "token" } } },
                { "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['app']" } } },
            ],
            "envFrom": [{ "prefix": "ALL_", "configMapRef": { "name": "settings" } }],
            "volumeMounts": [
                { "name": "scratch", "mountPath": "/scratch" }, { "name": "shm", "mountPath": "/dev/shm" },
                { "name": "settings", "mountPath": "/etc/settings" }, { "name": "keys", "mountPath": "/etc/keys" },
            ],
        }],
    }});
    lease.run("train", script, more).await.unwrap();
    // It waits for what it names.
    let waits = lease.wait("train", |status| {
        let state = status.container_statuses.as_ref().unwrap()[0].state.as_ref().unwrap();
        let waiting = state.waiting.as_ref();
        waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some("CreateContainerConfigError"))
    });
    let message = waits.await.container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap().message.unwrap();
    assert_eq!(message, "ConfigMap \"settings\" does not exist");
    let settings = json!({ "metadata": { "name": "settings" }, "data": { "a": "from a map" } });
    let maps = Api::<ConfigMap>::default_namespaced(lease.client.clone());
    maps.create(&PostParams::default(), &serde_json::from_value(settings).unwrap()).await.unwrap();
    let keys = json!({ "metadata": { "name": "keys" }, "stringData": { "token": "s3cret\nof two lines" } });
    let secrets = Api::<Secret>::default_namespaced(lease.client.clone());
    secrets.create(&PostParams::default(), &serde_json::from_value(keys).unwrap()).await.unwrap();
    let (phase, code, log) = lease.ended("train").await;
    assert_eq!((phase.as_str(), code), ("Failed", 3));
    let expected = "hello World|s3cret\nof two lines|t|from a map|World|$(NAME)\nfrom a map\ns3cret\nprepared\n";
    assert_eq!(log, expected);
    let tail = LogParams { tail_lines: Some(1), timestamps: true, ..LogParams::default() };
    let tail = lease.pods().logs("train", &tail).await.unwrap();
    let (time, line) = tail.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok() && line == "prepared\n", "{tail}");
    // No Secret is in a command line or a record of podman.
    let inspected = host.podman(&["inspect", "--type=container", host.podman(&["ps", "-aq"]).lines().next().unwrap()]);
    assert!(!inspected.contains("s3cret"), "{inspected}");
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_end_by_deletion_deadline_and_their_memory_limit_and_start_again_by_policy() {
    if !can_run("pods_end_by_deletion_deadline_and_their_memory_limit_and_start_again_by_policy") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0, 1, 2]).await;
    let small = limits("500m", "32Mi", 0);
    let with = |more: Value| {
        let mut limits = small.clone();
        limits["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        limits
    };
    // TERM, and time to save work.
    let polite = "trap 'echo saved; exit 0' TERM; echo up; while true; do /bin/sleep 0.1; done";
    lease.run("polite", polite, small.clone()).await.unwrap();
    let deaf = "trap '' TERM; echo up; while true; do /bin/sleep 0.1; done";
    lease.run("deaf", deaf, small.clone()).await.unwrap();
    let late = with(json!({ "activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 1 }));
    lease.run("late", "/bin/sleep 300", late).await.unwrap();
    let again = with(json!({ "restartPolicy": "OnFailure" }));
    lease.run("again", "exit 7", again).await.unwrap();
    let hungry = "x=xxxxxxxxxxxxxxxx; while true; do x=$x$x; done";
    lease.run("hungry", hungry, small.clone()).await.unwrap();

    lease.wait("polite", is_running).await;
    lease.pods().delete("polite", &DeleteParams::default().grace_period(20)).await.unwrap();
    let saved = lease.wait("polite", has_ended).await;
    assert_eq!(saved.phase.as_deref(), Some("Succeeded"), "it ended by itself: {saved:?}");
    lease.wait("deaf", is_running).await;
    let before = Instant::now();
    lease.delete("deaf", 1).await;
    assert!(before.elapsed() >= Duration::from_millis(900), "a grace of a second");
    let late = lease.wait("late", has_ended).await;
    assert_eq!((late.phase.as_deref(), late.reason.as_deref()), (Some("Failed"), Some("DeadlineExceeded")));
    let restarted =
        lease.wait("again", |status| status.container_statuses.as_ref().unwrap()[0].restart_count > 0).await;
    let container = &restarted.container_statuses.unwrap()[0];
    assert_eq!(container.last_state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 7);
    let (phase, code, _) = lease.ended("hungry").await;
    assert_eq!((phase.as_str(), code), ("Failed", 137), "its memory is limited");
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_outlive_the_agent() {
    if !can_run("pods_outlive_the_agent") {
        return;
    }
    let mut host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0, 1]).await;
    lease.run("long", "echo one; /bin/sleep 4; echo two", limits("500m", "64Mi", 1)).await.unwrap();
    lease.run("ends", "/bin/sleep 1; exit 5", limits("500m", "64Mi", 1)).await.unwrap();
    for name in ["long", "ends"] {
        lease.wait(name, is_running).await;
    }
    let uid = lease.pods().get("long").await.unwrap().metadata.uid;
    let token = lease.credential.clone();
    host.restart().await;
    let kubeconfig = comity_agent_delivery::render_kubeconfig(LeaseId(1), &token, &host.site().address().to_string());
    let client = crate::host_under_test::client(kubeconfig.expose()).await;
    let lease = LentLease { client, kubeconfig: kubeconfig.expose().clone(), credential: token };
    let (phase, code, _) = lease.ended("ends").await;
    assert_eq!((phase.as_str(), code), ("Failed", 5));
    let (phase, code, log) = lease.ended("long").await;
    assert_eq!((phase.as_str(), code, log.as_str()), ("Succeeded", 0, "one\ntwo\n"));
    assert_eq!(lease.pods().get("long").await.unwrap().metadata.uid, uid);
    let container = lease.pods().get("long").await.unwrap().status.unwrap().container_statuses.unwrap().remove(0);
    assert_eq!(container.restart_count, 0);
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_comes_from_a_registry_that_the_owner_named() {
    let test = "an_image_comes_from_a_registry_that_the_owner_named";
    if !can_run(test) || !requirements::met(test, &OciRegistry::missing()) {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let registry = OciRegistry::start(home.path()).unwrap();
    let registries = vec![registry.address.to_string()];
    let host = HostUnderTest::start_with(SiteSettings { registries, ..SiteSettings::default() }).await;
    let image = format!("{}/lab/busybox:1", registry.address);
    host.podman(&["push", "--quiet", IMAGE, &image]);
    let lease = host.lend(1, &[0]).await;
    let from = |image: &str| json!({ "spec": { "containers": [{ "image": image }] } });
    lease.run("pulled", "echo it runs", from(&image)).await.unwrap();
    let (phase, _, log) = lease.ended("pulled").await;
    assert_eq!((phase.as_str(), log.as_str()), ("Succeeded", "it runs\n"));
    lease.run("absent", "true", from(&format!("{}/lab/nothing:1", registry.address))).await.unwrap();
    let waits = lease.wait("absent", |status| serde_json::to_string(status).unwrap().contains("ErrImagePull")).await;
    let message = serde_json::to_value(waits).unwrap()["containerStatuses"][0]["state"]["waiting"]["message"].clone();
    assert!(message.as_str().unwrap().ends_with("there is no such image"), "{message}");
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

#[tokio::test(flavor = "multi_thread")]
async fn deep_folders_of_a_guest_are_removed_like_others() {
    if !can_run("deep_folders_of_a_guest_are_removed_like_others") {
        return;
    }
    let host = HostUnderTest::start().await;
    let lease = host.lend(1, &[0]).await;
    let more = json!({ "spec": { "volumes": [{ "name": "scratch", "emptyDir": {} }],
        "containers": [{ "volumeMounts": [{ "name": "scratch", "mountPath": "/scratch" }] }] } });
    lease.run("deep", "exec /bin/sleep 600", more).await.unwrap();
    lease.wait("deep", is_running).await;
    // Deeper than one descriptor for each level allows, under a common limit of 1,024.
    for folder in ["/scratch", "/bin"] {
        nest(&host, folder, 1_500);
    }
    lease.delete("deep", 0).await;
    host.site().remove(LeaseId(1)).await.unwrap();
    host.assert_empty();
}

/// Nests folders in a container, from outside: its image has no mkdir.
fn nest(host: &HostUnderTest, folder: &str, depth: u32) {
    let names = host.podman(&["ps", "--format={{.Names}}"]);
    let pid = host.podman(&["inspect", "--format={{.State.Pid}}", names.trim()]);
    let script = format!(
        "cd /proc/{}/root{folder} && i=0; while [ $i -lt {depth} ]; do mkdir d && cd -P d || exit 1; i=$((i+1)); done",
        pid.trim()
    );
    let status = std::process::Command::new("busybox").args(["sh", "-c", &script]).status().unwrap();
    assert!(status.success(), "{folder}");
}
