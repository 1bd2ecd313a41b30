//! `comity audit verify`.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use comity_audit::{Entry, Hash, TreeHead, Verifier, verify_consistency};
use comity_proto::v1;
use comity_proto::v1::audit_service_client::AuditServiceClient;
use comity_runtime::{BrokerChannel, BrokerEndpoints, ClientTls, connect};

use super::log_pages::LogPages;
use super::verified::{AuditVerified, ComparedBroker};
use crate::failure::Failure;
use crate::session::{Session, call};

const VERIFY_EXAMPLES: &str = "\
Examples:
  comity audit verify
  comity audit verify --file audit.jsonl
  comity audit verify --anchor 4711:6e340b9cffb37a98…

Reads the whole log, and compares it with the head of every broker that answers. --file checks an
export of 'comity audit list -o json --withheld' instead, also without a broker. --anchor names a
size and a root that you kept, for example from an earlier run. Exit code 1 if anything differs: the
first wrong record is named.
";

/// Longest line of an export, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Code of a log that somebody changed.
const ALTERED: &str = "audit-log-altered";

/// `comity audit verify`.
#[derive(Debug, Args)]
#[command(after_help = VERIFY_EXAMPLES)]
pub struct AuditVerifyArgs {
    /// Check this export in place of the brokers' records
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// A size and root of the log that you trust, SIZE:ROOT; may be repeated
    #[arg(long = "anchor", value_name = "SIZE:ROOT")]
    anchors: Vec<TreeHead>,
}

/// A broker to compare with.
struct Broker {
    address: String,
    channel: BrokerChannel,
    head: Result<TreeHead, Failure>,
}

impl AuditVerifyArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        // Heads first: the records that are read after them reach at least as far.
        let brokers = match (brokers(session).await, &self.file) {
            (Ok(brokers), _) => brokers,
            // An export can be checked without a federation.
            (Err(_), Some(_)) => Vec::new(),
            (Err(failure), None) => return Err(failure),
        };
        let verifier = match &self.file {
            Some(file) => verify_file(file)?,
            None => verify_brokers(session).await?,
        };
        if let (Some(file), 0) = (&self.file, verifier.size()) {
            let remedy = "give the output of 'comity audit list -o json --withheld'";
            return Err(Failure::refused("no-records", "the file has no records")
                .field("--file", file.display())
                .remedy(remedy));
        }
        let head = verifier.head_at(verifier.size()).ok_or_else(|| altered("records are missing", 0))?;
        for anchor in &self.anchors {
            check_anchor(&verifier, anchor)?;
        }
        let mut compared = Vec::new();
        for broker in brokers {
            compared.push(compare(&verifier, broker).await?);
        }
        let withheld = verifier.withheld();
        session.print(&AuditVerified { head, withheld, brokers: compared, anchors: self.anchors.clone() })
    }
}

fn altered(reason: impl Into<String>, index: u64) -> Failure {
    Failure::refused(ALTERED, reason).field("record", index).remedy(
        "keep the data directories of all brokers and this output as evidence, and see 'Audit' in the book \
         (docs/audit.md)",
    )
}

fn check_anchor(verifier: &Verifier, anchor: &TreeHead) -> Result<(), Failure> {
    match verifier.head_at(anchor.size) {
        Some(found) if found == *anchor => Ok(()),
        Some(found) => {
            let reason =
                format!("the first {} records are not those of the anchor: their root is {}", anchor.size, found.root);
            Err(altered(reason, anchor.size.saturating_sub(1)).field("--anchor", anchor))
        }
        None => {
            let reason = format!("the log ends at record {}, and the anchor has {}", verifier.size(), anchor.size);
            Err(altered(reason, verifier.size()).field("--anchor", anchor))
        }
    }
}

/// Checks the next entry.
fn push(verifier: &mut Verifier, entry: &Entry) -> Result<(), Failure> {
    verifier.push(entry).map_err(|fault| altered(fault.to_string(), fault.index()))
}

