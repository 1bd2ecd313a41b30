//! Windows of reservations beside gangs, plans, reserved starts and reclaims.

use std::collections::BTreeMap;

use comity_core::command::{ApplyPolicy, PlaceRequests, ReclaimLeases, ReleaseLease};
use comity_core::demand::{Members, Preemptible, RequestSpec, Share, Topology};
use comity_core::explain::{KeptGpus, explain, kept_gpus, quote};
use comity_core::feasibility::{Cure, Obstacle};
use comity_core::inventory::Sharing;
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::refusal::Code;
use comity_core::scheduler::{self, Planner};
use comity_core::{Command, Millis, ReplyBody, Timestamp};
use comity_types::{LeaseId, LeaseState, NodeId, RequestId};

use super::advance_reservations::{HOUR, LESSON, RESERVED, SCHEDULES, compiled, course, firm, reservation};
use super::federation::{Federation, cluster, device, offer, spec, terms};
use super::reclaim::{MINUTE, at, rivals, urgent, used, yielding};

/// Of sixteen GPUs of `north`, four are beside it.
fn twelve() -> String {
    reservation("course", "gpus: 12, during: lessons")
}

/// Up to two members of four GPUs each.
fn two_members(minutes: u64) -> RequestSpec {
    RequestSpec { members: Some(Members { min: 1, desired: 2 }), duration: Millis(minutes * MINUTE), ..firm(4, 1) }
}

impl Federation {
    /// A gang with room for one member at `north`, which then has room for the other one. Returns its two leases.
    fn gang_that_grows(&mut self, minutes: u64, grows_at: u64) -> [LeaseId; 2] {
        self.offer("north", used(2, &[("n1", 4, 0)]));
        let (_, first) = self.running(two_members(minutes));
        self.expire_at(grows_at);
        self.offer("north", used(3, &[("n1", 4, 0), ("n2", 4, 0), ("n3", 4, 0), ("n4", 4, 0)]));
        let joined = self.place();
        assert_eq!(joined.len(), 1);
        [first, joined[0]]
    }

    fn obstacle_at_north(&self, spec: &RequestSpec) -> Option<Obstacle> {
        let explained = explain(&self.state, spec);
        explained.donors.iter().find(|it| it.donor == cluster("north")).unwrap().obstacle.clone()
    }

    /// Whether these requests are placed by one plan.
    fn are_placed<const N: usize>(&mut self, specs: [RequestSpec; N]) -> [bool; N] {
        let requests = specs.map(|spec| self.submit(spec));
        self.place();
        requests.map(|request| !self.is_queued(request))
    }

    /// Reservations for `juniors`, who compete with nobody; `rivals` may preempt.
    fn reserving_for_juniors(reservations: &str) -> Self {
        let mut federation = Self::reserving("");
        let text = format!(
            "{}---{}{SCHEDULES}{}",
            terms("", "").files[0].text,
            rivals(),
            reservations.replace("tenant: rivals", "tenant: juniors")
        );
        let source = compiled(text);
        federation.ok(Command::ApplyPolicy(ApplyPolicy { source, force: false, expected_hash: None }));
        federation
    }

    fn reclaimed_by(&mut self, reclaims: Vec<ProposedReclaim>) -> Vec<LeaseId> {
        match self.ok(Command::ReclaimLeases(ReclaimLeases { spare: Vec::new(), reclaims })).reply {
            Ok(ReplyBody::Reclaimed { leases, .. }) => leases,
            other => panic!("{other:?}"),
        }
    }
}

fn planned_reclaims(federation: &Federation) -> Vec<ProposedReclaim> {
    Planner::default().plan(&federation.state, 100).reclaims
}

#[test]
fn a_gang_is_not_renewed_into_what_is_reserved() {
    let mut federation = Federation::reserving(&twelve());
    federation.now = LESSON - 3 * HOUR;
    let parts = federation.gang_that_grows(60, LESSON - 3 * HOUR + MINUTE);
    // One part would fit beside the reservation, both do not, even while the second one is not active yet.
    for _ in 0..2 {
        let refusal = federation.renewed(parts[0], 4 * HOUR).unwrap_err();
        assert_eq!(refusal.code, Code::PolicyDenied, "{refusal}");
        assert!(refusal.reason.contains(RESERVED) && refusal.remedy.contains("ask for at most 2h5"), "{refusal}");
        federation.run(parts[1]);
    }
    federation.renewed(parts[1], 2 * HOUR).unwrap();
    assert_eq!(federation.are_placed([firm(4, 3)]), [true], "nothing of the gang is there during the lesson");
}

