//! The documents of a bundle by kind and name, compared by what they mean.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use comity_policy::{
    Agreement, Bundle, Cluster, Dataset, Federation, GpuClass, Institution, Kind, PriorityClass, Quota, QuotaSubject,
    RequestTemplate, Reservation, Rule, Schedule, Tenant,
};

/// Kind and name of a document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentKey {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: String,
}

impl fmt::Display for DocumentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.kind, self.name)
    }
}

/// The fields of a document. Two documents with the same fields mean the same, wherever and however they are written.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each variant is the kind of its name")]
pub enum DocumentSpec {
    Federation(Federation),
    Institution(Institution),
    Cluster(Cluster),
    Tenant(Tenant),
    GpuClass(GpuClass),
    Quota(Quota),
    Agreement(Agreement),
    PriorityClass(PriorityClass),
    RequestTemplate(Box<RequestTemplate>),
    Schedule(Schedule),
    Reservation(Reservation),
    Rule(Rule),
    Dataset(Dataset),
}

/// Documents by kind and name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents(BTreeMap<DocumentKey, Rc<DocumentSpec>>);

impl Documents {
    /// All documents of a bundle.
    #[must_use]
    pub fn of(bundle: &Bundle) -> Self {
        let mut all = BTreeMap::new();
        let mut add = |kind: Kind, name: &str, spec: DocumentSpec| {
            all.insert(DocumentKey { kind, name: name.to_owned() }, Rc::new(spec));
        };
        let federation = &bundle.federation;
        add(federation.kind, &federation.name, DocumentSpec::Federation(federation.spec.clone()));
        macro_rules! add_all {
            ($($field:ident => $kind:ident),*) => {$(
                for document in bundle.$field.values() {
                    add(document.kind, &document.name, DocumentSpec::$kind(document.spec.clone()));
                }
            )*};
        }
        add_all!(
            institutions => Institution, clusters => Cluster, tenants => Tenant, classes => GpuClass, quotas => Quota,
            agreements => Agreement, priorities => PriorityClass, schedules => Schedule,
            reservations => Reservation, rules => Rule, datasets => Dataset
        );
        for document in bundle.templates.values() {
            let spec = DocumentSpec::RequestTemplate(Box::new(document.spec.clone()));
            add(document.kind, &document.name, spec);
        }
        Self(all)
    }

    /// A document.
    #[must_use]
    pub fn get(&self, key: &DocumentKey) -> Option<&DocumentSpec> {
        self.0.get(key).map(Rc::as_ref)
    }

    /// All documents.
    pub fn iter(&self) -> impl Iterator<Item = (&DocumentKey, &DocumentSpec)> {
        self.0.iter().map(|(key, spec)| (key, spec.as_ref()))
    }

    /// An institution by name.
    #[must_use]
    pub fn institution(&self, name: &str) -> Option<&Institution> {
        match self.get(&DocumentKey { kind: Kind::Institution, name: name.to_owned() }) {
            Some(DocumentSpec::Institution(institution)) => Some(institution),
            _ => None,
        }
    }

    /// The institution that lists a cluster.
    pub(crate) fn institution_that_lists(&self, cluster: &str) -> Option<&str> {
        self.iter().find_map(|(key, spec)| match spec {
            DocumentSpec::Institution(institution) if institution.clusters.contains(cluster) => Some(key.name.as_str()),
            _ => None,
        })
    }

    /// The institution of a tenant.
    #[must_use]
    pub fn institution_of_tenant(&self, tenant: &str) -> Option<&str> {
        match self.get(&DocumentKey { kind: Kind::Tenant, name: tenant.to_owned() }) {
            Some(DocumentSpec::Tenant(tenant)) => Some(&tenant.institution),
            _ => None,
        }
    }

    /// The institution whose terms a cluster lends on.
    #[must_use]
    pub fn institution_of_donor(&self, cluster: &str) -> Option<&str> {
        match self.get(&DocumentKey { kind: Kind::Cluster, name: cluster.to_owned() }) {
            Some(DocumentSpec::Cluster(cluster)) => Some(&cluster.institution),
            _ => None,
        }
    }

    /// The reservations.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = &Reservation> {
        self.iter().filter_map(|(_, spec)| match spec {
            DocumentSpec::Reservation(reservation) => Some(reservation),
            _ => None,
        })
    }

    /// The institution that a quota limits, or whose tenant it limits.
    #[must_use]
    pub fn institution_of_quota<'d>(&'d self, quota: &'d Quota) -> Option<&'d str> {
        match &quota.subject {
            QuotaSubject::Institution(name) => Some(name),
            QuotaSubject::Tenant(tenant) => self.institution_of_tenant(tenant),
        }
    }

    /// The quotas of a cohort, by name.
    pub(crate) fn quotas_of_cohort(&self, cohort: &str) -> impl Iterator<Item = (&str, &Quota)> {
        self.iter().filter_map(move |(key, spec)| match spec {
            DocumentSpec::Quota(quota) if quota.cohort.as_ref().is_some_and(|of| of.name == cohort) => {
                Some((key.name.as_str(), quota))
            }
            _ => None,
        })
    }

    /// The federation.
    #[must_use]
    pub fn federation(&self) -> Option<&Federation> {
        self.iter().find_map(|(_, spec)| match spec {
            DocumentSpec::Federation(federation) => Some(federation),
            _ => None,
        })
    }

    pub(crate) fn shared(&self, key: &DocumentKey) -> Option<Rc<DocumentSpec>> {
        self.0.get(key).cloned()
    }

    pub(crate) fn set(&mut self, key: DocumentKey, spec: Option<Rc<DocumentSpec>>) {
        match spec {
            Some(spec) => self.0.insert(key, spec),
            None => self.0.remove(&key),
        };
    }

    /// The keys of the documents that differ from those of `other`.
    pub(crate) fn differences(&self, other: &Self) -> Vec<DocumentKey> {
        let of_both = self.0.keys().chain(other.0.keys().filter(|key| !self.0.contains_key(key)));
        of_both.filter(|key| self.get(key) != other.get(key)).cloned().collect()
    }
}
