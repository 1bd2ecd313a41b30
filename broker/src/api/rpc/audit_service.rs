//! AuditService: reads the audit log.

use std::collections::BTreeSet;

use comity_audit::{AuditRecord, Entry, SealedRecord, TreeHead};
use comity_core::Refusal;
use comity_policy::Roles;
use comity_proto::v1;
use comity_proto::v1::audit_service_server::AuditService;
use tonic::Request;

use crate::api::authorize::{Rpc, roles_of};
use crate::api::caller::Caller;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::context::Context;
use crate::storage::AuditStore;

/// Records that one call looks at: a filter may match few of them.
const MAX_SCANNED: u64 = 20_000;
/// Bytes of records in one answer.
const MAX_PAGE_BYTES: usize = 2 << 20;
/// Kinds of subjects that concern the whole federation: everybody with a role may read the policy, too.
const OF_ALL: [&str; 2] = ["policy", "policy-source"];

/// Reads the audit log.
#[derive(Debug, Clone)]
pub struct AuditHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { AuditService for AuditHandlers {
    list_audit_records: ListAuditRecordsRequest -> ListAuditRecordsResponse;
    get_audit_head: GetAuditHeadRequest -> GetAuditHeadResponse;
    get_audit_consistency: GetAuditConsistencyRequest -> GetAuditConsistencyResponse;
} }

/// Whose records a caller may read.
struct Reader {
    roles: Roles,
}

impl Reader {
    fn may_read(&self, record: &AuditRecord) -> bool {
        let Roles { federation_admin, institutions_operated, tenants, .. } = &self.roles;
        let institutions: BTreeSet<&str> = record.institutions.iter().map(String::as_str).collect();
        *federation_admin
            || institutions_operated.iter().any(|name| institutions.contains(name.as_str()))
            || tenants.contains_key(&record.tenant)
            || OF_ALL.contains(&record.subject.kind.as_str())
    }
}

/// The records that a caller asks for.
struct Filter {
    since_ms: u64,
    until_ms: u64,
    actor: String,
    subject: String,
    act: String,
    request: String,
}

impl Filter {
    /// Refuses a filter together with withheld records: whether they match is not for the caller to know.
    fn parse(message: &v1::ListAuditRecordsRequest) -> Result<Self, Refusal> {
        let until_ms = if message.until_ms == 0 { u64::MAX } else { message.until_ms };
        if until_ms <= message.since_ms {
            let remedy = "name a later time, or none";
            return Err(Refusal::invalid("until_ms", message.until_ms, "is not after since_ms", remedy));
        }
        let (actor, subject, act) = (message.actor.clone(), message.subject.clone(), message.act.clone());
        let filter =
            Self { since_ms: message.since_ms, until_ms, actor, subject, act, request: message.request.clone() };
        let selects = filter.since_ms > 0
            || message.until_ms > 0
            || [&filter.actor, &filter.subject, &filter.act, &filter.request].iter().any(|text| !text.is_empty());
        if selects && message.include_withheld {
            let why = "cannot be combined with a filter";
            return Err(Refusal::invalid("include_withheld", true, why, "leave out one of the two"));
        }
        Ok(filter)
    }

    fn matches(&self, record: &AuditRecord) -> bool {
        let is = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
        (self.since_ms..self.until_ms).contains(&record.time_ms)
            && is(&self.actor, &record.actor)
            && is(&self.subject, &record.subject.id)
            && is(&self.act, &record.act)
            && is(&self.request, &record.request)
    }
}

