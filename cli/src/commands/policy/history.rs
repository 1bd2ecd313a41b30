//! `comity policy history`.

use clap::Args;
use comity_audit::DONE;
use comity_proto::v1;

use crate::commands::audit::all_records;
use crate::failure::Failure;
use crate::session::Session;
use crate::views::{PolicyHistory, PolicyInForce};

const HISTORY_EXAMPLES: &str = "\
Examples:
  comity policy history
  comity policy history -o json | jq -r '.items[] | select(.commit) | .commit'

Lists the bundles that came into force, the newest first, from the audit log. Of a bundle
with a commit, 'git show COMMIT' in a clone says what it changed, and 'comity policy
rollback COMMIT' brings it back.
";

/// `comity policy history`.
#[derive(Debug, Args)]
#[command(after_help = HISTORY_EXAMPLES)]
pub struct PolicyHistoryArgs {}

impl PolicyHistoryArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let query = v1::ListAuditRecordsRequest {
            consistency: session.consistency(),
            act: "policy-applied".to_owned(),
            ..v1::ListAuditRecordsRequest::default()
        };
        let records = all_records(session.channel()?, query).await?;
        let applied = records.into_iter().filter(|record| record.outcome == DONE).rev();
        session.print(&PolicyHistory { items: applied.map(PolicyInForce::from).collect() })
    }
}
