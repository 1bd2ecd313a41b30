//! Which pods a list or a watch wants.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::Pod;

use crate::answers::Refusal;

/// Which pods are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    /// Label, value, and whether it is to be equal.
    labels: Vec<(String, Option<String>, bool)>,
    name: Option<String>,
    phase: Option<String>,
}

impl Selector {
    /// Reads `labelSelector` and `fieldSelector`.
    pub(super) fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let mut selector = Self::default();
        let parts = |name: &str| {
            let text = parameters.get(name).cloned().unwrap_or_default();
            text.split(',').map(|part| part.trim().to_owned()).filter(|part| !part.is_empty()).collect::<Vec<_>>()
        };
        for part in parts("labelSelector") {
            if part.contains(['(', ')', ' ']) {
                let message = format!("labelSelector: {part:?} is not read here; use key=value, key!=value or key");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
            }
            let label = if let Some((key, value)) = part.split_once("!=") {
                (key.to_owned(), Some(value.to_owned()), false)
            } else if let Some((key, value)) = part.split_once('=') {
                (key.to_owned(), Some(value.trim_start_matches('=').to_owned()), true)
            } else if let Some(key) = part.strip_prefix('!') {
                (key.to_owned(), None, false)
            } else {
                (part, None, true)
            };
            selector.labels.push(label);
        }
        for part in parts("fieldSelector") {
            match part.split_once('=').map(|(field, value)| (field, value.trim_start_matches('=').to_owned())) {
                Some(("metadata.name", name)) => selector.name = Some(name),
                Some(("status.phase", phase)) => selector.phase = Some(phase),
                _ => {
                    let message =
                        format!("fieldSelector: {part:?} is not read here; use metadata.name or status.phase");
                    return Err(Refusal::new(StatusCode::BAD_REQUEST, message));
                }
            }
        }
        Ok(selector)
    }

    /// Whether a pod is wanted.
    pub(super) fn matches(&self, pod: &Pod) -> bool {
        let label = |(key, value, equal): &(String, Option<String>, bool)| {
            let has = pod.metadata.labels.as_ref().and_then(|labels| labels.get(key));
            let same = match value {
                Some(value) => has == Some(value),
                None => has.is_some(),
            };
            same == *equal
        };
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_ref());
        self.labels.iter().all(label)
            && self.name.as_ref().is_none_or(|name| pod.metadata.name.as_ref() == Some(name))
            && self.phase.as_ref().is_none_or(|wanted| phase == Some(wanted))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(labels: &str, fields: &str) -> Result<Selector, Refusal> {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Selector::read(&BTreeMap::from([pair("labelSelector", labels), pair("fieldSelector", fields)]))
    }

    #[test]
    fn selectors_choose_pods_or_are_refused() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "a", "labels": {"app": "x"}}, "status": {"phase": "Running"},
        }))
        .unwrap();
        for (labels, fields, expected) in [
            ("", "", true),
            ("app=x", "metadata.name=a", true),
            ("app==x,!other", "status.phase=Running", true),
            ("app!=x", "", false),
            ("other", "", false),
            ("", "metadata.name=b", false),
        ] {
            assert_eq!(read(labels, fields).unwrap().matches(&pod), expected, "{labels} {fields}");
        }
        assert!(read("app in (x)", "").is_err() && read("", "spec.nodeName=n").is_err());
    }
}
