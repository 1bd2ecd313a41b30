//! Edits the bundle in force: for commands that spare people a file by hand.

use comity_policy::{Bundle, BundleSource, EditError, SourceFile};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerChannel;

use super::apply::{POLICY_CHANGED, apply, ask_about};
use super::bundle_to_apply::BundleToApply;
use super::plan::plan;
use crate::confirm::ConfirmArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Answer as _, note};
use crate::session::{Session, call, idempotency_key};

/// Tries of an edit while others change the policy too.
const MAX_TRIES: u32 = 5;

/// The bundle in force.
pub(crate) struct BundleInForce {
    /// Its files.
    pub(crate) source: BundleSource,
    /// SHA-256 of its content.
    hash: String,
}

/// Reads the bundle in force.
///
/// # Errors
/// [`Failure`] of the call; there may be no bundle.
pub(crate) async fn bundle_in_force(channel: BrokerChannel) -> Result<BundleInForce, Failure> {
    let request = v1::GetPolicyRequest { consistency: v1::Consistency::Linearizable.into() };
    let v1::GetPolicyResponse { bundle, hash, .. } =
        call(PolicyServiceClient::new(channel).get_policy(request)).await?;
    Ok(BundleInForce { source: source_of(bundle), hash })
}

fn source_of(bundle: Option<v1::PolicyBundle>) -> BundleSource {
    let v1::PolicyBundle { files, commit } = bundle.unwrap_or_default();
    let files = files.into_iter().map(|file| SourceFile { path: file.path, text: file.text }).collect();
    BundleSource { files, commit: Some(commit).filter(|commit| !commit.is_empty()), ..BundleSource::default() }
}

/// Compiles the bundle in force.
///
/// # Errors
/// [`Failure`] if this version cannot read it.
pub(crate) fn compiled(bundle: Option<v1::PolicyBundle>) -> Result<Bundle, Failure> {
    Bundle::compile(&source_of(bundle)).map_err(|_| {
        Failure::unavailable("this client is older than the policy in force, and cannot read it")
            .remedy("install a client of the broker's version")
    })
}

/// Edits the bundle in force as `edit` says: shows what that takes away, asks if there is anything, and applies it. Does
/// nothing if the bundle says so already. If somebody else changes the policy meanwhile, edits theirs. Returns whether it
/// changed.
///
/// # Errors
/// [`Failure`]: the bundle cannot be edited, the caller declines, or the broker refuses it.
pub(crate) async fn edit_in_force(
    session: &Session,
    channel: BrokerChannel,
    confirm: &ConfirmArgs,
    edit: impl Fn(&BundleSource) -> Result<BundleSource, Failure>,
) -> Result<bool, Failure> {
    for _ in 1..MAX_TRIES {
        match edit_once(session, channel.clone(), confirm, &edit).await {
            Err(failure) if failure.code == POLICY_CHANGED => {
                note("note: somebody else changed the policy; trying again with their bundle");
            }
            ended => return ended,
        }
    }
    edit_once(session, channel, confirm, &edit).await
}

async fn edit_once(
    session: &Session,
    channel: BrokerChannel,
    confirm: &ConfirmArgs,
    edit: &impl Fn(&BundleSource) -> Result<BundleSource, Failure>,
) -> Result<bool, Failure> {
    let BundleInForce { source: before, hash } = bundle_in_force(channel.clone()).await?;
    let after = edit(&before)?;
    let changed = changed_files(&before, &after);
    if changed.is_empty() {
        return Ok(false);
    }
    let mut client = PolicyServiceClient::new(channel);
    let bundle = BundleToApply { files: after.files, commit: None, force: false, expected_hash: Some(hash) };
    let planned = plan(&mut client, bundle.clone()).await?;
    if !planned.ok {
        return Err(Failure::refused(
            "bad-policy",
            format!("the broker refuses the edited bundle:\n{}", planned.table(0)),
        )
        .remedy("edit the policy by hand, and apply it with 'comity policy apply'"));
    }
    ask_about(&planned.plan, confirm, session.format)?;
    if !apply(&mut client, bundle, idempotency_key(None)).await?.ok {
        return Err(Failure::refused("bad-policy", "the broker refuses the edited bundle now").remedy("try again"));
    }
    note(&format!("policy applied; changed: {}", changed.join(", ")));
    if let Some(commit) = before.commit {
        note(&format!(
            "note: the bundle before it came from Git commit {commit}; 'comity policy show --text' prints the new one for \
             your repository"
        ));
    }
    Ok(true)
}

/// Warns that a command which failed after [`edit_in_force`] leaves the policy changed.
pub(crate) fn note_that_policy_stays_changed() {
    note("note: the policy stays as this command changed it; repeat the command, or edit the policy back");
}

/// Paths of new and edited files.
fn changed_files(before: &BundleSource, after: &BundleSource) -> Vec<String> {
    let is_same = |file: &&SourceFile| before.files.iter().any(|old| old.path == file.path && old.text == file.text);
    after.files.iter().filter(|file| !is_same(file)).map(|file| file.path.clone()).collect()
}

impl From<EditError> for Failure {
    fn from(error: EditError) -> Self {
        let reason = error.to_string();
        match error {
            EditError::Name { .. } => Self::usage(reason),
            EditError::UnknownTenant { nearest, .. } => {
                let list = "'comity policy show --text' shows the tenants; add a Tenant document for another";
                let remedy = nearest.map_or_else(|| list.to_owned(), |nearest| format!("did you mean {nearest}?"));
                Self::new(Exit::NotFound, "not-found", reason).remedy(remedy)
            }
            EditError::OtherInstitution { .. } | EditError::OtherRole { .. } | EditError::ByHand { .. } => {
                Self::refused("wrong-state", reason)
            }
            EditError::Invalid(_) => Self::refused("bad-policy", reason)
                .remedy("edit the policy by hand, and apply it with 'comity policy apply'"),
        }
    }
}

#[cfg(test)]
mod tests {
    use comity_policy::{Enrolment, enrol_cluster, minimal_bundle};

    use super::*;

    const INGRID: &str = "spiffe://dev.test/user/ingrid";

    #[test]
    fn the_changed_files_are_named_and_a_repeated_edit_changes_none() {
        let before = minimal_bundle("dev.test", "home", INGRID);
        let enrol = |source: &BundleSource| {
            enrol_cluster(source, &Enrolment { cluster: "a", institution: "home", user: INGRID }).expect("edited")
        };
        let after = enrol(&before);
        let mut changed = changed_files(&before, &after);
        changed.sort();
        assert_eq!(changed, ["clusters/a.yaml", "institutions/home.yaml", "tenants/home.yaml"]);
        assert!(changed_files(&after, &enrol(&after)).is_empty());
    }
}
