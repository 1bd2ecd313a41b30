//! Converts the rates of a metrics-server to the counters that one reads from kubelets. Pure.
//!
//! A rate is the mean over an interval that ends at its timestamp. Adding the rate times the time since the last one
//! gives a counter from which the other side's metrics-server computes the same rates.

use std::collections::BTreeMap;

use comity_policy::quantity::nano;
use serde_json::Value;

/// A pod not seen for this long is forgotten.
const FORGET_AFTER_MS: u64 = 10 * 60 * 1_000;
const NANOS_PER_SECOND: u128 = 1_000_000_000;
/// Most containers in one answer.
const MAX_CONTAINERS: usize = 10_000;

/// The measurement of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) container: String,
    /// Billionths of a core.
    pub(super) cpu_nano: u128,
    pub(super) memory_bytes: u128,
    pub(super) at_ms: u64,
}

type ContainerName = (String, String, String);

/// Counters of all recently queried containers.
#[derive(Debug, Default)]
pub(super) struct Counters(BTreeMap<ContainerName, Counter>);

#[derive(Clone, Copy, Debug)]
struct Counter {
    cpu_nano_seconds: u128,
    at_ms: u64,
}

/// The samples of a `PodMetrics`; `at_ms` is its timestamp. Containers whose figures cannot be read are left out.
pub(super) fn samples(object: &Value, at_ms: u64) -> Vec<Sample> {
    let text = |value: &Value| value.as_str().filter(|text| is_plain(text)).map(str::to_owned);
    let (Some(namespace), Some(pod)) = (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]))
    else {
        return Vec::new();
    };
    let of = |container: &Value| {
        let amount = |name: &str| container["usage"][name].as_str().and_then(nano);
        Some(Sample {
            namespace: namespace.clone(),
            pod: pod.clone(),
            container: text(&container["name"])?,
            cpu_nano: amount("cpu")?,
            memory_bytes: amount("memory")? / 1_000_000_000,
            at_ms,
        })
    };
    object["containers"].as_array().into_iter().flatten().filter_map(of).collect()
}

/// Whether a name needs no escaping; all names in Kubernetes are such.
fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

impl Counters {
    /// Adds the samples to the counters, and writes these in a kubelet's format, under the namespaces' names on the
    /// origin.
    pub(super) fn exposition(&mut self, samples: &[Sample], home: &BTreeMap<String, String>) -> String {
        let newest = samples.iter().map(|sample| sample.at_ms).max().unwrap_or_default();
        self.0.retain(|_, counter| counter.at_ms + FORGET_AFTER_MS >= newest);
        let (mut cpu, mut memory) = (String::new(), String::new());
        for sample in samples.iter().take(MAX_CONTAINERS) {
            let Some(namespace) = home.get(&sample.namespace).filter(|name| is_plain(name)) else { continue };
            let key = (sample.namespace.clone(), sample.pod.clone(), sample.container.clone());
            // Starts at one second: metrics-servers drop containers whose counter is zero.
            let counter =
                self.0.entry(key).or_insert(Counter { cpu_nano_seconds: NANOS_PER_SECOND, at_ms: sample.at_ms });
            let passed = sample.at_ms.saturating_sub(counter.at_ms);
            counter.cpu_nano_seconds += sample.cpu_nano * u128::from(passed) / 1_000;
            counter.at_ms = counter.at_ms.max(sample.at_ms);
            let labels =
                format!("{{container=\"{}\",namespace=\"{namespace}\",pod=\"{}\"}}", sample.container, sample.pod);
            let (whole, rest) =
                (counter.cpu_nano_seconds / NANOS_PER_SECOND, counter.cpu_nano_seconds % NANOS_PER_SECOND);
            cpu.push_str(&format!("container_cpu_usage_seconds_total{labels} {whole}.{rest:09} {}\n", counter.at_ms));
            let bytes = sample.memory_bytes;
            memory.push_str(&format!("container_memory_working_set_bytes{labels} {bytes} {}\n", counter.at_ms));
        }
        format!(
            "# HELP container_cpu_usage_seconds_total Core-seconds used by the container\n\
             # TYPE container_cpu_usage_seconds_total counter\n{cpu}\
             # HELP container_memory_working_set_bytes Working set of the container\n\
             # TYPE container_memory_working_set_bytes gauge\n{memory}"
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str) -> Value {
        json!({
            "metadata": {"namespace": "team-a-origin", "name": "train-x"},
            "containers": [{"name": "work", "usage": {"cpu": cpu, "memory": "12Ki"}}, {"name": "odd", "usage": {}}],
        })
    }

    fn home() -> BTreeMap<String, String> {
        BTreeMap::from([("team-a-origin".to_owned(), "team-a".to_owned())])
    }

    #[test]
    fn rates_become_a_counter_that_gives_the_same_rates() {
        let mut counters = Counters::default();
        let mut at = |cpu: &str, at_ms: u64| {
            let text = counters.exposition(&samples(&pod(cpu), at_ms), &home());
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let labels = r#"{container="work",namespace="team-a",pod="train-x"}"#;
        assert_eq!(
            at("250m", 1_000),
            [
                format!("container_cpu_usage_seconds_total{labels} 1.000000000 1000"),
                format!("container_memory_working_set_bytes{labels} 12288 1000"),
            ]
        );
        // Half a core for 15 s; a repeated query adds nothing; then a billionth of a core for 10 s.
        assert_eq!(
            at("500m", 16_000).remove(0),
            format!("container_cpu_usage_seconds_total{labels} 8.500000000 16000")
        );
        assert_eq!(
            at("500m", 16_000).remove(0),
            format!("container_cpu_usage_seconds_total{labels} 8.500000000 16000")
        );
        assert_eq!(at("1n", 26_000).remove(0), format!("container_cpu_usage_seconds_total{labels} 8.500000010 26000"));
    }

    #[test]
    fn pods_of_other_namespaces_are_left_out_and_old_ones_forgotten() {
        let mut counters = Counters::default();
        let mut foreign = pod("1");
        foreign["metadata"]["namespace"] = json!("kube-system");
        assert!(!counters.exposition(&samples(&foreign, 1), &home()).contains("kube-system"));
        assert!(samples(&json!({"metadata": {"namespace": "a", "name": "b\"} 1\nx{a=\""}}), 1).is_empty());
        counters.exposition(&samples(&pod("1"), 1_000), &home());
        assert_eq!(counters.0.len(), 1);
        foreign["metadata"]["namespace"] = json!("team-a-origin");
        foreign["metadata"]["name"] = json!("later");
        counters.exposition(&samples(&foreign, 2_000 + FORGET_AFTER_MS), &home());
        assert_eq!(counters.0.keys().map(|key| key.1.as_str()).collect::<Vec<_>>(), ["later"]);
    }
}
