//! Finds documents, and their lines, by kind and name.

use std::collections::BTreeMap;

use super::Bundle;
use crate::documents::{DocRef, Document};
use crate::kind::Kind;

impl Bundle {
    /// Names of the documents of a kind.
    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        fn names<T>(documents: &BTreeMap<String, Document<T>>) -> Vec<&str> {
            documents.keys().map(String::as_str).collect()
        }
        match kind {
            Kind::Federation => vec![self.federation.name.as_str()],
            Kind::Institution => names(&self.institutions),
            Kind::Cluster => names(&self.clusters),
            Kind::Tenant => names(&self.tenants),
            Kind::GpuClass => names(&self.classes),
            Kind::Quota => names(&self.quotas),
            Kind::Agreement => names(&self.agreements),
            Kind::PriorityClass => names(&self.priorities),
            Kind::RequestTemplate => names(&self.templates),
            Kind::Schedule => names(&self.schedules),
            Kind::Reservation => names(&self.reservations),
            Kind::Rule => names(&self.rules),
            Kind::Dataset => names(&self.datasets),
        }
    }

    /// The line of a document, or of one of its fields; `None` if it has no such document or field.
    pub(crate) fn cite(&self, kind: Kind, name: &str, field: Option<&str>) -> Option<DocRef> {
        let field = match field {
            Some(field) if !self.fields_of(kind, name).contains(&field) => return None,
            field => field.unwrap_or_default(),
        };
        fn cite<T>(documents: &BTreeMap<String, Document<T>>, name: &str, field: &str) -> Option<DocRef> {
            documents.get(name).map(|document| document.cite(field))
        }
        match kind {
            Kind::Federation => (self.federation.name == name).then(|| self.federation.cite(field)),
            Kind::Institution => cite(&self.institutions, name, field),
            Kind::Cluster => cite(&self.clusters, name, field),
            Kind::Tenant => cite(&self.tenants, name, field),
            Kind::GpuClass => cite(&self.classes, name, field),
            Kind::Quota => cite(&self.quotas, name, field),
            Kind::Agreement => cite(&self.agreements, name, field),
            Kind::PriorityClass => cite(&self.priorities, name, field),
            Kind::RequestTemplate => cite(&self.templates, name, field),
            Kind::Schedule => cite(&self.schedules, name, field),
            Kind::Reservation => cite(&self.reservations, name, field),
            Kind::Rule => cite(&self.rules, name, field),
            Kind::Dataset => cite(&self.datasets, name, field),
        }
    }

    /// The same bundle without limits on single requests: those of their GPUs, and rules that look at GPUs, duration,
    /// delivery, data or purpose. Many requests may add up to what the other limits allow.
    #[must_use]
    pub fn without_limits_on_requests(&self) -> Self {
        let mut bundle = self.clone();
        bundle.federation.spec.limits.max_gpus_per_request_milli = u64::MAX;
        bundle.quotas.values_mut().for_each(|quota| quota.spec.max_gpus_per_request_milli = None);
        bundle.rules.retain(|_, rule| !rule.spec.condition.reads_demand());
        bundle
    }

    /// Paths of the fields that a document sets.
    pub(crate) fn fields_of(&self, kind: Kind, name: &str) -> Vec<&str> {
        fn fields<'b, T>(documents: &'b BTreeMap<String, Document<T>>, name: &str) -> Vec<&'b str> {
            let document = documents.get(name);
            document.into_iter().flat_map(|document| document.places.keys()).map(String::as_str).collect()
        }
        match kind {
            Kind::Federation => self.federation.places.keys().map(String::as_str).collect(),
            Kind::Institution => fields(&self.institutions, name),
            Kind::Cluster => fields(&self.clusters, name),
            Kind::Tenant => fields(&self.tenants, name),
            Kind::GpuClass => fields(&self.classes, name),
            Kind::Quota => fields(&self.quotas, name),
            Kind::Agreement => fields(&self.agreements, name),
            Kind::PriorityClass => fields(&self.priorities, name),
            Kind::RequestTemplate => fields(&self.templates, name),
            Kind::Schedule => fields(&self.schedules, name),
            Kind::Reservation => fields(&self.reservations, name),
            Kind::Rule => fields(&self.rules, name),
            Kind::Dataset => fields(&self.datasets, name),
        }
    }
}
