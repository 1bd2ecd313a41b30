//! The policy's Git repository: who may record what, and what stays in force.

use std::collections::BTreeSet;

use comity_core::broker_record::BrokerRole;
use comity_core::command::{ApplyPolicy, AssignBroker, PullOutcome, RecordPull, RemovePolicySource, SetPolicySource};
use comity_core::log::LOG_FORMAT;
use comity_core::refusal::Code;
use comity_core::{Actor, Applied, Command, LogEnvelope, Millis, Reply, ReplyBody, State};
use comity_policy::BundleSource;

use super::federation::{Federation, terms};
use super::policy_changes::{ADMIN, unforced};
use super::policy_plans::plan_of;

const URL: &str = "https://git.example/policy.git";
const MAINTAINERS: &str = "maintainers: [\"spiffe://test.example/user/admin\"]";
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKSGFHN1LIBMn7TCZCHlpXp+hmjmZyxjj6/rXTnCUVlL";

fn set() -> SetPolicySource {
    SetPolicySource {
        repository: URL.to_owned(),
        branch: "main".to_owned(),
        folder: "policy".to_owned(),
        interval: Millis(60_000),
        new_history: false,
    }
}

fn commit(digit: char) -> Option<String> {
    Some(digit.to_string().repeat(40))
}

/// A pull that found `head`, judged by what is in force.
fn pull(state: &State, head: Option<String>, outcome: PullOutcome) -> RecordPull {
    RecordPull {
        repository: URL.to_owned(),
        branch: "main".to_owned(),
        folder: set().folder,
        judged_by: state.provenance.commit.clone(),
        bundle_hash: state.policy.as_ref().unwrap().bundle.hash.clone(),
        head,
        artifact: None,
        outcome,
    }
}

fn signers() -> BTreeSet<String> {
    BTreeSet::from(["institution `north`".to_owned(), "maintainer ingrid".to_owned()])
}

fn accepted(source: BundleSource, digit: char) -> PullOutcome {
    PullOutcome::Accepted {
        source: BundleSource { commit: commit(digit), ..source },
        signed_by: signers(),
        taken_names: BTreeSet::from(["gone".to_owned()]),
    }
}

fn failed(reason: &str) -> PullOutcome {
    let text = |text: &str| text.to_owned();
    PullOutcome::Failed { code: text("unsigned"), commit: text("abc"), reason: text(reason), remedy: text("sign") }
}

/// A policy that requires signatures.
fn signed() -> BundleSource {
    let user = "spiffe://test.example/user/admin";
    let signatures = format!(
        "{MAINTAINERS}\n  signatures: {{required: true, maintainersNeeded: 1}}\n  commitKeys: [{{maintainer: \
         \"{user}\", key: {KEY}}}]"
    );
    terms(MAINTAINERS, &signatures)
}

/// Commands of the golden log.
pub(crate) const PULLED: [fn(&State) -> Command; 3] = [
    |_| Command::SetPolicySource(set()),
    |state| Command::RecordPull(pull(state, commit('a'), failed("no signature"))),
    |_| Command::RemovePolicySource(RemovePolicySource {}),
];

fn apply_by(state: &mut State, actor: Actor, command: Command) -> Reply {
    apply(state, actor, command).reply
}

fn apply(state: &mut State, actor: Actor, command: Command) -> Applied {
    let entry = LogEnvelope {
        format: LOG_FORMAT,
        actor,
        generation: 0,
        time: state.log_time,
        traceparent: String::new(),
        idempotency: None,
        command,
    };
    state.apply(&entry).unwrap()
}

fn by_leader(state: &mut State, command: RecordPull) -> Reply {
    apply_by(state, Actor::Leader(1), Command::RecordPull(command))
}

fn with_source() -> State {
    let mut federation = Federation::with_policy();
    // A broker acts only while it is in the group.
    federation.ok(Command::AssignBroker(AssignBroker {
        broker: 1,
        role: BrokerRole::Voter,
        raft_address: "10.0.0.1:7444".to_owned(),
        client_address: "10.0.0.1:7443".to_owned(),
    }));
    let mut state = federation.state;
    apply_by(&mut state, Actor::User(ADMIN.into()), Command::SetPolicySource(set())).unwrap();
    state
}

