//! Puts a policy bundle into force as a whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use comity_policy::{Bundle, BundleSource, RemovedDocuments};
use serde::{Deserialize, Serialize};

use crate::model::actor::Actor;
use crate::model::policy_record::PolicyRecord;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::State;
use crate::state::transition::Transition;

/// Replaces the bundle in force. Each replica compiles the sources again: a bundle that does not compile changes
/// nothing. Clusters and tenants that it moves into a suspended institution are treated as the suspension says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyPolicy {
    /// All source files of the bundle.
    pub source: BundleSource,
    /// Whether the bundle may leave the federation, or the caller, without a maintainer.
    pub force: bool,
    /// Hash that the bundle in force must have; empty if there must be none. `None` replaces any.
    pub expected_hash: Option<String>,
}

impl ApplyPolicy {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        self.apply_signed(transition, &BTreeSet::new())
    }

    /// Like [`Self::apply`], of commits that `signed_by` signed.
    pub(crate) fn apply_signed(&self, transition: &mut Transition<'_>, signed_by: &BTreeSet<String>) -> Reply {
        let bundle = Bundle::compile_replicated(&self.source).map_err(|problems| {
            let first = problems.first().map_or_else(String::new, |problem| match problem.file.as_str() {
                "" => format!(", first: {}", problem.message),
                file => format!(", first {file}:{}: {}", problem.line, problem.message),
            });
            Refusal::new(
                Code::InvalidField,
                format!("the policy bundle has {} problems{first}", problems.len()),
                "run `comity policy check DIRECTORY` and mend all of them",
            )
            .at("bundle", "")
        })?;
        let in_force = transition.state().policy.as_ref();
        self.check_signatures(transition)?;
        // The hash is that of the files: newer offsets of the same time zones come into force, too.
        let is_this = |record: &PolicyRecord| {
            let (held, ours) = (&record.source, &self.source);
            record.bundle.hash == bundle.hash && held.commit == ours.commit && held.zones == ours.zones
        };
        if in_force.is_some_and(is_this) {
            return Ok(ReplyBody::Policy { changed: false });
        }
        self.check_expected(in_force)?;
        let ours = in_force.map(|record| &record.bundle.federation.spec.trust_domain);
        let theirs = &bundle.federation.spec.trust_domain;
        if let Some(ours) = ours.filter(|ours| *ours != theirs) {
            return Err(Refusal::invalid(
                "Federation.spec.trustDomain",
                theirs,
                "is not this federation's",
                format!("keep {ours}; a trust domain cannot be changed"),
            ));
        }
        check_broker_operators(transition, &bundle)?;
        if !self.force {
            check_maintainers(transition, &bundle)?;
        }
        let before = transition.state().treatments();
        let removed = removed_documents(transition.state(), &bundle);
        transition.set_policy(PolicyRecord {
            bundle: Arc::new(bundle),
            source: Arc::new(self.source.clone()),
            applied_at: transition.now(),
            applied_by: transition.actor().name(),
            signed_by: signed_by.clone(),
            removed,
        });
        transition.treat_moved(&before);
        Ok(ReplyBody::Policy { changed: true })
    }

    /// Refuses a bundle without the signatures that the one in force requires: those are in the commits that the leader
    /// pulls. A broker's own certificate proves access to the intermediate's key, and is the way back when the keys of
    /// commits are lost.
    fn check_signatures(&self, transition: &Transition<'_>) -> Result<(), Refusal> {
        let (Some(record), Actor::User(caller)) = (&transition.state().policy, transition.actor()) else {
            return Ok(());
        };
        let federation = &record.bundle.federation.spec;
        let is_broker = caller.starts_with(&format!("spiffe://{}/broker/", federation.trust_domain));
        if !federation.signatures.required || (is_broker && self.force) {
            return Ok(());
        }
        let remedy = match &transition.state().provenance.source {
            Some(source) => {
                format!("commit the change to branch {} of {}, and sign it", source.branch, source.repository)
            }
            None => "commit the change, sign it, and name its repository with `comity policy source set`".to_owned(),
        };
        let reason = "the policy in force requires signed commits (`signatures.required` of the Federation)";
        Err(Refusal::new(Code::UnsignedPolicy, reason, remedy))
    }

    /// Refuses to replace a bundle that the caller has not seen.
    fn check_expected(&self, in_force: Option<&PolicyRecord>) -> Result<(), Refusal> {
        let Some(expected) = &self.expected_hash else { return Ok(()) };
        let reason = match in_force {
            Some(record) if record.bundle.hash == *expected => return Ok(()),
            Some(record) => {
                let PolicyRecord { bundle, applied_by, .. } = record;
                format!("another bundle is in force: {}, applied by {applied_by}", bundle.hash)
            }
            None if expected.is_empty() => return Ok(()),
            None => "no policy bundle is in force".to_owned(),
        };
        let remedy = "read the bundle in force again (`comity policy show`), and apply your change to it";
        Err(Refusal::new(Code::PolicyChanged, reason, remedy).at("expected_hash", expected))
    }
}

/// What documents that `bundle` lacks said about the leases that they permit.
fn removed_documents(state: &State, bundle: &Bundle) -> RemovedDocuments {
    let Some(record) = &state.policy else { return RemovedDocuments::default() };
    let needed = state.live_leases().flat_map(|(_, lease)| lease.permitted_by());
    record.removed.after_change(&record.bundle, bundle, needed)
}

/// Refuses a new broker operator whom neither a maintainer who is a broker operator nor a broker names: other maintainers
/// could otherwise invite brokers, and with that get the intermediate's key. The first bundle may name any.
fn check_broker_operators(transition: &Transition<'_>, bundle: &Bundle) -> Result<(), Refusal> {
    let (Some(record), Actor::User(caller)) = (&transition.state().policy, transition.actor()) else { return Ok(()) };
    let in_force = &record.bundle;
    let is_broker = caller.starts_with(&format!("spiffe://{}/broker/", in_force.federation.spec.trust_domain));
    if is_broker || in_force.roles_of(caller).broker_operator {
        return Ok(());
    }
    let before = &in_force.federation.spec.broker_operators;
    let Some(added) = bundle.federation.spec.broker_operators.difference(before).next() else { return Ok(()) };
    let remedy = match before.intersection(&in_force.federation.spec.maintainers).next() {
        Some(both) => format!("let a maintainer who is a broker operator apply the bundle, such as {both}"),
        None => "apply the bundle on a broker's machine with the broker's own certificate: \
                 `comity --identity DATA/identity policy apply DIRECTORY`"
            .to_owned(),
    };
    let reason = format!("{caller} is no broker operator and may not make {added} one");
    Err(Refusal::new(Code::PermissionDenied, reason, remedy).at("Federation.spec.brokerOperators", added))
}

/// Refuses a bundle after which its applier could not apply another one.
fn check_maintainers(transition: &Transition<'_>, bundle: &Bundle) -> Result<(), Refusal> {
    let Actor::User(caller) = transition.actor() else { return Ok(()) };
    let was_maintainer =
        transition.state().policy.as_ref().is_none_or(|record| record.bundle.roles_of(caller).federation_admin);
    if was_maintainer && !bundle.roles_of(caller).federation_admin {
        let reason =
            format!("the bundle does not name {caller} as a maintainer, so you could not apply another bundle");
        let remedy =
            "add the id to the maintainers, ask another maintainer to apply the bundle, or apply it with --force";
        return Err(Refusal::new(Code::InvalidField, reason, remedy).at("Federation.spec.maintainers", caller));
    }
    Ok(())
}
