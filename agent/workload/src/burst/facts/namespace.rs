//! Burst rules of a namespace, from its labels and annotations.

use std::collections::BTreeMap;

use comity_types::is_dns_label;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;

use crate::burst::facts::demand::{SMALLEST_SHARE_MILLI, share_milli};
use crate::burst::settings::BurstSettings;
use crate::burst::{CLASS, COOLDOWN, DURATION, GPU_SHARE, MAX_GPUS, MAX_REQUESTS, OFFLOAD_LABEL, TENANT_LABEL};

/// The rules of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Tenant charged.
    pub tenant: String,
    /// GPU class unless a pod names another; empty: pods must.
    pub class: String,
    /// GPUs that its requests may hold at once.
    pub max_gpus: u32,
    /// Requests that it may have at once.
    pub max_requests: u32,
    /// Length of a lease; 0: the federation's default.
    pub duration_ms: u64,
    /// How long an unused lease is kept.
    pub cooldown_ms: u64,
    /// Size of one `nvidia.com/gpu.shared`, in thousandths of a GPU.
    pub gpu_share_milli: u32,
}

/// Rules of a namespace, or what is invalid in them; `None` if it did not opt in.
pub(crate) fn rules(
    namespace: &PartialObjectMeta<Namespace>,
    settings: &BurstSettings,
) -> Option<Result<Rules, String>> {
    let none = BTreeMap::new();
    let labels = namespace.metadata.labels.as_ref().unwrap_or(&none);
    let annotations = namespace.metadata.annotations.as_ref().unwrap_or(&none);
    if namespace.metadata.deletion_timestamp.is_some() {
        return None;
    }
    match labels.get(OFFLOAD_LABEL)?.as_str() {
        "true" => Some(read(labels, annotations, settings)),
        "false" => None,
        other => Some(Err(format!(
            "the namespace's label {OFFLOAD_LABEL} is {other:?}; write \"true\" to let its GPU pods burst, or \"false\""
        ))),
    }
}

fn read(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
    settings: &BurstSettings,
) -> Result<Rules, String> {
    let tenant = labels.get(TENANT_LABEL).unwrap_or(&settings.default_tenant);
    if !is_dns_label(tenant) {
        return Err(format!(
            "the namespace's label {TENANT_LABEL} is {tenant:?}; label it with the tenant that is charged for its pods"
        ));
    }
    let class = annotations.get(CLASS).or_else(|| labels.get(CLASS)).unwrap_or(&settings.default_class);
    if !class.is_empty() && !is_dns_label(class) {
        return Err(format!("the namespace's {CLASS} is {class:?}, which is not the name of a GPU class"));
    }
    let count = |key: &str, default: u32| match annotations.get(key) {
        None => Ok(default),
        Some(text) => text.trim().parse::<u32>().map_err(|_| {
            format!("the namespace's annotation {key} is {text:?}; write a whole number, 0 to keep its pods here")
        }),
    };
    let time = |key: &str, default_seconds: u64| match annotations.get(key) {
        None => Ok(default_seconds.saturating_mul(1_000)),
        Some(text) => duration_ms(text).ok_or_else(|| {
            format!("the namespace's annotation {key} is {text:?}; write a time such as 90s, 30m, 2h or 1d")
        }),
    };
    let gpu_share_milli = match annotations.get(GPU_SHARE) {
        None => SMALLEST_SHARE_MILLI,
        Some(text) => share_milli(text).ok_or_else(|| {
            format!("the namespace's annotation {GPU_SHARE} is {text:?}; write a part of a GPU, 0.05 to 1")
        })?,
    };
    Ok(Rules {
        tenant: tenant.clone(),
        class: class.clone(),
        max_gpus: count(MAX_GPUS, settings.max_gpus)?,
        max_requests: count(MAX_REQUESTS, settings.max_requests)?,
        duration_ms: time(DURATION, settings.duration_seconds)?,
        cooldown_ms: time(COOLDOWN, settings.cooldown_seconds)?,
        gpu_share_milli,
    })
}

/// Milliseconds of "90s", "30m", "2h" or "1d", 90 days at most.
pub(crate) fn duration_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|ms| *ms <= 90 * 86_400_000)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(labels: serde_json::Value, annotations: serde_json::Value) -> Option<Result<Rules, String>> {
        let namespace = json!({ "metadata": { "name": "team-a", "labels": labels, "annotations": annotations } });
        rules(&serde_json::from_value(namespace).unwrap(), &BurstSettings::default())
    }

    #[test]
    fn only_namespaces_that_opted_in_have_rules() {
        assert!(of(json!({}), json!({})).is_none());
        assert!(of(json!({ OFFLOAD_LABEL: "false" }), json!({})).is_none());
        let error = of(json!({ OFFLOAD_LABEL: "yes" }), json!({})).unwrap().unwrap_err();
        assert!(error.contains("comity.dev/offload is \"yes\"") && error.contains("\"true\""), "{error}");
        let rules = of(json!({ OFFLOAD_LABEL: "true", TENANT_LABEL: "vision" }), json!({})).unwrap().unwrap();
        assert_eq!((rules.max_gpus, rules.cooldown_ms, rules.duration_ms), (64, 60_000, 0));
    }

    #[test]
    fn valid_rules_count_and_invalid_ones_are_named() {
        let labels = json!({ OFFLOAD_LABEL: "true", TENANT_LABEL: "vision", CLASS: "frontier" });
        let said = json!({ MAX_GPUS: "4", MAX_REQUESTS: "2", DURATION: "2h", COOLDOWN: "5s" });
        let rules = of(labels.clone(), said).unwrap().unwrap();
        assert_eq!((rules.class.as_str(), rules.max_gpus, rules.max_requests), ("frontier", 4, 2));
        assert_eq!((rules.duration_ms, rules.cooldown_ms), (7_200_000, 5_000));
        assert_eq!(rules.gpu_share_milli, 50);
        assert_eq!(of(labels.clone(), json!({ GPU_SHARE: "0.25" })).unwrap().unwrap().gpu_share_milli, 250);
        let error = of(labels.clone(), json!({ GPU_SHARE: "0.01" })).unwrap().unwrap_err();
        assert!(error.contains(GPU_SHARE) && error.contains("0.01"), "{error}");
        let error = of(labels.clone(), json!({ MAX_GPUS: "many" })).unwrap().unwrap_err();
        assert!(error.contains(MAX_GPUS) && error.contains("many") && error.contains("whole number"), "{error}");
        assert!(of(labels, json!({ DURATION: "2 weeks" })).unwrap().unwrap_err().contains("2 weeks"));
        assert!(of(json!({ OFFLOAD_LABEL: "true" }), json!({})).unwrap().unwrap_err().contains(TENANT_LABEL));
    }

    #[test]
    fn times_are_read_strictly() {
        assert_eq!(duration_ms("90s"), Some(90_000));
        assert_eq!(duration_ms("1d"), Some(86_400_000));
        for bad in ["", "s", "5", "-5s", "+5s", "1.5h", "91d", "99999999999999999999h", "5µ"] {
            assert_eq!(duration_ms(bad), None, "{bad}");
        }
    }
}
