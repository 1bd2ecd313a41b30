//! One canary: how its pod is made, and what it saw.

use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::own_pods::{PodNamespace, restricted_spec};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Namespace of the pods.
pub const CANARY_NAMESPACE: PodNamespace = PodNamespace { name: "comity-canary", manifest: "deploy/agent/canary.yaml" };
/// Label: the canary's [`Role`].
pub(super) const ROLE_LABEL: &str = "comity.dev/canary";
/// Annotation: the node that it is for.
const NODE_ANNOTATION: &str = "comity.dev/canary-node";
/// Annotation: the boot and the runtime of the node that it is for.
const ENVIRONMENT_ANNOTATION: &str = "comity.dev/canary-environment";
/// Exit code of the image if it sees devices.
const SEES_DEVICES: i32 = 1;
/// Exit code of the image if it sees none, and each of its last tries connected.
const ALWAYS_CONNECTS: i32 = 3;
/// Exit code of the image if it sees none, and some of its last tries connected.
const SOMETIMES_CONNECTS: i32 = 4;
/// Longest run; most of it is the download of the image.
const DEADLINE_SECONDS: u32 = 300;
/// Longest text of a container that is kept.
const MAX_TEXT_CHARS: usize = 200;
/// Bytes of the digest in a pod's name.
const NAME_BYTES: usize = 8;

/// What a canary of a pair may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// No policy of this namespace restricts it: it shows that the network is up, and that the API server answers.
    Control,
    /// The NetworkPolicy of [`CANARY_NAMESPACE`] denies all its egress.
    Restricted,
}

impl Role {
    /// Value of [`ROLE_LABEL`].
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Restricted => "restricted",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Control, Self::Restricted].into_iter().find(|role| role.as_str() == text)
    }
}

/// A canary to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedCanary {
    /// Name of its pair.
    pub(super) pair: String,
    pub(super) role: Role,
    pub(super) node: String,
    pub(super) environment: String,
}

/// A canary on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CanaryPod {
    pub(super) uid: String,
    pub(super) name: String,
    /// Name of its pair.
    pub(super) pair: String,
    pub(super) role: Role,
    pub(super) node: String,
    pub(super) environment: String,
    /// When it was made, in milliseconds since 1970.
    pub(super) made_ms: u64,
    pub(super) result: CanaryResult,
}

/// The result of a canary; times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CanaryResult {
    /// It has not finished, for a reason that Kubernetes gives, or none.
    Waiting(Option<String>),
    /// It saw these devices.
    SawDevices { at_ms: u64, devices: String },
    /// It saw no GPU, and tried to connect to the API server until `at_ms`.
    Tried { began_ms: u64, at_ms: u64, connects: Connects },
    /// It ended without a result.
    Broken { at_ms: u64, reason: String },
}

/// Which of the last tries of a canary connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connects {
    Never,
    Sometimes,
    Always,
}

impl CanaryPod {
    /// Reads a pod; `None` for one that is being deleted, or is no canary.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        if pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let annotation = |key: &str| pod.annotations().get(key).cloned();
        let made_ms = pod.metadata.creation_timestamp.as_ref().map_or(0, ms);
        let (name, role) = (pod.name_any(), Role::parse(pod.labels().get(ROLE_LABEL)?)?);
        Some(Self {
            uid: pod.uid()?,
            pair: name.strip_suffix(role.as_str())?.trim_end_matches('-').to_owned(),
            name,
            role,
            node: annotation(NODE_ANNOTATION)?,
            environment: annotation(ENVIRONMENT_ANNOTATION)?,
            made_ms,
            result: result(pod, made_ms),
        })
    }
}

fn result(pod: &Pod, made_ms: u64) -> CanaryResult {
    let Some(status) = &pod.status else { return CanaryResult::Waiting(None) };
    let container = status.container_statuses.iter().flatten().next();
    let state = container.and_then(|container| container.state.as_ref());
    if let Some(ContainerState { terminated: Some(ended), .. }) = state {
        return result_of(ended, made_ms);
    }
    if status.phase.as_deref() == Some("Failed") {
        let words = [status.reason.as_deref(), status.message.as_deref()];
        let reason =
            format!("its canary failed: {}", plain(&words.into_iter().flatten().collect::<Vec<_>>().join(": ")));
        return CanaryResult::Broken { at_ms: made_ms, reason };
    }
    let of_container = state.and_then(|state| state.waiting.as_ref()).and_then(|waiting| waiting.reason.clone());
    let scheduled = status.conditions.iter().flatten().find(|one| one.type_ == "PodScheduled" && one.status == "False");
    let reason = of_container.or_else(|| scheduled.and_then(|one| one.message.clone()));
    CanaryResult::Waiting(reason.map(|reason| plain(&reason)))
}

