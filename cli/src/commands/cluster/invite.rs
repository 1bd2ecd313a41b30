//! `comity cluster invite`.

use clap::Args;
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;

use crate::commands::invitation::{Invitation, InvitationText, Invited};
use crate::failure::Failure;
use crate::session::{Session, call, idempotency_key};
use crate::units::{format_duration, parse_duration_ms};

const INVITE_EXAMPLES: &str = "\
Examples:
  comity cluster invite physics-farm                  prints 'comity-agent join TOKEN'
  comity cluster invite physics-farm --ttl 24h > join.token
  comity cluster invite physics-farm -o json | jq -r .command

The token is a secret. It works once and is shown once: on a terminal with the command to run, in
a file or a pipe alone. The policy must list the cluster in its institution's document.
";

/// `comity cluster invite`.
#[derive(Debug, Args)]
#[command(after_help = INVITE_EXAMPLES)]
pub struct ClusterInviteArgs {
    /// Cluster that may join with the token
    cluster: String,
    /// Lifetime of the token: 1m to 7d
    #[arg(long, default_value = "1h", value_parser = parse_duration_ms, allow_hyphen_values = true,
        value_name = "DURATION")]
    ttl: u64,
    /// Replace the agent of a member: the agent that joins with the token gets a new identity
    #[arg(long)]
    replace: bool,
    /// Key that makes a repeated call safe: the same key creates no second token [default: random]
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

impl ClusterInviteArgs {
    pub(super) async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = FederationServiceClient::new(session.channel()?);
        let request = v1::InviteClusterRequest {
            cluster: self.cluster.clone(),
            ttl_ms: self.ttl,
            replace: self.replace,
            idempotency_key: idempotency_key(self.idempotency_key.as_deref()),
        };
        let response = call(client.invite_cluster(request)).await?;
        eprintln!("single-use token, expires in {}:", format_duration(self.ttl));
        session.print(&Invitation::new(
            Invited::Cluster(self.cluster.clone()),
            response.token,
            response.expires_at_ms,
            InvitationText::for_standard_output(),
        ))
    }
}
