//! What a bundle says that is surely not meant. It compiles, and may be put into force.

use std::collections::BTreeMap;

use crate::amounts::{show_duration, show_gpus, show_moment};
use crate::bundle::Bundle;
use crate::documents::{Cluster, Document, QuotaSubject, Tenant};
use crate::place::Problems;
use crate::problem::{Problem, ProblemCode};

impl Bundle {
    /// All that is surely not meant, by file and line: notices of no use, limits and dates that let nothing through,
    /// ranks that rank nobody, tenants that cannot borrow anything. At most
    /// [`MAX_PROBLEMS`](crate::limits::MAX_PROBLEMS).
    #[must_use]
    pub fn warnings(&self) -> Vec<Problem> {
        let mut found = Problems::new(&self.source().files);
        self.notices(&mut found);
        self.equal_priorities(&mut found);
        self.limits_of_no_use(&mut found);
        self.classes_without_devices(&mut found);
        self.short_agreements(&mut found);
        for tenant in self.tenants.values() {
            self.check_borrows(tenant, &mut found);
        }
        found.into_sorted()
    }

    /// Notices that give no time, or end after any lease.
    fn notices(&self, found: &mut Problems<'_>) {
        let (defaults, limits) = (&self.federation.spec.defaults, &self.federation.spec.limits);
        let default = show_duration(defaults.reclaim_grace_ms);
        if defaults.reclaim_grace_ms > limits.max_lease_duration_ms {
            let longest = show_duration(limits.max_lease_duration_ms);
            found.at(
                self.federation.place_of("defaults.reclaimGrace"),
                ProblemCode::NoticeTooLong,
                format!("`defaults.reclaimGrace: {default}` is longer than the longest lease (`limits.maxLeaseDuration`, {longest})"),
                format!("no lease would end by being reclaimed; write less than {longest}, for example `5m`"),
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
                        "`reclaimGrace: {}` of Cluster `{name}` gives work no time to save itself",
                        show_duration(0)
                    ),
                    format!("write for example `5m`, or leave it out for the federation's {default}"),
                );
            } else if grace > longest {
                let (grace, longest) = (show_duration(grace), show_duration(longest));
                found.at(
                    place,
                    ProblemCode::NoticeTooLong,
                    format!("`reclaimGrace: {grace}` of Cluster `{name}` is longer than the longest lease it grants ({longest})"),
                    format!("no lease would end by being reclaimed; write less than {longest}"),
                );
            }
        }
    }

    /// Two priority classes of one value: neither is served before the other, nor takes its place.
    fn equal_priorities(&self, found: &mut Problems<'_>) {
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
                    "`value: {value}` of PriorityClass `{}` is that of `{first}`, too: neither comes before the other",
                    class.name
                ),
                "give each a value of its own, or remove one of them",
            );
        }
    }

    fn limits_of_no_use(&self, found: &mut Problems<'_>) {
        for quota in self.quotas.values() {
            let (Some(each), Some(most)) =
                (quota.spec.max_gpus_per_request_milli, quota.spec.max_concurrent_gpus_milli)
            else {
                continue;
            };
            if each > most {
                found.at(
                    quota.place_of("maxGpusPerRequest"),
                    ProblemCode::LimitOfNoUse,
                    format!(
                        "`maxGpusPerRequest: {}` of Quota `{}` is above its `maxConcurrentGpus` ({}): no request gets so much",
                        show_gpus(each),
                        quota.name,
                        show_gpus(most)
                    ),
                    format!("write at most {}, leave it out, or raise `maxConcurrentGpus`", show_gpus(most)),
                );
            }
        }
    }

    /// Donors that lend a class of which no device can be: one of higher rank selects the same.
    fn classes_without_devices(&self, found: &mut Problems<'_>) {
        let mut first: BTreeMap<&str, &str> = BTreeMap::new();
        let mut shadowed: BTreeMap<&str, &str> = BTreeMap::new();
        for class in self.ranked.iter().filter_map(|name| self.classes.get(name)) {
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
                            "`lends[{index}].classes` of Cluster `{}` names `{class}`, of which no device can be: GpuClass `{by}` \
                             selects the same and comes first",
                            cluster.name
                        ),
                        format!("name `{by}`, or change `selector` or `rank` of one of the two classes"),
                    );
                }
            }
        }
    }

    /// Agreements that end before a lease of the default term could.
    fn short_agreements(&self, found: &mut Problems<'_>) {
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
                        "`until: {}` of Agreement `{name}` is {} after `from`: no lease of the usual {} fits in between",
                        show_moment(until),
                        show_duration(lasts),
                        show_duration(term)
                    ),
                    "correct one of the two dates, or shorten `defaults.leaseTerm`",
                );
            }
        }
    }

    /// Reports a tenant that no rule lets borrow anything, at what stands in the way last. Dates, amounts in use and
    /// `accepting: false` may change by themselves and are let pass.
    fn check_borrows(&self, tenant: &Document<Tenant>, found: &mut Problems<'_>) {
        if found.is_full() {
            return;
        }
        let name = &tenant.name;
        for (field, is_empty, what) in [
            ("classes", tenant.spec.classes.is_empty(), "GpuClasses that it may ask for"),
            ("clusters", tenant.spec.clusters.is_empty(), "clusters that it may ask from"),
        ] {
            if is_empty {
                let message = format!("`{field}: []` of Tenant `{name}` lets it borrow nothing");
                found.at(tenant.place_of(field), ProblemCode::BorrowsNothing, message, format!("name the {what}"));
                return;
            }
        }
        if let Some((field, message, remedy)) = self.why_nothing(tenant) {
            found.at(tenant.place_of(field), ProblemCode::BorrowsNothing, message, remedy);
        }
    }

    /// Field, reason and remedy, if there is no donor for it.
    fn why_nothing(&self, tenant: &Document<Tenant>) -> Option<(&'static str, String, String)> {
        let (name, institution) = (&tenant.name, &tenant.spec.institution);
        // As many of its classes as quotas leave anything of.
        let open: Vec<&str> =
            tenant.spec.classes.iter().map(String::as_str).filter(|class| !self.is_barred(tenant, class)).collect();
        if open.is_empty() {
            let message = format!("`classes` of Tenant `{name}` names only what its quotas allow 0 GPUs of");
            return Some(("classes", message, "raise `maxConcurrentGpus` of a Quota, or remove the tenant".to_owned()));
        }
        let lent = |donor: &&Document<Cluster>| {
            let others = tenant.spec.clusters.iter().any(|origin| *origin != donor.name);
            others && open.iter().any(|class| lends_to(donor, tenant, class))
        };
        let donors: Vec<&Document<Cluster>> = self.clusters.values().filter(lent).collect();
        if donors.is_empty() {
            let message =
                format!("`classes` of Tenant `{name}` ({}): no other cluster lends any of them to it", open.join(", "));
            let remedy = "ask a donor to add one to `lends` of its Cluster, or name a class that is lent";
            return Some(("classes", message, remedy.to_owned()));
        }
        let agreed = |donor: &&&Document<Cluster>| {
            let lender = &donor.spec.institution;
            let covers = |class: &str| {
                self.agreements
                    .values()
                    .any(|it| it.spec.covers(institution, lender) && it.spec.classes.contains(class))
            };
            lender == institution || open.iter().any(|class| lends_to(donor, tenant, class) && covers(class))
        };
        if donors.iter().any(|donor| agreed(&donor)) {
            return None;
        }
        let message = format!(
            "`institution: {institution}` of Tenant `{name}`: no Agreement lets it borrow what others lend to it ({})",
            donors.iter().map(|donor| donor.name.as_str()).take(4).collect::<Vec<_>>().join(", ")
        );
        let remedy = "add an Agreement between the institutions that covers its classes";
        Some(("institution", message, remedy.to_owned()))
    }

    /// Whether a quota allows none of a class.
    fn is_barred(&self, tenant: &Document<Tenant>, class: &str) -> bool {
        self.quotas.values().any(|quota| {
            let limits = match &quota.spec.subject {
                QuotaSubject::Tenant(of) => *of == tenant.name,
                QuotaSubject::Institution(of) => *of == tenant.spec.institution,
            };
            let concerns = quota.spec.class.as_deref().is_none_or(|of| of == class);
            limits && concerns && quota.spec.max_concurrent_gpus_milli == Some(0)
        })
    }
}

/// Whether some term of a donor covers a tenant and a class.
fn lends_to(donor: &Document<Cluster>, tenant: &Document<Tenant>, class: &str) -> bool {
    let covers = |term: &crate::LendTerm| {
        term.classes.contains(class)
            && term.covers(&tenant.name, &tenant.spec.institution)
            && term.max_gpus_milli != Some(0)
    };
    donor.spec.max_lent_gpus_milli != Some(0) && donor.spec.lends.iter().any(covers)
}
