//! The policy by which commits of a clone are judged: the one in force, or that of a commit that the caller trusts.

use std::collections::BTreeSet;

use comity_broker::policy_source::ObjectDatabase;
use comity_policy::Bundle;
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_provenance::{InForce, ObjectId, PolicyFolder, StoreError, Verdict, judge, policy_at};

use super::edit_in_force::compiled;
use super::git::GitClone;
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::session::{Session, call};

/// The policy by which commits are judged.
#[derive(Debug)]
pub(super) struct CommitBasis {
    pub(super) bundle: Bundle,
    /// Without one, a head is compared with the bundle, as if the bundle were its parent.
    pub(super) commit: Option<ObjectId>,
    began: Option<ObjectId>,
    pub(super) folder: PolicyFolder,
    taken_names: BTreeSet<String>,
    pub(super) branch: String,
    /// Whether the brokers pull the policy. Without a source they name no commit, even if one is in force.
    pub(super) has_source: bool,
}

impl CommitBasis {
    /// The policy in force; `folder` wins against that of the source.
    ///
    /// # Errors
    /// [`Failure`] of the call, or if this version cannot read the bundle.
    pub(super) async fn in_force(session: &Session, folder: Option<PolicyFolder>) -> Result<Self, Failure> {
        let request = v1::GetPolicyRequest { consistency: session.consistency() };
        let answer = call(PolicyServiceClient::new(session.channel()?).get_policy(request)).await?;
        let has_source = answer.source.is_some();
        let source = answer.source.unwrap_or_default();
        let unreadable = |what: &str| {
            Failure::unavailable(format!("cannot read {what} that the broker sent"))
                .remedy("install a client of the broker's version")
        };
        let bundle = compiled(answer.bundle)?;
        let read = |id: &str, what: &str| match id {
            "" => Ok(None),
            id => id.parse().map(Some).map_err(|_| unreadable(what)),
        };
        let commit = read(&source.commit, "the commit in force")?;
        let began = read(&source.began, "the first commit of the history in force")?;
        let folder = match folder {
            Some(folder) => folder,
            None => source.folder.parse().map_err(|_| unreadable("the folder of the source"))?,
        };
        let taken_names = answer.taken_names.into_iter().collect();
        Ok(Self { bundle, commit, began, folder, taken_names, branch: source.branch, has_source })
    }

    /// The policy of a commit that the caller trusts.
    ///
    /// # Errors
    /// [`Failure`] if the commit has no policy.
    pub(super) async fn trusted(clone: &GitClone, revision: &str, folder: PolicyFolder) -> Result<Self, Failure> {
        let commit = clone.commit("--base", revision).await?;
        let bundle = policy_of(&clone.objects().await?, &folder, "--base", commit)?;
        let (taken_names, branch) = (BTreeSet::new(), String::new());
        Ok(Self { bundle, commit: Some(commit), began: None, folder, taken_names, branch, has_source: false })
    }

    /// Judges a head as the leader of the brokers would now.
    ///
    /// # Errors
    /// [`Failure`] if the clone lacks objects.
    pub(super) fn judge(&self, objects: &ObjectDatabase, head: ObjectId) -> Result<Verdict, Failure> {
        let Self { bundle, commit, began, taken_names, .. } = self;
        let in_force = InForce { bundle, commit: *commit, began: *began, taken_names };
        judge(objects, &self.folder, &in_force, head, now_ms()).map_err(|error| incomplete(&error))
    }
}

/// The policy of a commit, whoever signed it; `field` is where the caller named the commit.
///
/// # Errors
/// [`Failure`] if it has none.
pub(super) fn policy_of(
    objects: &ObjectDatabase,
    folder: &PolicyFolder,
    field: &str,
    commit: ObjectId,
) -> Result<Bundle, Failure> {
    policy_at(objects, folder, commit).map_err(|error| incomplete(&error))?.map_err(|refused| {
        Failure::usage(refused.to_string()).field(field, commit).remedy("name a commit with a valid policy")
    })
}

fn incomplete(error: &StoreError) -> Failure {
    Failure::refused("unreadable-clone", error.to_string())
        .remedy("get the whole history: `git fetch --unshallow`; in a pipeline, check out with depth 0")
}
