//! Cohorts of quotas: how they are read, and that no more is used than all members have together.

use std::collections::BTreeMap;

use comity_policy::{
    BorrowFacts, Bundle, DenyCode, InUse, LeaseUse, ProblemCode, QuotaUse, SourceFile, UsageTable, load,
};
use comity_types::Delivery;
use proptest::prelude::*;

const TENANTS: [&str; 3] = ["red", "green", "blue"];

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("---\napiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

fn quota(name: &str, spec: &str) -> String {
    document("Quota", name, spec)
}

fn files(quotas: &[String]) -> Vec<SourceFile> {
    let mut text = document("Federation", "f", "trustDomain: a.example, maintainers: [spiffe://a.example/user/ada]");
    text += &document("Institution", "campus", "displayName: C, contact: a@a.example, clusters: [desk, farm]");
    text += &document("GpuClass", "big", "selector: 'device.memoryMiB > 1', rank: 1");
    text += &document("GpuClass", "small", "selector: 'device.memoryMiB > 0', rank: 2");
    text += &document("Schedule", "nights", "timeZone: UTC, windows: [{days: [mon], from: '20:00', until: '06:00'}]");
    text += &document("Cluster", "farm", "institution: campus, lends: [{classes: [big, small]}]");
    for tenant in TENANTS {
        let members = "members: [{id: spiffe://a.example/user/bo, role: admin}]";
        let spec = format!("institution: campus, classes: [big, small], clusters: [desk], {members}");
        text += &document("Tenant", tenant, &spec);
    }
    vec![SourceFile { path: "all.yaml".to_owned(), text: text + &quotas.concat() }]
}

fn bundle(quotas: &[String]) -> Bundle {
    load(files(quotas)).expect("a valid bundle")
}

fn ask<'f>(tenant: &'f str, class: &'f str, gpus_milli: u64, in_use: InUse<'f>) -> BorrowFacts<'f> {
    BorrowFacts {
        tenant,
        user: "",
        origin_cluster: "desk",
        donor_cluster: "farm",
        class,
        gpus_milli,
        beside_milli: 0,
        delivery: Delivery::Namespace,
        duration_ms: 3_600_000,
        notice_ms: None,
        now_ms: 1_799_838_000_000,
        data: &[],
        purpose: "",
        in_use,
    }
}

fn lease<'l>(tenant: &'l str, class: &'l str, gpus_milli: u64) -> LeaseUse<'l> {
    let (user, institution, donor, agreement) = ("bo", "campus", "farm", None);
    LeaseUse { tenant, user, institution, donor, class, agreement, gpus_milli, replaced: false }
}

fn in_use<'u>(table: &'u UsageTable, tenant: &str) -> InUse<'u> {
    table.in_use(tenant, "campus", "", "farm")
}

/// A bundle and leases of class `big` under it.
struct Held {
    bundle: Bundle,
    table: UsageTable,
}

impl Held {
    fn of(quotas: &[String], leases: &[(&str, u64)]) -> Self {
        let bundle = bundle(quotas);
        let mut table = UsageTable::under(&bundle);
        leases.iter().for_each(|(tenant, milli)| table.add(&lease(tenant, "big", *milli)));
        Self { bundle, table }
    }

    fn facts<'h>(&'h self, tenant: &'h str, milli: u64) -> BorrowFacts<'h> {
        ask(tenant, "big", milli, in_use(&self.table, tenant))
    }

    fn denial(&self, tenant: &str, milli: u64) -> Option<(DenyCode, String, String)> {
        let decision = self.bundle.may_borrow(&self.facts(tenant, milli));
        decision.denial().map(|denial| (denial.code, denial.to_string(), format!("{:?}", denial.by)))
    }

    fn code(&self, tenant: &str, milli: u64) -> Option<DenyCode> {
        self.denial(tenant, milli).map(|(code, ..)| code)
    }

    fn of_cohort(&self, tenant: &str) -> QuotaUse {
        let uses = self.bundle.quota_uses(&self.facts(tenant, 1));
        uses.into_iter().find(|it| it.cohort.is_some()).expect("a quota of a cohort")
    }
}

/// Red and green with four GPUs each, blue with two, in one cohort.
fn cohort_of_ten() -> Vec<String> {
    [("red", 4), ("green", 4), ("blue", 2)]
        .map(|(tenant, gpus)| quota(tenant, &format!("tenant: {tenant}, maxConcurrentGpus: {gpus}, cohort: lab")))
        .to_vec()
}

