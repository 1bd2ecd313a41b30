//! `comity raft`: status, members, leader and log time of the broker group.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::change_members_request::Change;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::{BrokerEndpoints, ClientTls, connect};

mod invite_broker;

pub use invite_broker::BrokerInviteArgs;

use crate::confirm::ConfirmArgs;
use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::views::{OldRoot, RaftBroker, RaftMember, RaftMembers, RaftStatus, RebasedTime};

/// Limit of a status call: a broker that is down must not delay the others' answers.
const STATUS_LIMIT: Duration = Duration::from_secs(5);

const STATUS_EXAMPLES: &str = "\
Examples:
  comity raft status
  comity raft status --broker a.example.org:7443,b.example.org:7443,c.example.org:7443

Calls each broker separately. Brokers at the same applied index have the same state hash. The
exit code is 0 if one leader serves one group and no invariant is broken.
";

/// Limit of a membership change: a new member first gets the log or a snapshot, and brokers give up after two minutes.
const CHANGE_LIMIT: Duration = Duration::from_secs(150);
/// Limit of a rebase, which changes every lease in one step.
const REBASE_LIMIT: Duration = Duration::from_secs(30);

const ADD_LEARNER_EXAMPLES: &str = "\
Examples:
  comity raft add-learner 4 --raft-address d.example.org:7444 --client-address d.example.org:7443
  comity raft promote 4

The new broker must run and be reachable. It receives the log and does not vote until promoted.
Repeating the call is safe. Only a maintainer of the federation may change members.
";

const PROMOTE_EXAMPLES: &str = "\
Examples:
  comity raft promote 4

Waits until the broker has the log. A broker that lost its disk needs no promotion: it rejoins as
a learner and votes again once it has caught up.
";

const REMOVE_EXAMPLES: &str = "\
Examples:
  comity raft remove 2
  comity raft remove 2 --yes

Refused if the other voters that answer are not a majority. Numbers are never reused: `comity raft
invite` gives the successor a new one. A leader transfers its leadership before it is removed.

The brokers refuse it from then on. Its disk still holds a key that signs certificates of members:
erase the disk; if it may be in other hands, replace the root ('If an intermediate was stolen' in
docs/authority.md).
";

const REPLACE_EXAMPLES: &str = "\
Examples:
  comity raft replace 2 --by 4 --raft-address d.example.org:7444 --client-address d.example.org:7443

Asks before it begins, as `comity raft remove` does. Adds the new broker, promotes it, then removes the old one. If this is interrupted after the new
broker votes, repeat it with --continue.
";

const TRANSFER_EXAMPLES: &str = "\
Examples:
  comity raft transfer-leader        # to the voter with the longest log
  comity raft transfer-leader 3
";

const REBASE_TIME_EXAMPLES: &str = "\
Examples:
  comity raft rebase-time
  comity raft rebase-time --yes

First set the brokers' clocks, preferably with NTP. Log time moves towards the median of their
wall clocks by at most 36 s per hour. This command moves it there at once, together with every
lease, notice and deadline, so that each keeps its remaining time. Start windows of requests and
dates of agreements stay. Only a maintainer of the federation may call it.
";

/// `comity raft`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity raft status\n  comity raft transfer-leader 2\n")]
pub enum RaftCommand {
    /// Show the group as each broker sees it: leader, term, log, state
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
    /// Invite a broker: print the command with which it joins
    Invite(BrokerInviteArgs),
    /// Add a broker that receives the log and does not vote yet
    #[command(after_help = ADD_LEARNER_EXAMPLES)]
    AddLearner(AddLearnerArgs),
    /// Let a learner vote once it has caught up
    #[command(after_help = PROMOTE_EXAMPLES)]
    Promote(BrokerArgs),
    /// Remove a broker from the group for good
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(RemoveArgs),
    /// Replace a broker with a new one
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace(ReplaceArgs),
    /// Transfer leadership to another voter
    #[command(after_help = TRANSFER_EXAMPLES)]
    TransferLeader(TransferArgs),
    /// Show how far log time is off the brokers' clocks, and move it there with --yes
    #[command(after_help = REBASE_TIME_EXAMPLES)]
    RebaseTime(RebaseTimeArgs),
}

/// `comity raft rebase-time`.
#[derive(Debug, Args)]
pub struct RebaseTimeArgs {
    /// Move log time [default: dry run]
    #[arg(long)]
    yes: bool,
}

