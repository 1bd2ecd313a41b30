//! A plan of a bundle names what applying it would do, and changes nothing.

use comity_core::command::{ApplyPolicy, RenewLease};
use comity_core::demand::Share;
use comity_core::explain::{
    BorrowingEffect, CapacityEffect, CohortEffect, InstitutionEffect, NextInQueue, PolicyPlan, Prospect, RequestEffect,
    policy_plan,
};
use comity_core::{Actor, Command, Millis, Refusal, State};
use comity_policy::{BundleSource, CohortTerms, Difference, SourceFile};
use comity_types::{LeaseId, LeaseTreatment, PriorityName, RequestId, TenantId};

use super::federation::{Federation, RIVALS, cluster, spec, terms};
use super::policy_changes::{ADMIN, unforced};

const LENDS: &str = "lends: [{classes: [big, small]}]";

pub(crate) fn plan_of(state: &State, command: ApplyPolicy) -> Result<PolicyPlan, Refusal> {
    let revision = state.revision;
    let plan = policy_plan(state, command, (Actor::User(ADMIN.into()), 0), state.log_time).unwrap();
    assert_eq!(state.revision, revision);
    plan
}

fn plan(federation: &Federation, source: BundleSource) -> PolicyPlan {
    plan_of(&federation.state, unforced(source)).unwrap()
}

/// The test federation's documents and others.
fn with(documents: &str) -> BundleSource {
    let mut source = terms("---", "---");
    source.files.push(SourceFile { path: "more.yaml".into(), text: documents.into() });
    source
}

fn quota(limits: &str) -> BundleSource {
    with(&format!(
        "apiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {{name: team}}\nspec: {{tenant: team, {limits}}}\n"
    ))
}

/// A federation in which `team` holds a lease of two big GPUs at `north`.
fn lent() -> (Federation, LeaseId) {
    let (mut federation, _, lease, peering) = Federation::placed();
    federation.shake_hands(peering, 1);
    federation.activate(lease);
    (federation, lease)
}

fn team() -> TenantId {
    TenantId::parse("team", "tenant").unwrap()
}

fn prospects(plan: &PolicyPlan) -> Vec<(RequestId, Prospect)> {
    plan.requests.named.iter().map(|it| (it.request, it.prospect.clone())).collect()
}

#[test]
fn a_withdrawn_class_ends_leases_and_keeps_requests_from_every_donor() {
    let (mut federation, lease) = lent();
    let request = federation.submit(spec(1, Share::Whole, "big"));
    let none_big = terms(LENDS, "lends: [{classes: [small]}]");

    let found = plan(&federation, none_big.clone());
    assert_eq!((found.documents.added, found.documents.changed, found.documents.removed), (0, 2, 0));
    let changed = &found.documents.documents[0];
    assert_eq!(changed.document.to_string(), "Cluster north (all.yaml:22)");
    let Difference::Changed { fields, .. } = &changed.difference else { panic!("{changed:?}") };
    assert_eq!((fields[0].path.as_str(), fields[0].before.as_deref()), ("lends[0].classes", Some("big")));

    let held = &federation.state.leases[&lease];
    let [effect] = &found.leases.named[..] else { panic!("{:?}", found.leases) };
    assert_eq!(
        (effect.lease, effect.treatment, effect.code.as_str()),
        (lease, LeaseTreatment::Drain, "class-not-lent")
    );
    assert_eq!((effect.gpu_milli, &effect.donor), (held.placement.milli(), &held.placement.donor));
    assert_eq!(effect.reason, "`north` does not lend class `big`");
    let grace = federation.state.policy.as_ref().unwrap().bundle.reclaim_grace_ms("north");
    assert_eq!(effect.until, federation.state.log_time.after(Millis(grace)).min(held.due().unwrap()));

    let [(of, Prospect::Denied(reason))] = &prospects(&found)[..] else { panic!("{:?}", found.requests) };
    assert!(*of == request && reason.contains("big"), "{reason}");
    let lost = |donor: &str| BorrowingEffect {
        tenant: "team".into(),
        donor: donor.into(),
        classes: vec!["big".into()],
        denied: Some(format!("`{donor}` does not lend class `big`")),
    };
    assert_eq!(found.borrowing.named, [lost("north"), lost("south")]);
    let loses = |name, before_milli| CapacityEffect { cluster: cluster(name), before_milli, after_milli: 0 };
    assert_eq!(found.capacities.named, [loses("north", 16_000), loses("south", 4_000)]);
    assert_eq!(
        found.institutions.named,
        [
            InstitutionEffect { institution: "lenders".into(), lends_milli: [20_000, 0], borrows_milli: [0, 0] },
            InstitutionEffect { institution: "western".into(), lends_milli: [0, 0], borrows_milli: [20_000, 0] },
        ]
    );
    let next = NextInQueue { request, tenant: team(), place_before: Some(1), starts_at: Vec::new() };
    assert_eq!((found.queue.named, found.queue.count), (vec![next], 1));
}

