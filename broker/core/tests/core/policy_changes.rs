//! Bundles that would lock out their applier, or replace a bundle that he has not seen, are refused.

use comity_core::command::ApplyPolicy;
use comity_core::log::LOG_FORMAT;
use comity_core::refusal::Code;
use comity_core::{Actor, Command, LogEnvelope, Refusal, Reply, ReplyBody, State, Timestamp};
use comity_policy::{Bundle, BundleSource};

use super::federation::{Federation, terms};
use super::policy_plans::plan_of;

pub(crate) const ADMIN: &str = "spiffe://test.example/user/admin";
const OTHER: &str = "spiffe://test.example/user/other";
const MAINTAINERS: &str = "maintainers: [\"spiffe://test.example/user/admin\"]";

fn maintained_by(ids: &[&str]) -> BundleSource {
    terms(MAINTAINERS, &format!("maintainers: {ids:?}"))
}

pub(crate) fn unforced(source: BundleSource) -> ApplyPolicy {
    ApplyPolicy { source, force: false, expected_hash: None }
}

fn forced(source: BundleSource) -> ApplyPolicy {
    ApplyPolicy { source, force: true, expected_hash: None }
}

fn apply_as(state: &mut State, user: &str, command: ApplyPolicy) -> Reply {
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor: Actor::User(user.into()),
        generation: 0,
        time: Timestamp(2_000_000),
        traceparent: String::new(),
        idempotency: None,
        command: Command::ApplyPolicy(command),
    };
    state.apply(&entry).unwrap().reply
}

fn assert_names_maintainers(refusal: &Refusal, value: &str, reason: &str) {
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, "Federation.spec.maintainers"));
    assert_eq!(refusal.value, value);
    assert!(refusal.reason.contains(reason) && refusal.remedy.contains("--force"), "{refusal}");
}

#[test]
fn a_maintainer_who_removes_himself_needs_force() {
    let mut state = Federation::with_policy().state;
    let refusal = apply_as(&mut state, ADMIN, unforced(maintained_by(&[OTHER]))).unwrap_err();
    assert_names_maintainers(&refusal, ADMIN, &format!("does not name {ADMIN} as a maintainer"));
    // Another maintainer may remove him.
    assert!(apply_as(&mut state, ADMIN, unforced(maintained_by(&[ADMIN, OTHER]))).is_ok());
    assert!(apply_as(&mut state, OTHER, unforced(maintained_by(&[OTHER]))).is_ok());
    assert!(apply_as(&mut state, OTHER, forced(maintained_by(&[ADMIN]))).is_ok());
}

#[test]
fn the_first_bundle_names_its_applier() {
    let mut state = State::default();
    let refusal = apply_as(&mut state, OTHER, unforced(maintained_by(&[ADMIN]))).unwrap_err();
    assert_names_maintainers(&refusal, OTHER, "you could not apply another bundle");
    assert!(apply_as(&mut state, ADMIN, unforced(maintained_by(&[ADMIN]))).is_ok());
}

#[test]
fn a_bundle_replaces_only_the_one_that_its_caller_has_seen() {
    let mut state = State::default();
    let over = |expected: &str, source| ApplyPolicy { expected_hash: Some(expected.to_owned()), ..unforced(source) };
    let hash = |state: &State| state.policy.as_ref().unwrap().bundle.hash.clone();
    let changed = |changed| Ok(ReplyBody::Policy { changed });

    let refusal = apply_as(&mut state, ADMIN, over("5e", maintained_by(&[ADMIN]))).unwrap_err();
    assert_eq!((refusal.code, refusal.reason.as_str()), (Code::PolicyChanged, "no policy bundle is in force"));
    assert_eq!(apply_as(&mut state, ADMIN, over("", maintained_by(&[ADMIN]))), changed(true));
    let first = hash(&state);
    let both = maintained_by(&[ADMIN, OTHER]);
    assert_eq!(apply_as(&mut state, ADMIN, over(&first, both.clone())), changed(true));

    // Two people edited the first bundle: the second one learns of it.
    let third = maintained_by(&[ADMIN, "spiffe://test.example/user/third"]);
    for seen in [first.as_str(), ""] {
        let refusal = apply_as(&mut state, OTHER, over(seen, third.clone())).unwrap_err();
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::PolicyChanged, "expected_hash"));
        assert!(refusal.reason.contains(&hash(&state)) && refusal.reason.contains(ADMIN), "{refusal}");
        assert_eq!(plan_of(&state, over(seen, third.clone())).unwrap_err().code, Code::PolicyChanged);
    }
    assert_eq!(apply_as(&mut state, OTHER, over(&first, both)), changed(false), "in force already");
    let second = hash(&state);
    assert_eq!(apply_as(&mut state, ADMIN, over(&second, third.clone())), changed(true));
    assert_eq!(hash(&state), Bundle::compile(&third).unwrap().hash);
}

#[test]
fn a_plan_refuses_what_applying_would() {
    let federation = Federation::with_policy();
    let refusal = plan_of(&federation.state, unforced(maintained_by(&[OTHER]))).unwrap_err();
    assert_names_maintainers(&refusal, ADMIN, "as a maintainer");
}
