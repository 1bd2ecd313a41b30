//! `comity invitation`: open invitations of clusters, users and brokers.

pub(crate) mod new_invitation;

use clap::{Args, Subcommand};
use comity_proto::v1;
use comity_proto::v1::federation_service_client::FederationServiceClient;
use serde::Serialize;

use super::completions::known_ids;
use crate::failure::Failure;
use crate::output::{Answer, Column, Sheet, columns};
use crate::session::{Session, call};
use crate::units::age;

const INVITATION_LIST_EXAMPLES: &str = "\
Examples:
  comity invitation list
  comity invitation list -o json | jq -r '.items[] | select(.kind == \"broker\") | .id'

Shows your own invitations, and those that you could have made. 'comity cluster invite', 'comity user
add' and 'comity raft invite' make them. Nobody can see a token again.
";
const REVOKE_EXAMPLES: &str = "\
Examples:
  comity invitation revoke 3f9c0a77d41e

Its token then admits nobody. A token that was used stays used: remove the user, cluster or broker
instead. The inviter may revoke an invitation, and everybody who may invite the same.
";

/// `comity invitation`.
#[derive(Debug, Subcommand)]
#[command(after_help = "Examples:\n  comity invitation list\n  comity invitation revoke 3f9c0a77d41e\n")]
pub enum InvitationCommand {
    /// List open invitations
    #[command(after_help = INVITATION_LIST_EXAMPLES)]
    List,
    /// Revoke an open invitation
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke(RevokeArgs),
}

/// `comity invitation revoke`.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Invitation, as 'comity invitation list' shows it
    #[arg(value_name = "ID", add = known_ids::invitations())]
    id: String,
}

impl InvitationCommand {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if standard output cannot be written.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let mut client = FederationServiceClient::new(session.channel()?);
        match self {
            Self::List => {
                let request = v1::ListInvitationsRequest { consistency: session.consistency() };
                let response = call(client.list_invitations(request)).await?;
                session.print(&InvitationList { items: response.invitations.into_iter().map(Into::into).collect() })
            }
            Self::Revoke(args) => {
                call(client.revoke_invitation(v1::RevokeInvitationRequest { invitation: args.id.clone() })).await?;
                session.print(&Revoked { id: args.id.clone() })
            }
        }
    }
}

/// An open invitation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Invitation {
    id: String,
    /// `cluster`, `user` or `broker`.
    kind: String,
    /// Name of the cluster or user, or number of the broker.
    invited: String,
    /// SPIFFE id.
    inviter: String,
    expires_at_ms: u64,
}

impl From<v1::Invitation> for Invitation {
    fn from(invitation: v1::Invitation) -> Self {
        let v1::Invitation { id, kind, invited, inviter, expires_at_ms } = invitation;
        Self { id, kind, invited, inviter, expires_at_ms }
    }
}

/// The answer of `list`.
#[derive(Serialize)]
struct InvitationList {
    items: Vec<Invitation>,
}

impl Answer for InvitationList {
    fn table(&self, now_ms: u64) -> Sheet {
        let heads = [
            Column::text("invitation"),
            Column::text("kind"),
            Column::text("invited"),
            Column::text("by"),
            Column::text("expires"),
        ];
        let row = |it: &Invitation| {
            let expires = age(it.expires_at_ms, now_ms);
            vec![it.id.clone(), it.kind.clone(), it.invited.clone(), it.inviter.clone(), expires]
        };
        columns(&heads, self.items.iter().map(row).collect(), "no open invitations that you may see")
    }
}

/// The answer of `revoke`.
#[derive(Serialize)]
struct Revoked {
    id: String,
}

impl Answer for Revoked {
    fn table(&self, _now_ms: u64) -> Sheet {
        format!("revoked {}", self.id).as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitations_are_rows_and_a_revocation_one_line() {
        let invitation = v1::Invitation {
            id: "3f9c0a77d41e".to_owned(),
            kind: "broker".to_owned(),
            invited: "4".to_owned(),
            inviter: "spiffe://dev.test/user/ingrid".to_owned(),
            expires_at_ms: 15 * 60_000,
        };
        let text = InvitationList { items: vec![invitation.into()] }.table(0).to_string();
        assert!(text.contains("3f9c0a77d41e  broker  4        spiffe://dev.test/user/ingrid  in 15m"), "{text}");
        assert!(InvitationList { items: Vec::new() }.table(0).to_string().starts_with("no open invitations"));
        assert_eq!(Revoked { id: "3f9c0a77d41e".to_owned() }.table(0).to_string(), "revoked 3f9c0a77d41e\n");
    }
}
