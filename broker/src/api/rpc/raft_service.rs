//! RaftService: status, membership and log time of the group.

use comity_core::command::InviteBroker;
use comity_core::member_certificate::RootUse;
use comity_core::refusal::Code;
use comity_core::{Command, InviteSubject, Refusal, State};
use comity_proto::v1;
use comity_proto::v1::change_members_request::Change;
use comity_proto::v1::raft_service_server::RaftService;
use comity_runtime::spiffe::SpiffeKind;
use comity_runtime::tls::BrokerEndpoints;
use tonic::Request;

use crate::api::authorize::Rpc;
use crate::api::invitation::Lifetimes;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::{idempotency, invitation};
use crate::context::Context;
use crate::group::{Consistency, GroupError, MemberStatus};
use crate::replication::member::MemberAddress;
use crate::replication::membership_change::{MembershipChange, RequestedChange};

/// Clusters that a status names for each old root, at most.
const MAX_NAMED_CLUSTERS: usize = 64;

/// Status and membership of the group.
#[derive(Debug, Clone)]
pub struct RaftHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { RaftService for RaftHandlers {
    get_raft_status: GetRaftStatusRequest -> GetRaftStatusResponse;
    change_members: ChangeMembersRequest -> ChangeMembersResponse;
    invite_broker: InviteBrokerRequest -> InviteBrokerResponse;
    rebase_time: RebaseTimeRequest -> RebaseTimeResponse;
} }

impl RaftHandlers {
    async fn get_raft_status(
        &self,
        request: Request<v1::GetRaftStatusRequest>,
    ) -> Result<v1::GetRaftStatusResponse, RpcError> {
        self.context.admit(Rpc::GetRaftStatus, &request).await?;
        let status = self.context.group.status().await;
        let issuing_root_sha256 = self.context.ca.root_sha256().to_string();
        let old_roots = status.root_uses.iter().filter(|(root, _)| **root != issuing_root_sha256);
        let old_roots = old_roots.map(|(root, used)| old_root(root, used)).collect();
        Ok(v1::GetRaftStatusResponse {
            id: status.id,
            leader: status.leader.unwrap_or(0),
            term: status.term,
            last_log_index: status.last_log_index,
            applied_index: status.applied_index,
            snapshot_index: status.snapshot_index,
            revision: status.revision,
            state_sha256: status.state_sha256,
            members: status.members.iter().map(member).collect(),
            role: status.role.as_str().to_owned(),
            violations: status.violations,
            envelopes: status.envelopes,
            group: status.group.map(|group| group.as_str().to_owned()).unwrap_or_default(),
            incarnation: status.incarnation.as_str().to_owned(),
            may_vote: status.may_vote,
            log_time_ms: status.clocks.log_time.0,
            clock_offset_ms: status.clocks.clock_offset_ms,
            log_time_offset_ms: status.clocks.log_time_offset_ms,
            issuing_root_sha256,
            old_roots,
        })
    }

