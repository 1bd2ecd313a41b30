//! The pod of a run. Pure.
//!
//! Its script waits for the working folder, runs the command, notes how it ended, and waits until the results are
//! fetched: a container that has ended gives out no files. It needs `sh`, `sleep`, and, to move files, `tar` and `find`
//! of the image.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::views::Lease;

/// Name of the pod and of its container.
pub(super) const NAME: &str = "run";
/// Folder of the command.
pub(super) const WORK: &str = "/workspace";
/// Its files steer the script: `sent`, `ready`, `pid`, `code` and `done`.
pub(super) const CONTROL: &str = "/comity";
/// Ending of the name by which quotas count devices of DRA drivers (kubernetes/api, core/v1, ResourceClaimsPerClass).
const CLAIMED_DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// Seconds between TERM and KILL. With the lease's term it is less than a minute, after which nothing is left of a run
/// whose client died.
const GRACE_S: u32 = 15;

/// Runs `"$@"`. Shells without job control start background commands with SIGINT ignored, which `env` undoes where it
/// can. A trap ends `wait`, so it is called until the command is gone. TERM to the script itself means that the pod is
/// deleted: nobody fetches results then.
const RUN_COMMAND: &str = r#"
cd /workspace || exit 126
pause() { sleep 0.2 2>/dev/null || sleep 1; }
trap 'exit 143' TERM
until [ -e /comity/ready ]; do pause; done
if env --default-signal=INT true 2>/dev/null; then set -- env --default-signal=INT "$@"; fi
trap 'is_over=1; kill -TERM $child 2>/dev/null' TERM
"$@" &
child=$!
echo $child >/comity/pid
wait $child; code=$?
while kill -0 $child 2>/dev/null; do wait $child; code=$?; done
[ -z "$is_over" ] || exit $code
echo $code >/comity/code
trap 'exit $code' TERM
left=3000
until [ -e /comity/done ] || [ $left = 0 ]; do pause; left=$((left - 1)); done
exit $code
"#;

/// Only waits: an interactive command runs beside it.
const WAIT_FOR_END: &str = r#"
trap 'exit 143' TERM
until [ -e /comity/done ]; do sleep 0.2 2>/dev/null || sleep 1; done
"#;

/// Starts the command. Files that are newer than `sent` are results. It is two seconds old, because BusyBox's `find`
/// compares whole seconds; what was sent has its times from here, which must be older: by [`SETTLED`].
pub(super) const BEGIN: &str =
    r#"touch -d "@$(($(date +%s) - 2))" /comity/sent 2>/dev/null || : >/comity/sent; : >/comity/ready"#;

/// Age of the files that were sent when the command starts.
pub(super) const SETTLED: Duration = Duration::from_secs(3);

/// The words of a shell that ends with the command's code once the command has ended, and prints it.
pub(super) const AWAIT_END: &str =
    "until [ -s /comity/code ]; do sleep 0.2 2>/dev/null || sleep 1; done; cat /comity/code";

/// What runs.
pub(super) struct Work<'a> {
    pub(super) image: &'a str,
    pub(super) command: &'a [String],
    pub(super) is_interactive: bool,
    /// Names and values.
    pub(super) env: &'a [(String, String)],
    pub(super) user: u32,
}

