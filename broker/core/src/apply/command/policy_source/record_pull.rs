//! Records what the leader found in the repository, and puts an accepted commit into force.

use std::collections::BTreeSet;

use comity_audit::Subject;
use comity_policy::{Bundle, BundleSource};
use comity_types::shorten;
use serde::{Deserialize, Serialize};

use crate::apply::command::apply_policy::ApplyPolicy;
use crate::model::actor::Actor;
use crate::model::limits::MAX_PULL_MESSAGE_BYTES;
use crate::model::policy_record::PolicyRecord;
use crate::model::provenance::{PolicySource, PullFailure};
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Reply, ReplyBody};
use crate::state::transition::Transition;
use crate::state::transition::audit_changes::Act;

/// One pull of the leader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordPull {
    /// The repository that was pulled. If another source was set meanwhile, nothing is recorded.
    pub repository: String,
    /// The branch.
    pub branch: String,
    /// The folder with the policy.
    pub folder: String,
    /// The commit in force by which the head was judged.
    pub judged_by: Option<String>,
    /// Hash of the bundle by which the head was judged.
    pub bundle_hash: String,
    /// The head; `None` if the source could not be read, or is a directory without Git.
    pub head: Option<String>,
    /// The digest of the artifact; `None` if the source could not be read, or is no registry.
    pub artifact: Option<String>,
    /// What came of it.
    pub outcome: PullOutcome,
}

/// What came of a pull.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullOutcome {
    /// The head is in force.
    InForce,
    /// The head has all signatures that it needs.
    Accepted {
        /// Its files.
        source: BundleSource,
        /// Who signed its changes, for people.
        signed_by: BTreeSet<String>,
        /// Names of institutions that left the federation, up to now.
        taken_names: BTreeSet<String>,
    },
    /// The last good bundle stays.
    Failed {
        /// Stable code.
        code: String,
        /// The commit to look at; empty if none was seen.
        commit: String,
        /// One sentence for people.
        reason: String,
        /// How to fix the cause.
        remedy: String,
    },
}

impl RecordPull {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let Actor::Leader(_) = transition.actor() else {
            let reason = "only the leader records what it pulled";
            return Err(Refusal::new(Code::PermissionDenied, reason, "set the source with `comity policy source set`"));
        };
        let mut provenance = transition.state().provenance.clone();
        let is_this = |held: &PolicySource| {
            held.repository == self.repository && held.branch == self.branch && held.folder == self.folder
        };
        let Some(source) = provenance.source.as_mut().filter(|held| is_this(held)) else {
            return Err(Refusal::new(Code::WrongState, "another source was set meanwhile", "pull it"));
        };
        let in_force = transition.state().policy.as_ref();
        let hash = in_force.map_or("", |record| record.bundle.hash.as_str());
        if provenance.commit != self.judged_by || hash != self.bundle_hash {
            let reason = "another bundle came into force while the commit was judged";
            return Err(Refusal::new(Code::PolicyChanged, reason, "judge it again"));
        }
        source.head.clone_from(&self.head);
        source.artifact = self.artifact.as_deref().map(shorten);
        source.pulled_at = Some(transition.now());
        let mut changed = false;
        match &self.outcome {
            PullOutcome::InForce => {
                source.failure = None;
                provenance.artifact.clone_from(&source.artifact);
            }
            PullOutcome::Accepted { source: files, signed_by, taken_names } => {
                source.failure = None;
                provenance.artifact.clone_from(&source.artifact);
                check_broker_operators(in_force, files)?;
                provenance.taken_names.clone_from(taken_names);
                if provenance.commit.is_none() || self.head.is_none() {
                    provenance.began.clone_from(&self.head);
                }
                provenance.commit.clone_from(&self.head);
                let command = ApplyPolicy { source: files.clone(), force: false, expected_hash: None };
                changed = command.apply_signed(transition, signed_by)? == ReplyBody::Policy { changed: true };
            }
            PullOutcome::Failed { code, commit, reason, remedy } => {
                let text = |text: &String| text.chars().take(MAX_PULL_MESSAGE_BYTES).collect::<String>();
                let (code, commit, reason, remedy) = (shorten(code), shorten(commit), text(reason), text(remedy));
                let since = match &source.failure {
                    Some(held) if held.code == code && held.commit == commit && held.reason == reason => held.since,
                    _ => {
                        let subject = Subject::new("policy-source", format!("{} {}", self.repository, self.branch));
                        let cause = match &source.artifact {
                            _ if !commit.is_empty() => format!("commit {commit}: {code}"),
                            Some(artifact) => format!("artifact {artifact}: {code}"),
                            None => code.clone(),
                        };
                        transition.audit(Act { cause, ..Act::new("policy-pull-failed", subject) });
                        transition.now()
                    }
                };
                source.failure = Some(PullFailure { code, commit, reason, remedy, since });
            }
        }
        transition.set_provenance(provenance);
        Ok(ReplyBody::Policy { changed })
    }
}

/// Without signatures nobody vouches for a new broker operator, who could get the intermediate's key.
fn check_broker_operators(in_force: Option<&PolicyRecord>, files: &BundleSource) -> Result<(), Refusal> {
    let Some(record) = in_force.filter(|record| !record.bundle.federation.spec.signatures.required) else {
        return Ok(());
    };
    let Ok(bundle) = Bundle::compile_replicated(files) else { return Ok(()) };
    let before = &record.bundle.federation.spec.broker_operators;
    let Some(added) = bundle.federation.spec.broker_operators.difference(before).next() else { return Ok(()) };
    let reason = format!("an unsigned policy may not make {added} a broker operator");
    let remedy = "set `signatures.required` in the Federation document, or let a broker operator apply the bundle";
    Err(Refusal::new(Code::PermissionDenied, reason, remedy).at("Federation.spec.brokerOperators", added))
}
