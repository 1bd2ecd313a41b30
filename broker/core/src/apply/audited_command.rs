//! Which commands the audit log records by themselves. Changes of requests and leases are recorded where they happen,
//! whatever command makes them.

use std::collections::BTreeSet;

use comity_audit::Subject;
use comity_types::{ClusterId, TenantId};

use crate::apply::command::Command;
use crate::model::invite::{InvitationId, InviteSubject};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::State;
use crate::state::transition::Transition;
use crate::state::transition::audit_changes::Act;

/// When a command is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Whether it is carried out or refused.
    Always,
    /// If it is carried out. Whoever joins has no certificate yet, and could fill the log with refusals.
    WhenDone,
    /// If it is refused; its changes are recorded where they happen.
    WhenRefused,
}

/// What the audit log says of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditedCommand {
    pub(crate) recorded: Recorded,
    pub(crate) act: &'static str,
    pub(crate) subject: Subject,
    pub(crate) cause: String,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) institutions: Vec<String>,
}

impl AuditedCommand {
    fn new(recorded: Recorded, act: &'static str, subject: Subject) -> Self {
        Self { recorded, act, subject, cause: String::new(), tenant: None, institutions: Vec::new() }
    }

    fn because(self, cause: impl ToString) -> Self {
        Self { cause: cause.to_string(), ..self }
    }

    fn concerns(self, institutions: impl IntoIterator<Item = String>) -> Self {
        Self { institutions: institutions.into_iter().collect(), ..self }
    }

    /// Records the command, whose reply is known.
    pub(crate) fn record(self, transition: &mut Transition<'_>, reply: &Reply) {
        let recorded = match (self.recorded, reply) {
            // A repeated command that changes nothing is no act.
            (Recorded::Always | Recorded::WhenDone, Ok(_)) => transition.has_changes(),
            (Recorded::Always | Recorded::WhenRefused, Err(_)) => true,
            (Recorded::WhenRefused, Ok(_)) | (Recorded::WhenDone, Err(_)) => false,
        };
        if !recorded {
            return;
        }
        let subject = match reply {
            Ok(ReplyBody::Invited { subject, .. }) => Subject::new(subject.kind(), subject),
            _ => self.subject,
        };
        let refused = reply.as_ref().err().map(|refusal| refusal.code);
        let institutions: BTreeSet<String> = self.institutions.into_iter().collect();
        let reasons = match refused {
            None => transition.grants(subject.kind == "broker", &institutions),
            Some(_) => Vec::new(),
        };
        let act = Act::new(self.act, subject);
        transition.audit(Act { refused, cause: self.cause, tenant: self.tenant, institutions, reasons, ..act });
    }

    fn of_cluster(state: &State, recorded: Recorded, act: &'static str, cluster: &ClusterId) -> Self {
        let institutions = state.institutions_of_cluster(cluster).map(str::to_owned);
        Self::new(recorded, act, Subject::new("cluster", cluster)).concerns(institutions)
    }
}

