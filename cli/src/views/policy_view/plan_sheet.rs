//! A plan for people, in full or only what it takes away.

use super::policy_plan::{
    BorrowingEffect, CapacityEffect, CohortEffect, CohortTerms, DocumentChange, InstitutionEffect, LeaseEffect,
    PolicyPlan, PolicyPlanned, QueuePlace, RequestEffect,
};
use super::problems_text;
use crate::output::{Answer, Column, Sheet, columns};
use crate::units::{counted, format_milli, format_time};

impl Answer for PolicyPlanned {
    fn table(&self, _now_ms: u64) -> Sheet {
        if !self.ok {
            return problems_text(&self.problems, "problem").into();
        }
        let hash = self.hash.as_deref().unwrap_or_default();
        let in_force = match self.in_force_hash.as_str() {
            "" => "no bundle is in force",
            in_force => in_force,
        };
        if !self.replaces {
            return format!("no changes: this bundle is in force, hash {hash}").into();
        }
        if !self.plan.has_changes() {
            let what = "no changes of meaning: only comments, layout or the commit differ";
            return Sheet::default().paragraph(format!("{what}; hash {hash}, in force {in_force}"));
        }
        self.plan.sheet().paragraph(format!("planned, not applied: hash {hash}, in force {in_force}"))
    }
}

