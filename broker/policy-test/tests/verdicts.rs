//! Scenarios that fail say what differs; what cannot be is told apart.

use comity_policy::{Scenario, SourceFile, load, read_tests, render_problems};
use comity_policy_test::{Outcome, ScenarioRunner, Verdict};

const POLICY: &str = r#"
apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {name: test}
spec: {trustDomain: test.example, maintainers: ["spiffe://test.example/user/admin"]}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: both}
spec: {displayName: Both, contact: "ops@both.example", clusters: [west, north]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: north}
spec:
  institution: both
  lends: [{classes: [big]}]
  reclaimGrace: 10m
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: big}
spec: {selector: device.memoryMiB >= 80000, rank: 10}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: team}
spec:
  institution: both
  members: [{id: "spiffe://test.example/user/alice", role: submitter}]
  classes: [big]
  clusters: [west]
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 10, default: true}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 1000, mayPreempt: true}
"#;

const GIVEN: &str = "
apiVersion: policy.comity.dev/v1
kind: PolicyTest
given:
  now: 2026-11-23T08:00:00Z
  clusters: [{name: north, nodes: [{gpus: 4, product: NVIDIA-H100-80GB-HBM3}]}]
scenarios:
";

fn files() -> Vec<SourceFile> {
    vec![SourceFile { path: "all.yaml".to_owned(), text: POLICY.to_owned() }]
}

/// Runs one scenario.
fn run(scenario: &str) -> Outcome {
    let bundle = load(files()).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let file = SourceFile { path: "a.test.yaml".to_owned(), text: format!("{GIVEN}{scenario}") };
    let read = read_tests(&[file], &bundle).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let runner = ScenarioRunner::new(&bundle).expect("a valid bundle");
    let [scenario]: [Scenario; 1] = read.try_into().expect("one scenario");
    runner.run(&scenario)
}

fn passes(scenario: &str) {
    let outcome = run(scenario);
    assert!(outcome.passed(), "{outcome:#?}");
}

/// Pairs of what was expected and what happens, by field.
fn differences(scenario: &str) -> Vec<(String, String, String)> {
    match run(scenario).verdict {
        Verdict::Failed { differences, .. } => {
            differences.into_iter().map(|it| (it.field, it.expected, it.actual)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn impossible(scenario: &str) -> String {
    match run(scenario).verdict {
        Verdict::Impossible { reason } => reason,
        other => panic!("{other:?}"),
    }
}

const URGENT: &str = "
- name: preemption
  given:
    leases:
    - {name: yields, donor: north, tenant: team, origin: west, class: big, gpus: 2, age: 1h, preemptible: {grace: 1m}}
    - {name: stays, donor: north, tenant: team, origin: west, class: big, gpus: 2, age: 1h}
  request: {tenant: team, origin: west, class: big, gpus: 2, priority: urgent}
  expect: {decision: waits, reasons: [{donor: north, code: no-capacity}], reclaims: [RECLAIMS]}
";

#[test]
fn preemption_reclaims_what_yields() {
    passes(&URGENT.replace("RECLAIMS", "{lease: yields, reason: preempted}"));
    let found = differences(&URGENT.replace("RECLAIMS", "{lease: stays}"));
    assert_eq!(found, [("reclaims".to_owned(), "stays".to_owned(), "yields (preempted)".to_owned())]);
}

#[test]
fn a_failed_expectation_names_the_field_and_what_happens() {
    let request = "  request: {tenant: team, origin: west, class: big, gpus: 5}\n";
    let found = differences(&format!("- name: a\n{request}  expect: {{decision: placed, donor: north}}\n"));
    let fields: Vec<&str> = found.iter().map(|(field, ..)| field.as_str()).collect();
    assert_eq!(fields, ["decision", "donor"]);
    assert_eq!((found[0].2.as_str(), found[1].2.as_str()), ("denied", "none"));
    let found = differences(&format!(
        "- name: a\n{request}  expect: {{decision: denied, reasons: [{{donor: north, code: no-agreement}}]}}\n"
    ));
    assert_eq!(found[0].0, "reasons[0]");
    assert!(found[0].2.starts_with("north: no-such-devices: "), "{found:?}");
    let found = differences(
        "- name: a\n  request: {tenant: team, origin: west, class: big, gpus: 1}\n  expect: {decision: placed, cites: \
         [Cluster north reclaimGrace]}\n",
    );
    assert_eq!(found[0].0, "cites");
    assert!(found[0].1.contains("Cluster north (all.yaml:") && found[0].2.contains("Cluster north (all.yaml:"));
    assert_ne!(found[0].1, found[0].2, "the lines differ");
}

#[test]
fn what_cannot_be_given_is_no_failed_expectation() {
    let lease = |more: &str| {
        format!(
            "- name: a\n  given: {{leases: [{{name: l, donor: north, tenant: team, origin: west, class: big, \
             {more}}}]}}\n  expect: {{reclaims: []}}\n"
        )
    };
    passes(&lease("gpus: 4"));
    let reason = impossible(&lease("gpus: 8"));
    assert!(reason.starts_with("lease `l` cannot be at north: ") && reason.contains('8'), "{reason}");
    let reason = impossible(&lease("gpus: 1, age: 5h"));
    assert!(reason.contains("lease `l`") && reason.contains("lengthen its `duration`"), "{reason}");
    passes(&lease("gpus: 1, age: 5h, duration: 6h"));
}

#[test]
fn requests_that_wait_take_their_turn() {
    let waiting = |priority: &str| {
        format!(
            "- name: a\n  given:\n    waiting: [{{tenant: team, origin: west, class: big, gpus: 3, age: \
             10m{priority}}}]\n  request: {{tenant: team, origin: west, class: big, gpus: 2}}\n  expect: {{decision: \
             waits, reasons: [{{donor: north, code: no-capacity}}]}}\n"
        )
    };
    passes(&waiting(""));
    passes(&waiting(", priority: urgent"));
    let alone =
        "- name: a\n  request: {tenant: team, origin: west, class: big, gpus: 2}\n  expect: {decision: placed}\n";
    passes(alone);
}

#[test]
fn the_same_scenario_has_the_same_outcome() {
    let scenario = URGENT.replace("RECLAIMS", "");
    assert_eq!(run(&scenario), run(&scenario));
}