#[test]
fn wrong_cohorts_are_named_with_the_remedy() {
    let cohort = |name: &str, spec: &str| quota(name, &format!("{spec}, cohort: lab"));
    let other = || cohort("other", "tenant: green, maxConcurrentGpus: 1");
    for (spec, code, words) in [
        ("tenant: red, maxConcurrentGpus: 1, borrowingLimit: 2", ProblemCode::MissingField, "add `cohort`"),
        ("tenant: red, maxConcurrentGpus: 1, lendingLimit: 1", ProblemCode::MissingField, "remove `lendingLimit`"),
        ("tenant: red, maxLeaseDuration: 1h, cohort: lab", ProblemCode::MissingField, "add `maxConcurrentGpus`"),
        ("tenant: red, maxConcurrentGpus: 1, cohort: La b", ProblemCode::InvalidName, "`cohort: La b`"),
        (
            "tenant: red, maxConcurrentGpus: 1, cohort: lab, lendingLimit: 1.5",
            ProblemCode::Contradiction,
            "`lendingLimit: 1.5` of Quota `q` is above its `maxConcurrentGpus: 1`",
        ),
        (
            "tenant: red, maxConcurrentGpus: 1, cohort: lab, borrowingLimit: -1",
            ProblemCode::InvalidQuantity,
            "negative",
        ),
        ("tenant: red, maxConcurrentGpus: 1, cohort: lab, during: nights", ProblemCode::Contradiction, "has `during`"),
        (
            "tenant: red, classes: [big], maxConcurrentGpus: 1, cohort: lab",
            ProblemCode::Contradiction,
            "is about `big`, and Quota `other` about all classes",
        ),
        (
            "tenant: green, maxConcurrentGpus: 1, cohort: lab",
            ProblemCode::Contradiction,
            "Quota `q` and Quota `other` of cohort `lab` count the same leases",
        ),
        (
            "institution: campus, maxConcurrentGpus: 1, cohort: lab",
            ProblemCode::Contradiction,
            "its members limit different tenants",
        ),
    ] {
        let problems = load(files(&[other(), quota("q", spec)])).expect_err(spec);
        let shown = problems.iter().map(|it| format!("{} {}", it.message, it.remedy)).collect::<String>();
        let [problem] = problems.as_slice() else { panic!("{spec}: {problems:#?}") };
        assert!(problem.code == code && shown.contains(words) && problem.line > 1, "{spec}: {problems:#?}");
    }
}

#[test]
fn a_quota_that_is_alone_in_its_cohort_is_warned_of() {
    let warned = |quotas: &[String]| {
        let warnings = bundle(quotas).warnings();
        warnings.iter().filter(|it| it.code == ProblemCode::CohortOfOne).count()
    };
    assert_eq!(warned(&cohort_of_ten()[..1]), 1);
    assert_eq!(warned(&cohort_of_ten()), 0);
}

#[test]
fn a_quota_borrows_what_others_do_not_use() {
    let held = Held::of(&cohort_of_ten(), &[("green", 1_000)]);
    assert_eq!(held.code("red", 9_000), None, "4 of its own, 3 of green, 2 of blue");
    let (code, message, by) = held.denial("red", 9_500).unwrap();
    assert_eq!(code, DenyCode::CohortExhausted, "{message}");
    for words in ["allows 4 GPUs at a time, and at most 6 more of cohort `lab`", "9 can be had now"] {
        assert!(message.contains(words), "{message}");
    }
    assert!(by.contains("all.yaml"), "{by}");
    assert_eq!(held.code("red", 10_500), Some(DenyCode::RequestTooLarge), "more than all have");
    let allowed = held.bundle.may_borrow(&held.facts("red", 5_000));
    assert!(format!("{allowed:?}").contains("name: \"red\""), "{allowed:?}");
}

#[test]
fn limits_on_borrowing_and_lending_hold_to_a_thousandth_of_a_gpu() {
    let quotas = [
        quota("red", "tenant: red, maxConcurrentGpus: 2, cohort: lab, borrowingLimit: 1.5"),
        quota("green", "tenant: green, maxConcurrentGpus: 4, cohort: lab, lendingLimit: 1250m"),
        quota("blue", "tenant: blue, maxConcurrentGpus: 0, cohort: lab"),
    ];
    let held = Held::of(&quotas, &[]);
    assert_eq!(held.code("red", 3_250), None, "2 and what green lends");
    assert_eq!(held.code("red", 3_251), Some(DenyCode::RequestTooLarge));
    assert_eq!(held.code("blue", 3_250), None, "2 of red and 1.25 of green");
    assert_eq!(held.code("blue", 3_251), Some(DenyCode::RequestTooLarge));
    // Green has 2.75 for itself, and red nothing.
    let held = Held::of(&quotas, &[("blue", 3_250)]);
    assert_eq!((held.code("green", 2_750), held.code("green", 2_751)), (None, Some(DenyCode::QuotaLent)));
    assert_eq!(held.code("red", 1), Some(DenyCode::QuotaLent));
    let limited = [
        quota("red", "tenant: red, maxConcurrentGpus: 2, cohort: lab, borrowingLimit: 0.5"),
        quota("green", "tenant: green, maxConcurrentGpus: 4, cohort: lab"),
    ];
    let held = Held::of(&limited, &[("red", 1_000)]);
    assert_eq!((held.code("red", 1_500), held.code("red", 1_501)), (None, Some(DenyCode::QuotaExhausted)));
    let (_, message, by) = held.denial("red", 2_501).unwrap();
    assert!(message.contains("at most 0.5 more of cohort `lab`"), "{message}");
    assert!(by.contains("line"), "{by}");
}

