//! `comity policy why`.

use clap::Args;
use comity_audit::AuditRecord;
use comity_proto::v1;
use serde::Serialize;

use crate::commands::audit::{all_records, cited};
use crate::commands::completions::known_ids;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer, Sheet};
use crate::session::Session;
use crate::units::format_time;

const WHY_EXAMPLES: &str = "\
Examples:
  comity policy why req-42
  comity policy why req-42 -o json | jq -r '.steps[].reasons[]? | \"\\(.file):\\(.line)\"'

Shows what was decided about a request and its leases, by whom, and the documents and lines of
policy behind it. 'comity request explain' says what will become of a request that waits.
";

/// `comity policy why`.
#[derive(Debug, Args)]
#[command(after_help = WHY_EXAMPLES)]
pub struct PolicyWhyArgs {
    /// Request, as in req-42
    #[arg(add = known_ids::requests())]
    request: String,
}

/// The decisions about a request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Why {
    request: String,
    steps: Vec<AuditRecord>,
}

impl Answer for Why {
    fn table(&self, _now_ms: u64) -> Sheet {
        self.steps.iter().fold(Sheet::default(), |sheet, step| {
            let time = format_time(step.time_ms).unwrap_or_default();
            let outcome =
                if step.outcome == comity_audit::DONE { String::new() } else { format!(": {}", step.outcome) };
            let sheet = sheet.heading(format!("{time}  {} {}{outcome}", step.act, step.subject.id));
            let sheet = sheet.paragraph(format!("  by {}", step.actor));
            let sheet = if step.cause.is_empty() { sheet } else { sheet.paragraph(format!("  {}", step.cause)) };
            step.reasons.iter().fold(sheet, |sheet, reason| sheet.paragraph(format!("  {}", cited(reason))))
        })
    }
}

impl PolicyWhyArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let query = v1::ListAuditRecordsRequest {
            consistency: session.consistency(),
            request: self.request.clone(),
            ..v1::ListAuditRecordsRequest::default()
        };
        let steps = all_records(session.channel()?, query).await?;
        if steps.is_empty() {
            let reason = format!("the audit log has no record of {} that you may read", self.request);
            return Err(Failure::new(Exit::NotFound, "not-found", reason)
                .field("request", &self.request)
                .remedy("'comity request list --all' lists requests"));
        }
        session.print(&Why { request: self.request.clone(), steps })
    }
}
