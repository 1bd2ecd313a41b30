//! `comity raft`.

use std::time::Duration;

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::change_members_request::Change;
use comity_proto::v1::raft_service_client::RaftServiceClient;
use comity_runtime::{BrokerEndpoints, ClientTls, connect};

use crate::failure::Failure;
use crate::session::Session;
use crate::shapes::{RaftBroker, RaftMember, RaftMembers, RaftStatus, RebasedTime};

/// A broker that is up answers at once; one that is down should not hold up the others.
const LIMIT: Duration = Duration::from_secs(5);

const STATUS_EXAMPLES: &str = "\
Examples:
  comity raft status
  comity raft status --broker a.example.org:7443,b.example.org:7443,c.example.org:7443

Each broker named is asked by itself. Brokers at the same applied index have the same state hash. The exit code is 0 if one
leader serves, and another one if none does, if brokers belong to two groups, or if an invariant is broken.
";

/// A new member gets the whole log or a snapshot first; the brokers themselves give up after two minutes.
const CHANGE_LIMIT: Duration = Duration::from_secs(150);
/// Every lease is changed at once.
const REBASE_LIMIT: Duration = Duration::from_secs(30);

const ADD_LEARNER_EXAMPLES: &str = "\
Examples:
  comity raft add-learner 4 --raft-address d.example.org:7444 --client-address d.example.org:7443
  comity raft promote 4

The new broker must be running and reachable. It gets the log, and does not vote before it is promoted. Repeating the call
does nothing. Only a maintainer of the federation may change members.
";

const PROMOTE_EXAMPLES: &str = "\
Examples:
  comity raft promote 4

Waits until the broker has the log. A broker that lost its disk needs none of this: it comes back as a learner by itself,
and votes again once it has caught up.
";

const REMOVE_EXAMPLES: &str = "\
Examples:
  comity raft remove 2

Refused where the other voters that answer would be no majority. Its number is never used again: make its successor with
`comity-broker add-identity` under a new one. A leader that is removed hands over first.
";

const REPLACE_EXAMPLES: &str = "\
Examples:
  comity raft replace 2 --by 4 --raft-address d.example.org:7444 --client-address d.example.org:7443

Adds the new broker, promotes it, then removes the old one. If it is broken off after the new broker votes, add --continue.
";

const TRANSFER_EXAMPLES: &str = "\
Examples:
  comity raft transfer-leader        # to the voter whose log is furthest
  comity raft transfer-leader 3
";

const REBASE_TIME_EXAMPLES: &str = "\
Examples:
  comity raft rebase-time
  comity raft rebase-time --yes

First set the brokers' clocks right, best with NTP. Log time follows the median of their wall clocks by itself, by 36 s an
hour at most. This moves it there at once, with every lease, notice and deadline, so that each has as much time left as before.
Start windows of requests and dates of agreements stay. Only a maintainer of the federation may do it.
";

/// `comity raft`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity raft status\n  comity raft transfer-leader 2\n")]
pub enum RaftCommand {
    /// How each broker sees the group: leader, term, log, state
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
    /// Adds a broker that gets the log and does not vote yet
    #[command(after_help = ADD_LEARNER_EXAMPLES)]
    AddLearner(AddLearnerArgs),
    /// Lets a learner vote, once it has caught up
    #[command(after_help = PROMOTE_EXAMPLES)]
    Promote(OneBroker),
    /// Takes a broker out of the group for good
    #[command(after_help = REMOVE_EXAMPLES)]
    Remove(OneBroker),
    /// Puts a new broker in the place of another
    #[command(after_help = REPLACE_EXAMPLES)]
    Replace(ReplaceArgs),
    /// Has another voter lead
    #[command(after_help = TRANSFER_EXAMPLES)]
    TransferLeader(TransferArgs),
    /// Says how far log time is off the brokers' clocks, and moves it there
    #[command(after_help = REBASE_TIME_EXAMPLES)]
    RebaseTime(RebaseTimeArgs),
}

/// `comity raft rebase-time`.
#[derive(Debug, Args)]
pub struct RebaseTimeArgs {
    /// Moves it; without this it only says what would move
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
                .remedy("see with 'comity raft rebase-time' how far log time is off; the call may be repeated")),
        }
    }
}

/// A new broker.
#[derive(Debug, Args)]
pub struct AddLearnerArgs {
    /// Number of the new broker, as in its configuration
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
    #[command(flatten)]
    at: Addresses,
}

/// Where a broker is.
#[derive(Debug, Args)]
pub struct Addresses {
    /// Where the other brokers reach its Raft endpoint
    #[arg(long, value_name = "HOST:PORT")]
    raft_address: String,
    /// Where clients and agents reach it
    #[arg(long, value_name = "HOST:PORT")]
    client_address: String,
}

/// A member of the group.
#[derive(Debug, Args)]
pub struct OneBroker {
    /// Number of the broker, as `comity raft status` shows it
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
}

/// One broker for another.
#[derive(Debug, Args)]
pub struct ReplaceArgs {
    /// Number of the broker that goes
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
    /// Number of the broker that comes, as in its configuration
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    by: u64,
    #[command(flatten)]
    at: Addresses,
    /// Finishes a replacement that was broken off: the new broker votes already
    #[arg(long = "continue")]
    continues: bool,
}

/// The next leader.
#[derive(Debug, Args)]
pub struct TransferArgs {
    /// Number of the voter that is to lead; the one whose log is furthest where none is named
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: Option<u64>,
}

fn add_learner(id: u64, at: &Addresses) -> Change {
    let (raft_address, client_address) = (at.raft_address.clone(), at.client_address.clone());
    Change::AddLearner(v1::AddLearner { id, raft_address, client_address })
}