#[test]
fn a_bundle_that_says_the_same_has_no_effects() {
    let (mut federation, _) = lent();
    federation.submit(spec(1, Share::Whole, "big"));
    assert_eq!(plan(&federation, terms("---", "---")), PolicyPlan::default(), "in force already");
    let commented = plan(&federation, with("# Nothing.\n"));
    assert_eq!(commented, PolicyPlan { replaces: true, ..PolicyPlan::default() });
}

#[test]
fn a_restored_class_starts_requests_at_once() {
    let mut federation = Federation::ready();
    federation.with_terms("classes: [big, small]\n  clusters: [west]", "classes: [small]\n  clusters: [west]");
    let none_big = terms(LENDS, "lends: [{classes: [small]}]");
    federation.ok(Command::ApplyPolicy(unforced(none_big)));
    let fits = federation.submit(spec(3, Share::Whole, "big"));
    let too_large = federation.submit(spec(40, Share::Whole, "big"));

    let found = plan(&federation, terms("---", "---"));
    let [(first, Prospect::Starts(donors)), (second, Prospect::Allowed)] = &prospects(&found)[..] else {
        panic!("{:?}", found.requests)
    };
    assert_eq!((*first, *second, donors.len()), (fits, too_large, 1));
    let started: Vec<_> = found.queue.named.iter().map(|next| (next.request, next.starts_at.is_empty())).collect();
    assert_eq!(started, [(fits, false), (too_large, true)]);
    assert_eq!((found.borrowing.count, &found.borrowing.named[0].denied), (2, &None));
}

#[test]
fn a_request_that_could_start_now_and_no_longer_waits() {
    let mut federation = Federation::ready();
    let request = federation.submit(spec(3, Share::Whole, "big"));
    let found = plan(&federation, terms(LENDS, "lends: [{classes: [big, small], maxGpus: 4}], localReserveGpus: 14"));
    let [RequestEffect { request: of, prospect: Prospect::Waits(reason), .. }] = &found.requests.named[..] else {
        panic!("{:?}", found.requests)
    };
    assert!(*of == request && reason.starts_with("not placed: none of 2 donors"), "{reason}");
}

#[test]
fn a_lowered_quota_keeps_leases_from_being_renewed() {
    let (mut federation, lease) = lent();
    let gpus = federation.state.leases[&lease].placement.milli() / 1_000;
    let lowered = || quota(&format!("maxConcurrentGpus: {}", gpus - 1));
    let found = plan(&federation, lowered());
    let [effect] = &found.leases.named[..] else { panic!("{:?}", found.leases) };
    assert_eq!(
        (effect.lease, effect.treatment, effect.code.as_str()),
        (lease, LeaseTreatment::Finish, "request-too-large")
    );
    assert!(effect.reason.contains("quota"), "{}", effect.reason);
    assert_eq!(Some(effect.until), federation.state.leases[&lease].expires_at);
    assert_eq!(
        found.institutions.named,
        [InstitutionEffect {
            institution: "western".into(),
            lends_milli: [0, 0],
            borrows_milli: [20_000, (gpus - 1) * 1_000]
        }]
    );
    assert_eq!((found.borrowing.count, found.capacities.count), (0, 0), "one GPU may still be borrowed");

    // Renewal says the same.
    federation.ok(Command::ApplyPolicy(unforced(lowered())));
    let renew = RenewLease { lease, duration: Millis(0), may_shorten: false };
    let refusal = federation.refused(Command::RenewLease(renew));
    assert!(refusal.reason.starts_with(&effect.reason), "{refusal}");
}

#[test]
fn a_quota_that_leaves_a_cohort_takes_what_the_others_could_borrow() {
    let (mut federation, lease) = lent();
    let quota = |tenant: &str, limits: &str| {
        let head = "---\napiVersion: policy.comity.dev/v1\nkind: Quota";
        format!("{head}\nmetadata: {{name: {tenant}}}\nspec: {{tenant: {tenant}, {limits}}}\n")
    };
    let source =
        |team: &str, juniors: &str| with(&format!("{RIVALS}{}{}", quota("team", team), quota("juniors", juniors)));
    let both = source("cohort: lab, maxConcurrentGpus: 8", "cohort: lab, maxConcurrentGpus: 6, lendingLimit: 4");
    federation.ok(Command::ApplyPolicy(unforced(both.clone())));
    assert_eq!(plan(&federation, both).cohorts.count, 0);

    let found = plan(&federation, source("cohort: lab, maxConcurrentGpus: 8", "maxConcurrentGpus: 6"));
    let terms = |nominal_milli, borrows_milli, lends_milli| {
        Some(CohortTerms { cohort: "lab".into(), nominal_milli, borrows_milli, lends_milli })
    };
    let used_milli = federation.state.leases[&lease].placement.milli();
    assert!(used_milli > 0);
    let [juniors, team] = ["juniors", "team"].map(str::to_owned);
    assert_eq!(
        found.cohorts.named,
        [
            CohortEffect { quota: juniors, before: terms(6_000, 8_000, 4_000), after: None, used_milli: 0 },
            CohortEffect { quota: team, before: terms(8_000, 4_000, 8_000), after: terms(8_000, 0, 8_000), used_milli },
        ]
    );
}

