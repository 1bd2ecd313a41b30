//! Events on objects, for people who describe them.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, Recorder, Reporter};

/// Longest text of an event: the API server takes 1,024 bytes.
const MAX_EVENT_BYTES: usize = 1_000;

/// Refers to a pod.
pub fn pod_reference(namespace: &str, name: &str, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// Refers to a node.
pub fn node_reference(name: &str) -> ObjectReference {
    // Kubelets take the name as the uid, too, so `kubectl describe node` finds both.
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Refers to an admission policy, whether it exists or not.
pub fn policy_reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("admissionregistration.k8s.io/v1".to_owned()),
        kind: Some("ValidatingAdmissionPolicy".to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// Writes an event on an object; a text that is too long is cut.
///
/// # Errors
/// Those of the API server. The caller limits the time.
pub async fn publish_event(client: Client, on: &ObjectReference, mut event: Event) -> Result<(), kube::Error> {
    event.note = event.note.map(cut);
    let reporter = Reporter { controller: "comity-agent".to_owned(), instance: None };
    // A new recorder each time: a reused one repeats the text of an earlier event of this reason.
    Recorder::new(client, reporter).publish(&event, on).await
}

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_EVENT_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("é".repeat(600)).len(), 1_000);
        assert_eq!(cut(format!("a{}", "é".repeat(600))).len(), 999);
        assert_eq!(cut("short".to_owned()), "short");
    }
}