/// Carries out one change, and gives the members after it.
async fn change(session: &Session, change: Change) -> Result<Vec<v1::RaftMember>, Failure> {
    let mut client = RaftServiceClient::new(session.channel()?);
    let request = v1::ChangeMembersRequest { change: Some(change) };
    match tokio::time::timeout(CHANGE_LIMIT, client.change_members(request)).await {
        Ok(answer) => Ok(answer?.into_inner().members),
        Err(_) => Err(Failure::unavailable(format!("no answer within {} s", CHANGE_LIMIT.as_secs()))
            .remedy("see with 'comity raft status' what became of it; the call may be repeated")),
    }
}

impl ReplaceArgs {
    async fn run(&self, session: &Session) -> Result<Vec<v1::RaftMember>, Failure> {
        if self.id == self.by {
            return Err(Failure::configuration(format!("broker {} cannot take its own place", self.id))
                .field("--by", self.by.to_string())
                .remedy("give the new broker a new number; numbers are never used again"));
        }
        let status = RaftServiceClient::new(session.channel()?).get_raft_status(v1::GetRaftStatusRequest {}).await?;
        let votes = status.into_inner().members.iter().any(|member| member.id == self.by && member.voter);
        if votes && !self.continues {
            return Err(Failure::configuration(format!("broker {} votes already; --by names a new broker", self.by))
                .field("--by", self.by.to_string())
                .remedy(format!(
                    "to finish a replacement that was broken off, add --continue; to take broker {} out alone, run \
                     'comity raft remove {}'",
                    self.id, self.id
                )));
        }
        change(session, add_learner(self.by, &self.at)).await?;
        eprintln!("broker {} has the log", self.by);
        change(session, Change::Promote(v1::Promote { id: self.by })).await?;
        eprintln!("broker {} votes", self.by);
        remove(session, self.id).await
    }
}

/// Removes a broker, and says what the group survives from then on.
async fn remove(session: &Session, id: u64) -> Result<Vec<v1::RaftMember>, Failure> {
    let members = change(session, Change::Remove(v1::Remove { id })).await?;
    let voters = members.iter().filter(|member| member.voter && member.id != id).count();
    match voters.saturating_sub(1) / 2 {
        0 => eprintln!("{voters} vote now: the group stops when one of them fails; add brokers until three vote"),
        failures => eprintln!("{voters} vote now: the group survives the failure of {failures}"),
    }
    Ok(members)
}

type Answered = (RaftBroker, Option<v1::GetRaftStatusResponse>, Option<Failure>);

impl RaftCommand {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`] where no broker answers.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::AddLearner(args) => session.print(&members(change(session, add_learner(args.id, &args.at)).await?)),
            Self::Promote(OneBroker { id }) => {
                session.print(&members(change(session, Change::Promote(v1::Promote { id: *id })).await?))
            }
            Self::Remove(OneBroker { id }) => session.print(&members(remove(session, *id).await?)),
            Self::Replace(args) => session.print(&members(args.run(session).await?)),
            Self::TransferLeader(TransferArgs { id }) => {
                let transfer = v1::TransferLeader { id: id.unwrap_or(0) };
                session.print(&members(change(session, Change::TransferLeader(transfer)).await?))
            }
            Self::RebaseTime(args) => args.run(session).await,
            Self::Status => {
                let tls = session.tls()?;
                let endpoints = session.endpoints()?;
                let asked = endpoints.addresses().iter().map(|address| ask(address, &tls));
                let answers: Vec<Answered> = futures::future::join_all(asked).await;
                if let [(_, None, Some(failure)), rest @ ..] = &answers[..]
                    && rest.iter().all(|(_, status, _)| status.is_none())
                {
                    return Err(failure.clone());
                }
                // The leader alone knows how far each member is.
                let best = answers.iter().filter_map(|(_, status, _)| status.as_ref()).max_by_key(|s| s.id == s.leader);
                let members = best.map(|status| status.members.clone()).unwrap_or_default();
                let status = RaftStatus {
                    brokers: answers.into_iter().map(|(broker, _, _)| broker).collect(),
                    members: members.into_iter().map(RaftMember::from).collect(),
                };
                session.print(&status)?;
                status.health().map_err(|reason| {
                    Failure::unavailable(reason).remedy("see 'When brokers are lost' in the book (docs/disaster.md)")
                })
            }
        }
    }
}

fn members(members: Vec<v1::RaftMember>) -> RaftMembers {
    RaftMembers { members: members.into_iter().map(RaftMember::from).collect() }
}

async fn ask(address: &str, tls: &ClientTls) -> Answered {
    let status = match BrokerEndpoints::new([address]) {
        Ok(endpoint) => status(&endpoint, tls).await,
        Err(error) => Err(Failure::configuration(error.to_string())),
    };
    match status {
        Ok(status) => (RaftBroker::answered(address.to_owned(), &status), Some(status), None),
        Err(failure) => (RaftBroker::silent(address.to_owned(), failure.reason.clone()), None, Some(failure)),
    }
}

/// How one broker sees its group.
///
/// # Errors
/// [`Failure`].
pub(crate) async fn status(endpoint: &BrokerEndpoints, tls: &ClientTls) -> Result<v1::GetRaftStatusResponse, Failure> {
    let mut client = RaftServiceClient::new(connect(endpoint, tls));
    match tokio::time::timeout(LIMIT, client.get_raft_status(v1::GetRaftStatusRequest {})).await {
        Ok(answer) => Ok(answer?.into_inner()),
        Err(_) => Err(Failure::unavailable(format!("no answer within {} s", LIMIT.as_secs()))),
    }
}
