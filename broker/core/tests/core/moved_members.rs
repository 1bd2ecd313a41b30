//! Clusters and tenants that policy moves into a suspended institution.

use comity_core::command::ApplyPolicy;
use comity_core::feasibility::spared;
use comity_core::{Command, Timestamp, explain};
use comity_policy::{BundleSource, SourceFile};
use comity_types::{EndReason, LeaseId, LeaseState, LeaseTreatment};

use super::federation::{Federation, RIVALS, terms};
use super::revocations::{lent, suspend};

/// The rivals' documents beside the test federation's, with `north` or the tenant `team` in the rivals' institution.
fn moved(what: &str) -> ApplyPolicy {
    let (from, to, rivals) = match what {
        "north" => (
            "clusters: [north, south]}",
            "clusters: [south]}",
            RIVALS.replace(
                "clusters: [east]}\n---\napiVersion: policy.comity.dev/v1\nkind: Cluster",
                "clusters: [east, north]}\n---\napiVersion: policy.comity.dev/v1\nkind: Cluster",
            ),
        ),
        "team" => (
            "metadata: {name: team}\nspec:\n  institution: western",
            "metadata: {name: team}\nspec:\n  institution: eastern",
            RIVALS.to_owned(),
        ),
        _ => ("", "", RIVALS.to_owned()),
    };
    let mut source: BundleSource = terms(from, to);
    if what == "north" {
        let north = "metadata: {name: north}\nspec: {institution: ";
        source.files[0].text = source.files[0].text.replace(&format!("{north}lenders"), &format!("{north}eastern"));
    }
    source.files.push(SourceFile { path: "more.yaml".into(), text: rivals });
    ApplyPolicy { source, force: false, expected_hash: None }
}

/// `west` uses a lease of `team` on `north`; the rivals' institution, with another cluster, is suspended.
fn with_suspended_rivals(treatment: LeaseTreatment) -> (Federation, LeaseId) {
    let (mut federation, _, lease, _) = lent();
    federation.ok(Command::ApplyPolicy(moved("")));
    federation.ok(suspend("eastern", treatment));
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Active);
    (federation, lease)
}

#[test]
fn what_policy_moves_into_a_suspended_institution_is_treated_like_the_rest() {
    for (what, side) in [("north", EndReason::DonorRevoked), ("team", EndReason::OriginRevoked)] {
        let (mut federation, lease) = with_suspended_rivals(LeaseTreatment::Stop);
        let told = explain::policy_plan(
            &federation.state,
            moved(what),
            (comity_core::Actor::Leader(1), 0),
            Timestamp(federation.now),
        );
        let told: Vec<_> = told.unwrap().unwrap().leases.named.into_iter().map(|it| (it.lease, it.code)).collect();
        assert_eq!(told, [(lease, "revoked".to_owned())], "{what}");
        federation.ok(Command::ApplyPolicy(moved(what)));
        let held = &federation.state.leases[&lease];
        assert_eq!((held.state, held.end_reason), (LeaseState::Ending, Some(side)), "{what}");

        let (mut federation, lease) = with_suspended_rivals(LeaseTreatment::Drain);
        federation.ok(Command::ApplyPolicy(moved(what)));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming, "{what}");
        assert_eq!(spared(&federation.state), [], "{what}");
        // Another bundle begins no second notice.
        let reclaim = federation.state.leases[&lease].reclaim.clone();
        federation.ok(Command::ApplyPolicy(ApplyPolicy { source: with_a_comment(what), ..moved(what) }));
        assert_eq!(federation.state.leases[&lease].reclaim, reclaim, "{what}");

        let (mut federation, lease) = with_suspended_rivals(LeaseTreatment::Finish);
        federation.ok(Command::ApplyPolicy(moved(what)));
        let state = federation.state.leases[&lease].state;
        let connected = what == "team";
        assert_eq!(state, if connected { LeaseState::Active } else { LeaseState::Suspect }, "{what}");
        federation.ok(suspend("eastern", LeaseTreatment::Stop));
        assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending, "{what}");
    }
}

fn with_a_comment(what: &str) -> BundleSource {
    let mut source = moved(what).source;
    source.files[0].text.push_str("# A comment.\n");
    source
}
