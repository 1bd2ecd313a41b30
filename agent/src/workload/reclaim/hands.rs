//! Notices, given.

use kube::api::Patch;
use serde_json::{Value, json};

use super::plan::Notice;
use super::{CHECKPOINTED, RECLAIM_AT, RECLAIM_REASON};
use crate::workload::burst::execute::{Hands, Outcome};

/// The verb of the events.
const ACTION: &str = "Reclaim";

/// Marks the pod, then tells it. An event that cannot be written is not tried again: the annotations say all of it.
pub(super) async fn give(hands: &Hands, notice: &Notice) -> Outcome {
    let outcome = hands.patch(&notice.pod, &Patch::<Value>::Merge(marking(notice))).await;
    if let Outcome::Done = outcome
        && let Outcome::Failed(reason) = hands.tell(&notice.pod, &notice.note, ACTION).await
    {
        tracing::warn!(namespace = notice.pod.namespace, pod = notice.pod.name, reason, "an event cannot be written");
    }
    outcome
}

/// Meets this very pod, for a UID cannot be changed; what others annotated stays.
fn marking(notice: &Notice) -> Value {
    let (at, reason) = notice.marks.clone().unzip();
    json!({ "metadata": {
        "uid": notice.pod.uid,
        "annotations": { RECLAIM_AT: at, RECLAIM_REASON: reason, CHECKPOINTED: null },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::burst::{Note, PodRef};

    #[test]
    fn marks_come_and_go_and_leave_the_rest_alone() {
        let pod = PodRef { namespace: "team-a".to_owned(), name: "p".to_owned(), uid: "u".to_owned() };
        let note = Note { is_warning: true, reason: "ComityReclaim", text: String::new() };
        let mut notice = Notice { pod, marks: Some(("then".to_owned(), "preempted".to_owned())), note };
        let mut object = json!({ "metadata": { "uid": "u", "annotations": { "a": "b", CHECKPOINTED: "true" } } });
        json_patch::merge(&mut object, &marking(&notice));
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ "a": "b", RECLAIM_AT: "then", RECLAIM_REASON: "preempted" })
        );
        notice.marks = None;
        json_patch::merge(&mut object, &marking(&notice));
        assert_eq!(object["metadata"]["annotations"], json!({ "a": "b" }));
    }
}
