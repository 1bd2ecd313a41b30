//! Authorization: one default-deny table of RPCs, with roles from the policy bundle in force, and decisions about
//! single objects. [`Viewer`](crate::api::viewer::Viewer) tells what a caller may see.

use std::collections::BTreeSet;

use comity_core::Refusal;
use comity_core::refusal::Code;
use comity_policy::{Bundle, Roles, TenantRole};
use comity_types::{ClusterId, TenantId};

use crate::api::caller::Caller;
use crate::api::rpc_error::RpcError;

/// Every RPC of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the RPC of the same name")]
pub enum Rpc {
    GetFederation,
    InviteCluster,
    CheckJoin,
    InviteUser,
    InviteBroker,
    ListInvitations,
    RevokeInvitation,
    Join,
    JoinUser,
    JoinBroker,
    EvictCluster,
    RevokeUser,
    SuspendInstitution,
    ResumeInstitution,
    RenewCertificate,
    WhoAmI,
    ListClusters,
    GetCluster,
    ListOffers,
    GetOffer,
    SubmitRequest,
    GetRequest,
    ListRequests,
    CancelRequest,
    ExplainRequest,
    QuoteRequest,
    ListRequestTemplates,
    ListQuotas,
    GetLease,
    ListLeases,
    ReleaseLease,
    RenewLease,
    CheckpointLease,
    GetPeering,
    ListPeerings,
    CheckPolicy,
    PlanPolicy,
    ApplyPolicy,
    SetPolicySource,
    RemovePolicySource,
    ListReservations,
    GetPolicy,
    Watch,
    ListAuditRecords,
    GetAuditHead,
    GetAuditConsistency,
    GetRaftStatus,
    ChangeMembers,
    RebaseTime,
    Connect,
    GetPolicyHistory,
}

/// Kinds of callers in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// No authentication; the call may carry a secret.
    Anyone,
    /// Any caller with a certificate, whatever its roles.
    Certified,
    /// A cluster.
    Cluster,
    /// A user with any role.
    Member,
    /// A user who may submit for some tenant.
    Submitter,
    /// A user who operates some institution.
    Operator,
    /// A maintainer of the federation; a bootstrap admin while no bundle is in force.
    Admin,
    /// A user who operates the brokers; a bootstrap admin while no bundle is in force.
    BrokerOperator,
    /// A user who may plan policy.
    Planner,
    /// A broker of the group.
    Broker,
}

