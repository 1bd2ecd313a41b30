//! The classes of GPUs that a request may get.

use comity_types::ClassName;

use crate::feasibility::snapshot::Snapshot;
use crate::model::demand::{DeviceChoice, RequestSpec};

impl<'a> Snapshot<'a> {
    /// The classes that a request may get: the one that it names, or by a selector any of its tenant's.
    pub(crate) fn classes_of(&self, spec: &RequestSpec) -> Vec<ClassName> {
        match &spec.gpus.devices {
            DeviceChoice::Class(class) => vec![class.clone()],
            DeviceChoice::Selector(_) => {
                let classes = self.classes_of_tenant(spec);
                classes.filter_map(|class| ClassName::parse(class, "class").ok()).collect()
            }
        }
    }

    /// The first of these classes that a quota in a cohort counts.
    pub(crate) fn cohort_class_of<'s>(&self, spec: &'s RequestSpec) -> Option<&'s str>
    where
        'a: 's,
    {
        let counts = |class: &&str| self.bundle.counts_in_cohort(spec.tenant.as_str(), class);
        match &spec.gpus.devices {
            DeviceChoice::Class(class) => Some(class.as_str()).filter(counts),
            DeviceChoice::Selector(_) => self.classes_of_tenant(spec).find(counts),
        }
    }

    fn classes_of_tenant(&self, spec: &RequestSpec) -> impl Iterator<Item = &'a str> {
        let tenant = self.bundle.tenants.get(spec.tenant.as_str());
        tenant.into_iter().flat_map(|tenant| &tenant.spec.classes).map(String::as_str)
    }
}
