//! Edits the bundle in force: for commands that spare people a file by hand.

use comity_policy::{BundleSource, EditError, SourceFile};
use comity_proto::v1;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_runtime::BrokerChannel;

use super::apply::{ApplyMode, BundleToApply, apply, ask_about, send};
use crate::confirm::ConfirmArgs;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Answer as _;
use crate::session::{Session, call, idempotency_key};

/// The bundle in force.
///
/// # Errors
/// [`Failure`] of the call; there may be no bundle.
pub(crate) async fn bundle_in_force(channel: BrokerChannel) -> Result<BundleSource, Failure> {
    let request = v1::GetPolicyRequest { consistency: v1::Consistency::Linearizable.into() };
    let bundle = call(PolicyServiceClient::new(channel).get_policy(request)).await?.bundle.unwrap_or_default();
    let files = bundle.files.into_iter().map(|file| SourceFile { path: file.path, text: file.text }).collect();
    Ok(BundleSource { files, commit: Some(bundle.commit).filter(|commit| !commit.is_empty()) })
}

/// Edits the bundle in force as `edit` says: shows the effects, asks if there are any, and applies it. Does nothing if
/// the bundle says so already.
///
/// # Errors
/// [`Failure`]: the bundle cannot be edited, the caller declines, or the broker refuses it.
pub(crate) async fn edit_in_force(
    session: &Session,
    channel: BrokerChannel,
    confirm: &ConfirmArgs,
    edit: impl FnOnce(&BundleSource) -> Result<BundleSource, EditError>,
) -> Result<(), Failure> {
    let before = bundle_in_force(channel.clone()).await?;
    let after = edit(&before).map_err(|error| edit_failure(&error))?;
    let changed = changed_files(&before, &after);
    if changed.is_empty() {
        return Ok(());
    }
    let mut client = PolicyServiceClient::new(channel);
    let bundle = BundleToApply { files: after.files, commit: None, force: false };
    let asked = send(&mut client, bundle.clone(), idempotency_key(None), ApplyMode::DryRun).await?;
    if !asked.ok {
        return Err(Failure::refused(
            "bad-policy",
            format!("the broker refuses the edited bundle:\n{}", asked.table(0)),
        )
        .remedy("edit the policy by hand, and apply it with 'comity policy apply'"));
    }
    ask_about(&asked.effects.unwrap_or_default(), confirm, session.format)?;
    if !apply(&mut client, bundle, idempotency_key(None)).await?.ok {
        return Err(Failure::refused("bad-policy", "the broker refuses the edited bundle now").remedy("try again"));
    }
    eprintln!("policy applied; changed: {}", changed.join(", "));
    if let Some(commit) = before.commit {
        eprintln!(
            "note: the bundle before it came from Git commit {commit}; 'comity policy show --text' prints the new one for \
             your repository"
        );
    }
    Ok(())
}

/// Paths of new and edited files.
fn changed_files(before: &BundleSource, after: &BundleSource) -> Vec<String> {
    let is_same = |file: &&SourceFile| before.files.iter().any(|old| old.path == file.path && old.text == file.text);
    after.files.iter().filter(|file| !is_same(file)).map(|file| file.path.clone()).collect()
}

fn edit_failure(error: &EditError) -> Failure {
    let reason = error.to_string();
    match error {
        EditError::Name { .. } => Failure::usage(reason),
        EditError::UnknownTenant { .. } => Failure::new(Exit::NotFound, "not-found", reason)
            .remedy("'comity policy show --text' shows the tenants; add a Tenant document for another"),
        EditError::OtherInstitution { .. } | EditError::OtherRole { .. } | EditError::ByHand { .. } => {
            Failure::refused("wrong-state", reason)
        }
        EditError::Invalid(_) => Failure::refused("bad-policy", reason)
            .remedy("edit the policy by hand, and apply it with 'comity policy apply'"),
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
