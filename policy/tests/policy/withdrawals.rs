//! Withdrawn permissions: what becomes of leases in force, by the documents that permit them.

use comity_policy::{
    BorrowFacts, Bundle, DenyCode, HeldLease, InUse, Kind, ProblemCode, RemovedDocuments, SourceFile, load,
    render_problems,
};
use comity_types::{Delivery, LeaseTreatment};

const TENANT: &str = "Tenant";
const CLASS: &str = "GpuClass";
const CLUSTER: &str = "Cluster";
const AGREEMENT: &str = "Agreement";

/// One document that permits the lease of these tests.
#[derive(Clone, Copy)]
enum Document {
    /// As in the test federation, with this `onWithdrawal`.
    Permits(Option<LeaseTreatment>),
    /// Present, but it no longer permits the lease.
    Withdraws(Option<LeaseTreatment>),
    /// Gone.
    Removed,
}
use Document::{Permits, Removed, Withdraws};

const ALL_PERMIT: [Document; 4] = [Permits(None); 4];

/// The four documents that permit the lease: Tenant, GpuClass, Cluster and Agreement.
fn text([tenant, class, cluster, agreement]: [Document; 4], rule: &str) -> String {
    let said = |document: Document| match document {
        Permits(treatment) | Withdraws(treatment) => {
            treatment.map_or(String::new(), |treatment| format!(", onWithdrawal: {}", treatment.as_str()))
        }
        Removed => String::new(),
    };
    let pick = |document: Document, permits: &str, withdraws: &str| match document {
        Permits(_) => permits.to_owned(),
        Withdraws(_) => withdraws.to_owned(),
        Removed => String::new(),
    };
    // A class that is gone cannot be named, so that who names it stays valid by naming the other one.
    let large = if matches!(class, Removed) { "small" } else { "large" };
    let mut documents = vec![
        "kind: Federation\nmetadata: {name: f}\nspec: {trustDomain: a.example, maintainers: [spiffe://a.example/user/ada]}"
            .to_owned(),
        "kind: Institution\nmetadata: {name: near}\nspec: {displayName: N, contact: n@a.example, clusters: [origin, spare]}"
            .to_owned(),
        "kind: Institution\nmetadata: {name: far}\nspec: {displayName: F, contact: f@a.example, clusters: [donor]}"
            .to_owned(),
        "kind: GpuClass\nmetadata: {name: small}\nspec: {selector: 'device.memoryMiB < 40000', rank: 1}".to_owned(),
    ];
    if !matches!(class, Removed) {
        documents.push(format!(
            "kind: GpuClass\nmetadata: {{name: large}}\nspec: {{selector: 'device.memoryMiB > 40000', rank: 2{}}}",
            said(class)
        ));
    }
    if !matches!(tenant, Removed) {
        documents.push(format!(
            "kind: Tenant\nmetadata: {{name: team}}\nspec: {{institution: near, classes: [small, {large}], clusters: [{}], \
             members: [{{id: spiffe://a.example/user/bo, role: submitter}}]{}}}",
            pick(tenant, "origin", "spare"),
            said(tenant)
        ).replace("[small, small]", "[small]"));
    }
    if !matches!(cluster, Removed) {
        let lends = pick(cluster, &format!("[{{classes: [{large}], to: {{institutions: [near]}}}}]"), "[]");
        documents.push(format!(
            "kind: Cluster\nmetadata: {{name: donor}}\nspec: {{institution: far, lends: {lends}{}}}",
            said(cluster)
        ));
    }
    if !matches!(agreement, Removed) {
        documents.push(format!(
            "kind: Agreement\nmetadata: {{name: pact}}\nspec: {{borrowers: [near], lenders: [far], classes: [{}]{}}}",
            pick(agreement, large, "small"),
            said(agreement)
        ));
    }
    if !rule.is_empty() {
        documents.push(format!("kind: Rule\nmetadata: {{name: rule}}\nspec: {{message: No, {rule}}}"));
    }
    let headed = documents.iter().map(|document| format!("apiVersion: policy.comity.dev/v1\n{document}\n"));
    headed.collect::<Vec<_>>().join("---\n")
}

fn bundle_of(text: String) -> Bundle {
    let files = vec![SourceFile { path: "all.yaml".to_owned(), text }];
    load(files).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)))
}

fn bundle(documents: [Document; 4]) -> Bundle {
    bundle_of(text(documents, ""))
}

const HELD: HeldLease<'static> = HeldLease {
    facts: BorrowFacts {
        tenant: "team",
        user: "bo",
        origin_cluster: "origin",
        donor_cluster: "donor",
        class: "large",
        gpus_milli: 4_000,
        beside_milli: 4_000,
        delivery: Delivery::Namespace,
        duration_ms: 8 * 3_600_000,
        notice_ms: Some(0),
        now_ms: 1_799_838_000_000,
        data: &[],
        purpose: "",
        in_use: InUse {
            by_tenant: None,
            by_institution: None,
            by_tenant_user: None,
            by_institution_user: None,
            cohorts: None,
            lent_by_donor: None,
            lent_under_agreement: None,
            gpu_time: None,
        },
    },
    institution: "near",
    agreement: Some("pact"),
};

