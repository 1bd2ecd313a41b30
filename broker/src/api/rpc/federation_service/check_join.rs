//! `CheckJoin`: what would keep a cluster from joining, before its single-use token is spent.

use std::net::IpAddr;

use comity_core::command::check_invite;
use comity_core::{InviteSubject, Refusal, State};
use comity_proto::{MAX_UDP_PROBES, UDP_PROBE_NONCE_BYTES, v1};
use comity_runtime::tls::PeerInfo;
use comity_types::ClusterId;
use tonic::Request;

use super::FederationHandlers;
use crate::api::invitation;
use crate::api::rpc_error::RpcError;
use crate::api::udp_probe::{Nonce, send_probe};
use crate::group::Consistency;

/// A check, parsed.
pub(super) struct JoinCheck {
    cluster: ClusterId,
    secret_sha256: String,
    endpoints: Vec<String>,
    nonce: Nonce,
}

impl FederationHandlers {
    pub(super) async fn check_join(
        &self,
        request: Request<v1::CheckJoinRequest>,
    ) -> Result<v1::CheckJoinResponse, RpcError> {
        // Only the token authorizes, as for Join.
        let caller = request.extensions().get::<PeerInfo>().map(|peer| peer.remote_addr.ip());
        let check = JoinCheck::parse(request.into_inner())?;
        let mut response = self.unspent(&check).await?;
        response.probes = self.probe(&check, caller).await;
        Ok(response)
    }

    /// Facts about an unspent token and its cluster.
    async fn unspent(&self, check: &JoinCheck) -> Result<v1::CheckJoinResponse, RpcError> {
        let now = self.context.now();
        let subject = InviteSubject::Cluster(check.cluster.clone());
        let read = |state: &State| -> Result<v1::CheckJoinResponse, Refusal> {
            let invite = check_invite(state, now, &check.secret_sha256, &subject)?;
            let bundle = state.policy.as_ref().map(|record| &record.bundle);
            let institution = bundle.and_then(|bundle| bundle.institution_of_cluster(check.cluster.as_str()));
            Ok(v1::CheckJoinResponse {
                time_ms: now.0,
                institution: institution.unwrap_or_default().to_owned(),
                replaces: state.clusters.get(&check.cluster).is_some_and(|cluster| cluster.evicted.is_none()),
                expires_at_ms: invite.expires_at.0,
                probes: Vec::new(),
            })
        };
        Ok(self.context.group.read(Consistency::Linearizable, read).await??)
    }

    async fn probe(&self, check: &JoinCheck, caller: Option<IpAddr>) -> Vec<v1::UdpProbe> {
        // Every connection of a listener has an address.
        let (Some(caller), false) = (caller, check.endpoints.is_empty()) else { return Vec::new() };
        let allowed = self.context.probes.allow(&check.secret_sha256, self.context.clock.elapsed());
        let mut probes = Vec::with_capacity(check.endpoints.len());
        for endpoint in &check.endpoints {
            let sent = match &allowed {
                Ok(()) => send_probe(endpoint, &check.nonce, caller).await,
                Err(refused) => Err(refused.clone()),
            };
            let not_sent = sent.err().map(|refused| refused.to_string()).unwrap_or_default();
            probes.push(v1::UdpProbe { endpoint: endpoint.clone(), not_sent });
        }
        probes
    }
}

impl JoinCheck {
    pub(super) fn parse(message: v1::CheckJoinRequest) -> Result<Self, Refusal> {
        let cluster = ClusterId::parse(&message.cluster, "cluster")?;
        let secret_sha256 = invitation::parse_secret(&message.secret)?;
        let count = message.udp_endpoints.len();
        if count > MAX_UDP_PROBES {
            let remedy = format!("send at most {MAX_UDP_PROBES}, best first");
            return Err(Refusal::invalid("udp_endpoints", count, "are too many", remedy));
        }
        let nonce = match Nonce::try_from(message.nonce.as_slice()) {
            Ok(nonce) => nonce,
            Err(_) if count == 0 => Nonce::default(),
            Err(_) => {
                let (bytes, remedy) = (message.nonce.len(), format!("send {UDP_PROBE_NONCE_BYTES} random bytes"));
                return Err(Refusal::invalid("nonce", format!("{bytes} bytes"), "has the wrong length", remedy));
            }
        };
        Ok(Self { cluster, secret_sha256, endpoints: message.udp_endpoints, nonce })
    }
}
