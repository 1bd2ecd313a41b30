//! Who may take part: which certificates are void, which clusters are evicted, which institutions are suspended.

use std::collections::BTreeSet;

use comity_types::{ClusterId, InstitutionId, LeaseTreatment, Side, TenantId};

use crate::model::actor::Actor;
use crate::model::broker_record::BrokerRole;
use crate::model::lease::Lease;
use crate::model::refusal::{Code, Refusal};
use crate::model::request::Request;
use crate::model::revocation::Exclusion;
use crate::state::State;

impl State {
    /// Refuses a cluster that is evicted or whose institution is suspended.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_part(&self, cluster: &ClusterId) -> Result<(), Refusal> {
        if self.suspensions.is_empty() && self.clusters.get(cluster).is_none_or(|record| record.evicted.is_none()) {
            return Ok(());
        }
        let evicted = self.clusters.get(cluster).and_then(|record| record.evicted.as_ref());
        if let Some(Exclusion { by, by_maintainer, .. }) = evicted {
            let who = if *by_maintainer { ", which a maintainer makes" } else { "" };
            return Err(Refusal::new(
                Code::Revoked,
                format!("cluster {cluster} was evicted by {by}"),
                format!("it joins again with a token of `comity cluster invite {cluster}`{who}"),
            )
            .at("cluster", cluster));
        }
        // Moving a cluster to another institution does not lift a suspension.
        self.institutions_of_cluster(cluster).try_for_each(|name| self.check_institution(name))
    }

    /// The institution for which a cluster joined, and the one that owns it by the policy in force: mostly the same.
    pub(crate) fn institutions_of_cluster<'s>(
        &'s self,
        cluster: &ClusterId,
    ) -> impl Iterator<Item = &'s str> + use<'s> {
        let joined_for = self.clusters.get(cluster).map(|record| record.institution.as_str());
        joined_for.into_iter().chain(self.owner(cluster))
    }

    /// Whether the policy in force makes a caller a maintainer of the federation.
    pub(crate) fn is_maintainer(&self, actor: &Actor) -> bool {
        match (&self.policy, actor) {
            (Some(record), Actor::User(id)) => record.bundle.roles_of(id).federation_admin,
            _ => false,
        }
    }

    /// Refuses an actor who may not change the members of the broker group: whose certificate, of this generation, is
    /// void, or whom the policy in force does not make a maintainer. Before the first bundle, the API alone decides.
    ///
    /// # Errors
    /// [`Code::Revoked`], [`Code::PermissionDenied`].
    pub fn check_group_change(&self, actor: &Actor, generation: u64) -> Result<(), Refusal> {
        self.check_standing(actor, generation)?;
        if matches!(actor, Actor::Leader(_)) || self.policy.is_none() || self.is_maintainer(actor) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::PermissionDenied,
            format!("{} may not change the members of the broker group", actor.name()),
            "ask one of the `maintainers` of the Federation document to do it",
        ))
    }

    /// Refuses a user who would let in again a cluster that a maintainer evicted, without being one.
    ///
    /// # Errors
    /// [`Code::PermissionDenied`].
    pub(crate) fn check_readmission(&self, cluster: &ClusterId, inviter: &Actor) -> Result<(), Refusal> {
        let evicted = self.clusters.get(cluster).and_then(|record| record.evicted.as_ref());
        let Some(Exclusion { by, .. }) = evicted.filter(|evicted| evicted.by_maintainer) else { return Ok(()) };
        if !matches!(inviter, Actor::User(_)) || self.is_maintainer(inviter) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::PermissionDenied,
            format!("cluster {cluster} was evicted by the maintainer {by}: {} may not invite it", inviter.name()),
            "let one of the `maintainers` of the Federation document invite it",
        )
        .at("cluster", cluster))
    }

    /// Refuses requests from an origin, for a tenant, if one of them may not take part.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_borrower(&self, origin: &ClusterId, tenant: &TenantId) -> Result<(), Refusal> {
        self.check_part(origin)?;
        self.institution_of_tenant(tenant).map_or(Ok(()), |institution| self.check_institution(institution))
    }

    /// Refuses a suspended institution.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_institution(&self, name: &str) -> Result<(), Refusal> {
        let Some(Exclusion { by, .. }) = self.suspension_of(name) else { return Ok(()) };
        Err(Refusal::new(
            Code::Revoked,
            format!("institution {name} was suspended by {by}"),
            format!("a maintainer lifts that with `comity institution resume {name}`"),
        ))
    }

    fn suspension_of(&self, institution: &str) -> Option<&Exclusion> {
        InstitutionId::parse(institution, "institution").ok().and_then(|id| self.suspensions.get(&id))
    }

    /// The tightest treatment of the leases of a cluster that is evicted or suspended; `None` if it takes part.
    pub(crate) fn treatment_of_cluster(&self, cluster: &ClusterId) -> Option<LeaseTreatment> {
        let evicted = self.clusters.get(cluster).and_then(|record| record.evicted.as_ref());
        let suspended = self.institutions_of_cluster(cluster).filter_map(|name| self.suspension_of(name));
        suspended.chain(evicted).map(|exclusion| exclusion.leases).max()
    }

    /// The tightest treatment of a lease because its origin, or the institution of its tenant, is evicted or suspended.
    pub(crate) fn treatment_of_borrower(&self, lease: &Lease) -> Option<LeaseTreatment> {
        let suspended = self.institutions_of_borrower(lease).filter_map(|name| self.suspension_of(name));
        suspended.map(|exclusion| exclusion.leases).chain(self.treatment_of_cluster(&lease.origin)).max()
    }

    /// The institution to which the tenant of a lease belonged at the grant, and its institution by the policy in force:
    /// moving a tenant to another institution does not lift a suspension.
    pub(crate) fn institutions_of_borrower<'s>(&'s self, lease: &'s Lease) -> impl Iterator<Item = &'s str> {
        [lease.institution.as_str()].into_iter().chain(self.institution_of_tenant(&lease.tenant))
    }

    /// The institutions that a request concerns, each perhaps twice: the tenant's, and those of its origin.
    pub(crate) fn institutions_of_request<'s>(
        &'s self,
        request: &'s Request,
    ) -> impl Iterator<Item = String> + use<'s> {
        let tenant = self.institution_of_tenant(&request.spec.tenant);
        tenant.into_iter().chain(self.institutions_of_cluster(&request.spec.origin)).map(str::to_owned)
    }

    /// The institutions that a lease concerns, some perhaps twice: those of its tenant, its origin and its donor.
    pub(crate) fn institutions_of_lease<'s>(&'s self, lease: &'s Lease) -> impl Iterator<Item = String> + use<'s> {
        let clusters = [&lease.origin, &lease.placement.donor];
        let of_clusters = clusters.into_iter().flat_map(|cluster| self.institutions_of_cluster(cluster));
        self.institutions_of_borrower(lease).chain(of_clusters).map(str::to_owned)
    }

    /// The institution of a tenant by the policy in force.
    pub(crate) fn institution_of_tenant(&self, tenant: &TenantId) -> Option<&str> {
        let tenant = self.policy.as_ref()?.bundle.tenants.get(tenant.as_str())?;
        Some(tenant.spec.institution.as_str())
    }

    /// The side for which a lease is drained or stopped: the origin, if both are.
    pub(crate) fn drained_side(&self, lease: &Lease) -> Option<Side> {
        let drains = |treatment: Option<LeaseTreatment>| treatment >= Some(LeaseTreatment::Drain);
        if drains(self.treatment_of_borrower(lease)) {
            return Some(Side::Origin);
        }
        drains(self.treatment_of_cluster(&lease.placement.donor)).then_some(Side::Donor)
    }

    /// Whether an actor's certificate, of this generation, is void for good.
    #[must_use]
    pub fn is_void(&self, actor: &Actor, generation: u64) -> bool {
        if let Actor::Cluster(cluster) = actor {
            return self.is_void_for_cluster(cluster, generation);
        }
        let revoked = actor.user_name().and_then(|name| self.revoked_users.get(name));
        revoked.is_some_and(|revoked| generation < revoked.void_before)
    }

    fn is_void_for_cluster(&self, cluster: &ClusterId, generation: u64) -> bool {
        self.clusters.get(cluster).is_some_and(|record| generation < record.void_before)
    }

    /// Refuses an actor whose certificate, of this generation, is void, or whose institution is suspended; also a broker
    /// that is not in the group.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_standing(&self, actor: &Actor, generation: u64) -> Result<(), Refusal> {
        match (actor, actor.user_name()) {
            (Actor::Cluster(cluster), _) => self.check_cluster_certificate(cluster, generation),
            (Actor::User(id), Some(name)) => self.check_user_certificate(name, id, generation),
            (Actor::User(id), None) => self.check_broker(id),
            (Actor::Leader(_), _) => Ok(()),
        }
    }

    /// Refuses a broker, by SPIFFE id, that is not in the group: it was removed, or nobody let it join.
    fn check_broker(&self, id: &str) -> Result<(), Refusal> {
        let number = id.rsplit_once("/broker/").and_then(|(_, number)| number.parse().ok());
        let record = number.and_then(|number: u64| self.brokers.get(&number));
        if record.is_some_and(|record| record.role != BrokerRole::Removed) {
            return Ok(());
        }
        Err(Refusal::new(
            Code::Revoked,
            format!("{id} is no broker of the group"),
            "call with the certificate of a user, or of a broker that `comity raft status` shows",
        ))
    }

    /// Refuses a cluster's certificate if it is void, or if the institution is suspended.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_cluster_certificate(&self, cluster: &ClusterId, generation: u64) -> Result<(), Refusal> {
        // The reason of an eviction says more.
        self.check_part(cluster)?;
        if self.is_void_for_cluster(cluster, generation) {
            let reason = format!("the certificate of cluster {cluster} is void: another agent joined in its place");
            return Err(Refusal::new(
                Code::Revoked,
                reason,
                "stop this agent; to make it the cluster's agent again, invite it with `comity cluster invite --replace`",
            )
            .at("cluster", cluster));
        }
        Ok(())
    }

    /// Refuses a user's certificate if it is void, or if the user has no role outside suspended institutions. `id` is
    /// the user's SPIFFE id, `name` its last part.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_user_certificate(&self, name: &str, id: &str, generation: u64) -> Result<(), Refusal> {
        if let Some(revoked) = self.revoked_users.get(name).filter(|revoked| generation < revoked.void_before) {
            let reason = format!("the certificates of user {name} were revoked by {}", revoked.by);
            return Err(Refusal::new(
                Code::Revoked,
                reason,
                format!("log in with a new token: a maintainer makes one with `comity user add {name}`"),
            ));
        }
        if self.suspensions.is_empty() {
            return Ok(());
        }
        let institutions = self.institutions_of_user(id);
        let refusals = institutions.iter().map(|name| self.check_institution(name));
        match refusals.collect::<Vec<_>>() {
            all if !all.is_empty() && all.iter().all(Result::is_err) => all.into_iter().next().unwrap_or(Ok(())),
            _ => Ok(()),
        }
    }

    /// Institutions for whose tenants and clusters a user acts; none for maintainers and broker operators, who act for
    /// the federation.
    pub(crate) fn institutions_of_user(&self, id: &str) -> BTreeSet<&str> {
        let Some(bundle) = self.policy.as_ref().map(|record| &record.bundle) else { return BTreeSet::new() };
        let roles = bundle.roles_of(id);
        if roles.federation_admin || roles.broker_operator {
            return BTreeSet::new();
        }
        let tenants = roles.tenants.keys().filter_map(|name| bundle.tenants.get(name));
        let operated = roles.institutions_operated.iter().filter_map(|name| bundle.institutions.get_key_value(name));
        let operated = operated.map(|(name, _)| name.as_str());
        tenants.map(|tenant| tenant.spec.institution.as_str()).chain(operated).collect()
    }

    /// The institution among whose stored replies those to a caller count: of several the first by name, none for those
    /// who act for the federation.
    pub(crate) fn institution_of_caller(&self, caller: &Actor) -> Option<&str> {
        match caller {
            Actor::Cluster(cluster) => self.institutions_of_cluster(cluster).min(),
            Actor::User(id) => self.institutions_of_user(id).first().copied(),
            Actor::Leader(_) => None,
        }
    }

    /// The institution that owns a cluster by the policy in force.
    fn owner(&self, cluster: &ClusterId) -> Option<&str> {
        self.policy.as_ref()?.bundle.institution_of_cluster(cluster.as_str())
    }
}
