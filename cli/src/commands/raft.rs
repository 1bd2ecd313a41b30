//! `comity raft`.

use std::time::Duration;

use clap::{Args, Subcommand};
use comity_proto::v1;
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

Each broker named is asked by itself. Brokers at the same applied index have the same state hash.
";

/// Every lease is changed at once.
const REBASE_LIMIT: Duration = Duration::from_secs(30);

/// A new voter gets the whole log or a snapshot first; the brokers themselves give up after two minutes.
const ADD_VOTER_LIMIT: Duration = Duration::from_secs(150);

const ADD_VOTER_EXAMPLES: &str = "\
Examples:
  comity raft add-voter 4 --raft-address d.example.org:7444 --client-address d.example.org:7443

The new broker must be running and reachable; it gets the log first and votes once it has caught up. Adding a voter that
is one already, at the same addresses, does nothing. Only a maintainer of the federation may do it.
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
#[command(after_help = "Examples:\n  comity raft status\n")]
pub enum RaftCommand {
    /// How each broker sees the group: leader, term, log, state
    #[command(after_help = STATUS_EXAMPLES)]
    Status,
    /// Adds a broker to the group, once it has caught up
    #[command(after_help = ADD_VOTER_EXAMPLES)]
    AddVoter(AddVoterArgs),
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

/// `comity raft add-voter`.
#[derive(Debug, Args)]
pub struct AddVoterArgs {
    /// Number of the new broker, as in its configuration
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: u64,
    /// Where the other brokers reach its Raft endpoint
    #[arg(long, value_name = "HOST:PORT")]
    raft_address: String,
    /// Where clients and agents reach it
    #[arg(long, value_name = "HOST:PORT")]
    client_address: String,
}

impl AddVoterArgs {
    async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = RaftServiceClient::new(session.channel()?);
        let request = v1::AddVoterRequest {
            id: self.id,
            raft_address: self.raft_address.clone(),
            client_address: self.client_address.clone(),
        };
        match tokio::time::timeout(ADD_VOTER_LIMIT, client.add_voter(request)).await {
            Ok(answer) => {
                let members = answer?.into_inner().members.into_iter().map(RaftMember::from).collect();
                session.print(&RaftMembers { members })
            }
            Err(_) => Err(Failure::unavailable(format!("no answer within {} s", ADD_VOTER_LIMIT.as_secs()))
                .field("--client-address", &self.client_address)
                .remedy("see with 'comity raft status' whether it is a member; the call may be repeated")),
        }
    }
}

type Answered = (RaftBroker, Option<v1::GetRaftStatusResponse>, Option<Failure>);

impl RaftCommand {
    /// Runs it.
    ///
    /// # Errors
    /// [`Failure`] where no broker answers.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::AddVoter(args) => args.run(session).await,
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
                session.print(&RaftStatus {
                    brokers: answers.into_iter().map(|(broker, _, _)| broker).collect(),
                    members: members.into_iter().map(RaftMember::from).collect(),
                })
            }
        }
    }
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
