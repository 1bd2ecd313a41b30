//! What every message between brokers says beside its content: of which group it is, and for which life of the
//! receiver's disk. A broker that lost its log must not answer for what it was before.

use tonic::Status;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::group::members::standing::Standing;
use crate::replication::identity::{GroupId, Incarnation};

const GROUP: &str = "comity-group";
const TO: &str = "comity-to";

/// Whether a broker that is in no group becomes one of the caller's: a leader's messages reach it only in the life that
/// the leader admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Adopts {
    /// It does.
    Yes,
    /// The message is refused.
    No,
}

/// Writes them.
pub(super) fn put(metadata: &mut MetadataMap, group: Option<&GroupId>, to: &Incarnation) {
    let mut insert = |key, text: &str| {
        // Both are hex digits.
        if let Ok(value) = text.parse::<MetadataValue<Ascii>>() {
            metadata.insert(key, value);
        }
    };
    insert(TO, to.as_str());
    if let Some(group) = group {
        insert(GROUP, group.as_str());
    }
}

/// Refuses what is for another life of this disk, or of another group. A broker that is in no group yet takes the group
/// of the leader that admitted it.
pub(super) async fn check(metadata: &MetadataMap, standing: &Standing, adopts: Adopts) -> Result<(), Status> {
    let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let to = text(TO);
    if to != standing.incarnation().as_str() {
        let own = standing.incarnation();
        return Err(Status::failed_precondition(format!(
            "this message is for incarnation {} of this broker, which is {own} now: its log was lost, and it has to be \
             admitted again",
            to.get(..8).unwrap_or("none")
        )));
    }
    let theirs = GroupId::from_wire(&text(GROUP));
    match (standing.group(), theirs) {
        (Some(own), Some(theirs)) if own == theirs => Ok(()),
        (None, Some(theirs)) if adopts == Adopts::Yes => {
            standing.adopt(theirs).await.map_err(|error| Status::internal(error.to_string()))
        }
        (own, theirs) => {
            let name = |group: Option<GroupId>| group.map_or_else(|| "no group".to_owned(), |it| format!("group {it}"));
            Err(Status::failed_precondition(format!(
                "this broker is of {}, the caller of {}; if the group was recovered from a copy, run \
                 `comity-broker rebuild --data DIR` on the broker that is not of the recovered one",
                name(own),
                name(theirs)
            )))
        }
    }
}