fn result_of(ended: &ContainerStateTerminated, made_ms: u64) -> CanaryResult {
    let at_ms = ended.finished_at.as_ref().map_or(made_ms, ms);
    let began_ms = ended.started_at.as_ref().map_or(made_ms, ms);
    let text = plain(ended.message.as_deref().unwrap_or_default());
    let tried = |connects| CanaryResult::Tried { began_ms, at_ms, connects };
    match ended.exit_code {
        0 => tried(Connects::Never),
        SEES_DEVICES => CanaryResult::SawDevices { at_ms, devices: text },
        ALWAYS_CONNECTS => tried(Connects::Always),
        SOMETIMES_CONNECTS => tried(Connects::Sometimes),
        code => {
            let reason = format!("its canary ended with exit code {code}: {text}");
            CanaryResult::Broken { at_ms, reason }
        }
    }
}

fn ms(Time(time): &Time) -> u64 {
    u64::try_from(time.as_millisecond()).unwrap_or(0)
}

/// One short line.
pub(super) fn plain(text: &str) -> String {
    text.split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(MAX_TEXT_CHARS)
        .collect()
}

/// How canaries are made.
#[derive(Clone, Debug)]
pub(super) struct CanaryMaker {
    pub(super) image: String,
    /// RuntimeClass of guests' pods, if they have one.
    pub(super) runtime_class: Option<String>,
}

impl CanaryMaker {
    /// The pod, which asks for no device.
    pub(super) fn pod(&self, wanted: &WantedCanary) -> Result<Pod, serde_json::Error> {
        let WantedCanary { pair, role, node, environment } = wanted;
        let container = json!({
            "name": "canary",
            "image": self.image,
            // The log is its result.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": { "requests": { "cpu": "10m", "memory": "16Mi" }, "limits": { "memory": "64Mi" } },
        });
        let mut spec = restricted_spec(node, container);
        spec["restartPolicy"] = json!("Never");
        spec["activeDeadlineSeconds"] = json!(DEADLINE_SECONDS);
        spec["runtimeClassName"] = json!(self.runtime_class);
        spec["tolerations"] = json!([{ "operator": "Exists" }]);
        serde_json::from_value(json!({
            "metadata": {
                "name": format!("{pair}-{}", role.as_str()),
                "labels": own_labels([(ROLE_LABEL, role.as_str())]),
                "annotations": { NODE_ANNOTATION: node, ENVIRONMENT_ANNOTATION: environment },
            },
            "spec": spec,
        }))
    }
}

