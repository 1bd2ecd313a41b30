//! Lists and revokes open invitations.

use comity_core::command::{RevokeInvite, may_revoke};
use comity_core::invite::{InvitationId, Invite};
use comity_core::{Command, State};
use comity_proto::v1;
use tonic::Request;

use super::FederationHandlers;
use crate::api::authorize::Rpc;
use crate::api::rpc_error::RpcError;

impl FederationHandlers {
    pub(super) async fn list_invitations(
        &self,
        request: Request<v1::ListInvitationsRequest>,
    ) -> Result<v1::ListInvitationsResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListInvitations, &request).await?;
        let (actor, now) = (caller.actor(), self.context.now());
        let read = |state: &State| {
            let visible = |invite: &Invite| invite.expires_at > now && may_revoke(state, &actor, invite);
            let open = state.invites.iter().filter(|(_, invite)| visible(invite));
            let mut invitations: Vec<_> = open.map(|(hash, invite)| invitation(hash, invite)).collect();
            invitations.sort_by(|a, b| (a.expires_at_ms, &a.id).cmp(&(b.expires_at_ms, &b.id)));
            Ok(v1::ListInvitationsResponse { invitations })
        };
        self.context.read(request.into_inner().consistency, read).await
    }

    pub(super) async fn revoke_invitation(
        &self,
        request: Request<v1::RevokeInvitationRequest>,
    ) -> Result<v1::RevokeInvitationResponse, RpcError> {
        let caller = self.context.admit(Rpc::RevokeInvitation, &request).await?;
        let id = InvitationId::parse(&request.into_inner().invitation, "invitation")?;
        let command = Command::RevokeInvite(RevokeInvite { id: id.clone() });
        self.context.propose(&caller, command, None).await?.reply?;
        tracing::info!(%id, caller = caller.name(), "invitation revoked");
        Ok(v1::RevokeInvitationResponse {})
    }
}

fn invitation(secret_sha256: &str, invite: &Invite) -> v1::Invitation {
    v1::Invitation {
        id: InvitationId::of(secret_sha256).to_string(),
        kind: invite.subject.kind().to_owned(),
        invited: invite.subject.to_string(),
        inviter: invite.inviter.name(),
        expires_at_ms: invite.expires_at.0,
    }
}
