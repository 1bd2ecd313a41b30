//! Quota: limits on the GPUs of a tenant or an institution.

use std::collections::BTreeSet;

use serde::Serialize;

use self::cohort_membership::WrittenMembership;
use super::{ReclaimLimit, Spec, When};
use crate::kind::Kind;
use crate::problem::ProblemCode;
use crate::reading::fields::{FieldReader, Fields, Target};

pub use cohort_membership::CohortMembership;
pub use gpu_hours::GpuHours;
pub use per_user::PerUser;

mod cohort_membership;
mod gpu_hours;
mod per_user;

/// Limits on one tenant or institution. Every quota that covers a request applies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// `tenant` or `institution`: the subject of the limits.
    pub subject: QuotaSubject,
    /// `classes`: the limited classes, together; empty for all.
    pub classes: BTreeSet<String>,
    /// `maxConcurrentGpus`: most GPUs borrowed at a time, in milli-GPU.
    pub max_concurrent_gpus_milli: Option<u64>,
    /// `cohort`, `borrowingLimit` and `lendingLimit`: `maxConcurrentGpus` is then its nominal quota.
    pub cohort: Option<CohortMembership>,
    /// `gpuHours`: most GPU-time in a calendar period.
    pub gpu_hours: Option<GpuHours>,
    /// `perUser`: limits on each user.
    pub per_user: Option<PerUser>,
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
        self.classes.is_empty() || self.classes.contains(class)
    }

    /// The limit on GPUs at a time, in milli-GPU, and its field: on all together, or on each user.
    pub(crate) fn max_concurrent_of(&self, per_user: bool) -> Option<(u64, &'static str)> {
        if per_user {
            Some((self.per_user.as_ref()?.max_concurrent_gpus_milli?, "perUser.maxConcurrentGpus"))
        } else {
            Some((self.max_concurrent_gpus_milli?, "maxConcurrentGpus"))
        }
    }

    /// The most GPUs at a time that it ever allows, in milli-GPU: with what it may borrow of its cohort.
    pub(crate) fn most_concurrent_milli(&self) -> u64 {
        let borrows = self.cohort.as_ref().map_or(0, |cohort| cohort.borrowing_limit_milli.unwrap_or(u64::MAX));
        self.max_concurrent_gpus_milli.unwrap_or(u64::MAX).saturating_add(borrows)
    }

    /// What it lends to its cohort while it does not use it itself, in milli-GPU; 0 without a cohort.
    pub(crate) fn lends_milli(&self) -> u64 {
        let nominal = self.max_concurrent_gpus_milli.unwrap_or(0);
        self.cohort.as_ref().map_or(0, |cohort| cohort.lending_limit_milli.unwrap_or(nominal).min(nominal))
    }

    /// The limit on GPU-time: on all together, or on each user.
    #[must_use]
    pub fn gpu_hours_of(&self, per_user: bool) -> Option<&GpuHours> {
        if per_user { self.per_user.as_ref()?.gpu_hours.as_ref() } else { self.gpu_hours.as_ref() }
    }

    /// The first field that limits what is borrowed.
    pub(crate) fn first_limit(&self) -> &'static str {
        match (self.max_concurrent_gpus_milli, &self.gpu_hours, &self.per_user) {
            (None, Some(_), _) => "gpuHours",
            (None, None, Some(_)) => "perUser",
            _ => "maxConcurrentGpus",
        }
    }

    /// What it limits, in messages: ``quota `q` for tenant `t` of class `large` ``. `per_user` for a limit on each user.
    pub(crate) fn shown(&self, name: &str, per_user: bool) -> String {
        let subject = match &self.subject {
            QuotaSubject::Tenant(tenant) => format!("tenant `{tenant}`"),
            QuotaSubject::Institution(institution) => format!("institution `{institution}`"),
        };
        let each = if per_user { "each user of " } else { "" };
        let classes: Vec<&str> = self.classes.iter().map(String::as_str).collect();
        let classes = match classes.as_slice() {
            [] => String::new(),
            [class] => format!(" of class `{class}`"),
            more => format!(" of the classes `{}`", more.join("`, `")),
        };
        format!("quota `{name}` for {each}{subject}{classes}")
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
        let classes = fields.optional("classes", reader).map(|(path, node)| {
            reader.require_items(&path, node, "name at least one GpuClass, or leave the field out for all");
            reader.set(&path, node, |reader, path, node| reader.reference(path, node, Target::Document(Kind::GpuClass)))
        });
        let when = When::read(fields, reader);
        let concurrent = fields.optional("maxConcurrentGpus", reader);
        let hours = fields.optional("gpuHours", reader);
        let per_user = fields.optional("perUser", reader);
        let per_request = fields.optional("maxGpusPerRequest", reader);
        let longest = fields.optional("maxLeaseDuration", reader);
        let idle = fields.optional("idleRelease", reader);
        let reclaims = fields.optional("maxReclaims", reader);
        let membership = WrittenMembership::open(fields, reader);
        let limits = [concurrent, hours, per_user, per_request, longest, idle, reclaims];
        if limits.iter().all(Option::is_none) {
            let message = format!("{} limits nothing", reader.label);
            let remedy = "add `maxConcurrentGpus`, `gpuHours`, `perUser`, `maxGpusPerRequest`, `maxLeaseDuration`, \
                          `idleRelease` or `maxReclaims`";
            reader.problems.at(whole, ProblemCode::MissingField, message, remedy);
        }
        let [concurrent, hours, per_user, per_request, longest, idle, reclaims] = limits;
        let always =
            hours.as_ref().or(idle.as_ref()).or(reclaims.as_ref()).map(|(path, node)| (path.clone(), node.place));
        let per_user = per_user.and_then(|(path, node)| {
            let read = PerUser::read(&path, node, reader)?;
            Some((path, node.place, read))
        });
        let hours_of_users = per_user.as_ref().filter(|(.., read)| read.gpu_hours.is_some());
        let always = always.or(hours_of_users.map(|(path, place, _)| (format!("{path}.gpuHours"), *place)));
        if let (Some(when), Some((path, place))) = (&when, always) {
            let message =
                format!("`{path}` of {} is in force always, but the quota has `{}`", reader.label, when.field());
            let remedy = "put it into a Quota of its own: a schedule varies the limits on the GPUs of new leases only";
            reader.problems.at(place, ProblemCode::Contradiction, message, remedy);
        }
        if let (Some(when), Some(place)) = (&when, membership.place()) {
            let message = format!("{} is in a cohort, but the quota has `{}`", reader.label, when.field());
            let remedy = "remove one of them: what a quota lends and borrows holds always";
            reader.problems.at(place, ProblemCode::Contradiction, message, remedy);
        }
        let nominal = concurrent.map(|(path, node)| reader.gpus_milli(&path, node));
        let cohort = membership.read(nominal, reader);
        let hours = hours.and_then(|(path, node)| GpuHours::read(&path, node, reader));
        let per_request = per_request.and_then(|(path, node)| reader.positive_gpus_milli(&path, node));
        let longest = longest.and_then(|(path, node)| reader.positive_duration_ms(&path, node));
        let idle = idle.and_then(|(path, node)| reader.idle_release_ms(&path, node));
        let reclaims = reclaims.and_then(|(path, node)| ReclaimLimit::read(&path, node, reader));
        Some(Self {
            subject: tenant.map(QuotaSubject::Tenant).or(institution.map(QuotaSubject::Institution))?,
            classes: classes.unwrap_or_default(),
            max_concurrent_gpus_milli: nominal.flatten(),
            cohort,
            gpu_hours: hours,
            per_user: per_user.map(|(.., read)| read),
            max_gpus_per_request_milli: per_request,
            max_lease_duration_ms: longest,
            idle_release_ms: idle,
            max_reclaims: reclaims,
            when,
        })
    }
}
