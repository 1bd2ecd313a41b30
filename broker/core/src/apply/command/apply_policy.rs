//! Puts a policy bundle into force as a whole.

use std::sync::Arc;

use comity_policy::{Bundle, BundleSource};
use serde::{Deserialize, Serialize};

use crate::model::policy_record::PolicyRecord;
use crate::model::refusal::{Code, Refusal};
use crate::model::reply::{Actor, Reply, ReplyBody};
use crate::state::transition::Transition;

/// Replaces the bundle in force. Each replica compiles the sources again: a bundle that does not compile changes
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyPolicy {
    /// All source files of the bundle.
    pub source: BundleSource,
}

impl ApplyPolicy {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        let bundle = Bundle::compile(&self.source).map_err(|problems| {
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
        if let Some(record) = &transition.state().policy {
            if record.bundle.hash == bundle.hash && record.source.commit == self.source.commit {
                return Ok(ReplyBody::Policy { changed: false });
            }
            if record.bundle.federation.spec.trust_domain != bundle.federation.spec.trust_domain {
                return Err(Refusal::invalid(
                    "Federation.spec.trustDomain",
                    &bundle.federation.spec.trust_domain,
                    "is not this federation's",
                    format!("keep {}; a trust domain cannot be changed", record.bundle.federation.spec.trust_domain),
                ));
            }
        }
        let applied_by = match transition.actor() {
            Actor::User(id) => id.clone(),
            Actor::Cluster(id) => id.to_string(),
            Actor::Leader(id) => format!("broker {id}"),
        };
        transition.set_policy(PolicyRecord {
            bundle: Arc::new(bundle),
            source: self.source.clone(),
            applied_at: transition.now(),
            applied_by,
        });
        Ok(ReplyBody::Policy { changed: true })
    }
}
