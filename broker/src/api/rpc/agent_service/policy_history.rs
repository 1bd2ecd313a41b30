//! The Git objects by which an agent judges the policy in force.

use std::pin::Pin;
use std::time::Duration;

use comity_core::provenance::PolicySource;
use comity_core::refusal::Code;
use comity_core::{Refusal, State};
use comity_proto::v1;
use comity_proto::v1::policy_history_part::Part;
use comity_provenance::limits::{MAX_SHOWN_BYTES, shown_bytes};
use comity_provenance::{ObjectId, ObjectKind, PolicyFolder, StoreError, visit_objects};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::AgentHandlers;
use crate::api::authorize::Rpc;
use crate::api::caller_life::CallerLife;
use crate::api::rpc_error::RpcError;
use crate::api::shares::caller_slots::{CallLimits, CallerSlot};
use crate::context::Context;
use crate::group::Consistency;
use crate::policy_source::{Branch, ObjectDatabase, PULL_DEADLINE, PullError, Repository, Wanted, objects_with};

/// Histories in memory: each may have [`MAX_SHOWN_BYTES`], until its agent has read it.
pub(super) static SHOWN_HISTORIES: CallLimits = CallLimits {
    what: "histories of the policy on their way",
    per_caller: 1,
    per_institution: 2,
    per_broker: 4,
    caller_remedy: "read it to its end, or end the call",
    institution_remedy: "wait until one of them is read",
};
/// Parts that wait for an agent.
const PARTS_QUEUE_CAPACITY: usize = 8;
/// Time in which an agent reads all parts: they are held in memory until then.
const HISTORY_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of queueing the status that ends an answer early.
const FAILURE_TIMEOUT: Duration = Duration::from_millis(300);
const SOURCE_REMEDY: &str = "ask a maintainer to look at `comity policy source show`";

pub(super) type HistoryParts = Pin<Box<dyn Stream<Item = Result<v1::PolicyHistoryPart, Status>> + Send>>;

impl AgentHandlers {
    pub(super) async fn policy_history(
        &self,
        request: Request<v1::GetPolicyHistoryRequest>,
    ) -> Result<Response<HistoryParts>, Status> {
        let answer = self.show_history(request).await.map_err(|error| self.context.fail(error))?;
        Ok(Response::new(answer))
    }

    async fn show_history(&self, request: Request<v1::GetPolicyHistoryRequest>) -> Result<HistoryParts, RpcError> {
        let life = self.context.admit_long(Rpc::GetPolicyHistory, &request).await?;
        let verified = commit_of(&request.into_inner().verified_commit)?;
        let read = |state: &State| (state.provenance.commit.clone(), state.provenance.source.clone());
        let (commit, source) = self.context.group.read(Consistency::Linearizable, read).await?;
        let mut parts = Vec::new();
        let Some(commit) = commit else {
            parts.push(part(Part::Head(v1::PolicyHead::default())));
            return Ok(send(self.context.clone(), life, parts, None));
        };
        let Some(source) = source else {
            let reason = format!("commit {commit} is in force, and its repository is no source of the policy any more");
            return Err(Refusal::new(Code::WrongState, reason, SOURCE_REMEDY).into());
        };
        let head = v1::PolicyHead { commit: commit.clone(), folder: source.folder.clone() };
        parts.push(part(Part::Head(head)));
        let (objects, folder, to) = self.open(&source, &commit, verified).await?;
        // Whoever waits for a fetch holds no history.
        let slot = self.histories.take(life.caller(), self.context.hub.policy().as_deref())?;
        let collect = move || collect(&objects, &folder, verified, to);
        parts.extend(self.context.compute_long(&life, "reading the history of the policy", collect).await??);
        Ok(send(self.context.clone(), life, parts, Some(slot)))
    }