impl PolicyPlan {
    /// Whether a document would say something else.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        self.documents_added + self.documents_changed + self.documents_removed > 0 || !self.time_zones.is_empty()
    }

    /// Whether the bundle would change no lease, no waiting request and no cluster's capacity.
    #[must_use]
    pub fn is_harmless(&self) -> bool {
        self.lease_count == 0 && self.request_count == 0 && self.capacity_count == 0
    }

    /// Everything.
    #[must_use]
    pub fn sheet(&self) -> Sheet {
        let sheet = self.documents_sheet();
        let sheet = sheet.then(self.leases_sheet()).then(self.requests_sheet()).then(self.borrowing_sheet());
        let sheet = sheet.then(self.capacities_sheet()).then(self.institutions_sheet());
        let sheet = sheet.then(self.cohorts_sheet()).then(self.queue_sheet());
        sheet.then(self.unexamined_sheet())
    }

    /// What happens to leases, waiting requests and clusters.
    #[must_use]
    pub fn short_sheet(&self) -> Sheet {
        let sheet = if self.has_changes() { Sheet::from(self.documents_line()).gap() } else { Sheet::default() };
        let sheet = sheet.then(self.leases_sheet()).then(self.requests_sheet()).then(self.capacities_sheet());
        let none = "no lease, waiting request or capacity would change";
        let sheet = if self.is_harmless() { sheet.then(none) } else { sheet };
        sheet.then(self.unexamined_sheet())
    }

    fn documents_line(&self) -> String {
        let Self { documents_added, documents_changed, documents_removed, .. } = self;
        format!("documents: {documents_added} added, {documents_changed} changed, {documents_removed} removed")
    }

    fn documents_sheet(&self) -> Sheet {
        let heads = [
            Column::text("change"),
            Column::text("document"),
            Column::text("line").rank(1),
            Column::text("field"),
            Column::prose("before"),
            Column::prose("after"),
        ];
        let count = self.documents_added + self.documents_changed + self.documents_removed;
        let named = self.documents.len();
        let rows = self.documents.iter().flat_map(document_rows).collect();
        let documents = headed(self.documents_line(), &heads, rows, (count, named));
        let zones = format!("time zones with other offsets: {}", self.time_zones.join(", "));
        if self.time_zones.is_empty() { documents } else { documents.paragraph(zones).gap() }
    }

    fn leases_sheet(&self) -> Sheet {
        let row = |effect: &LeaseEffect| {
            let why = effect.reason.as_ref().unwrap_or(&effect.code).clone();
            let until = format_time(effect.until_ms).unwrap_or_default();
            let gpus = format_milli(effect.gpus_milli);
            vec![
                effect.lease.clone(),
                effect.tenant.clone(),
                effect.donor.clone(),
                gpus,
                effect.treatment.to_owned(),
                until,
                why,
            ]
        };
        let heads = [
            Column::text("lease"),
            Column::text("tenant"),
            Column::text("donor"),
            Column::number("gpus"),
            Column::text("treatment"),
            Column::text("until at most"),
            Column::prose("reason"),
        ];
        let heading = format!("leases would end or not be renewed: {}", self.lease_count);
        headed(heading, &heads, self.leases.iter().map(row).collect(), (self.lease_count, self.leases.len()))
    }

    fn requests_sheet(&self) -> Sheet {
        let row = |effect: &RequestEffect| {
            let reason = effect.reason.as_deref().unwrap_or_default();
            let change = match effect.prospect {
                "allowed" => "no longer denied by policy".to_owned(),
                "denied" => format!("denied: {reason}"),
                "starts" => format!("starts at once at {}", effect.donors.join(" and ")),
                "waits" => format!("no longer starts now: {reason}"),
                other => other.to_owned(),
            };
            vec![effect.request.clone(), effect.tenant.clone(), change]
        };
        let heads = [Column::text("request"), Column::text("tenant"), Column::prose("change")];
        let heading = format!("waiting requests would become possible or impossible: {}", self.request_count);
        headed(heading, &heads, self.requests.iter().map(row).collect(), (self.request_count, self.requests.len()))
    }

    fn borrowing_sheet(&self) -> Sheet {
        let row = |effect: &BorrowingEffect| {
            let change = if effect.denied.is_some() { "no longer" } else { "may now" };
            let (tenant, donor) = (effect.tenant.clone(), effect.donor.clone());
            let reason = effect.denied.clone().unwrap_or_default();
            vec![tenant, change.to_owned(), effect.classes.join(", "), donor, reason]
        };
        let heads = [
            Column::text("tenant"),
            Column::text("may borrow"),
            Column::prose("classes"),
            Column::text("from"),
            Column::prose("reason"),
        ];
        let heading = format!("tenants could borrow other classes: {}", self.borrowing_count);
        headed(heading, &heads, self.borrowing.iter().map(row).collect(), (self.borrowing_count, self.borrowing.len()))
    }

    fn capacities_sheet(&self) -> Sheet {
        let row = |effect: &CapacityEffect| {
            vec![effect.cluster.clone(), format_milli(effect.before_milli), format_milli(effect.after_milli)]
        };
        let heads = [Column::text("cluster"), Column::number("gpus before"), Column::number("gpus after")];
        let heading = format!("clusters would lend more or less: {}", self.capacity_count);
        headed(heading, &heads, self.capacities.iter().map(row).collect(), (self.capacity_count, self.capacities.len()))
    }

    fn institutions_sheet(&self) -> Sheet {
        let row = |effect: &InstitutionEffect| {
            let amounts = [
                effect.lends_before_milli,
                effect.lends_after_milli,
                effect.borrows_before_milli,
                effect.borrows_after_milli,
            ];
            std::iter::once(effect.institution.clone()).chain(amounts.map(format_milli)).collect()
        };
        let heads = [
            Column::text("institution"),
            Column::number("lends"),
            Column::number("after"),
            Column::number("may borrow"),
            Column::number("after"),
        ];
        let heading = format!("institutions would lend or may borrow more or less: {}", self.institution_count);
        let named = self.institutions.len();
        headed(heading, &heads, self.institutions.iter().map(row).collect(), (self.institution_count, named))
    }

    fn cohorts_sheet(&self) -> Sheet {
        let row = |effect: &CohortEffect| {
            let both = [&effect.before, &effect.after].map(Option::as_ref);
            let amounts = |of: fn(&CohortTerms) -> u64| {
                both.map(|terms| terms.map_or_else(|| "-".to_owned(), |terms| format_milli(of(terms))))
            };
            let cohort = effect.after.as_ref().or(effect.before.as_ref()).map_or("", |terms| &terms.cohort);
            let [nominal, borrows, lends] = [
                amounts(|terms| terms.nominal_milli),
                amounts(|terms| terms.borrows_milli),
                amounts(|terms| terms.lends_milli),
            ];
            let names = [effect.quota.clone(), cohort.to_owned()];
            let used = format_milli(effect.used_milli);
            names.into_iter().chain(nominal).chain(borrows).chain(lends).chain([used]).collect()
        };
        let heads = [
            Column::text("quota"),
            Column::text("cohort"),
            Column::number("nominal"),
            Column::number("after"),
            Column::number("may borrow"),
            Column::number("after"),
            Column::number("lends"),
            Column::number("after"),
            Column::number("in use"),
        ];
        let heading = format!("quotas would lend to their cohorts or may borrow more or less: {}", self.cohort_count);
        headed(heading, &heads, self.cohorts.iter().map(row).collect(), (self.cohort_count, self.cohorts.len()))
    }

    fn queue_sheet(&self) -> Sheet {
        let row = |(place, next): (usize, &QueuePlace)| {
            let before = next.place_before.map_or_else(|| "-".to_owned(), |place| place.to_string());
            let starts = match next.starts_at.as_slice() {
                [] => "waits".to_owned(),
                donors => format!("at once at {}", donors.join(" and ")),
            };
            vec![place.to_string(), before, next.request.clone(), next.tenant.clone(), starts]
        };
        let heads = [
            Column::number("place"),
            Column::number("before"),
            Column::text("request"),
            Column::text("tenant"),
            Column::text("starts"),
        ];
        let heading = format!("next in the queue, of {}", counted(self.queue_count, "request", "requests"));
        let rows = (1..).zip(&self.queue).map(row).collect();
        headed(heading, &heads, rows, (self.queue_count, self.queue.len()))
    }

    fn unexamined_sheet(&self) -> Sheet {
        let lines = [
            (self.leases_unexamined, "the renewal of", "lease", "leases"),
            (self.requests_unexamined, "", "waiting request", "waiting requests"),
            (self.tenants_unexamined, "", "tenant", "tenants"),
            (self.institutions_unexamined, "", "institution", "institutions"),
        ];
        let lines = lines.into_iter().filter(|(count, ..)| *count > 0);
        lines.fold(Sheet::default(), |sheet, (count, of, one, more)| {
            sheet.then(format!("not examined: {of} {}", counted(count, one, more)).replace("  ", " "))
        })
    }
}

