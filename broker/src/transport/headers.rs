//! Headers of every message between brokers: the sender's group and the receiver's incarnation. A broker that lost its
//! log must not answer for its earlier incarnation.

use tonic::Status;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::eligibility::Eligibility;
use crate::replication::identity::{GroupId, Incarnation};

const GROUP: &str = "comity-group";
const TO: &str = "comity-to";
const OUTCAST: &str = "comity-outcast";

/// Reason why a caller no longer belongs to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcast {
    /// It was removed.
    Removed,
    /// Its group was replaced: this broker's group was recovered from a copy of it.
    Replaced,
}

impl Outcast {
    fn as_str(self) -> &'static str {
        match self {
            Self::Removed => "removed",
            Self::Replaced => "replaced",
        }
    }

    /// Reads the header of a peer's refusal.
    pub(crate) fn of(status: &Status) -> Option<Self> {
        let text = status.metadata().get(OUTCAST)?.to_str().ok()?;
        [Self::Removed, Self::Replaced].into_iter().find(|outcast| outcast.as_str() == text)
    }
}

/// A refusal with the reason why the caller no longer belongs to the group.
pub(crate) fn outcast(mut status: Status, why: Outcast) -> Status {
    status.metadata_mut().insert(OUTCAST, MetadataValue::from_static(why.as_str()));
    status
}

/// Whether a broker without a group joins the caller's group. Only a leader's messages do that, and only if they name
/// the incarnation that the leader admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupAdoption {
    /// Join it.
    Adopt,
    /// Refuse the message.
    Refuse,
}

/// Writes the headers.
pub(crate) fn put(metadata: &mut MetadataMap, group: Option<&GroupId>, to: &Incarnation) {
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

/// Refuses a message for another incarnation or from another group; `adopts` governs a broker without a group.
pub(crate) async fn check(
    metadata: &MetadataMap,
    eligibility: &Eligibility,
    adopts: GroupAdoption,
) -> Result<(), Status> {
    let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let theirs = GroupId::from_wire(&text(GROUP));
    if theirs.as_ref().is_some_and(|theirs| eligibility.replaces(theirs)) {
        let text = "this broker's group was recovered from a copy of the caller's, and only one of them may go on";
        return Err(outcast(Status::failed_precondition(text), Outcast::Replaced));
    }
    let to = text(TO);
    if to != eligibility.incarnation().as_str() {
        let own = eligibility.incarnation();
        return Err(Status::failed_precondition(format!(
            "this message is for incarnation {} of this broker, which is {own} now: its log was lost, and it has to be \
             admitted again",
            to.get(..8).unwrap_or("none")
        )));
    }
    match (eligibility.group(), theirs) {
        (Some(own), Some(theirs)) if own == theirs => Ok(()),
        (None, Some(theirs)) if adopts == GroupAdoption::Adopt => {
            eligibility.adopt(theirs).await.map_err(|error| Status::internal(error.to_string()))
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