/// The pod, which uses everything that the lease has.
///
/// # Errors
/// [`Failure`] if the lease is not on one node.
pub(super) fn manifest(work: &Work<'_>, lease: &Lease) -> Result<Pod, Failure> {
    let placement = lease.placement.as_ref();
    let node = placement.and_then(|placement| match &placement.nodes[..] {
        [node] => Some(node),
        _ => None,
    });
    let (Some(placement), Some(node)) = (placement, node) else {
        return Err(Failure::refused("several-nodes", format!("{} is not on one node", lease.id))
            .remedy("a run is one container; use 'comity request submit' for work on several nodes"));
    };
    let mut resources = json!({});
    let mut claims = Vec::new();
    if placement.resource_name.ends_with(CLAIMED_DEVICES) {
        claims = (0..placement.resource_count).map(|index| format!("gpu-{index}")).collect();
        let names: Vec<Value> = claims.iter().map(|name| json!({ "name": name })).collect();
        resources["claims"] = Value::from(names);
    } else {
        resources["limits"][&placement.resource_name] = placement.resource_count.to_string().into();
    }
    for (name, amount) in [("cpu", format!("{}m", node.cpu_milli)), ("memory", format!("{}Mi", node.memory_mib))] {
        if !matches!(amount.as_str(), "0m" | "0Mi") {
            resources["limits"][name] = amount.clone().into();
            resources["requests"][name] = amount.into();
        }
    }
    let script = if work.is_interactive { WAIT_FOR_END } else { RUN_COMMAND };
    let mut command = ["/bin/sh", "-c", script, NAME].map(str::to_owned).to_vec();
    command.extend(work.command.iter().filter(|_| !work.is_interactive).cloned());
    let mut env = vec![json!({ "name": "HOME", "value": "/tmp" })];
    env.extend(work.env.iter().map(|(name, value)| json!({ "name": name, "value": value })));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": NAME },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": GRACE_S,
            // As Pod Security `restricted` requires it of leases.
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": work.user, "runAsGroup": work.user,
                "fsGroup": work.user, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "resourceClaims": claims.iter().map(|name| json!({ "name": name, "resourceClaimName": name })).collect::<Vec<_>>(),
            "containers": [{
                "name": NAME, "image": work.image, "command": command, "env": env, "workingDir": WORK,
                "resources": resources,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                "volumeMounts": [{ "name": "work", "mountPath": WORK }, { "name": "control", "mountPath": CONTROL }],
            }],
            "volumes": [{ "name": "work", "emptyDir": {} }, { "name": "control", "emptyDir": {} }],
        },
    });
    let pod = if claims.is_empty() { without_claims(pod) } else { pod };
    serde_json::from_value(pod).map_err(|error| Failure::refused("bad-pod", format!("the pod cannot be made: {error}")))
}

