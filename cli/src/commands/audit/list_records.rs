//! `comity audit list`.

use std::time::Duration;

use clap::Args;
use comity_audit::Entry;
use comity_proto::v1;

use super::log_pages::{LogPages, all_records};
use super::record_sheet::{HEADS, Records, entry_row};
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::output::{Format, Sheet, write_stdout};
use crate::session::Session;
use crate::units::{parse_duration_ms, parse_time_ms};

/// Time between two reads that follow the log.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);

const AUDIT_LIST_EXAMPLES: &str = "\
Examples:
  comity audit list --since 2h
  comity audit list --subject lease-7
";

const MORE_AUDIT_LIST_EXAMPLES: &str = "\
Examples:
  comity audit list --since 2h
  comity audit list --subject lease-7
  comity audit list --act policy-applied --since 2026-11-01T00:00Z
  comity audit list -o json --withheld > audit.jsonl     # export; 'comity audit verify --file' checks it
  comity audit list -o json --follow | jq -r .act

Maintainers read all records. Others read those that concern their institutions and tenants, and
changes of the policy. -o json prints one record per line, as it is hashed.
";

/// `comity audit list`.
#[derive(Debug, Args)]
#[command(after_help = AUDIT_LIST_EXAMPLES, after_long_help = MORE_AUDIT_LIST_EXAMPLES)]
pub struct AuditListArgs {
    /// Only records since then: 2h for the last 2 hours, or 2026-11-23T08:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_past_ms)]
    since: Option<u64>,
    /// Only records before that time
    #[arg(long, value_name = "TIME", value_parser = parse_past_ms)]
    until: Option<u64>,
    /// Only acts of this user, cluster or broker, as '-o json' shows it
    #[arg(long)]
    actor: Option<String>,
    /// Only acts on this object, as in lease-7
    #[arg(long)]
    subject: Option<String>,
    /// Only acts of this kind, as in lease-placed
    #[arg(long)]
    act: Option<String>,
    /// Only records about this request and its leases
    #[arg(long)]
    request: Option<String>,
    /// Also print the number and hash of each record that you may not read
    #[arg(long, conflicts_with_all = ["since", "until", "actor", "subject", "act", "request"])]
    withheld: bool,
    /// Print new records as they come, until Ctrl-C
    #[arg(long)]
    follow: bool,
}

impl AuditListArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let query = v1::ListAuditRecordsRequest {
            consistency: session.consistency(),
            since_ms: self.since.unwrap_or_default(),
            until_ms: self.until.unwrap_or_default(),
            actor: text(&self.actor),
            subject: text(&self.subject),
            act: text(&self.act),
            request: text(&self.request),
            include_withheld: self.withheld,
            ..v1::ListAuditRecordsRequest::default()
        };
        let channel = session.channel()?;
        if !self.follow && !session.format.is_for_scripts() {
            return session.print(&Records(all_records(channel, query).await?));
        }
        let (mut pages, mut widths) = (LogPages::new(channel, query), Vec::new());
        loop {
            while let Some(entries) = pages.next().await? {
                print(session, &entries, &mut widths)?;
            }
            if !self.follow {
                return Ok(());
            }
            tokio::time::sleep(FOLLOW_INTERVAL).await;
            pages.go_on();
        }
    }
}

fn print(session: &Session, entries: &[Entry], widths: &mut Vec<usize>) -> Result<(), Failure> {
    let mut text = String::new();
    match session.format {
        Format::Json => {
            for entry in entries {
                let line = entry.line().map_err(|error| Failure::unavailable(error.to_string()))?;
                text.push_str(&line);
                text.push('\n');
            }
        }
        Format::Yaml => {
            for entry in entries {
                if let Entry::Record(record, _) = entry {
                    text.push_str(&session.format.one_of_many(record)?);
                }
            }
        }
        Format::Table | Format::Markdown => {
            let rows: Vec<Vec<String>> = entries.iter().filter_map(entry_row).collect();
            if !rows.is_empty() {
                let first = widths.is_empty();
                let table = Sheet::continued(HEADS.to_vec(), rows, widths).to_string();
                text = if first {
                    table
                } else {
                    table.split_once('\n').map_or_else(String::new, |(_, rows)| rows.to_owned())
                };
            }
        }
    }
    write_stdout(&text)
}

/// A point in time, or a duration before now.
fn parse_past_ms(text: &str) -> Result<u64, String> {
    match parse_duration_ms(text) {
        Ok(ago) => Ok(now_ms().saturating_sub(ago).max(1)),
        Err(_) => parse_time_ms(text).map_err(|_| {
            format!("{text:?} is not a time; write 2h for 2 hours ago, 2026-11-23T08:00Z or 2026-11-23T09:00+01:00")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_before_now() {
        let now = now_ms();
        let ago = now - parse_past_ms("2h").expect("a duration");
        assert!((7_190_000..=7_200_000).contains(&ago), "{ago}");
        assert_eq!(parse_past_ms("2026-11-23T08:00Z"), Ok(1_795_420_800_000));
        assert!(parse_past_ms("yesterday").expect_err("no time").contains("2 hours ago"));
    }
}
