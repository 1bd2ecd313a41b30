//! Reads the audit log page by page.

use comity_audit::{AuditRecord, Entry, Hash};
use comity_proto::v1;
use comity_proto::v1::audit_service_client::AuditServiceClient;
use comity_runtime::BrokerChannel;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::session::call;

/// Records per page: the API's maximum.
const RECORDS_PER_PAGE: u32 = 500;

/// A read of the audit log under way.
pub(crate) struct LogPages {
    client: AuditServiceClient<BrokerChannel>,
    query: v1::ListAuditRecordsRequest,
    token: Option<String>,
    /// Number of the record after the last one that was read.
    next: u64,
}

impl LogPages {
    /// `query` without a page.
    pub(crate) fn new(channel: BrokerChannel, query: v1::ListAuditRecordsRequest) -> Self {
        let next = query.from_index;
        Self { client: AuditServiceClient::new(channel), query, token: Some(String::new()), next }
    }

    /// The next page, which may be empty; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Entry>>, Failure> {
        let Some(token) = self.token.take() else { return Ok(None) };
        let page = Some(v1::PageRequest { size: RECORDS_PER_PAGE, token });
        let response =
            call(self.client.list_audit_records(v1::ListAuditRecordsRequest { page, ..self.query.clone() })).await?;
        self.token = response.page.map(|page| page.next_token).filter(|token| !token.is_empty());
        let entries = response.entries.into_iter().map(entry).collect::<Result<Vec<Entry>, Failure>>()?;
        if let Some(last) = entries.last() {
            self.next = last.index().saturating_add(1);
        }
        Ok(Some(entries))
    }

    /// Reads on after the last record, which was the end of the log.
    pub(crate) fn go_on(&mut self) {
        self.query.from_index = self.next;
        self.token = Some(String::new());
    }
}

/// All records that the caller may read.
pub(crate) async fn all_records(
    channel: BrokerChannel,
    query: v1::ListAuditRecordsRequest,
) -> Result<Vec<AuditRecord>, Failure> {
    let (mut pages, mut records) = (LogPages::new(channel, query), Vec::new());
    while let Some(entries) = pages.next().await? {
        records.extend(entries.into_iter().filter_map(|entry| match entry {
            Entry::Record(record, _) => Some(*record),
            Entry::Withheld { .. } => None,
        }));
    }
    Ok(records)
}

fn entry(entry: v1::AuditEntry) -> Result<Entry, Failure> {
    let wrong = |reason: String| {
        let reason = format!("the broker sent an unreadable record {}: {reason}", entry.index);
        Failure::new(Exit::Unavailable, "internal", reason).remedy("install a client of the broker's version")
    };
    let hash = Hash::parse(&entry.hash).map_err(|error| wrong(error.to_string()))?;
    if entry.record.is_empty() {
        return Ok(Entry::Withheld { index: entry.index, hash });
    }
    let parsed = Entry::parse(&entry.record).map_err(|error| wrong(error.to_string()))?;
    if parsed.hash() != hash {
        let reason = format!("record {} was edited: its hash is {}, not {hash}", entry.index, parsed.hash());
        return Err(Failure::refused("audit-log-altered", reason).field("record", entry.index));
    }
    Ok(parsed)
}
