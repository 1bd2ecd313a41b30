//! Rules: conditions that deny, require, warn and prefer.

use std::path::Path;

use comity_policy::{
    BorrowFacts, Bundle, Decision, DenyCode, PreferenceFacts, ProblemCode, SourceFile, load, read_directory,
    render_problems,
};
use comity_types::Delivery;
use proptest::prelude::*;
use proptest::sample::select;

use super::bundle::{self, HOUR};

/// The examples without their rules, and these.
fn files(rules: &str) -> Vec<SourceFile> {
    let mut files = read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    files.retain(|file| !file.text.contains("kind: Rule"));
    files.push(SourceFile { path: "rules.yaml".into(), text: rules.into() });
    files
}

fn with(rules: &str) -> Bundle {
    load(files(rules)).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)))
}

fn rule(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.comity.dev/v1\nkind: Rule\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  \
         message: because of {name}\n"
    )
}

/// What `poly-ml` asks for, in milli-GPU.
fn ask<'f>(donor: &'f str, class: &'f str, gpus_milli: u64) -> BorrowFacts<'f> {
    BorrowFacts { gpus_milli, ..bundle::ask(donor, class, 1) }
}

fn is_denied(rules: &str, facts: &BorrowFacts<'_>) -> bool {
    match with(rules).may_borrow(facts) {
        Decision::Allow(_) => false,
        Decision::Deny(denial) => {
            assert_eq!(denial.code, DenyCode::Rule, "{denial}");
            true
        }
    }
}

#[test]
fn every_field_has_its_value() {
    let facts = BorrowFacts { beside_milli: 2_500, ..ask("ncc-main", "frontier", 1_500) };
    for condition in [
        "request.origin == 'polytech-campus' && request.delivery == 'namespace'",
        "request.gpus == quantity('4') && lease.gpus == quantity('1500m')",
        "request.durationSeconds == 3600",
        "tenant.name == 'poly-ml' && tenant.weight > 0",
        "institution.name == 'polytechnic' && institution.weight == 100 && institution.region == 'north'",
        "donor.name == 'ncc-main' && donor.institution == 'national-centre' && donor.region == 'central'",
        "class.name == 'frontier' && class.rank == 300 && class.priceCredits == quantity('4')",
        "lease.agreement == 'ncc-lends-to-universities'",
        "donor.institution in ['national-centre', 'startup'] && donor.name != 'startup-pc'",
    ] {
        let [denies, requires] = ["deny", "require"].map(|effect| rule("x", &format!("{effect}: \"{condition}\"")));
        assert!(is_denied(&denies, &facts), "{condition}");
        assert!(!is_denied(&requires, &facts), "{condition}");
        let [denies, requires] = ["deny", "require"].map(|effect| rule("x", &format!("{effect}: \"!({condition})\"")));
        assert!(!is_denied(&denies, &facts) && is_denied(&requires, &facts), "{condition}");
    }
}

#[test]
fn a_denial_has_message_place_and_remedy() {
    let rules = rule("quiet", "deny: donor.name == 'ncc-main'");
    let Decision::Deny(denial) = with(&rules).may_borrow(&ask("ncc-main", "frontier", 1_000)) else {
        panic!("allowed")
    };
    assert_eq!(denial.message, "because of quiet (rule `quiet` denies it)");
    assert_eq!(denial.unblock, "ask for something else, or ask a maintainer to change Rule quiet (rules.yaml:6)");
    assert_eq!(denial.by[0].to_string(), "Rule quiet (rules.yaml:6)");
    assert!(!denial.code.may_pass());
    let rules = rule("loud", "require: donor.name == 'ncc-main'");
    let Decision::Allow(allowance) = with(&rules).may_borrow(&ask("ncc-main", "frontier", 1_000)) else {
        panic!("denied")
    };
    assert!(allowance.because.iter().any(|document| document.to_string() == "Rule loud (rules.yaml:6)"));
    // Permission comes first: a rule says nothing about what nobody may borrow anyway.
    let nothing = with(&rule("all", "deny: request.durationSeconds > 0"));
    let decision = nothing.may_borrow(&BorrowFacts { tenant: "nobody", ..ask("ncc-main", "frontier", 1_000) });
    assert_eq!(decision.denial().map(|denial| denial.code), Some(DenyCode::UnknownTenant));
}