#[test]
fn an_accepted_commit_is_in_force_and_the_next_one_is_judged_by_it() {
    let mut state = with_source();
    let first = pull(&state, commit('a'), accepted(signed(), 'a'));
    assert_eq!(by_leader(&mut state, first.clone()), Ok(ReplyBody::Policy { changed: true }));
    assert_eq!((&state.provenance.commit, &state.provenance.began), (&commit('a'), &commit('a')));
    assert_eq!(state.policy.as_ref().unwrap().source.commit, commit('a'));
    assert!(state.provenance.taken_names.contains("gone"));
    // Judged by what is no longer in force.
    assert_eq!(by_leader(&mut state, first).unwrap_err().code, Code::PolicyChanged);
    // The commit outlives the source, so that another source cannot bring back an older one.
    let admin = || Actor::User(ADMIN.into());
    apply_by(&mut state, admin(), Command::RemovePolicySource(RemovePolicySource {})).unwrap();
    assert_eq!(state.provenance.commit, commit('a'));
    apply_by(&mut state, admin(), Command::SetPolicySource(set())).unwrap();
    assert_eq!(state.provenance.commit, commit('a'));
    let second = pull(&state, commit('b'), accepted(signed(), 'b'));
    by_leader(&mut state, second).unwrap();
    assert_eq!((&state.provenance.commit, &state.provenance.began), (&commit('b'), &commit('a')));
    let new_history = SetPolicySource { new_history: true, ..set() };
    apply_by(&mut state, admin(), Command::SetPolicySource(new_history)).unwrap();
    assert_eq!((&state.provenance.commit, &state.provenance.began), (&None, &None));
    let other = pull(&state, commit('c'), accepted(signed(), 'c'));
    by_leader(&mut state, other).unwrap();
    assert_eq!((&state.provenance.commit, &state.provenance.began), (&commit('c'), &commit('c')));
    assert!(state.provenance.taken_names.contains("gone"));
}

#[test]
fn the_record_of_a_pulled_commit_names_who_signed_it() {
    let mut state = with_source();
    let pulled = Command::RecordPull(pull(&state, commit('a'), accepted(signed(), 'a')));
    let applied = apply(&mut state, Actor::Leader(1), pulled);
    let line = &applied.audit.iter().find(|sealed| sealed.line.contains("policy-applied")).unwrap().line;
    let cause = format!("commit {}, signed by institution `north`, maintainer ingrid", commit('a').unwrap());
    assert!(line.contains(&cause), "{line}");
    assert_eq!(state.policy.as_ref().unwrap().signed_by, signers());
    // A bundle that somebody applies has no signatures.
    let mut state = Federation::with_policy().state;
    let other = ApplyPolicy {
        source: terms(MAINTAINERS, &format!("{MAINTAINERS}\n  planners: []")),
        force: true,
        expected_hash: None,
    };
    let applied = apply(&mut state, Actor::User(ADMIN.into()), Command::ApplyPolicy(other));
    assert!(applied.audit.iter().all(|sealed| !sealed.line.contains("signed by")));
    assert!(state.policy.as_ref().unwrap().signed_by.is_empty());
}

#[test]
fn the_artifact_in_force_outlives_failures_and_another_setting() {
    let mut state = with_source();
    let of = |state: &State, artifact: char, outcome| RecordPull {
        artifact: Some(format!("sha256:{artifact}")),
        ..pull(state, None, outcome)
    };
    let shown = |state: &State| {
        let provenance = state.provenance.clone();
        (provenance.artifact.unwrap_or_default(), provenance.source.unwrap().artifact.unwrap_or_default())
    };
    let texts = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let (source, nobody) = (terms(MAINTAINERS, MAINTAINERS), BTreeSet::new());
    let accepted = PullOutcome::Accepted { source, signed_by: nobody.clone(), taken_names: nobody };
    let record = of(&state, 'a', accepted);
    by_leader(&mut state, record).unwrap();
    assert_eq!(shown(&state), texts("sha256:a", "sha256:a"));
    let record = of(&state, 'b', failed("no signature"));
    by_leader(&mut state, record).unwrap();
    assert_eq!(shown(&state), texts("sha256:a", "sha256:b"));
    apply_by(&mut state, Actor::User(ADMIN.into()), Command::SetPolicySource(set())).unwrap();
    assert_eq!(shown(&state), texts("sha256:a", ""));
    let record = pull(&state, None, PullOutcome::InForce);
    by_leader(&mut state, record).unwrap();
    assert_eq!(shown(&state), texts("", ""), "the directory's documents are in force now");
}

