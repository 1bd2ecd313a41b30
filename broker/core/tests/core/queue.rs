//! The order of the queue; no request waits forever.

use std::collections::BTreeMap;

use comity_core::command::{Expire, LeaseOutcome, PlaceRequests, ReleaseLease, check_submission};
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain;
use comity_core::feasibility;
use comity_core::inventory::Sharing;
use comity_core::refusal::Code;
use comity_core::scheduler::{self, OVERDUE_AFTER, Planner};
use comity_core::{Command, Millis, Timestamp};
use comity_types::{LeaseId, PriorityName, RequestId, RequestState, TenantId, namespace_name};
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, offer, spec};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
/// Default of `reserveAfter`.
const RESERVE_AFTER: u64 = HOUR;

/// A tenant's request for whole big GPUs, from the tenant's own cluster.
fn of(tenant: &str, count: u32) -> RequestSpec {
    let origin = if tenant == "rivals" { "east" } else { "west" };
    RequestSpec {
        tenant: TenantId::parse(tenant, "tenant").unwrap(),
        origin: cluster(origin),
        ..spec(count, Share::Whole, "big")
    }
}

fn at_priority(class: &str, spec: RequestSpec) -> RequestSpec {
    RequestSpec { priority: Some(PriorityName::parse(class, "priority").unwrap()), ..spec }
}

impl Federation {
    /// Places requests; returns their tenants, in order.
    fn placed_for(&mut self) -> Vec<String> {
        let leases = self.place();
        leases.iter().map(|lease| self.state.leases[lease].tenant.to_string()).collect()
    }

    /// Both sides report that they are ready, so the term begins.
    fn start(&mut self, lease: LeaseId) {
        let (origin, donor) = self.ends(lease);
        for name in [donor, origin] {
            let namespace = namespace_name(lease);
            self.report_lease(&name, lease, LeaseOutcome::Ready { namespace, secret_name: "s".into() });
        }
    }

    /// Both sides report that they are clean.
    fn clear(&mut self, lease: LeaseId) {
        let (origin, donor) = self.ends(lease);
        for name in [donor, origin] {
            self.report_lease(&name, lease, LeaseOutcome::Clean);
        }
    }

    fn ends(&self, lease: LeaseId) -> (String, String) {
        let lease = &self.state.leases[&lease];
        (lease.origin.to_string(), lease.placement.donor.to_string())
    }

    fn release(&mut self, lease: LeaseId) {
        self.ok(Command::ReleaseLease(ReleaseLease { lease }));
        self.clear(lease);
    }

    /// Lets timers expire until `now`, with clusters that react at once, and places requests.
    fn run_until(&mut self, now: u64, planner: &mut Planner) -> Vec<LeaseId> {
        let mut placed = Vec::new();
        loop {
            placed.extend(self.place_with(planner));
            let Some(due) = self.state.next_due().filter(|due| due.0 <= now) else { break };
            self.now = self.now.max(due.0);
            self.ok(Command::Expire(Expire {}));
            let ending: Vec<LeaseId> = self
                .state
                .live_leases()
                .filter(|(_, lease)| lease.state == comity_types::LeaseState::Ending)
                .map(|(id, _)| id)
                .collect();
            for lease in ending {
                self.clear(lease);
            }
        }
        self.now = self.now.max(now);
        placed
    }

