//! Brokers join: the new broker gets the group's intermediate, sealed to a key of its own, and the group's members.

use comity_core::broker_record::BrokerRole;
use comity_core::command::{JoinBroker, check_joined};
use comity_core::{Command, Idempotency, InviteSubject, Refusal, ReplyBody, State};
use comity_proto::v1;
use comity_runtime::entropy::SystemEntropy;
use comity_runtime::spiffe::SpiffeId;
use comity_runtime::tls::BrokerEndpoints;
use tonic::Request;

use super::FederationHandlers;
use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;
use crate::api::{idempotency, invitation};
use crate::group::Consistency;
use crate::provision::sealed_authority::GroupSecrets;

impl FederationHandlers {
    pub(super) async fn join_broker(
        &self,
        request: Request<v1::JoinBrokerRequest>,
    ) -> Result<v1::JoinBrokerResponse, RpcError> {
        // The token authorizes; the caller's certificate does not matter.
        let message = request.into_inner();
        let secret_sha256 = invitation::parse_secret(&message.secret)?;
        for (field, text) in [("raft_address", &message.raft_address), ("client_address", &message.client_address)] {
            BrokerEndpoints::new([text]).map_err(|_| {
                Refusal::invalid(field, text, "is not host:port", "write host:port, e.g. broker-2.example.org:7444")
            })?;
        }
        // The secret itself stays out of the hash of the body; its own hash is in the key.
        let body = v1::JoinBrokerRequest { secret: Vec::new(), ..message.clone() };
        let idempotency = Idempotency {
            caller: comity_core::idempotency::joining_broker(message.broker),
            key: secret_sha256.clone(),
            body_sha256: idempotency::body_sha256("JoinBroker", &body),
        };
        let broker = message.broker;
        let subject = InviteSubject::Broker(broker);
        invitation::check_outstanding(&self.context, &subject, &secret_sha256, &idempotency).await?;

        let id = SpiffeId::broker(self.context.ca.trust_domain().clone(), message.broker);
        // Sealed before the token is consumed, so that a key which is refused uses up no token.
        let secrets =
            GroupSecrets { authority: self.context.ca.current(), invitation_key: self.context.invitation_key.clone() };
        let sealed = secrets.seal(&id, &message.sealing_key, &SystemEntropy).map_err(|error| {
            let size = format!("{} bytes", message.sealing_key.len());
            Refusal::invalid("sealing_key", size, &format!("is refused: {error}"), "send an X-Wing public key")
        })?;
        let command = Command::JoinBroker(JoinBroker {
            broker: message.broker,
            secret_sha256,
            raft_address: message.raft_address,
            client_address: message.client_address,
        });
        let applied = self.context.propose(&Caller::Broker(id.clone()), command, Some(idempotency)).await?;
        let reply = applied.reply.map_err(|refusal| invitation::used_up(&subject, refusal))?;
        let ReplyBody::BrokerJoined { inviter, generation } = reply else {
            return Err(RpcError::Internal { what: "recording the broker" });
        };
        // The answer may be that of an earlier call, and the secrets are those of now.
        let look = |state: &State| check_joined(state, broker, &inviter, generation).map(|()| members(state));
        let members = self.context.group.read(Consistency::Linearizable, look).await??;
        tracing::warn!(%id, "joined: this broker now has the group's intermediate");
        Ok(v1::JoinBrokerResponse {
            ca_pem: secrets.authority.root_pem().to_owned(),
            encapsulated_key: sealed.encapsulated_key,
            sealed_authority: sealed.ciphertext,
            members,
        })
    }
}

/// The brokers that are or will be members, by their recorded roles.
fn members(state: &State) -> Vec<v1::RaftMember> {
    let present = state.brokers.iter().filter(|(_, record)| record.role != BrokerRole::Removed);
    let member = |(id, record): (&u64, &comity_core::broker_record::BrokerRecord)| v1::RaftMember {
        id: *id,
        raft_address: record.raft_address.clone(),
        client_address: record.client_address.clone(),
        voter: record.role == BrokerRole::Voter,
        matched_index: 0,
        incarnation: String::new(),
    };
    present.map(member).collect()
}
