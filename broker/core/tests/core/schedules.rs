//! Day and night: what is lent by the time of the week, and what becomes of leases when that time ends.

use comity_core::command::{ApplyPolicy, RenewLease};
use comity_core::demand::RequestSpec;
use comity_core::demand::Share;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::Planner;
use comity_core::{Command, Millis, ReplyBody};
use comity_policy::{Bundle, BundleSource, SourceFile};
use comity_types::{LeaseState, LeaseTreatment, RequestState};

use super::federation::{Federation, spec, terms};
use super::reclaim::{GRACE, MINUTE, yielding};

const HOUR: u64 = 60 * MINUTE;
/// 1970-01-05T00:00:00Z, the first Monday.
const MONDAY: u64 = 4 * 24 * HOUR;

const NIGHTS: &str = "
---
apiVersion: policy.comity.dev/v1
kind: Schedule
metadata: {name: nights}
spec:
  timeZone: UTC
  windows: [{days: [mon, tue, wed, thu, fri, sat, sun], from: '20:00', until: '06:00'}]
";

impl Federation {
    /// `north` lends big devices at night only; `south` never.
    fn lent_at_night() -> Self {
        let mut federation = Self::ready();
        let lends = |cluster: &str, terms: &str| {
            format!("{{name: {cluster}}}\nspec: {{institution: lenders, lends: [{{classes: {terms}}}]")
        };
        let mut source = terms(&lends("north", "[big, small]"), &lends("north", "[big, small], during: nights"));
        let text = &source.files[0].text;
        assert!(text.contains("during: nights"));
        let text = text.replace(&lends("south", "[big, small]"), &lends("south", "[small]")) + NIGHTS;
        source.files = vec![SourceFile { path: "all.yaml".into(), text }];
        federation.apply_compiled(&source);
        federation
    }

    fn apply_compiled(&mut self, source: &BundleSource) {
        let source = Bundle::compile(source).unwrap().source().clone();
        self.ok(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
    }

    fn renew(&mut self, lease: comity_types::LeaseId, term: u64) -> Result<(), comity_core::Refusal> {
        let command = RenewLease { lease, duration: Millis(term), may_shorten: false };
        self.try_apply(Command::RenewLease(command)).reply.map(drop)
    }
}

#[test]
fn a_request_waits_for_the_night_and_a_lease_ends_with_it() {
    let mut federation = Federation::lent_at_night();
    federation.now = MONDAY + 12 * HOUR;
    let hours = |hours: u64| RequestSpec { duration: Millis(hours * HOUR), ..spec(2, Share::Whole, "big") };
    let request = federation.submit(hours(8));
    assert!(federation.place().is_empty());
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);

    // At 23:00 eight hours do not fit any more; seven do.
    federation.now = MONDAY + 23 * HOUR;
    let shorter = federation.submit(hours(6));
    assert_eq!(federation.place().len(), 1);
    assert_eq!(federation.state.requests[&request].state, RequestState::Queued);
    let lease = federation.state.requests[&shorter].lease.unwrap();
    federation.run(lease);
    let refusal = federation.renew(lease, 8 * HOUR).unwrap_err();
    assert_eq!(refusal.code, Code::PolicyDenied);
    assert!(refusal.reason.contains("before the lease would end"), "{}", refusal.reason);
    assert!(federation.needs("north").is_empty());

    // The next night begins: time alone has to reach the planner.
    let mut planner = Planner::default();
    assert!(planner.plan(&federation.state, 100).placements.is_empty());
    let evening = MONDAY + 44 * HOUR;
    while federation.state.next_due().unwrap().0 < evening {
        federation.expire_at(federation.state.next_due().unwrap().0);
        assert!(planner.plan(&federation.state, 100).placements.is_empty());
    }
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Ending);
    assert_eq!(federation.state.next_due().unwrap().0, evening);
    federation.expire_at(evening);
    let plan = planner.plan(&federation.state, 100);
    assert_eq!(plan.placements.iter().map(|it| it.request).collect::<Vec<_>>(), [request]);
}

#[test]
fn a_preemptible_lease_has_its_notice_before_the_night_ends() {
    let mut federation = Federation::lent_at_night();
    federation.now = MONDAY + 23 * HOUR;
    let (_, lease) = federation.running(yielding(2, 0));
    let morning = MONDAY + 30 * HOUR;
    federation.expire_at(morning - GRACE - 3 * MINUTE);
    assert!(federation.needs("north").is_empty());

    federation.expire_at(morning - GRACE - 2 * MINUTE);
    let proposed = federation.needs("north");
    let reason =
        ReclaimReason::PolicyChanged { code: "schedule-ends-too-soon".to_owned(), treatment: LeaseTreatment::Drain };
    assert_eq!(proposed.iter().map(|it| (it.lease, it.reason.clone())).collect::<Vec<_>>(), [(lease, reason)]);
    assert_eq!(federation.reclaim(proposed), [lease]);
    assert_eq!(federation.state.leases[&lease].state, LeaseState::Reclaiming);
    // No other begins in the minutes that are left.
    federation.submit(yielding(1, 0));
    assert!(federation.place().is_empty());
}

#[test]
fn a_preemptible_request_does_not_fail_because_its_like_did() {
    let mut federation = Federation::lent_at_night();
    federation.now = MONDAY + 23 * HOUR;
    let long = RequestSpec { duration: Millis(8 * HOUR), ..spec(1, Share::Whole, "big") };
    let preemptible = RequestSpec { preemptible: yielding(1, 0).preemptible, ..long.clone() };
    federation.submit(long);
    let served = federation.submit(preemptible);
    let plan = Planner::default().plan(&federation.state, 100);
    assert_eq!(plan.placements.iter().map(|it| it.request).collect::<Vec<_>>(), [served]);
}

#[test]
fn a_command_without_the_offsets_of_its_zones_changes_nothing() {
    let mut federation = Federation::lent_at_night();
    let mut source = (*federation.state.policy.as_ref().unwrap().source).clone();
    source.zones.clear();
    source.files[0].text.push_str("# changed\n");
    let refusal = federation.refused(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
    assert!(refusal.reason.contains("there is no time zone `UTC`"), "{}", refusal.reason);
}

#[test]
fn newer_offsets_of_the_same_zones_come_into_force() {
    let mut federation = Federation::lent_at_night();
    let held = (*federation.state.policy.as_ref().unwrap().source).clone();
    let apply = |federation: &mut Federation, source: &BundleSource| {
        let command = ApplyPolicy { source: source.clone(), force: false, expected_hash: None };
        federation.ok(Command::ApplyPolicy(command)).reply.unwrap()
    };
    assert_eq!(apply(&mut federation, &held), ReplyBody::Policy { changed: false });
    let mut newer = held.clone();
    let an_hour_east = serde_json::from_str(r#"{"firstS": 3600, "changes": []}"#).unwrap();
    newer.zones.insert("UTC".to_owned(), an_hour_east);
    assert_eq!(apply(&mut federation, &newer), ReplyBody::Policy { changed: true });
}
