//! Warnings about a valid bundle: settings that have no effect or block a tenant completely.

use std::collections::{BTreeMap, BTreeSet};

use crate::amounts::{show_duration, show_gpus, show_time};
use crate::bundle::Bundle;
use crate::documents::{Agreement, Cluster, Document, LendTerm, QuotaSubject, Tenant};
use crate::problem::{Problem, ProblemCode, Problems};

mod useless_reservations;

/// The reason why a tenant can borrow nothing.
struct Obstacle {
    /// Field of the Tenant document.
    field: &'static str,
    message: String,
    remedy: &'static str,
}

impl Bundle {
    /// Likely mistakes, by file and line: useless reclaim notices, limits and dates without effect, equal priorities,
    /// and tenants that cannot borrow anything. At most [`MAX_PROBLEMS`](crate::limits::MAX_PROBLEMS).
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        let mut found = Problems::new(&self.source().files);
        self.warn_of_notices(&mut found);
        self.warn_of_equal_priorities(&mut found);
        self.warn_of_ineffective_quotas(&mut found);
        self.warn_of_lonely_members(&mut found);
        self.warn_of_shadowed_classes(&mut found);
        self.warn_of_short_agreements(&mut found);
        self.warn_of_useless_templates(&mut found);
        self.warn_of_reservations(&mut found);
        self.warn_of_datasets_without_agreement(&mut found);
        for tenant in self.tenants.values() {
            self.warn_of_blocked_tenant(tenant, &mut found);
        }
        found.into_sorted()
    }

    /// Reclaim notices of zero, or longer than any lease.
    fn warn_of_notices(&self, found: &mut Problems<'_>) {
        let (defaults, limits) = (&self.federation.spec.defaults, &self.federation.spec.limits);
        let default = show_duration(defaults.reclaim_grace_ms);
        if defaults.reclaim_grace_ms > limits.max_lease_duration_ms {
            let longest = show_duration(limits.max_lease_duration_ms);
            found.at(
                self.federation.place_of("defaults.reclaimGrace"),
                ProblemCode::NoticeTooLong,
                format!(
                    "`defaults.reclaimGrace: {default}` is longer than the longest lease \
                     (`limits.maxLeaseDuration`, {longest})"
                ),
                format!("every lease would end before its reclaim; write less than {longest}, for example `5m`"),
            );
        }
        for cluster in self.clusters.values() {
            let Some(grace) = cluster.spec.reclaim_grace_ms else { continue };
            let (name, place) = (&cluster.name, cluster.place_of("reclaimGrace"));
            let longest = cluster.spec.max_lease_duration_ms.unwrap_or(u64::MAX).min(limits.max_lease_duration_ms);
            if grace == 0 {
                found.at(
                    place,
                    ProblemCode::NoNotice,
                    format!(
                        "`reclaimGrace: {}` of Cluster `{name}` gives work no time to save its state",
                        show_duration(0)
                    ),
                    format!("write for example `5m`, or remove it for the federation's {default}"),
                );
            } else if grace > longest {
                let (grace, longest) = (show_duration(grace), show_duration(longest));
                found.at(
                    place,
                    ProblemCode::NoticeTooLong,
                    format!(
                        "`reclaimGrace: {grace}` of Cluster `{name}` is longer than the longest lease it grants \
                         ({longest})"
                    ),
                    format!("every lease would end before its reclaim; write less than {longest}"),
                );
            }
        }
    }

    /// Priority classes of the same value: neither goes first, and neither preempts the other.
    fn warn_of_equal_priorities(&self, found: &mut Problems<'_>) {
        let mut seen: BTreeMap<u32, &str> = BTreeMap::new();
        for class in self.priorities.values() {
            let value = class.spec.value;
            let Some(first) = seen.get(&value) else {
                seen.insert(value, &class.name);
                continue;
            };
            found.at(
                class.place_of("value"),
                ProblemCode::EqualPriorities,
                format!(
                    "`value: {value}` of PriorityClass `{}` is that of `{first}` too, so neither goes first",
                    class.name
                ),
                "give them different values, or remove one of them",
            );
        }
    }

    /// Limits per request that a lower limit of the same quota makes ineffective.
    fn warn_of_ineffective_quotas(&self, found: &mut Problems<'_>) {
        for quota in self.quotas.values() {
            let (Some(each), Some(most)) =
                (quota.spec.max_gpus_per_request_milli, quota.spec.max_concurrent_gpus_milli)
            else {
                continue;
            };
            if each > most && quota.spec.cohort.is_none() {
                found.at(
                    quota.place_of("maxGpusPerRequest"),
                    ProblemCode::LimitOfNoUse,
                    format!(
                        "`maxGpusPerRequest: {}` of Quota `{}` is above its `maxConcurrentGpus: {}`, which \
                         applies first",
                        show_gpus(each),
                        quota.name,
                        show_gpus(most)
                    ),
                    format!("write at most {}, remove it, or raise `maxConcurrentGpus`", show_gpus(most)),
                );
            }
        }
    }

    /// Quotas that are alone in their cohort.
    fn warn_of_lonely_members(&self, found: &mut Problems<'_>) {
        for quota in self.quotas.values() {
            let Some(cohort) = quota.spec.cohort.as_ref().map(|cohort| &cohort.name) else { continue };
            if self.cohorts.members(cohort).len() == 1 {
                found.at(
                    quota.place_of("cohort"),
                    ProblemCode::CohortOfOne,
                    format!("Quota `{}` is alone in cohort `{cohort}`: it neither lends nor borrows", quota.name),
                    "write the same `cohort` into another Quota, correct the name, or remove it",
                );
            }
        }
    }

    /// Lent classes that can have no device, because a class of higher rank has the same selector.
    fn warn_of_shadowed_classes(&self, found: &mut Problems<'_>) {
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        let mut shadowed: BTreeMap<&str, &str> = BTreeMap::new();
        for class in self.classes_by_rank.iter().filter_map(|name| self.classes.get(name)) {
            let by = *first.entry(class.spec.selector.source().trim()).or_insert(&class.name);
            if by != class.name {
                shadowed.insert(&class.name, by);
            }
        }
        for cluster in self.clusters.values() {
            for (index, term) in cluster.spec.lends.iter().enumerate() {
                for (class, by) in term.classes.iter().filter_map(|class| shadowed.get_key_value(class.as_str())) {
                    found.at(
                        cluster.place_of(&format!("lends[{index}].classes")),
                        ProblemCode::ClassWithoutDevices,
                        format!(
                            "`lends[{index}].classes` of Cluster `{}` names `{class}`, which can have no device: \
                             GpuClass `{by}` has the same selector and comes first",
                            cluster.name
                        ),
                        format!("name `{by}`, or change `selector` or `rank` of one of the two classes"),
                    );
                }
            }
        }
    }

    /// Datasets that may go to another institution, although no agreement lets their owner read them there.
    fn warn_of_datasets_without_agreement(&self, found: &mut Problems<'_>) {
        for dataset in self.datasets.values().filter(|dataset| dataset.spec.needs_agreement_on_data()) {
            let (spec, owner) = (&dataset.spec, dataset.spec.institution.as_str());
            let of_clusters = spec.to_clusters.iter().filter_map(|cluster| self.institution_of_cluster(cluster));
            let named: BTreeSet<&str> = spec.to_institutions.iter().map(String::as_str).chain(of_clusters).collect();
            let allows = |agreement: &&Document<Agreement>| {
                let data = &agreement.spec.data;
                (data.personal || !spec.personal_data)
                    && (spec.purposes.is_empty() || !data.purposes.is_disjoint(&spec.purposes))
            };
            let allowing: Vec<&Document<Agreement>> = self.agreements.values().filter(allows).collect();
            let is_barred =
                |lender: &&str| *lender != owner && !allowing.iter().any(|it| it.spec.covers(owner, lender));
            for lender in named.into_iter().filter(is_barred) {
                found.at(
                    dataset.place_of("mayGoTo"),
                    ProblemCode::DatasetWithoutAgreement,
                    format!(
                        "Dataset `{}` may go to `{lender}`, but no Agreement lets `{owner}` read its data there",
                        dataset.name
                    ),
                    format!("set `data` in an Agreement by which `{owner}` borrows from `{lender}`"),
                );
            }
        }
    }

    /// Agreements that are shorter than a lease of the default term.
    fn warn_of_short_agreements(&self, found: &mut Problems<'_>) {
        let term = self.federation.spec.defaults.lease_term_ms;
        for agreement in self.agreements.values() {
            let (Some(from), Some(until)) = (agreement.spec.from_ms, agreement.spec.until_ms) else { continue };
            let lasts = until.saturating_sub(from);
            if lasts < term {
                let name = &agreement.name;
                found.at(
                    agreement.place_of("until"),
                    ProblemCode::AgreementTooShort,
                    format!(
                        "`until: {}` of Agreement `{name}` is {} after `from`, less than the default lease term of {}",
                        show_time(until),
                        show_duration(lasts),
                        show_duration(term)
                    ),
                    "correct one of the two dates, or shorten `defaults.leaseTerm`",
                );
            }
        }
    }

    /// Request templates of a class that nobody who is offered them may request.
    fn warn_of_useless_templates(&self, found: &mut Problems<'_>) {
        for template in self.templates.values() {
            let Some(class) = template.spec.request.class() else { continue };
            let is_of_use = |tenant: &Document<Tenant>| {
                template.spec.is_offered_to(&tenant.name, &tenant.spec.institution)
                    && tenant.spec.classes.contains(class)
            };
            if !self.tenants.values().any(is_of_use) {
                found.at(
                    template.place_of("request.gpus.class"),
                    ProblemCode::TemplateOfNoUse,
                    format!(
                        "`request.gpus` of RequestTemplate `{}` asks for class `{class}`, which no Tenant that is \
                         offered it may request",
                        template.name
                    ),
                    "name another class, add this one to `classes` of a Tenant, or offer it to others",
                );
            }
        }
    }

    /// A tenant that can borrow nothing: reports the last obstacle. Ignores obstacles that can go away without a change
    /// of policy by others: dates, GPUs in use and `accepting: false`.
    fn warn_of_blocked_tenant(&self, tenant: &Document<Tenant>, found: &mut Problems<'_>) {
        if found.is_full() {
            return;
        }
        let name = &tenant.name;
        for (field, is_empty, missing) in [
            ("classes", tenant.spec.classes.is_empty(), "GpuClasses that it may request"),
            ("clusters", tenant.spec.clusters.is_empty(), "origins of its requests"),
        ] {
            if is_empty {
                let message = format!("`{field}: []` of Tenant `{name}` lets it borrow nothing");
                found.at(tenant.place_of(field), ProblemCode::BorrowsNothing, message, format!("name the {missing}"));
                return;
            }
        }
        if let Some(obstacle) = self.find_obstacle(tenant) {
            let place = tenant.place_of(obstacle.field);
            found.at(place, ProblemCode::BorrowsNothing, obstacle.message, obstacle.remedy);
        }
    }

    /// The last obstacle between a tenant and every donor; `None` if some donor may lend to it.
    fn find_obstacle(&self, tenant: &Document<Tenant>) -> Option<Obstacle> {
        let (name, institution) = (&tenant.name, &tenant.spec.institution);
        let allowed: Vec<&str> =
            tenant.spec.classes.iter().map(String::as_str).filter(|class| !self.is_forbidden(tenant, class)).collect();
        if allowed.is_empty() {
            return Some(Obstacle {
                field: "classes",
                message: format!("`classes` of Tenant `{name}` names only classes with a quota of 0"),
                remedy: "raise `maxConcurrentGpus` or `gpuHours` of a Quota, or remove the tenant",
            });
        }
        let lent = |donor: &&Document<Cluster>| {
            let others = tenant.spec.clusters.iter().any(|origin| *origin != donor.name);
            others && allowed.iter().any(|class| lends_to(donor, tenant, class))
        };
        let donors: Vec<&Document<Cluster>> = self.clusters.values().filter(lent).collect();
        if donors.is_empty() {
            let classes = allowed.join(", ");
            return Some(Obstacle {
                field: "classes",
                message: format!("`classes` of Tenant `{name}` ({classes}): no other cluster lends any of them to it"),
                remedy: "ask a donor to add one to `lends` of its Cluster, or name a class that is lent",
            });
        }
        let agreed = |donor: &&&Document<Cluster>| {
            let lender = &donor.spec.institution;
            let covers = |class: &str| {
                self.agreements
                    .values()
                    .any(|it| it.spec.covers(institution, lender) && it.spec.classes.contains(class))
            };
            lender == institution || allowed.iter().any(|class| lends_to(donor, tenant, class) && covers(class))
        };
        if donors.iter().any(|donor| agreed(&donor)) {
            return None;
        }
        let donors = donors.iter().map(|donor| donor.name.as_str()).take(4).collect::<Vec<_>>().join(", ");
        Some(Obstacle {
            field: "institution",
            message: format!(
                "`institution: {institution}` of Tenant `{name}`: no Agreement lets it borrow from {donors}"
            ),
            remedy: "add an Agreement between the institutions that covers its classes",
        })
    }

    /// Whether a quota allows a tenant 0 GPUs or 0 GPU-hours of a class.
    fn is_forbidden(&self, tenant: &Document<Tenant>, class: &str) -> bool {
        self.quotas.values().any(|quota| {
            let limits_tenant = match &quota.spec.subject {
                QuotaSubject::Tenant(of) => *of == tenant.name,
                QuotaSubject::Institution(of) => *of == tenant.spec.institution,
            };
            let none = quota.spec.most_concurrent_milli() == 0
                || quota.spec.gpu_hours.as_ref().is_some_and(|hours| hours.limit_milli == 0);
            limits_tenant && quota.spec.covers_class(class) && none
        })
    }
}

/// Whether a lending term of a donor covers a tenant and a class, with a limit above zero.
fn lends_to(donor: &Document<Cluster>, tenant: &Document<Tenant>, class: &str) -> bool {
    let covers = |term: &LendTerm| {
        term.classes.contains(class)
            && term.covers(&tenant.name, &tenant.spec.institution)
            && term.max_gpus_milli != Some(0)
    };
    donor.spec.max_lent_gpus_milli != Some(0) && donor.spec.lends.iter().any(covers)
}