const NEEDED: [(Kind, &str); 4] =
    [(Kind::Tenant, "team"), (Kind::GpuClass, "large"), (Kind::Cluster, "donor"), (Kind::Agreement, "pact")];

/// The treatment of the lease once `after` takes the place of `before`.
fn treatment(before: &Bundle, after: &Bundle) -> Option<LeaseTreatment> {
    let removed = RemovedDocuments::default().after_change(before, after, NEEDED);
    after.withdrawal(&HELD, &removed).map(|withdrawal| withdrawal.treatment)
}

const SAID: [Option<LeaseTreatment>; 4] =
    [None, Some(LeaseTreatment::Finish), Some(LeaseTreatment::Drain), Some(LeaseTreatment::Stop)];

#[test]
fn each_document_decides_about_what_it_withdraws_and_drains_by_default() {
    let permits = bundle(ALL_PERMIT);
    assert_eq!(treatment(&permits, &permits), None);
    let codes = [DenyCode::OriginNotAllowed, DenyCode::UnknownClass, DenyCode::ClassNotLent, DenyCode::NoAgreement];
    for (index, name) in [TENANT, CLASS, CLUSTER, AGREEMENT].into_iter().enumerate() {
        for said in SAID {
            let expected = Some(said.unwrap_or(LeaseTreatment::Drain));
            let mut documents = ALL_PERMIT;
            documents[index] = Permits(said);
            let before = bundle(documents);
            assert_eq!(treatment(&before, &before), None, "{name} permits");
            // A class has nothing but its existence and its schedule.
            if name != CLASS {
                documents[index] = Withdraws(said);
                let after = bundle(documents);
                let withdrawal = after.withdrawal(&HELD, &RemovedDocuments::default()).unwrap();
                assert_eq!((withdrawal.denial.code, Some(withdrawal.treatment)), (codes[index], expected), "{name}");
                assert_eq!(treatment(&permits, &after), expected, "the new document counts, not the old one: {name}");
            }
        }
    }
}

#[test]
fn a_removed_document_leaves_its_word_to_the_leases_that_it_permitted() {
    for (index, name) in [TENANT, CLASS, CLUSTER, AGREEMENT].into_iter().enumerate() {
        for said in SAID {
            let (mut before, mut after) = (ALL_PERMIT, ALL_PERMIT);
            (before[index], after[index]) = (Permits(said), Removed);
            // Who named a removed class changes too, and must not drain what the class lets finish.
            let others = matches!(said, Some(LeaseTreatment::Finish)) && name == CLASS;
            if others {
                for other in [0, 2, 3] {
                    after[other] = Permits(Some(LeaseTreatment::Finish));
                }
            }
            let expected = said.unwrap_or(LeaseTreatment::Drain);
            let expected = if name == CLASS && !others { expected.max(LeaseTreatment::Drain) } else { expected };
            let (before, after) = (bundle(before), bundle(after));
            assert_eq!(treatment(&before, &after), Some(expected), "{name} {said:?}");

            // It counts through further changes, until no lease needs it or the document is back.
            let removed = RemovedDocuments::default().after_change(&before, &after, NEEDED);
            let still = removed.after_change(&after, &after, NEEDED);
            assert_eq!(still, removed);
            assert!(removed.after_change(&after, &after, []).is_empty());
            assert!(removed.after_change(&after, &bundle(ALL_PERMIT), NEEDED).is_empty());
        }
    }
}

/// Every combination of documents that permit, withdraw or are gone, and of what they say: no document can loosen what
/// another one demands, and a tighter value never lets a lease run longer.
#[test]
fn the_tightest_document_decides_and_a_tighter_value_never_lets_a_lease_run_longer() {
    let options: Vec<Document> =
        SAID.iter().skip(1).flat_map(|said| [Permits(*said), Withdraws(*said)]).chain([Removed]).collect();
    let before = bundle(ALL_PERMIT);
    let tighter = |document: Document| {
        let next = |said: Option<LeaseTreatment>| match said {
            Some(LeaseTreatment::Finish) => Some(LeaseTreatment::Drain),
            _ => Some(LeaseTreatment::Stop),
        };
        match document {
            Permits(said) => Permits(next(said)),
            Withdraws(said) => Withdraws(next(said)),
            Removed => Removed,
        }
    };
    let demanded = |document: Document| match document {
        Permits(_) => None,
        Withdraws(said) => said,
        Removed => Some(LeaseTreatment::Drain),
    };
    let mut seen = 0;
    for tenant in &options {
        for cluster in &options {
            for agreement in &options {
                let documents = [*tenant, Permits(None), *cluster, *agreement];
                let after = bundle(documents);
                let found = treatment(&before, &after);
                assert_eq!(found, documents.into_iter().filter_map(demanded).max());
                for index in [0, 2, 3] {
                    let mut tightened = documents;
                    tightened[index] = tighter(documents[index]);
                    assert!(treatment(&before, &bundle(tightened)) >= found);
                }
                seen += 1;
            }
        }
    }
    assert_eq!(seen, 343);
}