impl AuditHandlers {
    async fn list_audit_records(
        &self,
        request: Request<v1::ListAuditRecordsRequest>,
    ) -> Result<v1::ListAuditRecordsResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListAuditRecords, &request).await?;
        let message = request.into_inner();
        let filter = Filter::parse(&message)?;
        let page = Page::parse(message.page.clone(), "audit-records")?;
        let wrong = |key: &str| {
            Refusal::invalid("page.token", key, "is not a token of this list", "send next_token of the page before")
        };
        let after: Option<u64> = page.after(|key| key.parse().map_err(|_| wrong(key)))?;
        let from = after.map_or(message.from_index, |after| after.saturating_add(1));
        let (head, revision) = self.head(message.consistency).await?;
        let reader = self.reader(&caller);
        let (size, withheld) = (page.size(), message.include_withheld);
        let read = move |store: &AuditStore| -> std::io::Result<(Vec<(u64, v1::AuditEntry)>, Option<u64>)> {
            let (mut entries, mut bytes, mut next) = (Vec::new(), 0, from);
            let end = head.size.min(from.saturating_add(MAX_SCANNED));
            while next < end {
                let records = store.read(next, end, size.max(100))?;
                if records.first().is_none_or(|record| record.index != next) {
                    return Err(std::io::Error::other(format!("record {next} is missing here")));
                }
                for SealedRecord { index, hash, line } in records {
                    if index != next {
                        return Err(std::io::Error::other(format!("record {next} is missing here")));
                    }
                    next = index + 1;
                    let record = match Entry::parse(&line) {
                        Ok(Entry::Record(record, _)) => *record,
                        _ => return Err(std::io::Error::other(format!("record {index} cannot be read"))),
                    };
                    let record = match reader.may_read(&record) {
                        true if filter.matches(&record) => line,
                        false if withheld => String::new(),
                        _ => continue,
                    };
                    bytes += record.len();
                    entries.push((index, v1::AuditEntry { index, hash: hash.to_string(), record }));
                    if entries.len() == size || bytes >= MAX_PAGE_BYTES {
                        return Ok((entries, Some(next - 1)));
                    }
                }
            }
            Ok((entries, next.checked_sub(1)))
        };
        let (entries, last) = self.read(read).await?;
        let entries = entries.into_iter().map(|(_, entry)| entry).collect();
        let next = last.filter(|last| last.saturating_add(1) < head.size);
        Ok(v1::ListAuditRecordsResponse { entries, page: Some(page.part(next, revision)) })
    }

    async fn get_audit_head(
        &self,
        request: Request<v1::GetAuditHeadRequest>,
    ) -> Result<v1::GetAuditHeadResponse, RpcError> {
        self.context.admit(Rpc::GetAuditHead, &request).await?;
        let (head, _) = self.head(request.get_ref().consistency).await?;
        let head = v1::AuditHead { size: head.size, root: head.root.to_string() };
        Ok(v1::GetAuditHeadResponse { head: Some(head), broker: self.context.id })
    }

    async fn get_audit_consistency(
        &self,
        request: Request<v1::GetAuditConsistencyRequest>,
    ) -> Result<v1::GetAuditConsistencyResponse, RpcError> {
        self.context.admit(Rpc::GetAuditConsistency, &request).await?;
        let message = request.into_inner();
        let (head, _) = self.head(message.consistency).await?;
        let from = message.from_size;
        if from > head.size {
            let why = format!("is more than the {} records of the log", head.size);
            return Err(Refusal::invalid("from_size", from, &why, "name a size that this log had before").into());
        }
        let proof = self.context.audit_proof(from, head).await.map_err(|error| unreadable(&error))?;
        let proof = Some(proof.ok_or(RpcError::Internal { what: MISSING })?);
        Ok(v1::GetAuditConsistencyResponse { proof, broker: self.context.id })
    }

    /// The head as the state has it, and the revision.
    async fn head(&self, consistency: i32) -> Result<(TreeHead, u64), RpcError> {
        self.context.read(consistency, |state| Ok((state.audit.tree_head(), state.revision))).await
    }

    fn reader(&self, caller: &Caller) -> Reader {
        Reader { roles: roles_of(caller, self.context.hub.policy().as_deref()) }
    }

    /// Reads the store, which then has every record that the state counts, unless another broker still sends some.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&AuditStore) -> std::io::Result<T> + Send + 'static,
    ) -> Result<T, RpcError> {
        let store = self.context.group.audit_store();
        let task = tokio::task::spawn_blocking(move || store.flush().and_then(|()| read(&store)));
        let answer = task.await.map_err(std::io::Error::other).flatten();
        answer.map_err(|error| unreadable(&error))
    }
}

fn unreadable(error: &std::io::Error) -> RpcError {
    tracing::warn!(%error, "the audit log cannot be read");
    RpcError::Internal { what: MISSING }
}

/// What fails where this broker does not have all records yet.
const MISSING: &str = "reading the audit log";