#[test]
fn what_is_lent_and_borrowed_is_shown() {
    let held = Held::of(&cohort_of_ten(), &[("red", 7_500), ("green", 500)]);
    let red = held.of_cohort("red").cohort.unwrap();
    assert_eq!(
        (red.cohort.as_str(), red.borrowed_milli, red.lent_milli, red.available_milli),
        ("lab", 3_500, 0, 2_000)
    );
    let green = held.of_cohort("green");
    let share = green.cohort.clone().unwrap();
    assert_eq!((share.borrowed_milli, share.lent_milli, share.available_milli), (0, 1_500, 2_000));
    assert_eq!((green.limit_milli, green.used_milli, green.needs_milli, green.left_milli()), (4_000, 500, 1, 1_999));
    let (code, message, _) = held.denial("green", 3_000).unwrap();
    assert_eq!(code, DenyCode::QuotaLent);
    assert!(message.contains("0.5 are in use, others of cohort `lab` borrow 1.5"), "{message}");
    assert!(DenyCode::QuotaLent.may_pass() && DenyCode::CohortExhausted.may_pass());
}

#[test]
fn a_debt_is_what_borrowers_have_above_their_quotas() {
    let held = Held::of(&cohort_of_ten(), &[("red", 3_000), ("red", 4_000), ("green", 500), ("blue", 2_000)]);
    let debt = held.bundle.quota_debt(&held.facts("green", 3_500), &held.table).unwrap();
    let [large, small, blue] = [lease("red", "big", 4_000), lease("red", "big", 3_000), lease("blue", "big", 2_000)];
    assert!(debt.is_owed_by(&large) && debt.is_owed_by(&small) && !debt.is_owed_by(&blue), "{debt:?}");
    assert_eq!(debt.left_milli(&[]), 3_000);
    assert_eq!([debt.left_milli(&[small]), debt.left_milli(&[large]), debt.left_milli(&[large, small])], [0, 0, 0]);
    assert_eq!(debt.left_milli(&[blue]), 3_000, "blue owes nothing");
    assert!(held.bundle.quota_debt(&held.facts("green", 4_000), &held.table).is_none(), "above its own quota");
    assert!(held.bundle.quota_debt(&held.facts("green", 500), &held.table).is_none(), "it fits");
}

/// A step of a property: a tenant asks for GPUs, or one of the leases ends.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ask { tenant: usize, class: usize, milli: u64 },
    End(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ask =
        (0..3_usize, 0..2_usize, 1..5_000_u64).prop_map(|(tenant, class, milli)| Step::Ask { tenant, class, milli });
    prop::collection::vec(prop_oneof![3 => ask, 1 => (0..40_usize).prop_map(Step::End)], 0..60)
}

#[derive(Clone, Debug)]
struct Terms {
    nominal: u64,
    borrows: Option<u64>,
    lends: Option<u64>,
}

fn terms() -> impl Strategy<Value = [Terms; 3]> {
    let one = (0..6_000_u64, prop::option::of(0..4_000_u64), prop::option::of(0..=1_000_u64));
    let one = one.prop_map(|(nominal, borrows, share)| {
        let lends = share.map(|share| nominal * share / 1_000);
        Terms { nominal, borrows, lends }
    });
    [one.clone(), one.clone(), one]
}

fn quotas_of(terms: &[Terms; 3]) -> Vec<String> {
    let of = |(tenant, terms): (&str, &Terms)| {
        let limit = |name: &str, limit: Option<u64>| limit.map_or_else(String::new, |it| format!(", {name}: {it}m"));
        let limits = limit("borrowingLimit", terms.borrows) + &limit("lendingLimit", terms.lends);
        let classes = "classes: [big, small]";
        let spec = format!("tenant: {tenant}, {classes}, maxConcurrentGpus: {}m, cohort: lab{limits}", terms.nominal);
        quota(tenant, &spec)
    };
    TENANTS.into_iter().zip(terms).map(of).collect()
}

