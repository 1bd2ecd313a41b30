//! All commands, one file each. A command checks everything before it changes anything.

pub(crate) mod apply_policy;
pub(crate) mod brokers;
pub(crate) mod clusters;
pub(crate) mod expire;
pub(crate) mod invitations;
pub(crate) mod leases;
pub(crate) mod peerings;
pub(crate) mod policy_source;
pub(crate) mod requests;
pub(crate) mod revocations;

use serde::{Deserialize, Serialize};

use crate::model::reply::Reply;
use crate::state::transition::Transition;

pub use apply_policy::ApplyPolicy;
pub use brokers::admit_broker::AdmitBroker;
pub use brokers::assign_broker::AssignBroker;
pub use brokers::begin_term::{BeginTerm, SHORTEST_OUTAGE};
pub use brokers::rebase_time::RebaseTime;
pub use brokers::record_audit_export::RecordAuditExport;
pub use brokers::recover_group::RecoverGroup;
pub use clusters::advertise_offer::AdvertiseOffer;
pub use clusters::invite_cluster::InviteCluster;
pub use clusters::join_cluster::JoinCluster;
pub use clusters::mark_clusters::MarkClusters;
pub use clusters::record_certificate::RecordCertificate;
pub use clusters::record_issuer::RecordIssuer;
pub use clusters::revise_offer::ReviseOffer;
pub use expire::Expire;
pub use invitations::invite_broker::InviteBroker;
pub use invitations::invite_user::InviteUser;
pub use invitations::join_broker::{JoinBroker, check_joined};
pub use invitations::join_user::JoinUser;
pub use invitations::open_invitations::{check_invite, may_revoke};
pub use invitations::revoke_invite::RevokeInvite;
pub use leases::checkpoint_lease::CheckpointLease;
pub use leases::reclaim_leases::ReclaimLeases;
pub use leases::release_lease::ReleaseLease;
pub use leases::renew_lease::RenewLease;
pub use leases::report_lease::{LeaseOutcome, ReportLease};
pub use peerings::ack_envelope::AckEnvelope;
pub use peerings::offer_keys::OfferKeys;
pub use peerings::relay_envelope::RelayEnvelope;
pub use peerings::report_peering::{PeeringOutcome, ReportPeering};
pub use policy_source::record_pull::{PullOutcome, RecordPull};
pub use policy_source::remove_policy_source::RemovePolicySource;
pub use policy_source::set_policy_source::SetPolicySource;
pub use requests::cancel_request::CancelRequest;
pub use requests::place_requests::PlaceRequests;
pub use requests::submit_request::{SubmitRequest, check as check_submission};
pub use revocations::evict_cluster::EvictCluster;
pub use revocations::resume_institution::ResumeInstitution;
pub use revocations::revoke_user::RevokeUser;
pub use revocations::suspend_institution::SuspendInstitution;

/// A change to the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(missing_docs, reason = "each variant is documented at the type of the same name")]
#[expect(clippy::large_enum_variant, reason = "a command is made once, written to the log, applied and dropped")]
pub enum Command {
    ApplyPolicy(ApplyPolicy),
    InviteCluster(InviteCluster),
    JoinCluster(JoinCluster),
    RecordCertificate(RecordCertificate),
    RecordIssuer(RecordIssuer),
    MarkClusters(MarkClusters),
    AdvertiseOffer(AdvertiseOffer),
    ReviseOffer(ReviseOffer),
    SubmitRequest(SubmitRequest),
    CancelRequest(CancelRequest),
    PlaceRequests(PlaceRequests),
    ReleaseLease(ReleaseLease),
    RenewLease(RenewLease),
    ReportLease(ReportLease),
    ReclaimLeases(ReclaimLeases),
    CheckpointLease(CheckpointLease),
    OfferKeys(OfferKeys),
    RelayEnvelope(RelayEnvelope),
    AckEnvelope(AckEnvelope),
    ReportPeering(ReportPeering),
    BeginTerm(BeginTerm),
    Expire(Expire),
    AssignBroker(AssignBroker),
    AdmitBroker(AdmitBroker),
    RecoverGroup(RecoverGroup),
    RebaseTime(RebaseTime),
    InviteUser(InviteUser),
    JoinUser(JoinUser),
    InviteBroker(InviteBroker),
    JoinBroker(JoinBroker),
    RevokeInvite(RevokeInvite),
    EvictCluster(EvictCluster),
    RevokeUser(RevokeUser),
    SuspendInstitution(SuspendInstitution),
    ResumeInstitution(ResumeInstitution),
    SetPolicySource(SetPolicySource),
    RemovePolicySource(RemovePolicySource),
    RecordPull(RecordPull),
    RecordAuditExport(RecordAuditExport),
}