impl Command {
    /// What the audit log says of it, in the state before it; `None` for reports of agents, and for commands of which it
    /// records only the changes of requests and leases.
    pub(crate) fn audited(&self, state: &State) -> Option<AuditedCommand> {
        use Recorded::{Always, WhenDone, WhenRefused};
        let new = AuditedCommand::new;
        Some(match self {
            Self::ApplyPolicy(command) => {
                let commit = command.source.commit.as_deref().unwrap_or_default();
                new(WhenRefused, "policy-applied", Subject::new("policy", commit))
            }
            Self::SetPolicySource(command) => {
                let source = Subject::new("policy-source", format!("{} {}", command.repository, command.branch));
                new(Always, "policy-source-set", source).because(if command.new_history { "new history" } else { "" })
            }
            Self::RemovePolicySource(_) => new(Always, "policy-source-removed", Subject::new("policy-source", "")),
            Self::InviteCluster(command) => {
                let cause = if command.replace { "replaces its agent" } else { "" };
                AuditedCommand::of_cluster(state, Always, "cluster-invited", &command.cluster).because(cause)
            }
            Self::JoinCluster(command) => {
                AuditedCommand::of_cluster(state, WhenDone, "cluster-joined", &command.cluster)
                    .because(invited_by(state, &command.secret_sha256))
            }
            Self::InviteUser(command) => new(Always, "user-invited", Subject::new("user", &command.user)),
            Self::JoinUser(command) => new(WhenDone, "user-joined", Subject::new("user", &command.user))
                .because(invited_by(state, &command.secret_sha256)),
            Self::InviteBroker(command) => {
                let number = command.broker.map_or_else(String::new, |number| number.to_string());
                new(Always, "broker-invited", Subject::new("broker", number))
            }
            Self::JoinBroker(command) => new(WhenDone, "broker-joined", Subject::new("broker", command.broker))
                .because(invited_by(state, &command.secret_sha256)),
            Self::RevokeInvite(command) => {
                let mut open = state.invites.iter().filter(|(hash, _)| InvitationId::of(hash) == command.id);
                let found = open.next().map(|(_, invite)| &invite.subject);
                let cause = found.map_or_else(String::new, |subject| format!("for {} {subject}", subject.kind()));
                let institutions = found.into_iter().flat_map(|subject| match subject {
                    InviteSubject::Cluster(cluster) => {
                        state.institutions_of_cluster(cluster).map(str::to_owned).collect()
                    }
                    InviteSubject::User(_) | InviteSubject::Broker(_) => Vec::new(),
                });
                let subject = Subject::new("invitation", &command.id);
                new(Always, "invitation-revoked", subject).because(cause).concerns(institutions)
            }
            Self::EvictCluster(command) => {
                AuditedCommand::of_cluster(state, Always, "cluster-evicted", &command.cluster)
                    .because(format!("leases: {}", command.leases.as_str()))
            }
            Self::RevokeUser(command) => new(Always, "user-revoked", Subject::new("user", &command.user)),
            Self::SuspendInstitution(command) => {
                let subject = Subject::new("institution", &command.institution);
                new(Always, "institution-suspended", subject)
                    .because(format!("leases: {}", command.leases.as_str()))
                    .concerns([command.institution.to_string()])
            }
            Self::ResumeInstitution(command) => {
                let subject = Subject::new("institution", &command.institution);
                new(Always, "institution-resumed", subject).concerns([command.institution.to_string()])
            }
            Self::SubmitRequest(command) => {
                let tenant = command.spec.tenant.clone();
                let institution = state.institution_of_tenant(&tenant).map(str::to_owned);
                let refused = new(WhenRefused, "request-submitted", Subject::new("tenant", &tenant));
                AuditedCommand { tenant: Some(tenant), ..refused.concerns(institution) }
            }
            Self::CancelRequest(command) => {
                let refused = new(WhenRefused, "request-cancelled", Subject::new("request", command.request));
                match state.requests.get(&command.request) {
                    Some(request) => AuditedCommand {
                        tenant: Some(request.spec.tenant.clone()),
                        ..refused.concerns(state.institutions_of_request(request))
                    },
                    None => refused,
                }
            }
            Self::ReleaseLease(command) => {
                let refused = new(WhenRefused, "lease-ended", Subject::new("lease", command.lease));
                match state.leases.get(&command.lease) {
                    Some(lease) => AuditedCommand {
                        tenant: Some(lease.tenant.clone()),
                        ..refused.concerns(state.institutions_of_lease(lease))
                    },
                    None => refused,
                }
            }
            Self::AssignBroker(command) => {
                let refused = new(WhenRefused, "broker-role-set", Subject::new("broker", command.broker));
                refused.because(command.role.as_str())
            }
            Self::RecoverGroup(command) => new(Always, "group-recovered", Subject::new("broker", command.broker)),
            Self::RebaseTime(_) => new(Always, "log-time-moved", Subject::new("federation", "")),
            Self::RecordCertificate(_)
            | Self::RecordIssuer(_)
            | Self::MarkClusters(_)
            | Self::AdvertiseOffer(_)
            | Self::ReviseOffer(_)
            | Self::PlaceRequests(_)
            | Self::RenewLease(_)
            | Self::ReportLease(_)
            | Self::ReclaimLeases(_)
            | Self::CheckpointLease(_)
            | Self::OfferKeys(_)
            | Self::RelayEnvelope(_)
            | Self::AckEnvelope(_)
            | Self::ReportPeering(_)
            | Self::BeginTerm(_)
            | Self::Expire(_)
            | Self::AdmitBroker(_)
            | Self::RecordPull(_)
            | Self::RecordAuditExport(_) => return None,
        })
    }
}

/// Who made the token that somebody joins with.
fn invited_by(state: &State, secret_sha256: &str) -> String {
    let invite = state.invites.get(secret_sha256);
    invite.map_or_else(String::new, |invite| format!("invited by {}", invite.inviter.name()))
}
