//! The Git repository of the policy.

use comity_proto::v1;
use serde::Serialize;

use crate::output::{Answer, Sheet, fields};
use crate::units::age;
use crate::views::value::{non_empty, non_zero};

/// Where the policy is pulled from.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicySourceShown {
    /// Address or path; none if the policy is not pulled.
    pub repository: Option<String>,
    /// Branch.
    pub branch: Option<String>,
    /// Folder with the policy; none for the whole repository.
    pub folder: Option<String>,
    /// Milliseconds between pulls.
    pub interval_ms: Option<u64>,
    /// Who set it.
    pub set_by: Option<String>,
    /// When it was set.
    pub set_at_ms: Option<u64>,
    /// The newest commit that came into force.
    pub commit: Option<String>,
    /// The head of the branch at the last pull.
    pub head: Option<String>,
    /// Digest of the artifact at the last pull; none for other sources.
    pub artifact: Option<String>,
    /// Digest of the artifact whose policy is in force.
    pub artifact_in_force: Option<String>,
    /// When the last pull was recorded.
    pub pulled_at_ms: Option<u64>,
    /// Why the head is not in force; none if it is.
    pub failure: Option<PolicyPullFailure>,
}

/// Why a commit is not in force.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPullFailure {
    /// Stable code.
    pub code: String,
    /// The commit to look at.
    pub commit: Option<String>,
    /// Reason.
    pub reason: String,
    /// Remedy.
    pub remedy: String,
    /// Since when.
    pub since_ms: Option<u64>,
}

impl From<Option<v1::PolicySource>> for PolicySourceShown {
    fn from(source: Option<v1::PolicySource>) -> Self {
        let source = source.unwrap_or_default();
        Self {
            repository: non_empty(source.repository),
            branch: non_empty(source.branch),
            folder: non_empty(source.folder),
            interval_ms: non_zero(source.interval_ms),
            set_by: non_empty(source.set_by),
            set_at_ms: non_zero(source.set_at_ms),
            commit: non_empty(source.commit),
            head: non_empty(source.head),
            artifact: non_empty(source.artifact),
            artifact_in_force: non_empty(source.artifact_in_force),
            pulled_at_ms: non_zero(source.pulled_at_ms),
            failure: source.failure.map(|failure| PolicyPullFailure {
                code: failure.code,
                commit: non_empty(failure.commit),
                reason: failure.reason,
                remedy: failure.remedy,
                since_ms: non_zero(failure.since_ms),
            }),
        }
    }
}

impl PolicySourceShown {
    /// One line: the repository, and whether its head is in force.
    #[must_use]
    pub fn summary(&self) -> Option<String> {
        let state = match (&self.failure, &self.pulled_at_ms) {
            (Some(failure), _) => format!("not in force: {}", failure.code),
            (None, Some(_)) => "in force".to_owned(),
            (None, None) => "not pulled yet".to_owned(),
        };
        Some(format!("{} {} ({state})", self.repository.as_ref()?, self.branch.as_ref()?))
    }
}

impl Answer for PolicySourceShown {
    fn table(&self, now_ms: u64) -> Sheet {
        let Some(repository) = &self.repository else {
            return "the policy is pulled from no repository\n".into();
        };
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let pulled = self.pulled_at_ms.map_or_else(|| "not yet".to_owned(), |at| age(at, now_ms));
        let mut rows = vec![
            ("Repository", repository.clone()),
            ("Branch", or_dash(&self.branch)),
            ("Folder", self.folder.clone().unwrap_or_else(|| "the whole repository".to_owned())),
            ("Every", format!("{} s", self.interval_ms.unwrap_or_default() / 1_000)),
            ("Commit in force", or_dash(&self.commit)),
            ("Head seen", or_dash(&self.head)),
        ];
        if self.artifact.is_some() || self.artifact_in_force.is_some() {
            rows.push(("Artifact in force", or_dash(&self.artifact_in_force)));
            rows.push(("Artifact seen", or_dash(&self.artifact)));
        }
        rows.push(("Pulled", pulled));
        if let Some(failure) = &self.failure {
            rows.push(("Not in force", failure.code.clone()));
            rows.push(("Since", age(failure.since_ms.unwrap_or_default(), now_ms)));
        }
        let sheet = fields(&rows);
        match &self.failure {
            Some(failure) => sheet
                .gap()
                .paragraph(format!("reason: {}", failure.reason))
                .paragraph(format!("remedy: {}", failure.remedy)),
            None => sheet,
        }
    }
}