    fn place_with(&mut self, planner: &mut Planner) -> Vec<LeaseId> {
        let mut all = Vec::new();
        loop {
            let placements = planner.plan(&self.state, 100).placements;
            if placements.is_empty() {
                return all;
            }
            match self.ok(Command::PlaceRequests(PlaceRequests { placements })).reply {
                Ok(comity_core::ReplyBody::Placed { leases, refused }) => {
                    assert!(refused.is_empty(), "apply refused what was planned from the same state: {refused:?}");
                    leases.iter().for_each(|lease| self.start(*lease));
                    all.extend(leases);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn higher_priorities_first_then_the_lower_share_then_age() {
    let mut federation = Federation::with_rivals();
    for _ in 0..3 {
        federation.submit(of("team", 2));
    }
    for _ in 0..2 {
        federation.submit(of("rivals", 2));
    }
    federation.submit(at_priority("low", of("rivals", 1)));
    federation.submit(at_priority("urgent", of("rivals", 4)));
    // The urgent lease counts: the team catches up before its rivals are served again.
    assert_eq!(federation.placed_for(), ["rivals", "team", "team", "team", "rivals", "rivals", "rivals"]);
}

#[test]
fn a_request_without_a_priority_class_gets_the_default() {
    let mut federation = Federation::with_rivals();
    let plain = federation.submit(of("team", 1));
    assert_eq!(federation.state.requests[&plain].spec.priority.as_ref().map(PriorityName::as_str), Some("normal"));
    let refused = feasibility::check_request(&federation.state, &at_priority("urgent", of("team", 1))).unwrap_err();
    assert_eq!((refused.code, refused.field.as_str()), (Code::PolicyDenied, "spec.priority"));
    let unknown = feasibility::check_request(&federation.state, &at_priority("loud", of("team", 1))).unwrap_err();
    assert_eq!((unknown.code, unknown.value.as_str()), (Code::NotFound, "loud"));
    // A request whose priority class was deleted stays queued and loses its priority.
    federation.submit(at_priority("urgent", of("rivals", 20)));
    federation.also(&super::federation::RIVALS.replace("{name: urgent}", "{name: other}"));
    assert_eq!(federation.placed_for(), ["team"]);
}

#[test]
fn weights_and_lending_determine_shares() {
    // Of 20 GPUs, a tenant with half the weight gets half as many as the other tenant of its institution.
    let mut federation = Federation::with_rivals();
    for tenant in ["team", "juniors", "rivals"] {
        (0..20).for_each(|_| {
            federation.submit(of(tenant, 1));
        });
    }
    let count = |placed: &[String], tenant: &str| placed.iter().filter(|t| *t == tenant).count();
    let placed = federation.placed_for();
    let counts = ["rivals", "team", "juniors"].map(|tenant| count(&placed, tenant));
    assert_eq!(counts, [10, 7, 3], "institutions alike; within one, two to one");

    // The same, while six GPUs of eastern are lent: lending raises its share.
    let mut federation = Federation::with_rivals();
    federation.offer("east", offer(1, &[("e1", 6, device(81_559, Sharing::Exclusive))]));
    let at_east = RequestSpec { allow_donors: vec![cluster("east")], ..of("team", 6) };
    federation.submit(at_east);
    assert_eq!(federation.placed_for(), ["team"]);
    for tenant in ["team", "rivals"] {
        (0..20).for_each(|_| {
            federation.submit(of(tenant, 1));
        });
    }
    let placed = federation.placed_for();
    // Western holds 6 already; weights alone would give 13 to each. All lent GPUs are eastern's, so shares are 4 to 1.
    assert!(count(&placed, "rivals") > 17, "{placed:?}");
}

#[test]
fn past_use_counts_for_a_while() {
    let turn = |pause: u64| {
        let mut federation = Federation::with_rivals();
        federation.submit(of("team", 16));
        let lease = federation.place()[0];
        federation.now += 6 * HOUR;
        federation.release(lease);
        federation.now += pause;
        // Only one of the two fits, and the team's is older.
        federation.submit(of("team", 16));
        federation.submit(of("rivals", 16));
        federation.placed_for()
    };
    assert_eq!(turn(HOUR), ["rivals"], "the team had its share");
    assert_eq!(turn(70 * 24 * HOUR), ["team"], "after many half-lives age decides");
}

#[test]
fn a_gang_that_waited_long_gets_a_reservation_and_others_backfill() {
    let mut federation = Federation::ready();
    let mut planner = Planner::default();
    // All GPUs are leased: 16 at north for 2 h, 4 at south for 3 h.
    let long = |hours| RequestSpec { duration: Millis::from_hours(hours), ..spec(4, Share::Whole, "big") };
    for hours in [2, 2, 2, 2, 3] {
        federation.submit(long(hours));
    }
    assert_eq!(federation.place_with(&mut planner).len(), 5);
    let mut gang = spec(8, Share::Whole, "big");
    gang.topology.same_node = true;
    let gang = federation.submit(gang);
    let north = federation.state.live_leases().find(|(_, lease)| lease.placement.donor == cluster("north")).unwrap().0;
    let free = federation.state.leases[&north].placement.nodes.keys().next().unwrap().clone();

    // Until the gang has waited long, any request that fits passes it; then only those that do not delay it.
    federation.now += RESERVE_AFTER + MINUTE;
    federation.release(north);
    let left = federation.state.live_leases().find(|(_, lease)| lease.placement.nodes.contains_key(&free));
    let end = left.unwrap().1.expires_at.unwrap();
    let before = scheduler::plan(&federation.state, 10);
    let reserved = before.reserved.clone().unwrap();
    assert_eq!((reserved.request, reserved.donors.as_slice()), (gang, [cluster("north")].as_slice()));
    assert_eq!(reserved.at, end, "exactly when the first node is empty");

    let stays = federation.submit(RequestSpec { duration: Millis::from_hours(2), ..spec(1, Share::Whole, "big") });
    let passes = federation.submit(RequestSpec { duration: Millis::from_mins(30), ..spec(1, Share::Whole, "big") });
    let plan = planner.plan(&federation.state, 10);
    let served: Vec<RequestId> = plan.placements.iter().map(|placed| placed.request).collect();
    let half_free = plan.placements[0].placement.nodes.contains_key(&free);
    let reserved_node = planner.plan(&federation.state, 10).reserved.is_some();
    assert!(reserved_node && half_free);
    // The half-free node is the one that empties first, and the long request would still run on it.
    assert_eq!((served.as_slice(), &plan.unplaced[..]), (&[passes][..], &[gang, stays][..]));

    // At that time the gang starts, before all others.
    federation.place_with(&mut planner);
    federation.run_until(end.0 + 1, &mut planner);
    assert_eq!(federation.state.requests[&gang].state, RequestState::Placed);
}

#[test]
fn explanations_give_queue_position_share_and_earliest_start() {
    let mut federation = Federation::with_rivals();
    let mut planner = Planner::default();
    for (tenant, count, minutes) in [("team", 8, 40), ("team", 8, 50), ("rivals", 4, 55)] {
        federation.submit(RequestSpec { duration: Millis::from_mins(minutes), ..of(tenant, count) });
    }
    assert_eq!(federation.place_with(&mut planner).len(), 3);
    let first = federation.submit(of("team", 2));
    let second = federation.submit(of("team", 12));
    let rival = federation.submit(of("rivals", 2));
    let waiting = |id| explain::explain_waiting(&federation.state, id).unwrap();
    let places = [first, second, rival].map(|id| waiting(id).position.unwrap().place);
    assert_eq!(places, [2, 3, 1], "the rivals hold less, and stay below the team with two more");

    let position = waiting(second).position.unwrap();
    // The team holds 16 of 20 GPUs. Lenders have no waiting requests, so both others are entitled to one half.
    assert_eq!((position.waiting, position.entitled_ppm), (3, 500_000));
    assert!(position.share_ppm.abs_diff(800_000) < 100, "{position:?}");
    let mut ends: Vec<Timestamp> = federation.state.leases.values().filter_map(|lease| lease.expires_at).collect();
    ends.sort_unstable();
    assert_eq!(position.earliest, Some((ends[1], vec![cluster("north")])), "12 at north need both of its leases gone");
    assert_eq!(waiting(first).position.unwrap().earliest, Some((ends[0], vec![cluster("north")])));
    assert_eq!(position.reserved, None, "nobody has waited long");
    let quote = explain::quote(&federation.state, &of("rivals", 4));
    assert_eq!((quote.placements, quote.earliest), (Vec::new(), Some((ends[0], vec![cluster("north")]))));
    let too_many = federation.submit(of("team", 17));
    assert_eq!(explain::explain_waiting(&federation.state, too_many).unwrap().position.unwrap().earliest, None);

    // After an hour the first request in order gets a reservation, and the explanations of others name it.
    federation.ok(Command::Expire(Expire {}));
    let leases: Vec<LeaseId> = federation.state.live_leases().map(|(id, _)| id).collect();
    leases.iter().for_each(|lease| {
        federation.ok(Command::RenewLease(comity_core::command::RenewLease {
            lease: *lease,
            duration: Millis(3 * HOUR),
            may_shorten: true,
        }));
    });
    federation.now += HOUR;
    federation.submit(of("team", 1));
    let told = explain::explain_waiting(&federation.state, rival).unwrap();
    assert!(told.explanation.summary.ends_with("is reserved for it"), "{}", told.explanation.summary);
    let others = explain::explain_waiting(&federation.state, first).unwrap().position.unwrap();
    assert_eq!(others.reserved.map(|reserved| reserved.request), Some(rival));
    assert!(explain::explain_waiting(&federation.state, RequestId(1)).is_none(), "it does not wait");
}

#[test]
fn windows_open_and_close_by_log_time() {
    let mut federation = Federation::ready();
    let mut planner = Planner::default();
    let now = federation.now;
    let window = |opens: u64, closes: u64, count| RequestSpec {
        not_before: Some(Timestamp(now + opens)),
        start_by: Some(Timestamp(now + closes)),
        ..spec(count, Share::Whole, "big")
    };
    let late = federation.submit(window(HOUR, 2 * HOUR, 1));
    let never = federation.submit(window(HOUR, 2 * HOUR, 21));
    assert!(federation.place_with(&mut planner).is_empty(), "neither window is open");
    let early = comity_core::proposal::ProposedPlacement {
        request: late,
        placement: {
            let twin = federation.submit(spec(1, Share::Whole, "big"));
            let plan = planner.plan(&federation.state, 1);
            assert_eq!(plan.placements[0].request, twin);
            plan.placements[0].placement.clone()
        },
        more: Vec::new(),
        kind: comity_core::proposal::PlacementKind::Serve,
        overdue: false,
    };
    let refusal = feasibility::check(&federation.state, late, &early.placement).unwrap_err();
    assert_eq!(refusal.code, Code::WrongState, "apply asks again");

    federation.run_until(now + HOUR - 1, &mut planner);
    assert!(federation.state.requests[&late].early);
    let placed = federation.run_until(now + HOUR + 1, &mut planner);
    assert_eq!(placed.iter().map(|lease| federation.state.leases[lease].request).collect::<Vec<_>>(), [late]);
    federation.run_until(now + 2 * HOUR + 1, &mut planner);
    let failed = &federation.state.requests[&never];
    assert_eq!(failed.state, RequestState::Failed);
    assert!(failed.message.contains("latest start"), "{}", failed.message);

    // Impossible windows are refused with field and value.
    let submit =
        |spec| Command::SubmitRequest(comity_core::command::SubmitRequest { spec, submitted_by: "alice".into() });
    let gone = RequestSpec { not_before: None, start_by: Some(Timestamp(5)), ..spec(1, Share::Whole, "big") };
    let far = RequestSpec { not_before: Some(Timestamp(u64::MAX)), ..spec(1, Share::Whole, "big") };
    let crossed = RequestSpec { start_by: Some(Timestamp(now + 3 * HOUR)), ..window(4 * HOUR, 0, 1) };
    // Log time stands still while nothing is applied: a dry run is checked against the clock.
    let log_time = federation.state.log_time;
    let soon = RequestSpec { start_by: Some(log_time.after(Millis(60_000))), ..spec(1, Share::Whole, "big") };
    let look = |now: Timestamp| check_submission(&federation.state, &soon, now);
    assert!(look(log_time).is_ok());
    assert_eq!(look(Timestamp(log_time.0 + 120_000)).unwrap_err().field, "spec.start_by_ms");
    for (bad, field) in [(gone, "spec.start_by_ms"), (far, "spec.not_before_ms"), (crossed, "spec.start_by_ms")] {
        let refusal = federation.refused(submit(bad));
        assert_eq!((refusal.code, refusal.field.as_str()), (Code::InvalidField, field), "{refusal}");
    }
}

/// Without reservations it would wait as long as others arrive.
#[test]
fn a_large_request_of_low_priority_starts_while_others_never_end() {
    let mut federation = Federation::with_rivals();
    let mut planner = Planner::default();
    let began = federation.now;
    let one = |tenant: &str| RequestSpec { duration: Millis::from_mins(50), ..of(tenant, 1) };
    let mut large = None;
    let term = 50 * MINUTE + 2 * MINUTE;
    let bound = OVERDUE_AFTER * RESERVE_AFTER + term + 2 * MINUTE;
    let mut minute = 0;
    let started = loop {
        // Demand exceeds the 20 GPUs at all times.
        while federation.state.queued_len() < 6 {
            federation.submit(one("team"));
            federation.submit(at_priority("urgent", one("rivals")));
        }
        federation.run_until(began + minute * MINUTE, &mut planner);
        if minute == 60 {
            let mut wanted = at_priority("low", of("juniors", 8));
            wanted.topology.same_node = true;
            large = Some(federation.submit(wanted));
        }
        if large.is_some_and(|large| federation.state.requests[&large].state == RequestState::Placed) {
            break (minute - 60) * MINUTE;
        }
        minute += 1;
        assert!((minute - 1).saturating_sub(60) * MINUTE <= bound, "not after {minute} minutes");
    };
    assert!(started > RESERVE_AFTER, "others were first for a while: {started}");
}

/// An arrival: tenant, GPUs, same node, minutes, priority, minutes since the previous arrival.
type Arrival = (usize, u32, bool, u64, usize, u64);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    proptest::collection::vec((0..3_usize, 1..9_u32, any::<bool>(), 5..120_u64, 0..3_usize, 0..40_u64), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// The bound, for terms (with hold) of at most L and `reserveAfter` A: a request that has waited 8 A is served
    /// after all older ones, and each of these takes at most 8 A for the pause and L until its capacity is free.
    #[test]
    fn every_request_starts_within_the_bound(arrivals in arrivals()) {
        let mut federation = Federation::with_rivals();
        let mut planner = Planner::default();
        let mut now = federation.now;
        let mut longest = 0;
        for (tenant, count, same_node, minutes, priority, gap) in &arrivals {
            now += gap * MINUTE;
            federation.run_until(now, &mut planner);
            let tenant = ["team", "juniors", "rivals"][*tenant];
            let class = ["low", "normal", if tenant == "rivals" { "urgent" } else { "normal" }][*priority];
            let mut wanted = at_priority(class, of(tenant, *count));
            wanted.topology.same_node = *same_node;
            wanted.duration = Millis::from_mins(*minutes);
            longest = longest.max((minutes + 2) * MINUTE);
            federation.submit(wanted);
        }
        federation.run_until(now + 1_000 * HOUR, &mut planner);
        let mut older: BTreeMap<RequestId, u64> = BTreeMap::new();
        for lease in federation.state.leases.values() {
            let request = &federation.state.requests[&lease.request];
            let due = request.submitted_at.0 + OVERDUE_AFTER * RESERVE_AFTER;
            let before = federation.state.leases.values().filter(|other| {
                other.request < lease.request && other.placed_at.0 > due
            });
            older.insert(lease.request, u64::try_from(before.count()).unwrap());
            let bound = due + (older[&lease.request] + 1) * (OVERDUE_AFTER * RESERVE_AFTER + longest);
            prop_assert!(lease.placed_at.0 <= bound, "{} started at {} after {bound}", lease.request, lease.placed_at.0);
        }
        prop_assert_eq!(older.len(), arrivals.len(), "all have started");
    }
}