/// A row for each field; one for a document that is added or removed.
fn document_rows(change: &DocumentChange) -> Vec<Vec<String>> {
    let head = || {
        let document = format!("{} {}", change.kind, change.name);
        vec![change.change.to_owned(), document, format!("{}:{}", change.file, change.line)]
    };
    let row = |cells: [String; 3]| [head(), cells.to_vec()].concat();
    let shown = |value: &Option<String>| value.clone().unwrap_or_default();
    let fields = change.fields.iter().map(|field| row([field.path.clone(), shown(&field.before), shown(&field.after)]));
    let mut rows: Vec<Vec<String>> = fields.collect();
    if change.more_fields > 0 {
        rows.push(row([format!("… and {} more", change.more_fields), String::new(), String::new()]));
    }
    if rows.is_empty() {
        rows.push(row([String::new(), String::new(), String::new()]));
    }
    rows
}

/// A headed table of the first `named` of `count` effects; empty if there are none.
fn headed(heading: String, heads: &[Column], rows: Vec<Vec<String>>, (count, named): (u32, usize)) -> Sheet {
    if count == 0 {
        return Sheet::default();
    }
    let more = usize::try_from(count).unwrap_or(usize::MAX).saturating_sub(named);
    let more = if more > 0 { format!("… and {more} more") } else { String::new() };
    Sheet::default().heading(heading).then(columns(heads, rows, "")).then(more).gap()
}

#[cfg(test)]
mod tests {
    use comity_proto::v1;

    use super::*;
    use crate::output::{Format, Page};