impl Rpc {
    /// The authorization table.
    const fn allows(self) -> &'static [Who] {
        use Who::{Admin, Anyone, Broker, BrokerOperator, Certified, Cluster, Member, Operator, Planner, Submitter};
        match self {
            Self::GetFederation | Self::CheckJoin | Self::Join | Self::JoinUser | Self::JoinBroker => &[Anyone],
            Self::WhoAmI => &[Certified],
            Self::Connect | Self::GetPolicyHistory => &[Cluster],
            Self::RenewCertificate => &[Cluster, Member, Admin],
            Self::InviteBroker => &[BrokerOperator],
            Self::ListInvitations | Self::RevokeInvitation => &[Operator, Admin, BrokerOperator],
            Self::ListClusters
            | Self::GetCluster
            | Self::ListOffers
            | Self::GetOffer
            | Self::GetRequest
            | Self::ListRequests
            | Self::GetLease
            | Self::ListLeases
            | Self::GetPeering
            | Self::ListPeerings
            | Self::Watch
            | Self::ListRequestTemplates
            | Self::ListReservations
            | Self::ExplainRequest => &[Cluster, Member],
            Self::QuoteRequest
            | Self::ListQuotas
            | Self::ListAuditRecords
            | Self::GetAuditHead
            | Self::GetAuditConsistency => &[Member],
            // A cluster submits requests for its own pods, renews the leases that they use, and releases the others.
            Self::SubmitRequest | Self::CancelRequest | Self::ReleaseLease | Self::RenewLease => &[Cluster, Submitter],
            Self::CheckpointLease => &[Submitter],
            // A broker's certificate proves access to the intermediate's key: with it somebody can name broker operators.
            Self::CheckPolicy | Self::GetPolicy => &[Member, Admin, Broker],
            Self::PlanPolicy => &[Admin, Planner, Broker],
            Self::ApplyPolicy => &[Admin, Broker],
            Self::ChangeMembers
            | Self::SetPolicySource
            | Self::RemovePolicySource
            | Self::RebaseTime
            | Self::InviteUser
            | Self::SuspendInstitution
            | Self::ResumeInstitution => &[Admin],
            Self::InviteCluster | Self::EvictCluster | Self::RevokeUser => &[Operator, Admin],
            Self::GetRaftStatus => &[Operator, Admin, Broker],
        }
    }

    /// The call in words, after "may not".
    const fn phrase(self) -> &'static str {
        match self {
            Self::GetFederation => "read the federation's name and version",
            Self::InviteCluster => "invite clusters",
            Self::InviteUser => "invite people",
            Self::InviteBroker => "invite brokers",
            Self::ListInvitations => "see invitations",
            Self::RevokeInvitation => "revoke invitations",
            Self::CheckJoin => "check a join token",
            Self::Join | Self::JoinUser | Self::JoinBroker => "join the federation",
            Self::WhoAmI => "read its own rights",
            Self::EvictCluster => "evict clusters",
            Self::RevokeUser => "revoke users",
            Self::SuspendInstitution | Self::ResumeInstitution => "suspend and resume institutions",
            Self::RenewCertificate => "renew a certificate",
            Self::ListClusters | Self::GetCluster => "see clusters",
            Self::ListOffers | Self::GetOffer => "see offers",
            Self::SubmitRequest => "submit requests",
            Self::GetRequest | Self::ListRequests => "see requests",
            Self::CancelRequest => "cancel requests",
            Self::ExplainRequest => "have requests explained",
            Self::QuoteRequest => "get quotes",
            Self::ListRequestTemplates => "see request templates",
            Self::ListQuotas => "see quotas",
            Self::GetLease | Self::ListLeases => "see leases",
            Self::ReleaseLease => "release leases",
            Self::RenewLease => "renew leases",
            Self::CheckpointLease => "report that the work of a lease is saved",
            Self::GetPeering | Self::ListPeerings => "see peerings",
            Self::CheckPolicy => "check policy at the broker",
            Self::PlanPolicy => "plan policy",
            Self::ApplyPolicy => "apply policy",
            Self::SetPolicySource | Self::RemovePolicySource => "set the source of the policy",
            Self::ListReservations => "see reservations",
            Self::GetPolicy => "read the policy",
            Self::Watch => "watch requests and leases",
            Self::ListAuditRecords | Self::GetAuditHead | Self::GetAuditConsistency => "read the audit log",
            Self::GetRaftStatus => "read the broker group's status",
            Self::ChangeMembers => "change the members of the broker group",
            Self::RebaseTime => "move log time",
            Self::Connect => "act as a cluster's agent",
            Self::GetPolicyHistory => "read the signed history of the policy as a cluster's agent",
        }
    }

    /// The lowest role that permits it.
    fn grant(self) -> Grant<'static> {
        let roles = self.allows().iter().filter_map(|who| match who {
            Who::Member => Some(Grant::Tenant(None, TenantRole::Viewer)),
            Who::Submitter => Some(Grant::Tenant(None, TenantRole::Submitter)),
            Who::Operator => Some(Grant::Operator),
            Who::Admin => Some(Grant::Maintainer),
            Who::BrokerOperator => Some(Grant::BrokerOperator),
            Who::Anyone | Who::Certified | Who::Cluster | Who::Planner | Who::Broker => None,
        });
        roles
            .min_by_key(|grant| match grant {
                Grant::Tenant(..) => 0,
                Grant::Operator => 1,
                Grant::Maintainer => 2,
                Grant::BrokerOperator | Grant::Nobody => 3,
            })
            .unwrap_or(Grant::Nobody)
    }
}

/// Checks the table. `bootstrap`: SPIFFE ids that count as maintainers while no bundle is in force.
pub fn authorize(
    rpc: Rpc,
    caller: &Caller,
    bundle: Option<&Bundle>,
    bootstrap: &BTreeSet<String>,
) -> Result<(), RpcError> {
    let roles = roles_of(caller, bundle);
    let is = |who: &Who| match (who, caller) {
        (Who::Anyone, _) | (Who::Cluster, Caller::Cluster(..)) | (Who::Broker, Caller::Broker(_)) => true,
        (Who::Certified, caller) => *caller != Caller::Anonymous,
        (Who::Member, Caller::User(..)) => !roles.is_empty(),
        (Who::Submitter, Caller::User(..)) => roles.tenants.values().any(|role| *role >= TenantRole::Submitter),
        (Who::Operator, Caller::User(..)) => !roles.institutions_operated.is_empty(),
        (Who::Planner, Caller::User(..)) => roles.planner,
        (Who::Admin, caller) => is_maintainer(caller, bundle, bootstrap),
        (Who::BrokerOperator, caller) => is_broker_operator(caller, bundle, bootstrap),
        _ => false,
    };
    if rpc.allows().iter().any(is) {
        return Ok(());
    }
    if *caller == Caller::Anonymous {
        return Err(RpcError::Unauthenticated {
            reason: "this call needs a client certificate",
            remedy: "call with the certificate of a user or cluster of this federation",
        });
    }
    let reason = format!("{} may not {}", caller.name(), rpc.phrase());
    Err(denied(reason, caller, rpc.grant(), bundle).into())
}

