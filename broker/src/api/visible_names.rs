//! Names of the policy that a caller may be told. They correct a typing error, and tell it from a list that is empty.

use comity_core::refusal::Code;
use comity_core::{Refusal, State};
use comity_policy::{Bundle, nearest};
use comity_types::{ClusterId, TenantId};

use crate::api::authorize::roles_of;
use crate::api::caller::Caller;
use crate::api::viewer::Viewer;

/// The names that one caller may be told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VisibleNames<'b> {
    institutions: Vec<&'b str>,
    tenants: Vec<&'b str>,
    clusters: Vec<&'b str>,
    classes: Vec<&'b str>,
    priorities: Vec<&'b str>,
}

impl<'b> VisibleNames<'b> {
    /// Names for `caller` under `bundle`. A user with a role may read the whole bundle; a cluster gets the names of its
    /// own institution.
    #[must_use]
    pub fn of(caller: &Caller, bundle: Option<&'b Bundle>) -> Self {
        let Some(bundle) = bundle else { return Self::default() };
        let own = caller.cluster().and_then(|cluster| bundle.institution_of_cluster(cluster.as_str()));
        let reads_all = !roles_of(caller, Some(bundle)).is_empty();
        if !reads_all && own.is_none() {
            return Self::default();
        }
        let visible = |institution: &str| reads_all || own == Some(institution);
        let tenants = bundle.tenants.values().filter(|tenant| visible(&tenant.spec.institution));
        let clusters = bundle.enrollable_clusters().filter(|(_, institution)| visible(institution));
        let institutions = bundle.institutions.keys().map(String::as_str);
        Self {
            institutions: institutions.filter(|institution| visible(institution)).collect(),
            tenants: tenants.map(|tenant| tenant.name.as_str()).collect(),
            clusters: clusters.map(|(cluster, _)| cluster).collect(),
            classes: bundle.classes.keys().map(String::as_str).collect(),
            priorities: bundle.priorities.keys().map(String::as_str).collect(),
        }
    }

    /// Names for `caller` under the bundle of `state`.
    #[must_use]
    pub fn in_state(caller: &Caller, state: &'b State) -> Self {
        Self::of(caller, state.policy.as_ref().map(|record| -> &Bundle { &record.bundle }))
    }

    /// The same refusal; if a name is not known and resembles one that the caller may be told, its remedy is that name.
    #[must_use]
    pub fn suggest(&self, refusal: Refusal) -> Refusal {
        let known = match (refusal.code, refusal.field.as_str()) {
            (Code::NotFound, "institution") => &self.institutions,
            (Code::NotFound, "spec.tenant" | "tenant") => &self.tenants,
            (Code::NotFound, "spec.origin" | "spec.allow_donors" | "spec.deny_donors")
            | (Code::NotFound | Code::InvalidField, "cluster") => &self.clusters,
            (Code::NotFound, "spec.gpus.class") => &self.classes,
            (Code::NotFound, "spec.priority") => &self.priorities,
            _ => return refusal,
        };
        match nearest(&refusal.value, known.iter().copied()).filter(|near| *near != refusal.value) {
            Some(near) => Refusal { remedy: format!("did you mean {near}?"), ..refusal },
            None => refusal,
        }
    }

    /// Refuses a filter by a tenant that neither policy nor any visible object names.
    pub fn check_tenant(&self, state: &State, viewer: &Viewer, tenant: &TenantId) -> Result<(), Refusal> {
        let of_request = || {
            let mut requests = state.requests.values();
            requests.any(|held| held.spec.tenant == *tenant && viewer.sees_request(tenant, &held.spec.origin))
        };
        let of_lease = || {
            let mut leases = state.leases.values();
            leases.any(|held| held.tenant == *tenant && viewer.sees_lease(tenant, &held.origin, &held.placement.donor))
        };
        if self.tenants.contains(&tenant.as_str()) || of_request() || of_lease() {
            return Ok(());
        }
        Err(self.suggest(Refusal::not_found("tenant", tenant, "tenant")))
    }

