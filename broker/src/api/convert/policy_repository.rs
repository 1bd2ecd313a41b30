//! Converts the Git repository of the policy.

use comity_core::command::SetPolicySource;
use comity_core::provenance::{PolicySource, Provenance, PullFailure};
use comity_core::{Millis, Refusal};
use comity_proto::v1;
use comity_provenance::PolicyFolder;
use comity_types::{redact_secrets, redact_user};

use crate::policy_source::{Branch, Repository};

const DEFAULT_BRANCH: &str = "main";
/// A minute: soon enough for people who wait for their merge, and no load for a server.
const DEFAULT_INTERVAL_MS: u64 = 60_000;

/// Parses a source into one spelling.
pub fn from_proto(message: v1::SetPolicySourceRequest) -> Result<SetPolicySource, Refusal> {
    let v1::SetPolicySourceRequest { repository, branch, folder, interval_ms, new_history } = message;
    let parsed = Repository::parse(&repository).map_err(|invalid| {
        // What is refused may have a password in it.
        let shown = redact_user(&redact_secrets(&repository));
        Refusal::invalid("repository", shown, invalid.why, invalid.remedy)
    })?;
    let branch = if branch.is_empty() { DEFAULT_BRANCH } else { &branch };
    let branch =
        Branch::parse(branch).map_err(|invalid| Refusal::invalid("branch", branch, invalid.why, invalid.remedy))?;
    let folder: PolicyFolder = folder.parse().map_err(|_| {
        let remedy = "write `policy` or `a/b`, without `..` and without a leading `/`";
        Refusal::invalid("folder", &folder, "is no folder of a repository", remedy)
    })?;
    Ok(SetPolicySource {
        repository: parsed.to_string(),
        branch: branch.to_string(),
        folder: folder.as_str().to_owned(),
        interval: Millis(if interval_ms == 0 { DEFAULT_INTERVAL_MS } else { interval_ms }),
        new_history,
    })
}

/// The source in force, if there is one.
pub fn to_proto(provenance: &Provenance) -> Option<v1::PolicySource> {
    let PolicySource { repository, branch, folder, interval, set_by, set_at, head, artifact, pulled_at, failure } =
        provenance.source.clone()?;
    Some(v1::PolicySource {
        repository,
        branch,
        folder,
        interval_ms: interval.0,
        set_by,
        set_at_ms: set_at.0,
        commit: provenance.commit.clone().unwrap_or_default(),
        began: provenance.began.clone().unwrap_or_default(),
        head: head.unwrap_or_default(),
        artifact: artifact.unwrap_or_default(),
        artifact_in_force: provenance.artifact.clone().unwrap_or_default(),
        pulled_at_ms: pulled_at.map_or(0, |at| at.0),
        failure: failure.map(|failure| {
            let PullFailure { code, commit, reason, remedy, since } = failure;
            v1::PolicyPullFailure { code, commit, reason, remedy, since_ms: since.0 }
        }),
    })
}