/// Whether the caller maintains the federation: by its role, or as a bootstrap admin while no bundle is in force.
#[must_use]
pub fn is_maintainer(caller: &Caller, bundle: Option<&Bundle>, bootstrap: &BTreeSet<String>) -> bool {
    match (caller, bundle) {
        (Caller::User(id, _), Some(bundle)) => bundle.roles_of(&id.to_string()).federation_admin,
        (Caller::User(id, _), None) => bootstrap.contains(&id.to_string()),
        _ => false,
    }
}

/// Whether the caller may invite brokers: by its role, or as a bootstrap admin while no bundle is in force.
#[must_use]
pub fn is_broker_operator(caller: &Caller, bundle: Option<&Bundle>, bootstrap: &BTreeSet<String>) -> bool {
    match bundle {
        Some(_) => roles_of(caller, bundle).broker_operator,
        None => is_maintainer(caller, None, bootstrap),
    }
}

/// Roles of a user; none for clusters and brokers.
#[must_use]
pub fn roles_of(caller: &Caller, bundle: Option<&Bundle>) -> Roles {
    match (caller, bundle) {
        (Caller::User(id, _), Some(bundle)) => bundle.roles_of(&id.to_string()),
        _ => Roles::default(),
    }
}

/// Remedy while nobody has a role.
const NO_BUNDLE: &str =
    "no policy bundle is in force: a bootstrap admin applies one with `comity policy apply DIRECTORY`";

/// The role that would permit a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant<'a> {
    /// A role in a tenant: that one, or any.
    Tenant(Option<&'a str>, TenantRole),
    /// An operator of an institution.
    Operator,
    /// A maintainer of the federation.
    Maintainer,
    /// A broker operator.
    BrokerOperator,
    /// Only agents and brokers may.
    Nobody,
}

impl Grant<'_> {
    /// The remedy for `caller`: the line that gives a role in a tenant, or who else may do it.
    fn remedy(self, caller: &Caller) -> String {
        let id = caller.name();
        if !matches!(caller, Caller::User(..)) || self == Self::Nobody {
            return "call with the certificate of somebody who may; roles in the policy bundle are for users"
                .to_owned();
        }
        match self {
            Self::Tenant(tenant, role) => {
                let document = tenant.map_or_else(|| "a Tenant document".to_owned(), |name| format!("Tenant {name}"));
                let entry = format!("`- {{id: \"{id}\", role: {}}}`", role.as_str());
                format!("ask a maintainer to add this to `spec.members` of {document}: {entry}")
            }
            // Whoever lacks these roles is not to get them for one call.
            Self::Operator => {
                "ask one of the `operators` of the Institution document, or a maintainer, to do it".to_owned()
            }
            Self::Maintainer | Self::Nobody => {
                "ask one of the `maintainers` of the Federation document to do it".to_owned()
            }
            Self::BrokerOperator => "ask one of the `brokerOperators` of the Federation document to do it".to_owned(),
        }
    }
}

fn denied(reason: String, caller: &Caller, grant: Grant<'_>, bundle: Option<&Bundle>) -> Refusal {
    let remedy = match bundle {
        Some(_) => grant.remedy(caller),
        None => NO_BUNDLE.to_owned(),
    };
    Refusal::new(Code::PermissionDenied, reason, remedy)
}

/// Permits a user to submit for a tenant, and a cluster for tenants of its institution with itself as origin.
pub fn may_submit(
    caller: &Caller,
    bundle: Option<&Bundle>,
    tenant: &TenantId,
    origin: &ClusterId,
) -> Result<(), Refusal> {
    if let Caller::Cluster(_, cluster, _) = caller {
        return may_act_from(cluster, bundle, tenant, origin);
    }
    let roles = roles_of(caller, bundle);
    if roles.may_submit(tenant.as_str()) {
        return Ok(());
    }
    known_tenant(&roles, bundle, tenant)?;
    let reason = format!("{} may not submit for tenant {tenant}", caller.name());
    let grant = Grant::Tenant(Some(tenant.as_str()), TenantRole::Submitter);
    Err(denied(reason, caller, grant, bundle).at("spec.tenant", tenant))
}

/// Tells a misspelt tenant from a missing role, for users who may read the policy.
fn known_tenant(roles: &Roles, bundle: Option<&Bundle>, tenant: &TenantId) -> Result<(), Refusal> {
    match bundle {
        Some(bundle) if !roles.is_empty() && !bundle.tenants.contains_key(tenant.as_str()) => {
            Err(Refusal::not_found("spec.tenant", tenant, "tenant"))
        }
        _ => Ok(()),
    }
}