    async fn open(
        &self,
        source: &PolicySource,
        commit: &str,
        verified: Option<ObjectId>,
    ) -> Result<(ObjectDatabase, PolicyFolder, ObjectId), RpcError> {
        let unusable = |reason: String| RpcError::from(Refusal::new(Code::WrongState, reason, SOURCE_REMEDY));
        let unreadable = |error: PullError| RpcError::from(Refusal::new(Code::WrongState, error.reason, error.remedy));
        let repository = Repository::parse(&source.repository).map_err(|invalid| unusable(invalid.why.to_owned()))?;
        let branch = Branch::parse(&source.branch).map_err(|invalid| unusable(invalid.why.to_owned()))?;
        let folder = source.folder.parse::<PolicyFolder>().map_err(|error| unusable(error.to_string()))?;
        let to = commit.parse::<ObjectId>().map_err(|error| unusable(error.to_string()))?;
        let access = &self.context.policy_access;
        let wanted = Wanted { commit: to, verified };
        let objects = objects_with(access, &repository, &branch, wanted, PULL_DEADLINE).await;
        Ok((objects.map_err(unreadable)?, folder, to))
    }
}

fn commit_of(text: &str) -> Result<Option<ObjectId>, Refusal> {
    if text.is_empty() {
        return Ok(None);
    }
    let invalid =
        |_| Refusal::invalid("verified_commit", text, "is no full id of a commit", "send 40 hexadecimal digits");
    text.parse().map(Some).map_err(invalid)
}

fn part(part: Part) -> v1::PolicyHistoryPart {
    v1::PolicyHistoryPart { part: Some(part) }
}

fn collect(
    objects: &ObjectDatabase,
    folder: &PolicyFolder,
    from: Option<ObjectId>,
    to: ObjectId,
) -> Result<Vec<v1::PolicyHistoryPart>, RpcError> {
    let (mut parts, mut bytes) = (Vec::new(), 0_usize);
    let too_large = || format!("the commits since then have more than {MAX_SHOWN_BYTES} bytes of policy");
    let mut take = |kind: ObjectKind, content: &[u8]| {
        bytes = bytes.saturating_add(shown_bytes(content));
        if bytes > MAX_SHOWN_BYTES {
            return Err(StoreError::Unreadable(too_large()));
        }
        let kind = match kind {
            ObjectKind::Commit => v1::GitObjectKind::Commit,
            ObjectKind::Tree => v1::GitObjectKind::Tree,
            ObjectKind::Blob => v1::GitObjectKind::Blob,
            ObjectKind::Tag => return Ok(()),
        };
        parts.push(part(Part::Object(v1::GitObject { kind: kind.into(), content: content.to_vec() })));
        Ok(())
    };
    let visited = visit_objects(objects, folder, from, to, &mut take);
    if bytes > MAX_SHOWN_BYTES {
        let remedy = "pin a newer commit in the agent's configuration";
        return Err(RpcError::LimitReached { reason: too_large(), remedy });
    }
    visited.map_err(|error| {
        let remedy = "check that the repository has the commit that the agent has verified, and run `git fsck` there";
        Refusal::new(Code::WrongState, error.to_string(), remedy)
    })?;
    Ok(parts)
}

/// Sends the parts while the caller may have them, and holds the slot until then.
fn send(
    context: Context,
    life: CallerLife,
    parts: Vec<v1::PolicyHistoryPart>,
    slot: Option<CallerSlot>,
) -> HistoryParts {
    let (sender, receiver) = mpsc::channel(PARTS_QUEUE_CAPACITY);
    tokio::spawn(async move {
        let _held = slot;
        let sending = async {
            for part in parts {
                if sender.send(Ok(part)).await.is_err() {
                    return;
                }
            }
        };
        let error = tokio::select! {
            () = sending => return,
            ended = context.caller_ended(&life) => ended,
            () = context.stop.cancelled() => RpcError::Stopping,
            () = context.clock.sleep(HISTORY_TIMEOUT) => RpcError::LimitReached {
                reason: format!("the history of the policy was not read within {} s", HISTORY_TIMEOUT.as_secs()),
                remedy: "ask again, over a line that carries it",
            },
        };
        let _ = tokio::time::timeout(FAILURE_TIMEOUT, sender.send(Err(error.into()))).await;
    });
    Box::pin(ReceiverStream::new(receiver))
}