impl Command {
    /// Applies the command.
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        match self {
            Self::ApplyPolicy(command) => command.apply(transition),
            Self::InviteCluster(command) => command.apply(transition),
            Self::JoinCluster(command) => command.apply(transition),
            Self::RecordCertificate(command) => command.apply(transition),
            Self::RecordIssuer(command) => command.apply(transition),
            Self::MarkClusters(command) => command.apply(transition),
            Self::AdvertiseOffer(command) => command.apply(transition),
            Self::ReviseOffer(command) => command.apply(transition),
            Self::SubmitRequest(command) => command.apply(transition),
            Self::CancelRequest(command) => command.apply(transition),
            Self::PlaceRequests(command) => command.apply(transition),
            Self::ReleaseLease(command) => command.apply(transition),
            Self::RenewLease(command) => command.apply(transition),
            Self::ReportLease(command) => command.apply(transition),
            Self::ReclaimLeases(command) => command.apply(transition),
            Self::CheckpointLease(command) => command.apply(transition),
            Self::OfferKeys(command) => command.apply(transition),
            Self::RelayEnvelope(command) => command.apply(transition),
            Self::AckEnvelope(command) => command.apply(transition),
            Self::ReportPeering(command) => command.apply(transition),
            Self::BeginTerm(command) => command.apply(transition),
            Self::Expire(command) => command.apply(transition),
            Self::AssignBroker(command) => command.apply(transition),
            Self::AdmitBroker(command) => command.apply(transition),
            Self::RecoverGroup(command) => command.apply(transition),
            Self::RebaseTime(command) => command.apply(transition),
            Self::InviteUser(command) => command.apply(transition),
            Self::JoinUser(command) => command.apply(transition),
            Self::InviteBroker(command) => command.apply(transition),
            Self::JoinBroker(command) => command.apply(transition),
            Self::RevokeInvite(command) => command.apply(transition),
            Self::EvictCluster(command) => command.apply(transition),
            Self::RevokeUser(command) => command.apply(transition),
            Self::SuspendInstitution(command) => command.apply(transition),
            Self::ResumeInstitution(command) => command.apply(transition),
            Self::SetPolicySource(command) => command.apply(transition),
            Self::RemovePolicySource(command) => command.apply(transition),
            Self::RecordPull(command) => command.apply(transition),
            Self::RecordAuditExport(command) => command.apply(transition),
        }
    }

    /// Its name in logs and metrics.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::ApplyPolicy(_) => "apply-policy",
            Self::InviteCluster(_) => "invite-cluster",
            Self::JoinCluster(_) => "join-cluster",
            Self::RecordCertificate(_) => "record-certificate",
            Self::RecordIssuer(_) => "record-issuer",
            Self::MarkClusters(_) => "mark-clusters",
            Self::AdvertiseOffer(_) => "advertise-offer",
            Self::ReviseOffer(_) => "revise-offer",
            Self::SubmitRequest(_) => "submit-request",
            Self::CancelRequest(_) => "cancel-request",
            Self::PlaceRequests(_) => "place-requests",
            Self::ReleaseLease(_) => "release-lease",
            Self::RenewLease(_) => "renew-lease",
            Self::ReportLease(_) => "report-lease",
            Self::ReclaimLeases(_) => "reclaim-leases",
            Self::CheckpointLease(_) => "checkpoint-lease",
            Self::OfferKeys(_) => "offer-keys",
            Self::RelayEnvelope(_) => "relay-envelope",
            Self::AckEnvelope(_) => "ack-envelope",
            Self::ReportPeering(_) => "report-peering",
            Self::BeginTerm(_) => "begin-term",
            Self::Expire(_) => "expire",
            Self::AssignBroker(_) => "assign-broker",
            Self::AdmitBroker(_) => "admit-broker",
            Self::RecoverGroup(_) => "recover-group",
            Self::RebaseTime(_) => "rebase-time",
            Self::InviteUser(_) => "invite-user",
            Self::JoinUser(_) => "join-user",
            Self::InviteBroker(_) => "invite-broker",
            Self::JoinBroker(_) => "join-broker",
            Self::RevokeInvite(_) => "revoke-invite",
            Self::EvictCluster(_) => "evict-cluster",
            Self::RevokeUser(_) => "revoke-user",
            Self::SuspendInstitution(_) => "suspend-institution",
            Self::ResumeInstitution(_) => "resume-institution",
            Self::SetPolicySource(_) => "set-policy-source",
            Self::RemovePolicySource(_) => "remove-policy-source",
            Self::RecordPull(_) => "record-pull",
            Self::RecordAuditExport(_) => "record-audit-export",
        }
    }
}
