//! The `GpuRequest` of a ProvisioningRequest's pods. Pure.

use std::collections::BTreeMap;

use comity_agent_model::gpu_demand::Share;
use k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};

use super::provisioning_request::ProvisioningRequest;
use crate::burst::facts::demand::{MAX_GPUS_PER_REQUEST, Shape, shape};
use crate::burst::facts::offload::obstacle;
use crate::burst::facts::pod_options::PodOptions;
use crate::burst::{BurstSettings, CLASS, LEASE, MAX_REQUESTS, OFFLOAD_LABEL, Rules};
use crate::crd::{DeliveryKind, GpuRequestSpec, Members, Preemptible, Topology};

/// Parameters of the ProvisioningRequestConfig, or of a Job by its annotations `provreq.kueue.x-k8s.io/comity.dev.NAME`,
/// which can have no second slash.
const PARAMETERS: [&str; 6] = ["class", "duration", "priority-class", "purpose", "release-idle", "template"];

/// What equal pods need.
#[derive(Clone, Debug, PartialEq)]
struct Need {
    shape: Shape,
    options: PodOptions,
    class: Option<String>,
}

/// The specification; `pods` are the templates of the pod sets and their counts.
///
/// # Errors
/// A sentence that says why no lease can serve them, and what to change.
pub(super) fn gpu_request(
    request: &ProvisioningRequest,
    pods: &[(PodTemplateSpec, i32)],
    rules: &Rules,
    settings: &BurstSettings,
) -> Result<GpuRequestSpec, String> {
    let parameters = parameters(&request.spec.parameters)?;
    let parameter = |name: &str| parameters.get(name).map(|value| (*value).to_owned());
    let (Need { shape, options, class }, count) = needed(pods, rules)?;
    let positive = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    let amount = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    // Single GPUs may lie on several nodes; the GPUs of one pod may not.
    let (gpus, members) = match (shape.gpus, count) {
        (1, count) => (count, None),
        (gpus, 1) => (gpus, None),
        (gpus, count) => (gpus, Some(Members { min: positive(count), desired: positive(count) })),
    };
    let together = (shape.gpus > 1 && members.is_none()).then_some(true);
    let topology = Topology { same_node: together, nvlink: options.nvlink, numa: options.numa, ..Topology::default() };
    let (milli, mig_profile, memory_mib) = match shape.share {
        Some(Share::Milli(milli)) => (Some(positive(milli)), None, None),
        Some(Share::MigProfile(profile)) => (None, Some(profile), None),
        Some(Share::MemoryMib(memory)) => (None, None, Some(amount(memory))),
        Some(Share::Whole) | None => (None, None, None),
    };
    let seconds = |ms: u64| format!("{}s", ms.div_ceil(1_000));
    Ok(GpuRequestSpec {
        template: parameter("template"),
        class: parameter("class").or(class),
        gpus: Some(positive(gpus)),
        milli,
        mig_profile,
        memory_mib,
        cpu_milli_per_gpu: Some(amount(shape.cpu_milli_per_gpu.max(settings.cpu_milli_per_gpu))),
        memory_mib_per_gpu: Some(amount(shape.memory_mib_per_gpu.max(settings.memory_mib_per_gpu))),
        duration: parameter("duration").or_else(|| (rules.duration_ms > 0).then(|| seconds(rules.duration_ms))),
        release_idle: parameter("release-idle"),
        topology: (topology != Topology::default()).then_some(topology),
        members,
        purpose: parameter("purpose"),
        priority_class: parameter("priority-class").or(Some(options.priority).filter(|name| !name.is_empty())),
        preemptible: options.preemptible_grace_ms.map(|grace_ms| Preemptible {
            grace_seconds: i32::try_from(grace_ms.div_ceil(1_000)).ok(),
            checkpoint: Some(options.checkpoints),
            same_gpu_type: Some(options.same_gpu_type),
        }),
        checkpoint_secret: options.checkpoint_secret,
        delivery: Some(DeliveryKind::VirtualNode),
        ..GpuRequestSpec::default()
    })
}

/// Our parameters by name.
fn parameters(given: &BTreeMap<String, String>) -> Result<BTreeMap<&str, &str>, String> {
    let mut found = BTreeMap::new();
    for (key, value) in given {
        let Some(name) = key.strip_prefix("comity.dev/").or_else(|| key.strip_prefix("comity.dev.")) else { continue };
        let Some(known) = PARAMETERS.iter().find(|known| **known == name) else {
            return Err(format!("its parameter {key} is unknown; use comity.dev.NAME with {}", PARAMETERS.join(", ")));
        };
        // A Job's own, which has a dot, overrides that of the configuration.
        if key.contains('/') {
            found.entry(*known).or_insert(value.as_str());
        } else {
            found.insert(*known, value.as_str());
        }
    }
    Ok(found)
}