#[test]
fn a_lease_that_ends_with_its_gang_counts_no_longer_than_that() {
    let mut federation = Federation::reserving(&twelve());
    federation.now = LESSON - 3 * HOUR;
    let [first, joined] = federation.gang_that_grows(150, LESSON - 2 * HOUR);
    let [first, joined] = [first, joined].map(|lease| &federation.state.leases[&lease]);
    assert_eq!((joined.ends_by, joined.expires_at), (first.expires_at, None));
    // Its own term would last into the lesson.
    assert!(joined.ends_by.unwrap().0 < LESSON && joined.placed_at.0 + joined.term.0 > LESSON);
    assert_eq!(federation.are_placed([firm(4, 3)]), [true]);
}

#[test]
fn a_reservation_that_comes_after_a_plan_is_kept() {
    let mut federation = Federation::reserving("");
    federation.expire_at(LESSON - HOUR);
    let request = federation.submit(firm(8, 3));
    let placements = scheduler::plan(&federation.state, 100).placements;
    assert_eq!(placements.len(), 1);
    federation.reserve(&twelve());
    match federation.ok(Command::PlaceRequests(PlaceRequests { placements })).reply {
        Ok(ReplyBody::Placed { leases, refused }) => {
            assert!(leases.is_empty(), "{leases:?}");
            assert!(refused[0].1.reason.ends_with(&format!("({RESERVED})")), "{refused:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(federation.is_queued(request));
}

#[test]
fn many_ends_of_leases_hide_no_end_of_a_window() {
    let mut federation = Federation::reserving(&twelve());
    federation.offer("south", offer(2, &[("s1", 4, device(81_559, Sharing::Fractional { step_milli: 50 }))]));
    federation.now = LESSON + MINUTE;
    federation.running(course(12, 1));
    // They count in the limits of the same institution, and end between the lease of the course and the window.
    for minutes in 70..110 {
        let mut small = RequestSpec { duration: Millis(minutes * MINUTE), ..spec(1, Share::Milli(100), "big") };
        (small.gpus.cpu_milli_per_gpu, small.gpus.memory_mib_per_gpu) = (100, 100);
        federation.submit(at("south", small));
    }
    let leases = federation.place();
    assert_eq!(leases.len(), 40);
    leases.into_iter().for_each(|lease| federation.run(lease));
    let earliest = quote(&federation.state, &firm(8, 3)).earliest;
    assert_eq!(earliest, Some((Timestamp(LESSON + 3 * HOUR), vec![cluster("north")])));
}

#[test]
fn a_start_that_was_not_found_among_many_windows_is_unknown_and_not_impossible() {
    let all_days = "days: [mon, tue, wed, thu, fri, sat, sun]";
    let windows = (0..11).map(|number| {
        let hour = 2 * number;
        format!(
            "---\napiVersion: policy.comity.dev/v1\nkind: Schedule\nmetadata: {{name: at-{hour}}}\n\
             spec: {{timeZone: UTC, windows: [{{{all_days}, from: '{hour:02}:00', until: '{hour:02}:30'}}]}}\n{}",
            reservation(&format!("course-{hour}"), &format!("gpus: 12, during: at-{hour}"))
        )
    });
    let mut federation = Federation::reserving(&windows.collect::<String>());
    federation.expire_at(LESSON);
    let found = federation.obstacle_at_north(&firm(8, 30)).unwrap();
    assert_eq!((found.code.as_str(), found.cure, found.until), (RESERVED, Cure::Waiting, None));
    assert!(found.unblock.contains("wait until after 19"), "{}", found.unblock);
}

#[test]
fn a_gang_on_several_donors_starts_once_the_window_ends() {
    let mut federation = Federation::reserving(&twelve());
    federation.expire_at(LESSON + MINUTE);
    let members = Some(Members { min: 5, desired: 5 });
    let gang = RequestSpec { members, spread_donors: true, allow_donors: Vec::new(), ..firm(4, 1) };
    let end = Timestamp(LESSON + 3 * HOUR);
    let earliest = Some((end, vec![cluster("north"), cluster("south")]));
    assert_eq!(quote(&federation.state, &gang).earliest, earliest);
    // A lease that ends in the window makes room only after it.
    let south = RequestSpec { allow_donors: vec![cluster("south")], ..firm(4, 1) };
    federation.running(south);
    assert_eq!(quote(&federation.state, &gang).earliest, earliest);
}

#[test]
fn a_start_reserved_after_a_window_takes_nothing_of_it() {
    let mut federation = Federation::reserving(&twelve());
    federation.expire_at(LESSON - 2 * HOUR);
    assert_eq!(federation.are_placed([firm(8, 3)]), [false]);
    // An hour later room is reserved for it, from the end of the lesson on.
    federation.expire_at(LESSON - HOUR + MINUTE);
    assert_eq!(federation.are_placed([firm(4, 5), firm(1, 5)]), [true, false]);
}

#[test]
fn nobody_delays_a_start_that_is_reserved_within_a_window() {
    let mut federation = Federation::reserving(&reservation("course", "gpus: 4, during: lessons"));
    federation.expire_at(LESSON - HOUR);
    federation.running(firm(8, 2));
    federation.expire_at(LESSON - 50 * MINUTE);
    assert_eq!(federation.are_placed([firm(12, 1)]), [false]);
    // It starts at ten, with all that is not kept.
    federation.expire_at(LESSON + 11 * MINUTE);
    let short = RequestSpec { duration: Millis(20 * MINUTE), ..firm(4, 1) };
    assert_eq!(federation.are_placed([firm(4, 4), short]), [false, true]);
}

#[test]
fn a_reservation_of_one_class_keeps_nothing_of_another() {
    let mut federation =
        Federation::reserving(&reservation("course", "gpus: 4, during: lessons").replace("class: big", "class: small"));
    let (big, small) = (device(81_559, Sharing::Exclusive), device(40_000, Sharing::Exclusive));
    federation.offer("north", offer(2, &[("n1", 8, big), ("n2", 8, small)]));
    federation.expire_at(LESSON + MINUTE);
    // What its tenant has of another class is no use of it.
    federation.running(course(4, 1));
    let small = |count| RequestSpec { gpus: spec(count, Share::Whole, "small").gpus, ..firm(count, 1) };
    assert_eq!(federation.are_placed([small(5), firm(4, 1)]), [false, true]);
    let kept = &kept_gpus(&federation.state)[0];
    assert_eq!((kept.used_milli, kept.held_milli, kept.short_milli), (0, 4_000, 0));
    assert_eq!(federation.are_placed([small(4)]), [true]);
}

/// Used, held and short, in GPUs, by reservation.
fn counted(federation: &Federation) -> BTreeMap<String, [u64; 3]> {
    let counted = |kept: KeptGpus| {
        (kept.reservation.name.clone(), [kept.used_milli, kept.held_milli, kept.short_milli].map(|milli| milli / 1_000))
    };
    kept_gpus(&federation.state).into_iter().map(counted).collect()
}

#[test]
fn what_a_tenant_uses_counts_for_one_of_its_reservations() {
    let mut federation = Federation::reserving(
        &(reservation("algebra", "gpus: 4, during: lessons")
            + &reservation("course", "gpus: 6, during: lessons")
            + &reservation("seminar", "gpus: 3, during: mornings")),
    );
    federation.expire_at(LESSON + MINUTE);
    let (_, lease) = federation.running(course(8, 3));
    let expected = |of_course, of_seminar| {
        let all = [("algebra", [4, 0, 0]), ("course", of_course), ("seminar", of_seminar)];
        all.map(|(name, counted)| (name.to_owned(), counted)).into_iter().collect::<BTreeMap<_, _>>()
    };
    assert_eq!(counted(&federation), expected([4, 2, 0], [0, 0, 0]));
    // Local work leaves one of the eight others, which is kept for the course. At ten, four of thirteen will be missing.
    let home = federation.state.leases[&lease].placement.nodes.keys().next().unwrap().clone();
    let local = |name: &str| if home.to_string() == name { 0 } else { 7 };
    federation.offer("north", used(2, &[("n1", 8, local("n1")), ("n2", 8, local("n2"))]));
    assert_eq!(counted(&federation), expected([4, 1, 1], [0, 0, 2]));
    federation.expire_at(LESSON + HOUR + MINUTE);
    assert_eq!(counted(&federation), expected([4, 0, 2], [0, 1, 2]));
    federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
    federation.stop(lease);
    assert_eq!(counted(&federation)["algebra"][0], 0);
}

#[test]
fn nobody_is_preempted_for_a_request_that_would_start_too_late_after_the_notice() {
    let mut federation = Federation::reserving_for_juniors(&twelve());
    federation.expire_at(LESSON - 2 * HOUR);
    let (_, low) = federation.running(at("north", yielding(16, 0)));
    // With its hold it needs 32 minutes; the notice takes five.
    federation.expire_at(LESSON - 45 * MINUTE);
    let urgent = federation.submit_as("bob", at("north", urgent(8)));
    let proposed = vec![ProposedReclaim { lease: low, reason: ReclaimReason::Preempted { by: urgent } }];
    assert_eq!(planned_reclaims(&federation), proposed);
    federation.expire_at(LESSON - 35 * MINUTE);
    assert_eq!(planned_reclaims(&federation), []);
    assert_eq!(federation.reclaimed_by(proposed), []);
}

#[test]
fn nobody_is_preempted_while_a_window_ends_anyway() {
    let mut federation = Federation::reserving_for_juniors(&twelve());
    federation.expire_at(LESSON + HOUR);
    federation.running(at("north", yielding(4, 0)));
    // The window alone is in its way, and ends before the notice would.
    federation.expire_at(LESSON + 3 * HOUR - 4 * MINUTE);
    let urgent = federation.submit_as("bob", at("north", urgent(8)));
    assert_eq!(planned_reclaims(&federation), []);
    federation.expire_at(LESSON + 3 * HOUR);
    federation.place();
    assert!(!federation.is_queued(urgent));
}

#[test]
fn no_lease_moves_for_a_request_that_would_start_too_late_after_the_notice() {
    let mut federation = Federation::reserving_for_juniors(&reservation("course", "gpus: 8, during: lessons"));
    federation.offer("north", used(2, &[("n1", 4, 0), ("n2", 4, 0)]));
    federation.expire_at(LESSON - 4 * HOUR);
    let on_one_node = |count| RequestSpec {
        topology: Topology { same_node: true, ..Topology::default() },
        duration: Millis(30 * MINUTE),
        ..firm(count, 1)
    };
    let preemptible = Some(Preemptible { grace: Millis(0), checkpoint: true, same_gpu_type: false });
    let movable = RequestSpec { preemptible, duration: Millis::from_hours(24), ..on_one_node(2) };
    let requests: Vec<RequestId> = (0..4).map(|_| federation.submit(movable.clone())).collect();
    federation.place().into_iter().for_each(|lease| federation.run(lease));
    // One of the two leases on each node goes.
    let mut by_node: BTreeMap<NodeId, LeaseId> = BTreeMap::new();
    for request in requests {
        let lease = federation.state.requests[&request].lease.unwrap();
        let home = federation.state.leases[&lease].placement.nodes.keys().next().unwrap().clone();
        by_node.insert(home, lease);
    }
    assert_eq!(by_node.len(), 2);
    for lease in by_node.into_values() {
        federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
        federation.stop(lease);
    }
    federation.expire_at(LESSON - 2 * HOUR);
    let request = federation.submit(on_one_node(4));
    assert!(federation.place().is_empty());
    federation.expire_at(LESSON - 45 * MINUTE);
    let proposed = planned_reclaims(&federation);
    assert_eq!(proposed.len(), 1);
    assert_eq!(proposed[0].reason, ReclaimReason::Migration { by: request });
    federation.expire_at(LESSON - 35 * MINUTE);
    assert_eq!(planned_reclaims(&federation), []);
    assert_eq!(federation.reclaimed_by(proposed.clone()), []);
    assert_eq!(federation.state.leases[&proposed[0].lease].state, LeaseState::Active);
}