/// Grants what the bundle allows, in order; calls `each` before each decision.
fn run(
    bundle: &Bundle,
    steps: &[Step],
    mut each: impl FnMut(&UsageTable, &BTreeMap<usize, u64>, (usize, u64), bool),
) -> (UsageTable, Vec<bool>) {
    const CLASSES: [&str; 2] = ["big", "small"];
    let (mut table, mut leases, mut used, mut answers) =
        (UsageTable::under(bundle), Vec::new(), BTreeMap::new(), Vec::new());
    for step in steps {
        match *step {
            Step::Ask { tenant, class, milli } => {
                let facts = ask(TENANTS[tenant], CLASSES[class], milli, in_use(&table, TENANTS[tenant]));
                let granted = bundle.may_borrow_under(&facts).is_ok();
                each(&table, &used, (tenant, milli), granted);
                answers.push(granted);
                if granted {
                    table.add(&lease(TENANTS[tenant], CLASSES[class], milli));
                    leases.push((tenant, class, milli));
                    *used.entry(tenant).or_default() += milli;
                }
            }
            Step::End(at) if at < leases.len() => {
                let (tenant, class, milli) = leases.swap_remove(at);
                table.remove(&lease(TENANTS[tenant], CLASSES[class], milli));
                *used.entry(tenant).or_default() -= milli;
            }
            Step::End(_) => {}
        }
    }
    for (tenant, class, milli) in leases {
        table.remove(&lease(TENANTS[tenant], CLASSES[class], milli));
    }
    (table, answers)
}

proptest! {
    /// Against a direct statement of the rules over all members, and in any order of documents.
    #[test]
    fn no_more_is_used_than_all_members_have(terms in terms(), steps in steps()) {
        let quotas = quotas_of(&terms);
        let rules = |used: &BTreeMap<usize, u64>, tenant: usize, milli: u64| {
            let lends = |at: usize| terms[at].lends.unwrap_or(terms[at].nominal);
            let uses = |at: usize| used.get(&at).copied().unwrap_or(0) + if at == tenant { milli } else { 0 };
            let shared: u64 = (0..3).map(|at| uses(at).saturating_sub(terms[at].nominal - lends(at))).sum();
            let most = terms[tenant].borrows.map_or(u64::MAX, |borrows| terms[tenant].nominal + borrows);
            uses(tenant) <= most && shared <= (0..3).map(lends).sum()
        };
        let all: u64 = terms.iter().map(|terms| terms.nominal).sum();
        let (table, answers) = run(&bundle(&quotas), &steps, |_, used, (tenant, milli), granted| {
            assert_eq!(granted, rules(used, tenant, milli), "{used:?} {tenant} {milli}");
            assert!(used.values().sum::<u64>() <= all);
        });
        prop_assert_eq!(table, UsageTable::default(), "all leases have ended");
        let reversed: Vec<String> = quotas.iter().rev().cloned().collect();
        prop_assert_eq!(run(&bundle(&reversed), &steps, |_, _, _, _| {}).1, answers);
    }

    /// Whoever asks within its nominal quota fits once borrowers have given back what they owe.
    #[test]
    fn a_member_gets_its_nominal_quota_back(terms in terms(), steps in steps()) {
        let bundle = bundle(&quotas_of(&terms));
        run(&bundle, &steps, |table, used, (tenant, milli), granted| {
            let within = used.get(&tenant).copied().unwrap_or(0) + milli <= terms[tenant].nominal;
            let facts = ask(TENANTS[tenant], "big", milli, in_use(table, TENANTS[tenant]));
            let debt = bundle.quota_debt(&facts, table);
            assert_eq!(debt.is_some(), within && !granted, "{used:?}");
            if let Some(debt) = debt {
                let borrowed: Vec<LeaseUse<'_>> = used.iter().map(|(at, milli)| lease(TENANTS[*at], "big", *milli)).collect();
                assert_eq!(debt.left_milli(&borrowed), 0, "{debt:?}");
            }
        });
    }

    /// A quota that lends and borrows nothing decides as one without a cohort.
    #[test]
    fn a_quota_that_shares_nothing_is_as_without_a_cohort(terms in terms(), steps in steps()) {
        let alone: Vec<Terms> =
            terms.iter().map(|it| Terms { borrows: Some(0), lends: Some(0), ..it.clone() }).collect();
        let alone: [Terms; 3] = alone.try_into().expect("three");
        let without: Vec<String> = TENANTS.into_iter().zip(&terms).map(|(tenant, terms)| {
            quota(tenant, &format!("tenant: {tenant}, maxConcurrentGpus: {}m", terms.nominal))
        }).collect();
        let answers = [quotas_of(&alone), without].map(|quotas| run(&bundle(&quotas), &steps, |_, _, _, _| {}).1);
        prop_assert_eq!(&answers[0], &answers[1]);
    }
}