/// The Kubernetes resource by which the pods count their GPUs.
///
/// # Errors
/// As [`gpu_request`].
pub(super) fn resource(pods: &[(PodTemplateSpec, i32)], rules: &Rules) -> Result<String, String> {
    needed(pods, rules).map(|(need, _)| need.shape.resource)
}

/// What each pod needs, and how many there are.
fn needed(pods: &[(PodTemplateSpec, i32)], rules: &Rules) -> Result<(Need, u32), String> {
    if rules.max_requests == 0 {
        return Err(format!("the annotation {MAX_REQUESTS} of its namespace is 0, which keeps its pods here"));
    }
    let mut found: Option<(Need, u32)> = None;
    for (template, count) in pods {
        let Need { mut shape, options, class } = need(template)?;
        shape = shape.sized(rules.gpu_share_milli);
        let count = u32::try_from(*count).ok().filter(|count| *count > 0).ok_or("a pod set has no pods")?;
        match &mut found {
            None => found = Some((Need { shape, options, class }, count)),
            Some((need, all)) => {
                let cpu = shape.cpu_milli_per_gpu.max(need.shape.cpu_milli_per_gpu);
                let memory = shape.memory_mib_per_gpu.max(need.shape.memory_mib_per_gpu);
                for shape in [&mut shape, &mut need.shape] {
                    (shape.cpu_milli_per_gpu, shape.memory_mib_per_gpu) = (cpu, memory);
                }
                if *need != (Need { shape, options, class }) {
                    let why = "its pod sets need GPUs in different ways, and one lease serves them all; give each the same \
                               GPUs and options, or submit them apart";
                    return Err(why.to_owned());
                }
                *all = all.saturating_add(count);
            }
        }
    }
    let (need, count) = found.ok_or("it has no pods")?;
    let all = need.shape.gpus.saturating_mul(count);
    if all > MAX_GPUS_PER_REQUEST.min(rules.max_gpus) {
        return Err(format!(
            "its pods need {all} GPUs at once, and a request of this namespace may have {}",
            MAX_GPUS_PER_REQUEST.min(rules.max_gpus)
        ));
    }
    Ok((need, count))
}