fn verify_file(path: &Path) -> Result<Verifier, Failure> {
    let shown = path.display();
    let unreadable =
        |error: std::io::Error| Failure::configuration(format!("cannot read {shown}: {error}")).field("--file", &shown);
    let mut lines = BufReader::new(File::open(path).map_err(unreadable)?);
    let (mut verifier, mut line) = (Verifier::default(), Vec::new());
    loop {
        line.clear();
        let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        let read = std::io::Read::take(&mut lines, limit).read_until(b'\n', &mut line).map_err(unreadable)?;
        if read == 0 {
            return Ok(verifier);
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = std::str::from_utf8(text).map_err(|error| error.to_string());
        let entry = text.and_then(|text| Entry::parse(text).map_err(|error| error.to_string())).map_err(|error| {
            altered(format!("record {} of {shown} cannot be read: {error}", verifier.size()), verifier.size())
        })?;
        push(&mut verifier, &entry)?;
    }
}

async fn verify_brokers(session: &Session) -> Result<Verifier, Failure> {
    let query = v1::ListAuditRecordsRequest { include_withheld: true, ..v1::ListAuditRecordsRequest::default() };
    let (mut pages, mut verifier) = (LogPages::new(session.channel()?, query), Verifier::default());
    while let Some(entries) = pages.next().await? {
        for entry in &entries {
            push(&mut verifier, entry)?;
        }
    }
    Ok(verifier)
}

/// Every broker that the caller knows, with its own head.
async fn brokers(session: &Session) -> Result<Vec<Broker>, Failure> {
    let (endpoints, tls) = (session.endpoints()?, session.tls()?);
    let asked = endpoints.addresses().iter().map(|address| broker(address, &tls));
    let brokers: Vec<Broker> = futures::future::join_all(asked).await.into_iter().collect::<Result<_, Failure>>()?;
    let failed = brokers.iter().find_map(|broker| broker.head.as_ref().err());
    match failed {
        Some(failure) if brokers.iter().all(|broker| broker.head.is_err()) => Err(failure.clone()),
        _ => Ok(brokers),
    }
}

async fn broker(address: &str, tls: &ClientTls) -> Result<Broker, Failure> {
    let endpoint = BrokerEndpoints::new([address]).map_err(|error| Failure::configuration(error.to_string()))?;
    let channel = connect(&endpoint, tls);
    let consistency = v1::Consistency::Stale.into();
    let answer =
        call(AuditServiceClient::new(channel.clone()).get_audit_head(v1::GetAuditHeadRequest { consistency })).await;
    let head = answer.and_then(|answer| tree_head(answer.head));
    Ok(Broker { address: address.to_owned(), channel, head })
}

fn tree_head(head: Option<v1::AuditHead>) -> Result<TreeHead, Failure> {
    let head = head.unwrap_or_default();
    Ok(TreeHead { size: head.size, root: hash(&head.root)? })
}

fn hash(text: &str) -> Result<Hash, Failure> {
    Hash::parse(text).map_err(|error| Failure::unavailable(format!("the broker's answer is wrong: {error}")))
}

/// Compares the records with the log of one broker.
async fn compare(verifier: &Verifier, broker: Broker) -> Result<ComparedBroker, Failure> {
    let Broker { address, channel, head } = broker;
    let head = match head {
        Ok(head) => head,
        Err(failure) => return Ok(ComparedBroker { address, size: None, agrees: false, problem: failure.reason }),
    };
    let agrees = match verifier.head_at(head.size) {
        Some(ours) => ours == head,
        None => continues(verifier, &channel).await?,
    };
    if !agrees {
        let first = first_difference(verifier, channel).await?;
        let reason = format!("{address} has another record {first} than the records that were checked");
        return Err(altered(reason, first));
    }
    Ok(ComparedBroker { address, size: Some(head.size), agrees, problem: String::new() })
}

/// Whether a broker's longer log continues the records.
async fn continues(verifier: &Verifier, channel: &BrokerChannel) -> Result<bool, Failure> {
    let from_size = verifier.size();
    let request = v1::GetAuditConsistencyRequest { from_size, consistency: v1::Consistency::Stale.into() };
    let answer = call(AuditServiceClient::new(channel.clone()).get_audit_consistency(request)).await?;
    let answer = answer.proof.unwrap_or_default();
    let hashes = answer.hashes.iter().map(|text| hash(text)).collect::<Result<Vec<Hash>, Failure>>()?;
    let now = tree_head(answer.head)?;
    let before = verifier.head_at(from_size);
    Ok(before.is_some_and(|before| verify_consistency(&before, &now, &hashes).is_ok()))
}

/// Number of the first record that a broker has another one of.
async fn first_difference(verifier: &Verifier, channel: BrokerChannel) -> Result<u64, Failure> {
    let query = v1::ListAuditRecordsRequest {
        include_withheld: true,
        consistency: v1::Consistency::Stale.into(),
        ..v1::ListAuditRecordsRequest::default()
    };
    let (mut pages, mut index) = (LogPages::new(channel, query), 0);
    while let Some(entries) = pages.next().await? {
        for entry in entries {
            if entry.index() != index || verifier.tree().record(index) != Some(entry.hash()) {
                return Ok(index);
            }
            index += 1;
        }
    }
    Ok(index)
}
