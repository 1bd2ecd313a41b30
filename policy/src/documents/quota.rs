//! Quota: limits on the GPUs of a tenant or an institution.

use serde::Serialize;

use super::{GpuHours, ReclaimLimit, Spec, When};
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};

/// Limits on one tenant or institution. Every quota that covers a request applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// `tenant` or `institution`: the subject of the limits.
    pub subject: QuotaSubject,
    /// `class`: the limited class; `None` limits all classes together.
    pub class: Option<String>,
    /// `maxConcurrentGpus`: most GPUs borrowed at a time, in milli-GPU.
    pub max_concurrent_gpus_milli: Option<u64>,
    /// `gpuHours`: most GPU-time in a calendar period.
    pub gpu_hours: Option<GpuHours>,
    /// `maxGpusPerRequest`, in milli-GPU.
    pub max_gpus_per_request_milli: Option<u64>,
    /// `maxLeaseDuration`, in milliseconds.
    pub max_lease_duration_ms: Option<u64>,
    /// `idleRelease`: idle time after which a lease is released, in milliseconds.
    pub idle_release_ms: Option<u64>,
    /// `maxReclaims`: most of their leases reclaimed for local need or a preemption.
    pub max_reclaims: Option<ReclaimLimit>,
    /// `during` or `outside`: when its limits on new leases are in force; `None` for always.
    pub when: Option<When>,
}

/// The subject of a quota.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum QuotaSubject {
    /// One tenant.
    Tenant(String),
    /// All tenants of an institution together.
    Institution(String),
}

impl Quota {
    /// Whether it limits GPUs of a class.
    #[must_use]
    pub fn covers_class(&self, class: &str) -> bool {
        self.class.as_deref().is_none_or(|limited| limited == class)
    }

    /// The limited class in messages: `` of class `large` ``, or nothing.
    pub(crate) fn shown_class(&self) -> String {
        self.class.as_ref().map_or_else(String::new, |class| format!(" of class `{class}`"))
    }
}

impl Spec for Quota {
    const KIND: Kind = Kind::Quota;

    fn read(fields: &mut Fields<'_>, reader: &mut FieldReader<'_, '_>) -> Option<Self> {
        let tenant_field = fields.optional("tenant", reader);
        let institution_field = fields.optional("institution", reader);
        let whole = fields.place();
        match (&tenant_field, &institution_field) {
            (None, None) => {
                let message = format!("{} limits nobody", reader.label);
                reader.problems.at(whole, ProblemCode::MissingField, message, "add `tenant:` or `institution:` here");
            }
            (Some(_), Some((_, node))) => {
                let message = format!("{} names both a tenant and an institution", reader.label);
                reader.problems.at(node.place, ProblemCode::Contradiction, message, "write two Quota documents");
            }
            _ => {}
        }
        let tenant =
            tenant_field.and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Tenant)));
        let institution = institution_field
            .and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::Institution)));
        let class_field = fields.optional("class", reader);
        let class_given = class_field.is_some();
        let class =
            class_field.and_then(|(path, node)| reader.reference(&path, node, Target::Document(Kind::GpuClass)));
        let when = When::read(fields, reader);
        let concurrent = fields.optional("maxConcurrentGpus", reader);
        let hours = fields.optional("gpuHours", reader);
        let per_request = fields.optional("maxGpusPerRequest", reader);
        let longest = fields.optional("maxLeaseDuration", reader);
        let idle = fields.optional("idleRelease", reader);
        let reclaims = fields.optional("maxReclaims", reader);
        let limits = [concurrent, hours, per_request, longest, idle, reclaims];
        if limits.iter().all(Option::is_none) {
            let message = format!("{} limits nothing", reader.label);
            let remedy = "add `maxConcurrentGpus`, `gpuHours`, `maxGpusPerRequest`, `maxLeaseDuration`, `idleRelease` or \
                          `maxReclaims`";
            reader.problems.at(whole, ProblemCode::MissingField, message, remedy);
        }
        let [concurrent, hours, per_request, longest, idle, reclaims] = limits;
        let always = hours.as_ref().or(idle.as_ref()).or(reclaims.as_ref());
        if let (Some(when), Some((path, node))) = (&when, always) {
            let message =
                format!("`{path}` of {} is in force always, but the quota has `{}`", reader.label, when.field());
            let remedy = "put it into a Quota of its own: a schedule varies the limits on the GPUs of new leases only";
            reader.problems.at(node.place, ProblemCode::Contradiction, message, remedy);
        }
        let concurrent = concurrent.and_then(|(path, node)| reader.gpus_milli(&path, node));
        let hours = hours.and_then(|(path, node)| GpuHours::read(&path, node, reader));
        let per_request = per_request.and_then(|(path, node)| reader.positive_gpus_milli(&path, node));
        let longest = longest.and_then(|(path, node)| reader.positive_duration_ms(&path, node));
        let idle = idle.and_then(|(path, node)| reader.idle_release_ms(&path, node));
        let reclaims = reclaims.and_then(|(path, node)| ReclaimLimit::read(&path, node, reader));
        if class_given && class.is_none() {
            return None;
        }
        Some(Self {
            subject: tenant.map(QuotaSubject::Tenant).or(institution.map(QuotaSubject::Institution))?,
            class,
            max_concurrent_gpus_milli: concurrent,
            gpu_hours: hours,
            max_gpus_per_request_milli: per_request,
            max_lease_duration_ms: longest,
            idle_release_ms: idle,
            max_reclaims: reclaims,
            when,
        })
    }
}