#[test]
fn a_failed_pull_leaves_the_last_good_bundle_and_says_since_when() {
    let mut state = with_source();
    let before = state.policy.clone().unwrap().bundle.hash.clone();
    let refused = pull(&state, commit('b'), failed("no signature"));
    by_leader(&mut state, refused.clone()).unwrap();
    let source = state.provenance.source.clone().unwrap();
    let failure = source.failure.clone().unwrap();
    assert_eq!((source.head, failure.code.as_str()), (commit('b'), "unsigned"));
    assert_eq!(state.policy.as_ref().unwrap().bundle.hash, before);
    assert_eq!(state.provenance.commit, None);
    let good = pull(&state, commit('c'), PullOutcome::InForce);
    by_leader(&mut state, good).unwrap();
    assert_eq!(state.provenance.source.as_ref().unwrap().failure, None);
    // What an apply refuses leaves no trace either: the trust domain cannot change.
    let other = pull(&state, commit('d'), accepted(terms("test.example", "other.example"), 'd'));
    assert_eq!(by_leader(&mut state, other).unwrap_err().code, Code::InvalidField);
    assert_eq!((state.provenance.commit.clone(), state.policy.as_ref().unwrap().bundle.hash.clone()), (None, before));
}

#[test]
fn only_the_leader_records_a_pull_and_only_of_the_source_in_force() {
    let mut state = with_source();
    let record = pull(&state, commit('a'), accepted(signed(), 'a'));
    for user in [ADMIN, "spiffe://test.example/broker/1"] {
        let refusal = apply_by(&mut state, Actor::User(user.into()), Command::RecordPull(record.clone())).unwrap_err();
        assert_eq!(refusal.code, Code::PermissionDenied);
    }
    let other = || "other".to_owned();
    for elsewhere in [
        RecordPull { repository: other(), ..record.clone() },
        RecordPull { branch: other(), ..record.clone() },
        RecordPull { folder: other(), ..record },
    ] {
        assert_eq!(by_leader(&mut state, elsewhere).unwrap_err().code, Code::WrongState);
    }
}

#[test]
fn where_signatures_are_required_nobody_applies_a_bundle_without_them() {
    let mut state = with_source();
    let first = pull(&state, commit('a'), accepted(signed(), 'a'));
    by_leader(&mut state, first).unwrap();
    let apply = |source: BundleSource, force| Command::ApplyPolicy(ApplyPolicy { force, ..unforced(source) });
    let broker = "spiffe://test.example/broker/1";
    for (user, force) in [(ADMIN, false), (ADMIN, true), (broker, false)] {
        let refusal = apply_by(&mut state, Actor::User(user.into()), apply(terms("x", "x"), force)).unwrap_err();
        assert_eq!(refusal.code, Code::UnsignedPolicy, "{user} {force}");
        assert!(refusal.remedy.contains(&format!("commit the change to branch main of {URL}")), "{refusal}");
    }
    // A plan says what a merge would do.
    assert!(plan_of(&state, unforced(terms("leaseTerm: 1h", "leaseTerm: 2h"))).unwrap().replaces);
    // The way back when the keys of commits are lost.
    apply_by(&mut state, Actor::User(broker.into()), apply(terms("x", "x"), true)).unwrap();
    assert!(!state.policy.as_ref().unwrap().bundle.federation.spec.signatures.required);
}

#[test]
fn an_unsigned_commit_makes_nobody_a_broker_operator() {
    let mut state = with_source();
    let operators = format!("{MAINTAINERS}\n  brokerOperators: [\"{ADMIN}\"]");
    let more = pull(&state, commit('a'), accepted(terms(MAINTAINERS, &operators), 'a'));
    let refusal = by_leader(&mut state, more).unwrap_err();
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::PermissionDenied, "Federation.spec.brokerOperators"));
}

#[test]
fn a_source_needs_a_bundle_and_bounded_fields() {
    let admin = || Actor::User(ADMIN.into());
    let refusal = apply_by(&mut State::default(), admin(), Command::SetPolicySource(set())).unwrap_err();
    assert_eq!(refusal.code, Code::NoPolicy);
    let mut state = Federation::with_policy().state;
    for (bad, field) in [
        (SetPolicySource { interval: Millis(100), ..set() }, "interval_ms"),
        (SetPolicySource { repository: "x".repeat(5_000), ..set() }, "repository"),
        (SetPolicySource { branch: "x".repeat(500), ..set() }, "branch"),
    ] {
        let refusal = apply_by(&mut state, admin(), Command::SetPolicySource(bad)).unwrap_err();
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, field));
    }
    let nothing = apply_by(&mut state, admin(), Command::RemovePolicySource(RemovePolicySource {})).unwrap_err();
    assert_eq!(nothing.code, Code::WrongState);
}