#[test]
fn what_cannot_be_evaluated_denies() {
    let facts = ask("ncc-main", "frontier", 1_000);
    for condition in [
        "request.durationSeconds / (class.rank - 300) == 1",
        "semver(donor.region).major() == 1",
        "class.rank * 9223372036854775807 > 0",
    ] {
        for effect in ["deny", "require"] {
            let rules = rule("x", &format!("{effect}: {condition}"));
            assert!(is_denied(&rules, &facts), "{effect}: {condition}");
            let decision = with(&rules).may_borrow(&facts);
            let message = &decision.denial().unwrap().message;
            assert!(message.contains("because of x (rule `x` cannot be evaluated"), "{message}");
        }
        let warned = with(&rule("x", &format!("warn: {condition}"))).rule_warnings(&facts, None);
        assert_eq!(warned, ["because of x (Rule x (rules.yaml:6))"]);
    }
}

#[test]
fn warnings_are_told_and_deny_nothing() {
    let rules = rule("b", "warn: request.durationSeconds >= 3600") + &rule("a", "warn: request.durationSeconds > 3600");
    let bundle = with(&rules);
    let facts = ask("ncc-main", "frontier", 1_000);
    assert!(bundle.may_borrow(&facts).denial().is_none());
    assert_eq!(bundle.rule_warnings(&facts, None), ["because of b (Rule b (rules.yaml:6))"]);
}

#[test]
fn preferences_add_up() {
    let rules = [
        rule("near", "prefer: donor.region == 'central'\n  weight: 10"),
        rule("cheap", "prefer: class.name != '' && class.priceCredits.isLessThan(quantity('5'))"),
        rule("broken", "prefer: semver(donor.region).major() == 1"),
    ];
    let bundle = with(&rules.concat());
    let facts = PreferenceFacts {
        tenant: "poly-ml",
        origin_cluster: "polytech-campus",
        donor_cluster: "ncc-main",
        class: Some("frontier"),
        gpus_milli: 1_000,
        delivery: Delivery::Namespace,
        duration_ms: HOUR,
        data: &[],
        purpose: "",
    };
    assert_eq!(bundle.preference(&facts), 11);
    assert_eq!(bundle.preference(&PreferenceFacts { class: None, ..facts }), 10);
    assert_eq!(bundle.preference(&PreferenceFacts { donor_cluster: "startup-pc", ..facts }), 1);
    assert_eq!(bundle.preference(&PreferenceFacts { donor_cluster: "moon", ..facts }), 0);
}

#[test]
fn wrong_rules_are_named_with_place_and_remedy() {
    for (spec, code, place, remedy) in [
        ("deny: donor.institution == 'national-center'", ProblemCode::UnknownReference, (6, 30), "national-centre"),
        ("deny: \"'fronteir' == class.name\"", ProblemCode::UnknownReference, (6, 10), "frontier"),
        ("require: tenant.name in ['poly-ml', 'poly-mk']", ProblemCode::UnknownReference, (6, 39), "poly-ml"),
        ("deny: request.origin != 'moon'", ProblemCode::UnknownReference, (6, 27), "Institution"),
        ("deny: lease.agreement == 'handshake'", ProblemCode::UnknownReference, (6, 28), "Agreement"),
        ("deny: now > 1", ProblemCode::CelUnknownName, (6, 9), "known here"),
        ("deny: device.memoryMiB > 1", ProblemCode::CelUnknownName, (6, 9), "known here"),
        ("deny: origin == 'ncc-main'", ProblemCode::CelUnknownName, (6, 9), "did you mean `request.origin`?"),
        ("deny: tenant.nme == 'poly-ml'", ProblemCode::CelUnknownName, (6, 16), "did you mean `name`?"),
        ("deny: request.gpus > 8", ProblemCode::CelType, (6, 22), "….isGreaterThan(quantity(\"8\"))"),
        ("deny: request.gpus.isGreaterThan(8)", ProblemCode::CelType, (6, 22), "quantity("),
        ("deny: request.durationSeconds", ProblemCode::CelType, (6, 16), "compare"),
        ("prefer: lease.gpus == quantity('1')", ProblemCode::CelUnknownName, (6, 11), "known here"),
        ("prefer: donor.region == 'north'\n  weight: 0", ProblemCode::InvalidQuantity, (7, 11), ""),
        ("prefer: donor.region == 'north'\n  weight: 1001", ProblemCode::InvalidQuantity, (7, 11), ""),
        ("deny: donor.region == 'north'\n  weight: 3", ProblemCode::Contradiction, (7, 11), "prefer"),
        ("deny: donor.region == 'x'\n  require: donor.region == 'y'", ProblemCode::Contradiction, (7, 12), "two"),
        ("denies: donor.region == 'north'", ProblemCode::MissingField, (6, 3), "deny"),
    ] {
        let problems = load(files(&rule("x", spec))).unwrap_err();
        let found = problems.iter().find(|problem| problem.code == code);
        let found = found.unwrap_or_else(|| panic!("{spec}: {}", render_problems(&problems)));
        assert_eq!((found.line, found.column), place, "{spec}: {found}");
        assert!(found.remedy.contains(remedy), "{spec}: {found}");
    }
    let silent = rule("x", "deny: donor.region == 'north'").replace("  message: because of x\n", "");
    assert_eq!(load(files(&silent)).unwrap_err()[0].code, ProblemCode::MissingField);
    let silent = silent.replace("'north'", "'north'\n  message: ''");
    assert_eq!(load(files(&silent)).unwrap_err()[0].code, ProblemCode::MissingField);
    let many: String = (0..129).map(|n| rule(&format!("r{n:03}"), "warn: donor.region == 'north'")).collect();
    let problems = load(files(&many)).unwrap_err();
    assert!(problems[0].code == ProblemCode::TooLarge && problems[0].message.contains("at most 128"), "{problems:?}");
}