#[test]
fn limits_on_single_requests_are_no_limits_on_capacity() {
    let federation = Federation::ready();
    let found = plan(&federation, quota("maxGpusPerRequest: 2"));
    assert_eq!((found.documents.added, found.institutions.count), (1, 0), "{:?}", found.institutions);
    let found = plan(&federation, quota("classes: [big], maxConcurrentGpus: 7"));
    assert_eq!(found.institutions.named[0].borrows_milli, [20_000, 7_000]);
}

#[test]
fn rules_about_single_requests_are_no_limits_on_capacity() {
    let federation = Federation::ready();
    let rule = |condition: &str| {
        with(&format!(
            "apiVersion: policy.comity.dev/v1\nkind: Rule\nmetadata: {{name: r}}\nspec:\n  {condition}\n  message: m\n"
        ))
    };
    for condition in [
        "require: request.durationSeconds >= 600",
        "deny: request.gpus.isLessThan(quantity('2'))",
        "require: lease.gpus.compareTo(quantity('1')) >= 0",
        "deny: request.delivery == 'namespace'",
    ] {
        let found = plan(&federation, rule(condition));
        assert_eq!((found.documents.added, found.institutions.count, found.borrowing.count), (1, 0, 0), "{found:?}");
    }
    let found = plan(&federation, rule("deny: donor.name == 'north' && class.name == 'big'"));
    assert_eq!(found.borrowing.named[0].classes, ["big"], "{found:?}");
    assert_eq!(found.institutions.named[0].borrows_milli, [20_000, 4_000], "{found:?}");
}

#[test]
fn limits_of_terms_count_as_capacity() {
    let federation = Federation::ready();
    let to = |terms_of_north: &str| {
        terms("{name: north}\nspec: {institution: lenders, lends: [{classes: [big, small]}]", terms_of_north)
    };
    for (limits, after_milli) in [
        ("lends: [{classes: [big, small], maxGpus: 5}]", 5_000),
        ("lends: [{classes: [big, small]}], maxLentGpus: 3", 3_000),
        ("lends: [{classes: [big, small]}], localReserveGpus: 2", 14_000),
        ("lends: [{classes: [big, small]}], accepting: false", 0),
    ] {
        let found = plan(&federation, to(&format!("{{name: north}}\nspec: {{institution: lenders, {limits}")));
        let before_milli = 16_000;
        assert_eq!(found.capacities.named, [CapacityEffect { cluster: cluster("north"), before_milli, after_milli }]);
        let [lenders, western] = &found.institutions.named[..] else { panic!("{:?}", found.institutions) };
        assert_eq!(lenders.lends_milli, [20_000, 4_000 + after_milli]);
        assert_eq!(western.borrows_milli, [20_000, 4_000 + after_milli], "{limits}");
    }
}

#[test]
fn priorities_decide_who_is_next() {
    let mut federation = Federation::with_rivals();
    let normal = federation.submit(spec(40, Share::Whole, "big"));
    let mut low = spec(30, Share::Whole, "big");
    low.priority = Some(PriorityName::parse("low", "priority").unwrap());
    let low = federation.submit(low);
    let raised =
        with(&RIVALS.replace("metadata: {name: low}\nspec: {value: 1}", "metadata: {name: low}\nspec: {value: 11}"));
    let found = plan(&federation, raised);
    let order: Vec<_> = found.queue.named.iter().map(|next| (next.request, next.place_before)).collect();
    assert_eq!(order, [(low, Some(2)), (normal, Some(1))]);
    assert_eq!((found.requests.count, found.leases.count, found.borrowing.count), (0, 0, 0));
}

#[test]
fn a_long_list_is_cut_and_its_rest_is_counted() {
    let mut federation = Federation::ready();
    for _ in 0..101 {
        federation.submit(spec(1, Share::Whole, "small"));
    }
    let found = plan(&federation, terms(LENDS, "lends: [{classes: [big]}]"));
    assert_eq!((found.requests.named.len(), found.requests.count), (100, 101));
    assert_eq!((found.queue.named.len(), found.queue.count), (10, 101));
}

#[test]
fn under_the_first_bundle_everything_is_new() {
    let found = plan_of(&State::default(), unforced(terms("---", "---"))).unwrap();
    assert_eq!((found.documents.added, found.documents.changed), (9, 0));
    assert_eq!(found.borrowing.named.len(), 2);
}
