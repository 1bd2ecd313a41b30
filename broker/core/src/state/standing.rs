//! Who may take part: which certificates are void, which clusters are evicted, which institutions are suspended.

use std::collections::BTreeSet;

use comity_types::{ClusterId, InstitutionId, TenantId};

use crate::model::actor::Actor;
use crate::model::refusal::{Code, Refusal};
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
    pub(crate) fn institutions_of_cluster<'s>(&'s self, cluster: &ClusterId) -> impl Iterator<Item = &'s str> {
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
        let bundle = self.policy.as_ref().map(|record| &record.bundle);
        let tenant = bundle.and_then(|bundle| bundle.tenants.get(tenant.as_str()));
        tenant.map_or(Ok(()), |tenant| self.check_institution(&tenant.spec.institution))
    }

    /// Refuses a suspended institution.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_institution(&self, name: &str) -> Result<(), Refusal> {
        let suspended = InstitutionId::parse(name, "institution").ok().and_then(|id| self.suspensions.get(&id));
        let Some(Exclusion { by, .. }) = suspended else { return Ok(()) };
        Err(Refusal::new(
            Code::Revoked,
            format!("institution {name} was suspended by {by}"),
            format!("a maintainer lifts that with `comity institution resume {name}`"),
        ))
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

    /// Refuses an actor whose certificate, of this generation, is void, or whose institution is suspended.
    ///
    /// # Errors
    /// [`Code::Revoked`].
    pub fn check_standing(&self, actor: &Actor, generation: u64) -> Result<(), Refusal> {
        match (actor, actor.user_name()) {
            (Actor::Cluster(cluster), _) => self.check_cluster_certificate(cluster, generation),
            (Actor::User(id), Some(name)) => self.check_user_certificate(name, id, generation),
            // Brokers call by the group's intermediate.
            (Actor::User(_), None) | (Actor::Leader(_), _) => Ok(()),
        }
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
