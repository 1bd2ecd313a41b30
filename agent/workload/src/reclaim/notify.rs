//! Writes notices on pods.

use kube::api::Patch;
use serde_json::{Value, json};

use super::notice_plan::Notice;
use super::{CHECKPOINTED, RECLAIM_AT, RECLAIM_REASON};
use crate::burst::pod_client::{Outcome, PodClient};

/// The verb of the events.
const ACTION: &str = "Reclaim";

/// Annotates the pod, then writes the event. A failed event is not retried: the annotations say the same.
pub(super) async fn notify(pod_client: &PodClient, notice: &Notice) -> Outcome {
    let outcome = pod_client.patch(&notice.pod, &Patch::<Value>::Merge(annotation_patch(notice))).await;
    if let Outcome::Done = outcome
        && let Outcome::Failed(reason) = pod_client.write_event(&notice.pod, &notice.note, ACTION).await
    {
        tracing::warn!(namespace = notice.pod.namespace, pod = notice.pod.name, reason, "an event cannot be written");
    }
    outcome
}

/// A merge patch that fails for another pod of the same name, because a UID cannot be changed.
fn annotation_patch(notice: &Notice) -> Value {
    let (at, reason) = notice.marks.clone().unzip();
    json!({ "metadata": {
        "uid": notice.pod.uid,
        "annotations": { RECLAIM_AT: at, RECLAIM_REASON: reason, CHECKPOINTED: null },
    } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::burst::{Note, PodRef};

    #[test]
    fn marks_come_and_go_and_leave_the_rest_alone() {
        let pod = PodRef { namespace: "team-a".to_owned(), name: "p".to_owned(), uid: "u".to_owned() };
        let note = Note { is_warning: true, reason: "ComityReclaim", text: String::new() };
        let mut notice = Notice { pod, marks: Some(("then".to_owned(), "preempted".to_owned())), note };
        let mut object = json!({ "metadata": { "uid": "u", "annotations": { "a": "b", CHECKPOINTED: "true" } } });
        json_patch::merge(&mut object, &annotation_patch(&notice));
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ "a": "b", RECLAIM_AT: "then", RECLAIM_REASON: "preempted" })
        );
        notice.marks = None;
        json_patch::merge(&mut object, &annotation_patch(&notice));
        assert_eq!(object["metadata"]["annotations"], json!({ "a": "b" }));
    }
}
