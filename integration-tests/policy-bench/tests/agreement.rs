//! Comity and Rego give the same answers, so that their speeds can be compared.

use comity_policy_bench::federation::Size;
use comity_policy_bench::measure::{compare, compile, use_of};
use comity_policy_bench::opa::Opa;
use comity_policy_bench::questions::questions;
use comity_policy_bench::rules::twin_rules;
use comity_simulation::random::Random;

#[test]
fn both_answer_the_same() {
    let size = Size { tenants: 250, agreements: 200 };
    let rules = twin_rules(50);
    let bundle = compile(size, &rules).expect("valid documents");
    let mut draw = Random::new(7);
    let (usage, leases) = use_of(&bundle, size, &mut draw);
    assert!(leases.len() > 500, "only {} leases are allowed", leases.len());
    let asked = questions(size, 300, &mut draw);
    let mut opa = Opa::new(size, &rules, &leases).expect("the rules in Rego");
    compare(&bundle, &usage, &mut opa, &asked).expect("the same answers");
    let is_allowed = |rules: &[_]| {
        let bundle = compile(size, rules).expect("valid documents");
        asked.iter().filter(|it| bundle.may_borrow_under(&it.facts(it.in_use(&usage))).is_ok()).count()
    };
    // The rules deny some requests that would be allowed otherwise; else comparing them would say little.
    let (with, without) = (is_allowed(&rules), is_allowed(&[]));
    assert!(0 < with && with < without, "{with} of {without}");
}
