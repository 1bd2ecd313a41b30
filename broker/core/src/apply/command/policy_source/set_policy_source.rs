//! Names the Git repository that the leader pulls the policy from.

use serde::{Deserialize, Serialize};

use crate::model::limits::{MAX_BRANCH_BYTES, MAX_PULL_INTERVAL_MS, MAX_REPOSITORY_BYTES, MIN_PULL_INTERVAL_MS};
use crate::model::provenance::PolicySource;
use crate::model::refusal::Refusal;
use crate::model::reply::{Reply, ReplyBody};
use crate::model::time::Millis;
use crate::state::transition::Transition;

/// Sets or replaces the source. The bundle in force stays until a commit of the source comes into force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPolicySource {
    /// An `https://`, `ssh://` or `oci://` address without a password, or an absolute path on each broker's machine.
    pub repository: String,
    /// The branch, without `refs/heads/`.
    pub branch: String,
    /// The folder with the policy; empty for the whole repository.
    pub folder: String,
    /// How often the leader pulls.
    pub interval: Millis,
    /// Whether the history need not contain the commit in force. The first commit is then compared with the bundle in
    /// force.
    pub new_history: bool,
}

impl SetPolicySource {
    pub(crate) fn apply(&self, transition: &mut Transition<'_>) -> Reply {
        // Without a bundle there are no keys with which a commit could be judged.
        if transition.state().policy.is_none() {
            return Err(Refusal::no_policy());
        }
        self.check()?;
        let mut provenance = transition.state().provenance.clone();
        provenance.source = Some(PolicySource {
            repository: self.repository.clone(),
            branch: self.branch.clone(),
            folder: self.folder.clone(),
            interval: self.interval,
            set_by: transition.actor().name(),
            set_at: transition.now(),
            head: None,
            artifact: None,
            pulled_at: None,
            failure: None,
        });
        if self.new_history {
            (provenance.commit, provenance.began) = (None, None);
        }
        transition.set_provenance(provenance);
        Ok(ReplyBody::Done)
    }

    /// Bounds what the state keeps. What is a repository, a branch and a folder the broker decides.
    fn check(&self) -> Result<(), Refusal> {
        for (field, value, most) in [
            ("repository", &self.repository, MAX_REPOSITORY_BYTES),
            ("branch", &self.branch, MAX_BRANCH_BYTES),
            ("folder", &self.folder, MAX_BRANCH_BYTES),
        ] {
            if value.len() > most {
                return Err(Refusal::invalid(field, value, "is too long", format!("use at most {most} bytes")));
            }
        }
        if !(MIN_PULL_INTERVAL_MS..=MAX_PULL_INTERVAL_MS).contains(&self.interval.0) {
            let why = "is no interval at which a broker pulls";
            return Err(Refusal::invalid("interval_ms", self.interval.0, why, "use 5s to 24h"));
        }
        Ok(())
    }
}