    /// Refuses a filter by a cluster that neither policy nor any visible object names.
    pub fn check_cluster(&self, state: &State, viewer: &Viewer, cluster: &ClusterId) -> Result<(), Refusal> {
        let is_member = state.clusters.contains_key(cluster) && viewer.sees_offer(cluster);
        let of_lease = || {
            let mut leases = state.leases.values();
            leases.any(|held| {
                let donor = &held.placement.donor;
                (held.origin == *cluster || donor == cluster) && viewer.sees_lease(&held.tenant, &held.origin, donor)
            })
        };
        if self.clusters.contains(&cluster.as_str()) || is_member || of_lease() {
            return Ok(());
        }
        Err(self.suggest(Refusal::not_found("cluster", cluster, "cluster")))
    }
}

#[cfg(test)]
mod tests {
    use comity_runtime::spiffe::{SpiffeId, TrustDomain, UserName};

    use super::*;

    const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples");

    fn bundle() -> Bundle {
        let files = comity_policy::read_directory(std::path::Path::new(POLICY)).expect("readable");
        Bundle::compile(&comity_policy::BundleSource::of_files(files)).expect("valid")
    }

    fn user(name: &str) -> Caller {
        let domain = TrustDomain::new("comity.example").expect("a domain");
        Caller::User(SpiffeId::user(domain, UserName::new(name).expect("a name")), 0)
    }

    fn missing(field: &str, value: &str) -> Refusal {
        Refusal::not_found(field, value, "thing")
    }

    #[test]
    fn the_nearest_visible_name_is_suggested() {
        let bundle = bundle();
        let names = VisibleNames::of(&user("alice"), Some(&bundle));
        for (field, typed, meant) in [
            ("spec.tenant", "poly-lm", "poly-ml"),
            ("tenant", "polyml", "poly-ml"),
            ("spec.allow_donors", "ncc-mian", "ncc-main"),
            ("spec.gpus.class", "fronteir", "frontier"),
        ] {
            assert_eq!(names.suggest(missing(field, typed)).remedy, format!("did you mean {meant}?"));
        }
        let far = missing("tenant", "nosuch");
        assert_eq!(names.suggest(far.clone()), far);
        let other = missing("lease", "lease-1");
        assert_eq!(names.suggest(other.clone()), other);
    }

    #[test]
    fn names_are_hidden_from_strangers_and_other_institutions_from_clusters() {
        let bundle = bundle();
        let hidden = missing("tenant", "poly-lm");
        assert_eq!(VisibleNames::of(&user("mallory"), Some(&bundle)).suggest(hidden.clone()), hidden);
        assert_eq!(VisibleNames::of(&user("alice"), None).suggest(hidden.clone()), hidden);
        let of_cluster = |name: &str| {
            let domain = TrustDomain::new("comity.example").expect("a domain");
            let id = ClusterId::parse(name, "cluster").expect("an id");
            Caller::Cluster(SpiffeId::user(domain, UserName::new(name).expect("a name")), id, 0)
        };
        assert_eq!(VisibleNames::of(&of_cluster("ncc-main"), Some(&bundle)).suggest(hidden.clone()), hidden);
        let own = VisibleNames::of(&of_cluster("polytech-campus"), Some(&bundle)).suggest(hidden);
        assert_eq!(own.remedy, "did you mean poly-ml?");
    }

    #[test]
    fn a_filter_by_an_unknown_name_is_refused() {
        let (bundle, state) = (bundle(), State::default());
        let caller = user("alice");
        let (names, viewer) = (VisibleNames::of(&caller, Some(&bundle)), Viewer::of(&caller, Some(&bundle)));
        let tenant = |name: &str| names.check_tenant(&state, &viewer, &TenantId::parse(name, "tenant").expect("an id"));
        assert_eq!(tenant("poly-ml"), Ok(()));
        let refusal = tenant("nosuch").expect_err("unknown");
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::NotFound, "tenant"));
        let cluster = ClusterId::parse("ncc-mian", "cluster").expect("an id");
        let refusal = names.check_cluster(&state, &viewer, &cluster).expect_err("unknown");
        assert_eq!(refusal.remedy, "did you mean ncc-main?");
    }
}