#[test]
fn a_donor_that_accepts_nothing_new_still_withdraws() {
    let said = text([Permits(None), Permits(None), Withdraws(Some(LeaseTreatment::Stop)), Permits(None)], "");
    let closed = bundle_of(said.replace("lends: []", "lends: [], accepting: false, delivery: [virtual-node]"));
    assert_eq!(treatment(&closed, &closed), Some(LeaseTreatment::Stop));
    let only_closed =
        text(ALL_PERMIT, "").replace("institution: far, lends", "institution: far, accepting: false, lends");
    let only_closed = bundle_of(only_closed);
    assert_eq!(treatment(&only_closed, &only_closed), None, "it decides about new leases only");
}

#[test]
fn limits_withdraw_nothing() {
    let narrow = text(ALL_PERMIT, "")
        .replace("classes: [large]}", "classes: [large], maxGpus: 0, until: 2027-01-13T11:00:01Z}")
        .replace(
            "trustDomain: a.example,",
            "trustDomain: a.example, limits: {maxGpusPerRequest: 1, maxLeaseDuration: 1h}, defaults: {leaseTerm: 1h},",
        );
    let narrow = bundle_of(narrow);
    assert_eq!(treatment(&narrow, &narrow), None);
    // An end that has passed does.
    let ended = text([Permits(None), Permits(None), Permits(None), Permits(Some(LeaseTreatment::Stop))], "")
        .replace("classes: [large], onW", "classes: [large], until: 2026-12-31, onW");
    let ended = bundle_of(ended);
    assert_eq!(treatment(&ended, &ended), Some(LeaseTreatment::Stop));
}

#[test]
fn a_schedule_drains_whatever_its_document_says() {
    let by_night = text([Permits(None), Permits(None), Permits(Some(LeaseTreatment::Finish)), Permits(None)], "")
        .replace("to: {institutions: [near]}", "to: {institutions: [near]}, during: night");
    // HELD is held at noon.
    let schedule = "---\napiVersion: policy.comity.dev/v1\nkind: Schedule\nmetadata: {name: night}\nspec: {timeZone: Europe/Zurich, windows: [{days: [wed], from: '20:00', until: '22:00'}]}\n";
    for said in ["finish", "stop"] {
        let bundle = bundle_of(by_night.replace("onWithdrawal: finish", &format!("onWithdrawal: {said}")) + schedule);
        assert_eq!(treatment(&bundle, &bundle), Some(LeaseTreatment::Drain), "{said}");
    }
}

#[test]
fn a_rule_decides_about_leases_in_force_only_if_it_says_so() {
    let treated = |rule: &str| {
        let bundle = bundle_of(text(ALL_PERMIT, rule));
        treatment(&bundle, &bundle)
    };
    let denies = "deny: 'donor.institution == \"far\"'";
    assert_eq!(treated(denies), None, "it keeps leases from being renewed");
    assert_eq!(treated(&format!("{denies}, onWithdrawal: finish")), None);
    assert_eq!(treated(&format!("{denies}, onWithdrawal: drain")), Some(LeaseTreatment::Drain));
    assert_eq!(treated(&format!("{denies}, onWithdrawal: stop")), Some(LeaseTreatment::Stop));
    assert_eq!(treated("require: 'donor.institution == \"near\"', onWithdrawal: stop"), Some(LeaseTreatment::Stop));
    assert_eq!(treated("require: 'donor.institution == \"far\"', onWithdrawal: stop"), None);
    // It sees the lease as it is: eight GPUs of its request, four of its own, for eight hours.
    for holds in [
        "request.gpus.compareTo(quantity(\"8\")) == 0",
        "lease.gpus.compareTo(quantity(\"4\")) == 0",
        "request.durationSeconds == 28800",
        "lease.agreement == \"pact\"",
    ] {
        assert_eq!(treated(&format!("deny: '{holds}', onWithdrawal: stop")), Some(LeaseTreatment::Stop), "{holds}");
        assert_eq!(treated(&format!("require: '{holds}', onWithdrawal: stop")), None, "{holds}");
    }
}

#[test]
fn a_rule_that_denies_nothing_withdraws_nothing() {
    for effect in ["warn: 'true'", "prefer: 'true'"] {
        let files = vec![SourceFile {
            path: "all.yaml".to_owned(),
            text: text(ALL_PERMIT, &format!("{effect}, onWithdrawal: stop")),
        }];
        let problems = load(files).expect_err("a problem");
        assert_eq!(problems.len(), 1, "{}", render_problems(&problems));
        assert_eq!(problems[0].code, ProblemCode::Contradiction);
        assert!(problems[0].message.contains("`onWithdrawal`, but denies nothing"), "{}", problems[0].message);
    }
    let unknown =
        text(ALL_PERMIT, "").replace("institution: far, lends", "institution: far, onWithdrawal: kill, lends");
    let problems = load(vec![SourceFile { path: "all.yaml".to_owned(), text: unknown }]).expect_err("a problem");
    assert!(problems[0].message.ends_with("is not one of finish, drain, stop"), "{}", problems[0].message);
}