impl RebaseTimeArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = RaftServiceClient::new(session.channel()?);
        let request = v1::RebaseTimeRequest { dry_run: !self.yes };
        match tokio::time::timeout(REBASE_LIMIT, client.rebase_time(request)).await {
            Ok(answer) => session.print(&RebasedTime::from(answer?.into_inner())),
            Err(_) => Err(Failure::unavailable(format!("no answer within {} s", REBASE_LIMIT.as_secs()))
                .remedy("run 'comity raft rebase-time' to see how far log time is off; repeating the call is safe")),
        }
    }
}

/// `comity raft add-learner`.
#[derive(Debug, Args)]
pub struct AddLearnerArgs {
    /// Number of the new broker, as in its configuration
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
    #[command(flatten)]
    addresses: BrokerAddressArgs,
}

/// Addresses of a broker.
#[derive(Debug, Args)]
pub struct BrokerAddressArgs {
    /// Address of its Raft endpoint for the other brokers
    #[arg(long, value_name = "HOST:PORT")]
    raft_address: String,
    /// Address for clients and agents
    #[arg(long, value_name = "HOST:PORT")]
    client_address: String,
}

/// `comity raft promote`.
#[derive(Debug, Args)]
pub struct BrokerArgs {
    /// Number of the broker, as `comity raft status` shows it
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
}

/// `comity raft remove`.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// `comity raft replace`.
#[derive(Debug, Args)]
pub struct ReplaceArgs {
    /// Number of the broker to remove
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
    /// Number of the new broker, as in its configuration
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    by: u64,
    #[command(flatten)]
    addresses: BrokerAddressArgs,
    /// Finish an interrupted replacement: the new broker votes already
    #[arg(long = "continue")]
    continues: bool,
    #[command(flatten)]
    confirm: ConfirmArgs,
}

/// `comity raft transfer-leader`.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Number of the next leader [default: the voter with the longest log]
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: Option<u64>,
}

fn add_learner(id: u64, addresses: &BrokerAddressArgs) -> Change {
    let (raft_address, client_address) = (addresses.raft_address.clone(), addresses.client_address.clone());
    Change::AddLearner(v1::AddLearner { id, raft_address, client_address })
}

/// Makes one membership change and returns the members after it.
async fn change_members(session: &Session, change: Change) -> Result<Vec<v1::RaftMember>, Failure> {
    let mut client = RaftServiceClient::new(session.channel()?);
    let request = v1::ChangeMembersRequest { change: Some(change) };
    match tokio::time::timeout(CHANGE_LIMIT, client.change_members(request)).await {
        Ok(answer) => Ok(answer?.into_inner().members),
        Err(_) => Err(Failure::unavailable(format!("no answer within {} s", CHANGE_LIMIT.as_secs()))
            .remedy("run 'comity raft status' to see the result; repeating the call is safe")),
    }
}

impl ReplaceArgs {
    async fn run(&self, session: &Session) -> Result<Vec<v1::RaftMember>, Failure> {
        if self.id == self.by {
            return Err(Failure::configuration(format!("broker {} cannot replace itself", self.id))
                .field("--by", self.by.to_string())
                .remedy("give the new broker a new number; numbers are never reused"));
        }
        let status = RaftServiceClient::new(session.channel()?).get_raft_status(v1::GetRaftStatusRequest {}).await?;
        let votes = status.into_inner().members.iter().any(|member| member.id == self.by && member.voter);
        if votes && !self.continues {
            return Err(Failure::configuration(format!("broker {} votes already; --by names a new broker", self.by))
                .field("--by", self.by.to_string())
                .remedy(format!(
                    "to finish an interrupted replacement, add --continue; to only remove broker {}, run 'comity raft \
                     remove {}'",
                    self.id, self.id
                )));
        }
        self.confirm.ask_about(&removal(self.id))?;
        change_members(session, add_learner(self.by, &self.addresses)).await?;
        note(&format!("broker {} has the log", self.by));
        change_members(session, Change::Promote(v1::Promote { id: self.by })).await?;
        note(&format!("broker {} votes", self.by));
        remove(session, self.id).await
    }
}

/// What the removal of a broker means.
fn removal(id: u64) -> String {
    format!("broker {id} loses its vote, the others refuse it, and its number is never used again")
}

/// Removes a broker, and says how many failures the group survives after that.
async fn remove(session: &Session, id: u64) -> Result<Vec<v1::RaftMember>, Failure> {
    let members = change_members(session, Change::Remove(v1::Remove { id })).await?;
    let voters = members.iter().filter(|member| member.voter && member.id != id).count();
    match voters.saturating_sub(1) / 2 {
        0 => note(&format!("{voters} vote now: the group stops when one of them fails; add brokers until three vote")),
        failures => note(&format!("{voters} vote now: the group survives the failure of {failures}")),
    }
    note(&format!(
        "the disk of broker {id} still holds a key that signs certificates: erase it; if it may be in other hands, \
         replace the root (docs/authority.md, 'If an intermediate was stolen')"
    ));
    Ok(members)
}

