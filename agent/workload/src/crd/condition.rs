//! Conditions of custom resources.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A condition, as Kubernetes users know them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// CamelCase.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// CamelCase, stable.
    pub reason: String,
    /// One sentence.
    pub message: String,
    /// When the status last changed, RFC 3339.
    pub last_transition_time: String,
}

/// Milliseconds since 1970 in RFC 3339; `None` for 0.
pub(crate) fn time(ms: u64) -> Option<String> {
    let seconds = i64::try_from(ms / 1_000).ok().filter(|seconds| *seconds > 0)?;
    Some(k8s_openapi::jiff::Timestamp::from_second(seconds).ok()?.to_string())
}

pub(crate) enum ConditionStatus {
    True,
    False,
}

impl From<bool> for ConditionStatus {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition whose status changed at `now_ms`.
pub(crate) fn condition(
    type_: &str,
    status: impl Into<ConditionStatus>,
    reason: &str,
    message: &str,
    now_ms: u64,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: match status.into() {
            ConditionStatus::True => "True",
            ConditionStatus::False => "False",
        }
        .to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: time(now_ms).unwrap_or_default(),
    }
}

/// The new conditions; one whose status stays keeps the time of the old one.
pub(crate) fn conditions(old: &[Condition], new: Vec<Condition>) -> Vec<Condition> {
    let keep = |mut condition: Condition| {
        if let Some(before) = old.iter().find(|old| old.type_ == condition.type_ && old.status == condition.status) {
            condition.last_transition_time.clone_from(&before.last_transition_time);
        }
        condition
    };
    new.into_iter().map(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let condition = |status: &str, time: &str| Condition {
            type_: "Ready".to_owned(),
            status: status.to_owned(),
            reason: "R".to_owned(),
            message: String::new(),
            last_transition_time: time.to_owned(),
        };
        let old = [condition("False", "then")];
        assert_eq!(conditions(&old, vec![condition("False", "now")])[0].last_transition_time, "then");
        assert_eq!(conditions(&old, vec![condition("True", "now")])[0].last_transition_time, "now");
    }
}