fn without_claims(mut pod: Value) -> Value {
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.remove("resourceClaims");
    }
    pod
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;

    use super::*;

    fn lease(resource: &str, nodes: u32) -> Lease {
        let node = |index: u32| v1::NodePlacement {
            node: format!("n{index}"),
            cpu_milli: 2_000,
            memory_mib: 4_096,
            ..v1::NodePlacement::default()
        };
        let placement = v1::Placement {
            donor: "centre".to_owned(),
            nodes: (0..nodes).map(node).collect(),
            resource_name: resource.to_owned(),
            resource_count: 2,
            ..v1::Placement::default()
        };
        Lease::from(v1::Lease { id: "lease-7".to_owned(), placement: Some(placement), ..v1::Lease::default() })
    }

    fn made(resource: &str, is_interactive: bool) -> Value {
        let command = ["python", "train.py"].map(str::to_owned);
        let env = [("EPOCHS".to_owned(), "3".to_owned())];
        let work = Work { image: "lab/torch:2", command: &command, is_interactive, env: &env, user: 1_000 };
        serde_json::to_value(manifest(&work, &lease(resource, 1)).expect("made")).expect("JSON")
    }

    #[test]
    fn the_pod_uses_the_whole_lease_and_passes_pod_security() {
        let pod = made("nvidia.com/gpu", false);
        let container = &pod["spec"]["containers"][0];
        assert_eq!(
            container["resources"]["limits"],
            json!({ "nvidia.com/gpu": "2", "cpu": "2000m", "memory": "4096Mi" })
        );
        let command: Vec<&str> =
            container["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        assert_eq!(command[3..], [NAME, "python", "train.py"]);
        assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["env"][1], json!({ "name": "EPOCHS", "value": "3" }));
        assert_eq!(pod["spec"]["resourceClaims"], Value::Null);
        let waits = made("nvidia.com/gpu", true);
        assert_eq!(
            waits["spec"]["containers"][0]["command"].as_array().map(Vec::len),
            Some(4),
            "the command runs beside it"
        );
    }

    #[test]
    fn claimed_devices_are_named() {
        let pod = made("gpu.nvidia.com.deviceclass.resource.k8s.io/devices", false);
        assert_eq!(pod["spec"]["resourceClaims"][1], json!({ "name": "gpu-1", "resourceClaimName": "gpu-1" }));
        let resources = &pod["spec"]["containers"][0]["resources"];
        assert_eq!(resources["claims"], json!([{ "name": "gpu-0" }, { "name": "gpu-1" }]));
        assert_eq!(resources["limits"], json!({ "cpu": "2000m", "memory": "4096Mi" }));
    }

    #[test]
    fn a_lease_on_several_nodes_is_refused() {
        let work = Work { image: "i", command: &[], is_interactive: false, env: &[], user: 1_000 };
        let failure = manifest(&work, &lease("nvidia.com/gpu", 2)).expect_err("two nodes");
        assert_eq!(failure.code, "several-nodes");
    }

    /// Starts the script of the pod here, with its folders below `folder`.
    fn start_script(folder: &std::path::Path, command: &str) -> std::process::Child {
        let path = |name: &str| folder.join(name).display().to_string();
        let script = RUN_COMMAND.replace(WORK, &path("work")).replace(CONTROL, &path("control"));
        let mut shell = std::process::Command::new("/bin/sh");
        shell.args(["-c", &script, NAME, "/bin/sh", "-c", command]).spawn().expect("started")
    }

    fn script_ends(command: &str, before: impl FnOnce(&std::path::Path)) -> (Option<i32>, String) {
        let folder = tempfile::tempdir().expect("made");
        for name in ["work", "control"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        let mut child = start_script(folder.path(), command);
        let control = folder.path().join("control");
        std::fs::write(control.join("ready"), "").expect("written");
        before(&control);
        let until = |name: &str| {
            while std::fs::read_to_string(control.join(name)).unwrap_or_default().is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            std::fs::read_to_string(control.join(name)).expect("there")
        };
        let code = until("code");
        std::fs::write(control.join("done"), "").expect("written");
        (child.wait().expect("ended").code(), code.trim().to_owned())
    }

    #[test]
    fn the_script_ends_with_the_commands_code() {
        assert_eq!(script_ends("exit 7", |_| ()), (Some(7), "7".to_owned()));
    }

    #[test]
    fn a_deleted_pod_ends_with_its_command() {
        let folder = tempfile::tempdir().expect("made");
        for name in ["work", "control"] {
            std::fs::create_dir(folder.path().join(name)).expect("made");
        }
        std::fs::write(folder.path().join("control/ready"), "").expect("written");
        let mut child = start_script(folder.path(), "while :; do sleep 0.05; done");
        while std::fs::read_to_string(folder.path().join("control/pid")).unwrap_or_default().is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let killed = std::process::Command::new("kill").arg(child.id().to_string()).status();
        assert!(killed.expect("ran").success());
        assert_eq!(child.wait().expect("ended").code(), Some(143));
    }

    #[test]
    fn the_command_hears_ctrl_c_as_its_own_signal() {
        let command = "trap 'exit 42' INT; echo >$0.up; while :; do sleep 0.05; done";
        let ended = script_ends(command, |control| {
            let pid = || std::fs::read_to_string(control.join("pid")).unwrap_or_default();
            while pid().trim().is_empty() {
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            // The trap is set a moment after the start.
            std::thread::sleep(std::time::Duration::from_millis(300));
            let killed = std::process::Command::new("kill").args(["-INT", pid().trim()]).status();
            assert!(killed.expect("ran").success());
        });
        assert_eq!(ended, (Some(42), "42".to_owned()));
    }
}
