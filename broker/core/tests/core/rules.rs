//! Rules: the quote, the refusal, the explanation and the scheduler agree.

use comity_core::command::{PlaceRequests, RenewLease, SubmitRequest};
use comity_core::demand::{DeviceChoice, Members, RequestSpec, Share};
use comity_core::explain;
use comity_core::refusal::Code;
use comity_core::scheduler::Planner;
use comity_core::{Command, Millis};

use super::federation::{Federation, spec};
use super::reclaim::at;

fn rule(name: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: policy.comity.dev/v1\nkind: Rule\nmetadata: {{name: {name}}}\nspec:\n  {spec}\n  \
         message: because of {name}\n"
    )
}

fn with(rules: &[String]) -> Federation {
    let mut federation = Federation::ready();
    federation.also(&rules.concat());
    federation
}

fn big(count: u32) -> RequestSpec {
    spec(count, Share::Whole, "big")
}

/// The donor of a request that is submitted and placed now.
fn donor_of(federation: &mut Federation, spec: RequestSpec) -> String {
    let request = federation.submit(spec);
    federation.place();
    let lease = federation.state.requests[&request].lease.expect("a lease");
    federation.state.leases[&lease].placement.donor.to_string()
}

#[test]
fn quote_explanation_and_scheduler_leave_out_a_denied_donor() {
    let free = donor_of(&mut Federation::ready(), big(1));
    let other = if free == "north" { "south" } else { "north" };
    let mut federation = with(&[rule("closed", &format!("deny: donor.name == '{free}' && class.name == 'big'"))]);
    let quote = explain::quote(&federation.state, &big(1));
    assert_eq!(quote.placements[0].donor.as_str(), other);
    let explained = explain::explain(&federation.state, &big(1));
    let obstacle = |donor: &str| {
        let verdict = explained.donors.iter().find(|verdict| verdict.donor.as_str() == donor).unwrap();
        verdict.obstacle.clone()
    };
    let denied = obstacle(&free).unwrap();
    assert_eq!((denied.code.as_str(), denied.by), ("rule", vec!["Rule closed (more.yaml:6)".to_owned()]));
    assert_eq!(denied.reason, "because of closed (rule `closed` denies it)");
    assert_eq!(obstacle(other), None);
    assert_eq!(donor_of(&mut federation, big(1)), other);
    let small = explain::explain(&federation.state, &at(&free, spec(1, Share::Whole, "small")));
    assert!(small.donors.iter().all(|verdict| verdict.obstacle.as_ref().unwrap().code != "rule"), "{small:?}");
}

#[test]
fn a_request_that_a_rule_keeps_from_every_donor_is_refused() {
    let federation = with(&[rule("few", "require: request.gpus.isLessThan(quantity('3'))")]);
    let refusal = explain::unservable(&federation.state, &big(3), comity_core::Timestamp(federation.now)).unwrap();
    assert_eq!(refusal.code, Code::Unservable);
    assert!(refusal.reason.contains("because of few (rule `few` requires something else)"), "{refusal}");
    assert!(explain::unservable(&federation.state, &big(2), comity_core::Timestamp(federation.now)).is_none());
}

#[test]
fn a_placement_that_a_new_rule_denies_is_refused_at_apply_and_leases_run_on() {
    let mut federation = Federation::ready();
    let (_, lease) = federation.running(big(1));
    let waiting = federation.submit(big(1));
    let placements = Planner::default().plan(&federation.state, 10).placements;
    assert_eq!(placements.len(), 1);
    federation.also(&rule("closed", "deny: class.name == 'big'"));
    let applied = federation.ok(Command::PlaceRequests(PlaceRequests { placements }));
    let refused = format!("{:?}", applied.reply);
    assert!(refused.contains("because of closed"), "{refused}");
    assert!(federation.state.requests[&waiting].lease.is_none());
    // The lease is not withdrawn, and not renewed.
    assert!(federation.needs(federation.state.leases[&lease].placement.donor.clone().as_str()).is_empty());
    let renewal = RenewLease { lease, duration: Millis(60_000), may_shorten: true };
    let refusal = federation.refused(Command::RenewLease(renewal));
    assert_eq!(refusal.code, Code::PolicyDenied);
    assert!(refusal.reason.contains("because of closed"), "{refusal}");
}

#[test]
fn preferred_donors_come_first_and_others_still_serve() {
    for preferred in ["north", "south"] {
        let rules = [
            rule("weak", "prefer: donor.region != 'moon'\n  weight: 5"),
            rule("strong", &format!("prefer: donor.name == '{preferred}'\n  weight: 3")),
        ];
        let mut federation = with(&rules);
        assert_eq!(explain::quote(&federation.state, &big(1)).placements[0].donor.as_str(), preferred);
        assert_eq!(donor_of(&mut federation, big(1)), preferred);
        let selected = RequestSpec {
            gpus: comity_core::demand::GpuDemand {
                devices: DeviceChoice::Selector("device.memoryMiB > 0".into()),
                ..big(1).gpus
            },
            ..big(1)
        };
        assert_eq!(donor_of(&mut federation, selected), preferred);
        let gang = RequestSpec { members: Some(Members { min: 1, desired: 2 }), ..big(1) };
        assert_eq!(donor_of(&mut federation, gang), preferred);
        let other = if preferred == "north" { "south" } else { "north" };
        assert_eq!(donor_of(&mut federation, at(other, big(1))), other);
    }
}

#[test]
fn warnings_are_told_of_donors_that_policy_allows() {
    let mut federation = with(&[
        rule("far", "warn: donor.name == 'south'"),
        rule("long", "warn: request.durationSeconds > 1800"),
        rule("closed", "deny: donor.name == 'south' && request.durationSeconds > 3600"),
    ]);
    let warnings = |federation: &Federation, minutes| {
        let spec = RequestSpec { duration: Millis::from_mins(minutes), ..big(1) };
        let explained = explain::quote(&federation.state, &spec).explanation;
        let by_donor = explained.donors.iter().filter(|verdict| verdict.donor.as_str() == "south");
        (explain::rule_warnings(&federation.state, &spec), by_donor.flat_map(|it| it.warnings.clone()).collect())
    };
    let far = "because of far (Rule far (more.yaml:6))".to_owned();
    let long = "because of long (Rule long (more.yaml:13))".to_owned();
    assert_eq!(warnings(&federation, 30), (vec![far.clone()], vec![far.clone()]));
    assert_eq!(warnings(&federation, 60), (vec![far.clone(), long.clone()], vec![far, long.clone()]));
    assert_eq!(warnings(&federation, 90), (vec![long], Vec::<String>::new()));
    // They deny nothing.
    let submit = SubmitRequest { spec: big(1), submitted_by: "alice".into() };
    federation.ok(Command::SubmitRequest(submit));
    assert_eq!(federation.place().len(), 1);
}