/// One name for one try, after the pair named `before`: pods that no list shows yet are not made twice.
pub(super) fn pair_name(node: &str, environment: &str, before: Option<&str>) -> String {
    let digest = Sha256::digest(format!("{node}\n{environment}\n{}", before.unwrap_or_default()));
    let digits: String = digest.iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("canary-{digits}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(status: Value) -> CanaryPod {
        let pair = pair_name("a", "boot runtime", None);
        let wanted = WantedCanary { pair, role: Role::Control, node: "a".into(), environment: "boot runtime".into() };
        let maker = CanaryMaker { image: "canary".into(), runtime_class: None };
        let mut pod = maker.pod(&wanted).unwrap();
        pod.metadata.uid = Some("u".into());
        pod.status = Some(serde_json::from_value(status).unwrap());
        let seen = CanaryPod::of(&pod).unwrap();
        assert_eq!((&seen.pair, seen.role), (&wanted.pair, Role::Control));
        seen
    }

    #[test]
    fn the_exit_code_is_the_result() {
        let ended = |code: i32, message: &str| {
            let (began, at) = ("2026-11-26T09:59:40Z", "2026-11-26T10:00:00Z");
            let terminated = json!({ "exitCode": code, "startedAt": began, "finishedAt": at, "message": message });
            pod(json!({ "containerStatuses": [{
                "name": "canary", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": terminated },
            }] }))
            .result
        };
        let at_ms = 1_795_687_200_000;
        for (code, connects) in [(0, Connects::Never), (3, Connects::Always), (4, Connects::Sometimes)] {
            assert_eq!(ended(code, ""), CanaryResult::Tried { began_ms: at_ms - 20_000, at_ms, connects });
        }
        let devices = "/dev/nvidia0 /dev/nvidiactl".to_owned();
        assert_eq!(ended(1, "/dev/nvidia0\n/dev/nvidiactl\n"), CanaryResult::SawDevices { at_ms, devices });
        let CanaryResult::Broken { reason, .. } = ended(127, "no \u{1b}[31msh") else { panic!("a result") };
        assert_eq!(reason, "its canary ended with exit code 127: no [31msh");
    }

    /// The image's program on a folder of devices; its program `nc` connects in the tries with these numbers.
    struct Image(tempfile::TempDir);

    impl Image {
        fn new() -> Self {
            let image = Self(tempfile::tempdir().unwrap());
            std::fs::create_dir_all(image.path("dev/dri")).unwrap();
            std::fs::create_dir(image.path("bin")).unwrap();
            std::fs::write(image.path("dev/null"), "").unwrap();
            image
        }

        fn path(&self, name: &str) -> std::path::PathBuf {
            self.0.path().join(name)
        }

        fn connects_in(&self, tries: &[u32]) {
            use std::os::unix::fs::PermissionsExt as _;
            let log = self.path("tries").display().to_string();
            let tries: Vec<String> = tries.iter().map(u32::to_string).collect();
            let nc =
                format!("echo \"$@\" >> {log}\ncase $(wc -l < {log}) in {}) exit 0;; esac\nexit 1", tries.join("|"));
            for (program, text) in [("nc", nc.as_str()), ("sleep", "exit 0")] {
                let path = self.path("bin").join(program);
                std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
            }
            let _ = std::fs::remove_file(self.path("tries"));
        }

        /// Its exit code, and what it says.
        fn run(&self) -> (i32, String) {
            let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/images/canary/look");
            let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
            let mut command = std::process::Command::new("sh");
            command.arg(program).arg(self.path("dev")).env("PATH", path);
            command.env("KUBERNETES_SERVICE_HOST", "10.96.0.1").env("KUBERNETES_SERVICE_PORT", "443");
            let output = command.output().unwrap();
            (output.status.code().unwrap(), plain(&String::from_utf8(output.stdout).unwrap()))
        }
    }

    #[test]
    fn the_image_names_the_gpus_that_it_sees() {
        let image = Image::new();
        image.connects_in(&[0]);
        assert_eq!(image.run(), (0, String::new()));
        for device in ["dri/card0", "nvidia0"] {
            let path = image.path("dev").join(device);
            std::fs::write(&path, "").unwrap();
            assert_eq!(image.run(), (SEES_DEVICES, path.display().to_string()));
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn the_images_last_six_tries_to_connect_count() {
        let image = Image::new();
        let said = "connected to 10.96.0.1 port 443";
        for (tries, code, says) in [
            (&[1, 2, 3, 4, 5, 6][..], 0, ""),
            (&[7, 8, 9, 10, 11, 12], ALWAYS_CONNECTS, said),
            (&[12], SOMETIMES_CONNECTS, said),
            (&[7, 8, 9, 10, 11], SOMETIMES_CONNECTS, said),
        ] {
            image.connects_in(tries);
            assert_eq!(image.run(), (code, says.to_owned()), "{tries:?}");
        }
        let tries = std::fs::read_to_string(image.path("tries")).unwrap();
        assert_eq!(tries, "-w 2 10.96.0.1 443 -e true\n".repeat(12));
    }

    #[test]
    fn a_pod_that_does_not_run_says_why() {
        let failed = pod(json!({ "phase": "Failed", "reason": "Evicted", "message": "disk pressure" })).result;
        let CanaryResult::Broken { reason, .. } = failed else { panic!("a result") };
        assert_eq!(reason, "its canary failed: Evicted: disk pressure");
        let waiting = json!([{ "type": "PodScheduled", "status": "False", "message": "0/3 nodes" }]);
        let waiting = pod(json!({ "phase": "Pending", "conditions": waiting })).result;
        assert_eq!(waiting, CanaryResult::Waiting(Some("0/3 nodes".to_owned())));
    }

    #[test]
    fn each_try_has_one_name() {
        let first = pair_name("a", "boot", None);
        assert_eq!(first, pair_name("a", "boot", None));
        assert_ne!(first, pair_name("a", "boot", Some(&first)));
        assert_ne!(first, pair_name("a", "other", None));
        assert_ne!(first, pair_name("b", "boot", None));
    }
}
