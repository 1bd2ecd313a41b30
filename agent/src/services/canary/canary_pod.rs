//! The pod that looks for GPUs: how it is made, and its result.

use comity_agent_kubernetes::call::own_labels;
use comity_agent_kubernetes::own_pods::restricted_spec;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Annotation: the node that it is for.
const NODE_ANNOTATION: &str = "comity.dev/canary-node";
/// Annotation: the boot and the runtime of the node that it is for.
const ENVIRONMENT_ANNOTATION: &str = "comity.dev/canary-environment";
/// Exit code of the image if it sees devices.
const SEES_DEVICES: i32 = 1;
/// Longest run; most of it is the download of the image.
const DEADLINE_SECONDS: u32 = 300;
/// Longest text of a container that is kept.
const MAX_TEXT_CHARS: usize = 200;
/// Bytes of the digest in a pod's name.
const NAME_BYTES: usize = 8;

/// A canary to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedCanary {
    pub(super) node: String,
    pub(super) environment: String,
    /// The canary before it, by its uid.
    pub(super) after: Option<String>,
}

/// A canary on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CanaryPod {
    pub(super) uid: String,
    pub(super) name: String,
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
    /// It saw no GPU.
    Clear { at_ms: u64 },
    /// It saw these devices.
    Exposed { at_ms: u64, devices: String },
    /// It ended without a result.
    Broken { at_ms: u64, reason: String },
}

impl CanaryPod {
    /// Reads a pod; `None` for one that is being deleted, or is no canary.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        if pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let annotation = |key: &str| pod.annotations().get(key).cloned();
        let made_ms = pod.metadata.creation_timestamp.as_ref().map_or(0, ms);
        Some(Self {
            uid: pod.uid()?,
            name: pod.name_any(),
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
    let text = plain(ended.message.as_deref().unwrap_or_default());
    match ended.exit_code {
        0 => CanaryResult::Clear { at_ms },
        SEES_DEVICES => CanaryResult::Exposed { at_ms, devices: text },
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
        let WantedCanary { node, environment, .. } = wanted;
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
                "name": pod_name(wanted),
                "labels": own_labels([]),
                "annotations": { NODE_ANNOTATION: node, ENVIRONMENT_ANNOTATION: environment },
            },
            "spec": spec,
        }))
    }
}

/// One name for one try: a pod that no list shows yet is not made twice.
fn pod_name(wanted: &WantedCanary) -> String {
    let WantedCanary { node, environment, after } = wanted;
    let digest = Sha256::digest(format!("{node}\n{environment}\n{}", after.as_deref().unwrap_or_default()));
    let digits: String = digest.iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect();
    format!("canary-{digits}")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::Value;

    use super::*;

    fn pod(status: Value) -> CanaryPod {
        let wanted = WantedCanary { node: "a".into(), environment: "boot runtime".into(), after: None };
        let maker = CanaryMaker { image: "canary".into(), runtime_class: None };
        let mut pod = maker.pod(&wanted).unwrap();
        pod.metadata.uid = Some("u".into());
        pod.status = Some(serde_json::from_value(status).unwrap());
        CanaryPod::of(&pod).unwrap()
    }

    #[test]
    fn the_exit_code_is_the_result() {
        let ended = |code: i32, message: &str| {
            let terminated = json!({ "exitCode": code, "finishedAt": "2026-11-26T10:00:00Z", "message": message });
            pod(json!({ "containerStatuses": [{
                "name": "canary", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "terminated": terminated },
            }] }))
            .result
        };
        let at_ms = 1_795_687_200_000;
        assert_eq!(ended(0, ""), CanaryResult::Clear { at_ms });
        let devices = "/dev/nvidia0 /dev/nvidiactl".to_owned();
        assert_eq!(ended(1, "/dev/nvidia0\n/dev/nvidiactl\n"), CanaryResult::Exposed { at_ms, devices });
        let CanaryResult::Broken { reason, .. } = ended(127, "no \u{1b}[31msh") else { panic!("a result") };
        assert_eq!(reason, "its canary ended with exit code 127: no [31msh");
    }

    #[test]
    fn the_image_names_the_gpus_that_it_sees() {
        let dev = tempfile::tempdir().unwrap();
        let look = || {
            let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/images/canary/look");
            let output = std::process::Command::new("sh").arg(program).arg(dev.path()).output().unwrap();
            (output.status.code().unwrap(), plain(&String::from_utf8(output.stdout).unwrap()))
        };
        std::fs::create_dir(dev.path().join("dri")).unwrap();
        std::fs::write(dev.path().join("null"), "").unwrap();
        assert_eq!(look(), (0, String::new()));
        for device in ["dri/card0", "nvidia0"] {
            let path = dev.path().join(device);
            std::fs::write(&path, "").unwrap();
            assert_eq!(look(), (SEES_DEVICES, path.display().to_string()));
            std::fs::remove_file(path).unwrap();
        }
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
        let wanted = |environment: &str, after: Option<&str>| {
            let (environment, after) = (environment.to_owned(), after.map(str::to_owned));
            pod_name(&WantedCanary { node: "a".into(), environment, after })
        };
        assert_eq!(wanted("boot", None), wanted("boot", None));
        assert_ne!(wanted("boot", None), wanted("boot", Some("u")));
        assert_ne!(wanted("boot", None), wanted("other", None));
    }
}
