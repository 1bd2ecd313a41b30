//! `comity raft invite`.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::raft_service_client::RaftServiceClient;

use crate::commands::invitation::new_invitation::{InvitationText, Invited, NewInvitation};
use crate::failure::Failure;
use crate::output::note;
use crate::session::{Session, call, idempotency_key};
use crate::units::{DurationBounds, format_duration};

const INVITE_BROKER_EXAMPLES: &str = "\
Examples:
  comity raft invite                    prints the command for the new host
  comity raft invite > broker.token     for 'comity-broker up --join broker.token'
  comity raft invite 2 --replace        for broker 2, whose disk is lost

The token is a secret. It works once and is shown once: on a terminal with the command to run, in
a file or a pipe alone. Its holder gets the federation's authority, and with it can issue any
identity: only broker operators may invite brokers, and 'comity invitation revoke' takes the token
back. The new broker becomes a learner, and votes once it has caught up.
";

/// `comity raft invite`.
#[derive(Debug, Args)]
#[command(after_help = INVITE_BROKER_EXAMPLES)]
pub struct BrokerInviteArgs {
    /// Number of the broker [default: the next free one]
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    id: Option<u64>,
    /// Replace a member whose disk is lost: the broker that joins takes its place
    #[arg(long, requires = "id")]
    replace: bool,
    /// Lifetime of the token: 1m to 1h
    #[arg(long, default_value = "15m", value_parser = DurationBounds::BROKER_TOKEN.parser(),
        allow_hyphen_values = true, value_name = "DURATION")]
    ttl: u64,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl BrokerInviteArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = RaftServiceClient::new(session.channel()?);
        let request = v1::InviteBrokerRequest {
            broker: self.id.unwrap_or(0),
            ttl_ms: self.ttl,
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
            replace: self.replace,
        };
        let response = call(client.invite_broker(request)).await?;
        note(&format!("single-use token for broker {}, expires in {}:", response.broker, format_duration(self.ttl)));
        let text = InvitationText::for_standard_output();
        NewInvitation::new(Invited::Broker(response.broker), response.token, response.expires_at_ms, text)
            .print(session)
    }
}
