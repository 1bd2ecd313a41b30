//! AuditService: reads the audit log.

use std::collections::BTreeSet;

use comity_audit::{ACTS, AuditRecord, Entry, SealedRecord, TreeHead};
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
/// Records that are read at once.
const MIN_READ: usize = 100;
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
        if !message.act.is_empty() && !ACTS.contains(&message.act.as_str()) {
            let remedy = format!("use one of {}", ACTS.join(", "));
            return Err(Refusal::invalid("act", &message.act, "is no act of the log", remedy));
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

/// One look at a part of the log.
struct Look {
    reader: Reader,
    filter: Filter,
    /// Number of the first record.
    from: u64,
    /// Number after the last.
    end: u64,
    /// Records that are given, at most.
    most: usize,
    /// Whether the hashes of others are given, too.
    withheld: bool,
}

impl Look {
    /// The records that are given, and the number of the last one that was looked at.
    fn records(&self, store: &AuditStore) -> std::io::Result<(Vec<v1::AuditEntry>, Option<u64>)> {
        let missing = |index: u64| std::io::Error::other(format!("record {index} is missing here"));
        let (mut entries, mut bytes, mut next) = (Vec::new(), 0, self.from);
        while next < self.end {
            let records = store.read(next, self.end, self.most.max(MIN_READ))?;
            if records.is_empty() {
                return Err(missing(next));
            }
            for SealedRecord { index, hash, line } in records {
                if index != next {
                    return Err(missing(next));
                }
                next = index + 1;
                let Ok(Entry::Record(record, _)) = Entry::parse(&line) else {
                    return Err(std::io::Error::other(format!("record {index} cannot be read")));
                };
                let record = match self.reader.may_read(&record) {
                    true if self.filter.matches(&record) => line,
                    false if self.withheld => String::new(),
                    _ => continue,
                };
                bytes += record.len();
                entries.push(v1::AuditEntry { index, hash: hash.to_string(), record });
                if entries.len() == self.most || bytes >= MAX_PAGE_BYTES {
                    return Ok((entries, Some(index)));
                }
            }
        }
        Ok((entries, next.checked_sub(1)))
    }
}

impl AuditHandlers {
    async fn list_audit_records(
        &self,
        request: Request<v1::ListAuditRecordsRequest>,
    ) -> Result<v1::ListAuditRecordsResponse, RpcError> {
        let life = self.context.admit_long(Rpc::ListAuditRecords, &request).await?;
        let message = request.into_inner();
        let filter = Filter::parse(&message)?;
        let page = Page::parse(message.page.clone(), "audit-records")?;
        let wrong = |key: &str| {
            Refusal::invalid("page.token", key, "is not a token of this list", "send next_token of the page before")
        };
        let after: Option<u64> = page.after(|key| key.parse().map_err(|_| wrong(key)))?;
        let from = after.map_or(message.from_index, |after| after.saturating_add(1));
        let (head, revision) = self.head(message.consistency).await?;
        let look = Look {
            reader: self.reader(life.caller()),
            filter,
            from,
            end: head.size.min(from.saturating_add(MAX_SCANNED)),
            most: page.size(),
            withheld: message.include_withheld,
        };
        let store = self.context.group.audit_store();
        let records = move || store.flush().and_then(|()| look.records(&store));
        let found = self.context.compute_long(&life, MISSING, records).await?;
        let (entries, last) = found.map_err(|error| unreadable(&error))?;
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
}

fn unreadable(error: &std::io::Error) -> RpcError {
    tracing::warn!(%error, "the audit log cannot be read");
    RpcError::Internal { what: MISSING }
}

/// What fails where this broker does not have all records yet.
const MISSING: &str = "reading the audit log";