    async fn invite_broker(
        &self,
        request: Request<v1::InviteBrokerRequest>,
    ) -> Result<v1::InviteBrokerResponse, RpcError> {
        let caller = self.context.admit(Rpc::InviteBroker, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = idempotency::of_call(&caller.name(), &key, "InviteBroker", &message)?;
        let (broker, ttl) = ((message.broker != 0).then_some(message.broker), Lifetimes::BROKER.parse(message.ttl_ms)?);
        let command = |secret_sha256| {
            Command::InviteBroker(InviteBroker { broker, secret_sha256, ttl, replace: message.replace })
        };
        let invited = SpiffeKind::Broker(message.broker);
        let new = invitation::invite(&self.context, &caller, &invited, idempotency, command).await?;
        let InviteSubject::Broker(broker) = new.subject else {
            return Err(RpcError::Internal { what: "recording the invitation" });
        };
        let token = new.token.encode().expose().clone();
        Ok(v1::InviteBrokerResponse { token, broker, expires_at_ms: new.expires_at.0 })
    }

    async fn rebase_time(&self, request: Request<v1::RebaseTimeRequest>) -> Result<v1::RebaseTimeResponse, RpcError> {
        let caller = self.context.admit(Rpc::RebaseTime, &request).await?;
        let rebase = self.context.group.rebase().ok_or_else(|| {
            let reason =
                format!("broker {} reaches no majority of the brokers, whose clocks say the time", self.context.id);
            Refusal::new(Code::WrongState, reason, "look at `comity raft status`; try again when a majority answers")
        })?;
        let look = |state: &State| {
            let windows = state.queued().filter(|(_, held)| held.spec.not_before.or(held.spec.start_by).is_some());
            (state.live_leases().count(), windows.count())
        };
        let (leases, start_windows) = self.context.group.read(Consistency::Linearizable, look).await?;
        let done = !request.into_inner().dry_run;
        if done {
            tracing::warn!(by_ms = rebase.by_ms, caller = caller.name(), "log time is re-based");
            self.context.propose(&caller, Command::RebaseTime(rebase.command), None).await?.reply?;
        }
        Ok(v1::RebaseTimeResponse {
            log_time_ms: rebase.log_time.0,
            by_ms: rebase.by_ms,
            leases: leases as u64,
            start_windows: start_windows as u64,
            done,
        })
    }

    async fn change_members(
        &self,
        request: Request<v1::ChangeMembersRequest>,
    ) -> Result<v1::ChangeMembersResponse, RpcError> {
        let caller = self.context.admit(Rpc::ChangeMembers, &request).await?;
        let (change, id) = change(request.into_inner())?;
        tracing::info!(?change, caller = caller.name(), "members are to change");
        let requested = RequestedChange { actor: caller.actor(), generation: caller.generation(), change };
        self.context.group.change_members(requested).await.map_err(|error| match error {
            GroupError::Unavailable(unavailable) => RpcError::Unavailable(unavailable),
            // It is about the caller, not about the broker.
            GroupError::Refused(refusal) if refusal.field.is_empty() => refusal.into(),
            GroupError::Refused(refusal) => refusal.at("id", id).into(),
            other => {
                Refusal::new(Code::WrongState, other.to_string(), "look at `comity raft status`").at("id", id).into()
            }
        })?;
        let members = self.context.group.members();
        Ok(v1::ChangeMembersResponse { members: members.iter().map(member).collect() })
    }
}

/// The change, and the broker that it is about.
fn change(message: v1::ChangeMembersRequest) -> Result<(MembershipChange, u64), Refusal> {
    let broker = |id: u64| match id {
        0 => Err(Refusal::invalid("id", 0, "is not a broker number", "count brokers from 1")),
        id => Ok(id),
    };
    match message.change {
        None => Err(Refusal::invalid("change", "nothing", "says nothing", "set one of its fields, e.g. add_learner")),
        Some(Change::AddLearner(new)) => {
            let id = broker(new.id)?;
            let address = MemberAddress {
                raft: endpoint("add_learner.raft_address", &new.raft_address)?,
                client: endpoint("add_learner.client_address", &new.client_address)?,
            };
            Ok((MembershipChange::AddLearner { id, address }, id))
        }
        Some(Change::Promote(it)) => Ok((MembershipChange::Promote { id: broker(it.id)? }, it.id)),
        Some(Change::Remove(it)) => Ok((MembershipChange::Remove { id: broker(it.id)? }, it.id)),
        Some(Change::TransferLeader(it)) => {
            Ok((MembershipChange::TransferLeader { to: (it.id != 0).then_some(it.id) }, it.id))
        }
    }
}

fn endpoint(field: &str, text: &str) -> Result<String, Refusal> {
    BrokerEndpoints::new([text]).map(|_| text.to_owned()).map_err(|_| {
        Refusal::invalid(field, text, "is not host:port", "write host:port, e.g. broker-2.example.org:7444")
    })
}

fn old_root(root: &str, used: &RootUse) -> v1::OldRoot {
    v1::OldRoot {
        sha256: root.to_owned(),
        clusters: used.clusters.iter().take(MAX_NAMED_CLUSTERS).map(ToString::to_string).collect(),
        cluster_count: u32::try_from(used.clusters.len()).unwrap_or(u32::MAX),
        user_count: u32::try_from(used.users).unwrap_or(u32::MAX),
        last_not_after_ms: used.last_not_after.0,
    }
}

fn member(member: &MemberStatus) -> v1::RaftMember {
    v1::RaftMember {
        id: member.id,
        raft_address: member.address.raft.clone(),
        client_address: member.address.client.clone(),
        voter: member.voter,
        matched_index: member.matched_index.unwrap_or(0),
        incarnation: member.incarnation.as_str().to_owned(),
    }
}