/// Permits a cluster to act as origin for tenants of its institution.
fn may_act_from(
    cluster: &ClusterId,
    bundle: Option<&Bundle>,
    tenant: &TenantId,
    origin: &ClusterId,
) -> Result<(), Refusal> {
    let refused = |reason: String, remedy: String| Err(Refusal::new(Code::PermissionDenied, reason, remedy));
    if origin != cluster {
        let reason = format!("cluster {cluster} may not act for requests from {origin}");
        return refused(reason, format!("name {cluster} as the origin, or leave it to {origin} and its users"))
            .map_err(|refusal| refusal.at("spec.origin", origin));
    }
    let Some(bundle) = bundle else {
        let reason = format!("cluster {cluster} belongs to no institution");
        return Err(Refusal::new(Code::PermissionDenied, reason, NO_BUNDLE));
    };
    let Some(institution) = bundle.institution_of_cluster(cluster.as_str()) else {
        let reason = format!("no institution of the policy bundle has cluster {cluster}");
        return refused(reason, "ask a maintainer to list it in `clusters` of its Institution document".to_owned())
            .map_err(|refusal| refusal.at("spec.origin", origin));
    };
    if bundle.tenants.get(tenant.as_str()).is_some_and(|document| document.spec.institution == institution) {
        return Ok(());
    }
    let reason = format!("cluster {cluster} of {institution} may not act for tenant {tenant}, which is not theirs");
    refused(reason, format!("name a tenant of {institution}; its users ask for others with their own certificates"))
        .map_err(|refusal| refusal.at("spec.tenant", tenant))
}

/// Permits changes to an object that `owner` submitted: by its owner as a submitter, by admins of the tenant, and by
/// the origin cluster for tenants of its institution.
pub fn may_change(
    caller: &Caller,
    bundle: Option<&Bundle>,
    tenant: &TenantId,
    origin: &ClusterId,
    owner: &str,
) -> Result<(), Refusal> {
    if let Caller::Cluster(_, cluster, _) = caller {
        return may_act_from(cluster, bundle, tenant, origin);
    }
    let roles = roles_of(caller, bundle);
    let own = caller.name() == owner && roles.may_submit(tenant.as_str());
    if own || roles.has_tenant_role(tenant.as_str(), TenantRole::Admin) {
        return Ok(());
    }
    let reason = format!("{} is neither its owner nor an admin of tenant {tenant}", caller.name());
    Err(denied(reason, caller, Grant::Tenant(Some(tenant.as_str()), TenantRole::Admin), bundle))
}

/// Permits the renewal or the release of a lease, and the cancellation of a request. A cluster decides about its own
/// requests only: people decide about theirs.
///
/// # Errors
/// A [`Refusal`] with code `permission-denied`.
pub fn may_decide(
    caller: &Caller,
    bundle: Option<&Bundle>,
    tenant: &TenantId,
    origin: &ClusterId,
    owner: &str,
) -> Result<(), Refusal> {
    may_change(caller, bundle, tenant, origin, owner)?;
    if matches!(caller, Caller::Cluster(..)) && caller.name() != owner {
        let reason = format!("its request was submitted by {owner}");
        return Err(denied(reason, caller, Grant::Tenant(Some(tenant.as_str()), TenantRole::Submitter), bundle));
    }
    Ok(())
}

/// Permits a user to quote a tenant's request.
pub fn may_view_tenant(caller: &Caller, bundle: Option<&Bundle>, tenant: &TenantId) -> Result<(), Refusal> {
    let roles = roles_of(caller, bundle);
    if roles.may_view(tenant.as_str()) {
        return Ok(());
    }
    known_tenant(&roles, bundle, tenant)?;
    let reason = format!("{} has no role in tenant {tenant}", caller.name());
    let grant = Grant::Tenant(Some(tenant.as_str()), TenantRole::Viewer);
    Err(denied(reason, caller, grant, bundle).at("spec.tenant", tenant))
}

/// Permits a user to invite a cluster.
pub fn may_invite(caller: &Caller, bundle: Option<&Bundle>, cluster: &ClusterId) -> Result<(), Refusal> {
    let bundle_says = match (caller, bundle) {
        // A cluster that no document names is refused by the command itself, with a better reason.
        (Caller::User(id, _), Some(bundle)) => {
            bundle.may_invite(&id.to_string(), cluster.as_str())
                || (roles_of(caller, Some(bundle)).federation_admin
                    && bundle.institution_of_cluster(cluster.as_str()).is_none())
        }
        // Before a bundle is in force, the command's own refusal says that one must be applied.
        (Caller::User(..), None) => true,
        _ => false,
    };
    if bundle_says {
        return Ok(());
    }
    let reason = format!("{} operates no institution that may enrol cluster {cluster}", caller.name());
    Err(denied(reason, caller, Grant::Operator, bundle).at("cluster", cluster))
}

#[cfg(test)]
mod tests;
