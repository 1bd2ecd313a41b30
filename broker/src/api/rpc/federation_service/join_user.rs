//! Users join: a maintainer invites, and the user exchanges the token for a certificate.

use comity_core::command::{InviteUser, JoinUser};
use comity_core::{Command, Idempotency, InviteSubject};
use comity_proto::v1;
use comity_runtime::spiffe::{SpiffeId, SpiffeKind};
use tonic::Request;

use super::FederationHandlers;
use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::convert::csr::parse_csr;
use crate::api::invitation::Lifetimes;
use crate::api::rpc_error::RpcError;
use crate::api::{idempotency, invitation};

impl FederationHandlers {
    pub(super) async fn invite_user(
        &self,
        request: Request<v1::InviteUserRequest>,
    ) -> Result<v1::InviteUserResponse, RpcError> {
        let caller = self.context.admit(Rpc::InviteUser, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "InviteUser", &message)?;
        let user = invitation::parse_user_or_id(&message.user, self.context.ca.trust_domain())?;
        let ttl = Lifetimes::MEMBER.parse(message.ttl_ms)?;
        let command =
            |secret_sha256| Command::InviteUser(InviteUser { user: user.as_str().to_owned(), secret_sha256, ttl });
        let invited = SpiffeKind::User(user.clone());
        let new = invitation::invite(&self.context, &caller, &invited, idempotency, command).await?;
        Ok(v1::InviteUserResponse { token: new.token.encode().expose().clone(), expires_at_ms: new.expires_at.0 })
    }

    pub(super) async fn join_user(
        &self,
        request: Request<v1::JoinUserRequest>,
    ) -> Result<v1::JoinUserResponse, RpcError> {
        // The token authorizes; the caller's certificate does not matter.
        let message = request.into_inner();
        let user = invitation::parse_user(&message.user)?;
        let secret_sha256 = invitation::parse_secret(&message.secret)?;
        // The secret itself stays out of the hash of the body; its own hash is in the key.
        let body = v1::JoinUserRequest { secret: Vec::new(), ..message.clone() };
        let idempotency = Idempotency {
            caller: format!("join/user/{user}"),
            key: secret_sha256.clone(),
            body_sha256: idempotency::body_sha256("JoinUser", &body),
        };
        let csr = parse_csr(message.csr_der)?;
        let subject = InviteSubject::User(user.as_str().to_owned());
        invitation::check_outstanding(&self.context, &subject, &secret_sha256, &idempotency).await?;

        let id = SpiffeId::user(self.context.ca.trust_domain().clone(), user.clone());
        let certificate_not_after = self.not_after(self.context.validity.users);
        let command = Command::JoinUser(JoinUser { user: user.into(), secret_sha256, certificate_not_after });
        let applied = self.context.propose(&Caller::User(id.clone(), 0), command, Some(idempotency)).await?;
        let certificate = applied.reply.map_err(|refusal| invitation::used_up(&subject, refusal))?;
        let (certificate_pem, not_after) = self.issue(&csr, &id, &certificate).await?;
        tracing::info!(%id, "joined");
        let ca_pem = self.context.ca.root_pem();
        Ok(v1::JoinUserResponse { certificate_pem, ca_pem, not_after_ms: not_after.0 })
    }
}