/// One broker's answer to a status call.
struct StatusAnswer {
    address: String,
    result: Result<v1::GetRaftStatusResponse, Failure>,
}

impl RaftCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] if no broker answers, or the change is refused.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Invite(args) => args.run(session).await,
            Self::AddLearner(args) => {
                session.print(&members_view(change_members(session, add_learner(args.id, &args.addresses)).await?))
            }
            Self::Promote(BrokerArgs { id }) => {
                session.print(&members_view(change_members(session, Change::Promote(v1::Promote { id: *id })).await?))
            }
            Self::Remove(RemoveArgs { broker: BrokerArgs { id }, confirm }) => {
                confirm.ask_about(&removal(*id))?;
                session.print(&members_view(remove(session, *id).await?))
            }
            Self::Replace(args) => session.print(&members_view(args.run(session).await?)),
            Self::TransferLeader(TransferArgs { id }) => {
                let transfer = v1::TransferLeader { id: id.unwrap_or(0) };
                session.print(&members_view(change_members(session, Change::TransferLeader(transfer)).await?))
            }
            Self::RebaseTime(args) => args.run(session).await,
            Self::Status => print_status(session).await,
        }
    }
}

async fn print_status(session: &Session) -> Result<(), Failure> {
    let tls = session.tls()?;
    let endpoints = session.endpoints()?;
    let calls = endpoints.addresses().iter().map(|address| ask(address, &tls));
    let mut answers: Vec<StatusAnswer> = futures::future::join_all(calls).await;
    let unknown = members_elsewhere(&answers);
    answers.extend(futures::future::join_all(unknown.iter().map(|address| ask(address, &tls))).await);
    if let [StatusAnswer { result: Err(failure), .. }, rest @ ..] = &answers[..]
        && rest.iter().all(|answer| answer.result.is_err())
    {
        return Err(failure.clone());
    }
    // Only the leader knows the log index of each member.
    let statuses = answers.iter().filter_map(|answer| answer.result.as_ref().ok());
    let best = statuses.max_by_key(|status| status.id == status.leader);
    let old_roots = best.map(|status| status.old_roots.clone()).unwrap_or_default();
    let members = best.map(|status| status.members.clone()).unwrap_or_default();
    let broker = |answer: StatusAnswer| match answer.result {
        Ok(status) => RaftBroker::answered(answer.address, &status),
        Err(failure) => RaftBroker::silent(answer.address, failure.reason),
    };
    let status = RaftStatus {
        brokers: answers.into_iter().map(broker).collect(),
        members: members.into_iter().map(RaftMember::from).collect(),
        old_roots: old_roots.into_iter().map(OldRoot::from).collect(),
    };
    session.print(&status)?;
    let remedy = "see 'When brokers are lost' in the book (docs/disaster.md)";
    status.health().map_err(|reason| Failure::unavailable(reason).remedy(remedy))
}

/// Addresses of members that did not answer, and that the context does not have: brokers that joined since it was written.
fn members_elsewhere(answers: &[StatusAnswer]) -> BTreeSet<String> {
    let statuses = || answers.iter().filter_map(|answer| answer.result.as_ref().ok());
    let has_answered = |id| statuses().any(|status| status.id == id);
    let was_asked = |address: &str| answers.iter().any(|answer| answer.address == address);
    let members = statuses().flat_map(|status| &status.members);
    let elsewhere = members.filter(|member| !has_answered(member.id) && !was_asked(&member.client_address));
    elsewhere.map(|member| member.client_address.clone()).collect()
}

fn members_view(members: Vec<v1::RaftMember>) -> RaftMembers {
    RaftMembers { members: members.into_iter().map(RaftMember::from).collect() }
}

async fn ask(address: &str, tls: &ClientTls) -> StatusAnswer {
    let result = match BrokerEndpoints::new([address]) {
        Ok(endpoint) => broker_status(&endpoint, tls).await,
        Err(error) => Err(Failure::configuration(error.to_string())),
    };
    StatusAnswer { address: address.to_owned(), result }
}

/// The group as one broker sees it.
///
/// # Errors
/// [`Failure`] if it does not answer in time.
pub(crate) async fn broker_status(
    endpoint: &BrokerEndpoints,
    tls: &ClientTls,
) -> Result<v1::GetRaftStatusResponse, Failure> {
    let mut client = RaftServiceClient::new(connect(endpoint, tls));
    match tokio::time::timeout(STATUS_LIMIT, client.get_raft_status(v1::GetRaftStatusRequest {})).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Failure::unavailable(format!("no answer within {} s", STATUS_LIMIT.as_secs()))),
    }
}