    /// A plan with every kind of effect, and texts that would be markup.
    fn planned() -> PolicyPlanned {
        let change = |difference: v1::PolicyDifference, kind: &str, name: &str| v1::PolicyDocumentChange {
            difference: difference.into(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            file: format!("{name}.yaml"),
            line: 5,
            ..v1::PolicyDocumentChange::default()
        };
        let field = |path: &str, before: Option<&str>, after: Option<&str>| v1::PolicyFieldChange {
            path: path.to_owned(),
            before: before.map(str::to_owned),
            after: after.map(str::to_owned),
        };
        let changed = v1::PolicyDocumentChange {
            fields: vec![
                field("maxLentGpus", Some("56"), Some("40")),
                field("lends[0].classes", Some("frontier"), None),
                field("purpose", None, Some("a | b <img src=x> *c* [d](e) `f|g`")),
            ],
            more_fields: 2,
            ..change(v1::PolicyDifference::Changed, "Cluster", "ncc-main")
        };
        let lease = |id: &str, treatment: v1::LeaseTreatment, reason: &str| v1::PolicyLeaseEffect {
            lease: id.to_owned(),
            tenant: "poly-ml".to_owned(),
            donor: "ncc-main".to_owned(),
            gpus_milli: 2_500,
            treatment: treatment.into(),
            code: "class-not-lent".to_owned(),
            reason: reason.to_owned(),
            until_ms: 1_795_420_800_000,
        };
        let request = |id: &str, prospect: v1::PolicyProspect, reason: &str| v1::PolicyRequestEffect {
            request: id.to_owned(),
            tenant: "poly-ml".to_owned(),
            prospect: prospect.into(),
            reason: reason.to_owned(),
            donors: vec!["ncc-main".to_owned()],
        };
        let borrowing = |denied: &str| v1::PolicyBorrowingEffect {
            tenant: "poly-ml".to_owned(),
            donor: "ncc-main".to_owned(),
            classes: vec!["frontier".to_owned(), "midrange".to_owned()],
            denied: denied.to_owned(),
        };
        let not_lent = "`ncc-main` does not lend class `frontier`";
        PolicyPlanned::from(v1::PlanPolicyResponse {
            hash: "9ccd".to_owned(),
            in_force_hash: "3521".to_owned(),
            replaces: true,
            documents: 33,
            problems: Vec::new(),
            plan: Some(v1::PolicyPlan {
                documents: vec![
                    changed,
                    change(v1::PolicyDifference::Added, "Agreement", "winter"),
                    change(v1::PolicyDifference::Removed, "Tenant", "old_team"),
                ],
                documents_added: 1,
                documents_changed: 1,
                documents_removed: 2,
                time_zones: vec!["Europe/Zurich".to_owned()],
                leases: vec![
                    lease("lease-7", v1::LeaseTreatment::Drain, not_lent),
                    lease("lease-8", v1::LeaseTreatment::Finish, ""),
                ],
                lease_count: 3,
                leases_unexamined: 1,
                requests: vec![
                    request("req-9", v1::PolicyProspect::Denied, not_lent),
                    request("req-10", v1::PolicyProspect::Allowed, ""),
                    request("req-11", v1::PolicyProspect::Starts, ""),
                    request("req-12", v1::PolicyProspect::Waits, "not placed"),
                ],
                request_count: 4,
                requests_unexamined: 4,
                borrowing: vec![borrowing(""), borrowing(not_lent)],
                borrowing_count: 2,
                tenants_unexamined: 0,
                capacities: vec![v1::PolicyCapacityEffect {
                    cluster: "ncc-main".to_owned(),
                    before_milli: 16_000,
                    after_milli: 8_000,
                }],
                capacity_count: 1,
                institutions: vec![v1::PolicyInstitutionEffect {
                    institution: "national-centre".to_owned(),
                    lends_before_milli: 16_000,
                    lends_after_milli: 8_000,
                    borrows_before_milli: 0,
                    borrows_after_milli: 500,
                }],
                institution_count: 1,
                institutions_unexamined: 0,
                cohorts: vec![v1::PolicyCohortEffect {
                    quota: "poly-burst".to_owned(),
                    before: None,
                    after: Some(v1::PolicyCohortTerms {
                        cohort: "park".to_owned(),
                        nominal_milli: 4_000,
                        borrows_milli: 2_500,
                        lends_milli: 0,
                    }),
                    used_milli: 3_000,
                }],
                cohort_count: 1,
                queue: vec![
                    v1::PolicyQueuePlace {
                        request: "req-11".to_owned(),
                        tenant: "poly-ml".to_owned(),
                        place_before: 4,
                        starts_at: vec!["ncc-main".to_owned()],
                    },
                    v1::PolicyQueuePlace { request: "req-9".to_owned(), ..v1::PolicyQueuePlace::default() },
                ],
                queue_count: 12,
            }),
        })
    }

    fn assert_golden(file: &str, golden: &str, text: &str) {
        if std::env::var_os("COMITY_WRITE_GOLDEN").is_some() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/views/policy_view/golden").join(file);
            std::fs::write(path, text).expect("written");
        } else {
            assert_eq!(text, golden, "{file}: COMITY_WRITE_GOLDEN=1 writes it");
        }
    }

    #[test]
    fn the_plan_is_shown_in_full() {
        let text = planned().table(0).to_string();
        assert_golden("plan.txt", include_str!("golden/plan.txt"), &text);
        let text = Format::Markdown.render(&planned(), 0, Page::PLAIN).expect("rendered");
        assert_golden("plan.md", include_str!("golden/plan.md"), &text);
    }

    #[test]
    fn the_short_form_is_what_a_bundle_takes_away() {
        let short = planned().plan.short_sheet().to_string();
        let full = planned().table(0).to_string();
        assert!(short.starts_with("documents: 1 added, 1 changed, 2 removed\n\nleases would end"), "{short}");
        for (part, is_short) in [
            ("lease-7", true),
            ("req-12", true),
            ("GPUS AFTER", true),
            ("maxLentGpus", false),
            ("national-centre", false),
        ] {
            assert!(full.contains(part) && short.contains(part) == is_short, "{part}: {short}");
        }
        let nothing = PolicyPlan { documents_added: 1, ..PolicyPlan::default() };
        let said = "documents: 1 added, 0 changed, 0 removed\n\nno lease, waiting request or capacity would change\n";
        assert_eq!(nothing.short_sheet().to_string(), said);
        assert!(nothing.is_harmless() && nothing.has_changes());
    }

    #[test]
    fn a_bundle_without_changes_says_so() {
        let same = PolicyPlanned { plan: PolicyPlan::default(), ..planned() };
        assert!(same.table(0).to_string().starts_with("no changes of meaning: only comments"));
        let in_force = PolicyPlanned { replaces: false, ..same };
        assert_eq!(in_force.table(0).to_string(), "no changes: this bundle is in force, hash 9ccd\n");
    }
}