/// What a pod of a template needs. Its checkpoint store is no matter: the webhook adds it when the pod is created.
fn need(template: &PodTemplateSpec) -> Result<Need, String> {
    let metadata = template.metadata.clone().unwrap_or_default();
    let pod = Pod { metadata, spec: template.spec.clone(), status: None };
    let none = BTreeMap::new();
    let of = |map: &Option<BTreeMap<String, String>>, key: &str| map.as_ref().unwrap_or(&none).get(key).cloned();
    let (labels, annotations) = (&pod.metadata.labels, &pod.metadata.annotations);
    let shape = shape(&pod).ok_or(
        "a pod set requests no GPU, and Kueue would send it to the lease; list only GPU resources in managedResources",
    )??;
    if [labels, annotations].iter().any(|map| of(map, OFFLOAD_LABEL).is_some_and(|text| text == "false")) {
        return Err(format!("its pods are labelled {OFFLOAD_LABEL}=false, which keeps them here"));
    }
    if let Some(obstacle) = obstacle(&pod) {
        return Err(format!("its pods cannot run elsewhere: {obstacle}"));
    }
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.as_ref());
    if selector.is_some_and(|selector| selector.contains_key(LEASE)) {
        return Err(format!(
            "its pods select the nodes of a lease themselves; leave {LEASE} out of their nodeSelector"
        ));
    }
    let options = PodOptions::from_annotations(annotations.as_ref().unwrap_or(&none))?;
    Ok(Need { shape, options, class: of(annotations, CLASS) })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn rules() -> Rules {
        Rules {
            tenant: "vision".to_owned(),
            class: "large".to_owned(),
            max_gpus: 16,
            max_requests: 4,
            duration_ms: 7_200_000,
            cooldown_ms: 0,
            gpu_share_milli: 250,
        }
    }

    fn pods(gpus: u32, count: i32, extra: Value) -> (PodTemplateSpec, i32) {
        let resources =
            json!({ "requests": { "cpu": "4", "memory": "8Gi" }, "limits": { "nvidia.com/gpu": gpus.to_string() } });
        let mut template =
            json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "resources": resources }] } });
        for (part, values) in extra.as_object().unwrap() {
            for (key, value) in values.as_object().unwrap() {
                template[part][key] = value.clone();
            }
        }
        (serde_json::from_value(template).unwrap(), count)
    }

    fn asked(pods: &[(PodTemplateSpec, i32)], parameters: &[(&str, &str)]) -> Result<GpuRequestSpec, String> {
        let mut request = ProvisioningRequest::new("job-train-1", Default::default());
        let owned = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        request.spec.parameters = owned.collect();
        gpu_request(&request, pods, &rules(), &BurstSettings::default())
    }

    #[test]
    fn one_pod_has_its_gpus_on_one_node_and_single_gpus_may_spread() {
        let one = asked(&[pods(2, 1, json!({}))], &[]).unwrap();
        assert_eq!((one.gpus, one.members.clone(), one.duration.as_deref()), (Some(2), None, Some("7200s")));
        assert_eq!(one.topology.unwrap().same_node, Some(true));
        assert_eq!((one.cpu_milli_per_gpu, one.memory_mib_per_gpu), (Some(2_000), Some(4_096)));
        let many = asked(&[pods(1, 3, json!({}))], &[]).unwrap();
        assert_eq!((many.gpus, many.members, many.topology), (Some(3), None, None));
        assert_eq!(many.delivery, Some(DeliveryKind::VirtualNode));
    }

    #[test]
    fn a_pod_set_of_several_gpus_each_is_a_gang() {
        let gang = asked(&[pods(4, 2, json!({})), pods(4, 1, json!({}))], &[]).unwrap();
        assert_eq!((gang.gpus, gang.members), (Some(4), Some(Members { min: 3, desired: 3 })));
    }

    #[test]
    fn annotations_and_parameters_set_options() {
        let annotated = pods(
            1,
            1,
            json!({ "metadata": { "annotations": {
            "comity.dev/gpu-share": "0.25", "comity.dev/preemptible-grace": "10m", "comity.dev/class": "small",
        } } }),
        );
        let spec = asked(std::slice::from_ref(&annotated), &[]).unwrap();
        assert_eq!((spec.milli, spec.class.as_deref()), (Some(250), Some("small")));
        assert_eq!(spec.preemptible.unwrap().grace_seconds, Some(600));
        let given = [
            ("comity.dev/class", "configured"),
            ("comity.dev.class", "of-the-job"),
            ("comity.dev.duration", "8h"),
            ("comity.dev.purpose", "research"),
            ("example.com/other", "x"),
        ];
        let spec = asked(&[annotated], &given).unwrap();
        assert_eq!((spec.class.as_deref(), spec.duration.as_deref()), (Some("of-the-job"), Some("8h")));
        assert_eq!(spec.purpose.as_deref(), Some("research"));
    }

    #[test]
    fn a_checkpoint_store_is_that_of_the_request() {
        let annotated =
            pods(1, 1, json!({ "metadata": { "annotations": { "comity.dev/checkpoint-secret": "bucket" } } }));
        assert_eq!(asked(&[annotated], &[]).unwrap().checkpoint_secret.as_deref(), Some("bucket"));
    }

    #[test]
    fn a_namespace_that_keeps_its_pods_asks_for_nothing() {
        let request = ProvisioningRequest::new("job-train-1", Default::default());
        let rules = Rules { max_requests: 0, ..rules() };
        let why = gpu_request(&request, &[pods(1, 1, json!({}))], &rules, &BurstSettings::default()).unwrap_err();
        assert!(why.contains("comity.dev/max-requests"), "{why}");
    }

    #[test]
    fn what_no_lease_can_serve_is_refused_with_its_reason() {
        for (pods, parameters, part) in [
            (vec![pods(1, 1, json!({})), pods(0, 1, json!({}))], vec![], "a pod set requests no GPU"),
            (vec![pods(2, 1, json!({})), pods(1, 1, json!({}))], vec![], "different ways"),
            (vec![pods(4, 5, json!({}))], vec![], "need 20 GPUs at once, and a request of this namespace may have 16"),
            (vec![pods(1, 1, json!({ "spec": { "hostNetwork": true } }))], vec![], "its host's network"),
            (
                vec![pods(1, 1, json!({ "spec": { "nodeSelector": { LEASE: "lease-1" } } }))],
                vec![],
                "leave comity.dev/lease out",
            ),
            (
                vec![pods(1, 1, json!({ "metadata": { "labels": { "comity.dev/offload": "false" } } }))],
                vec![],
                "keeps them here",
            ),
            (
                vec![pods(1, 1, json!({}))],
                vec![("comity.dev.max-price", "3")],
                "its parameter comity.dev.max-price is unknown",
            ),
        ] {
            let why = asked(&pods, &parameters).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