/// Conditions that hold for some of the facts below.
const CONDITIONS: [&str; 8] = [
    "donor.region == 'central'",
    "class.name in ['frontier', 'midrange']",
    "request.gpus.isGreaterThan(quantity('2'))",
    "lease.agreement == ''",
    "tenant.name == 'poly-ml' || institution.name == 'startup'",
    "request.durationSeconds > 7200",
    "semver(donor.region).major() == 1",
    "class.rank / (request.durationSeconds - 3600) > 0",
];

/// `prefer` cannot use the lease.
fn is_possible((effect, condition): (&str, &str)) -> bool {
    effect != "prefer" || !condition.contains("lease")
}

fn any_rules() -> impl Strategy<Value = Vec<String>> {
    let spec = (select(vec!["deny", "require", "warn", "prefer"]), select(CONDITIONS.to_vec()), any::<bool>())
        .prop_filter("possible", |(effect, condition, _)| is_possible((effect, condition)));
    let spec = spec.prop_map(|(effect, condition, negated)| match negated {
        true => format!("{effect}: \"!({condition})\""),
        false => format!("{effect}: \"{condition}\""),
    });
    proptest::collection::vec(spec, 0..4)
        .prop_map(|specs| specs.iter().enumerate().map(|(index, spec)| rule(&format!("r{index}"), spec)).collect())
}

fn any_facts() -> impl Strategy<Value = BorrowFacts<'static>> {
    let donors = select(vec!["ncc-main", "physics-farm", "startup-pc"]);
    let classes = select(vec!["frontier", "midrange", "teaching"]);
    (donors, classes, 1_u64..5_000, 1_u64..4)
        .prop_map(|(donor, class, milli, hours)| BorrowFacts { duration_ms: hours * HOUR, ..ask(donor, class, milli) })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn one_more_deny_or_require_never_grants(
        rules in any_rules(), effect in select(vec!["deny", "require"]), condition in select(CONDITIONS.to_vec()),
        facts in any_facts(),
    ) {
        let more = rules.concat() + &rule("more", &format!("{effect}: \"{condition}\""));
        let (before, after) = (with(&rules.concat()).may_borrow(&facts), with(&more).may_borrow(&facts));
        prop_assert!(before.denial().is_none() || after.denial().is_some(), "{after:?}");
    }

    #[test]
    fn warnings_and_preferences_never_deny(
        rules in any_rules(), effect in select(vec!["warn", "prefer"]), condition in select(CONDITIONS.to_vec()),
        facts in any_facts(),
    ) {
        prop_assume!(is_possible((effect, condition)));
        let more = rule("more", &format!("{effect}: \"{condition}\""));
        let (before, after) = (with(&rules.concat()), with(&(rules.concat() + &more)));
        prop_assert_eq!(before.may_borrow(&facts), after.may_borrow(&facts));
    }

    #[test]
    fn the_order_of_files_never_matters(rules in any_rules(), seed in any::<u64>(), facts in any_facts()) {
        let numbered = rules.iter().enumerate();
        let mut files = files("");
        files.extend(numbered.map(|(index, text)| SourceFile { path: format!("r{index}.yaml"), text: text.clone() }));
        let mut others = files.clone();
        others.reverse();
        let middle = seed as usize % others.len();
        others.rotate_left(middle);
        let [one, other] = [files, others].map(|files| load(files).unwrap());
        prop_assert_eq!(one.may_borrow(&facts), other.may_borrow(&facts));
        prop_assert_eq!(one.rule_warnings(&facts, None), other.rule_warnings(&facts, None));
        prop_assert_eq!(&one.hash, &other.hash);
    }
}
