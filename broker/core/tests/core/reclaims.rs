//! Explanations and quotes show the leases that the plan reclaims for a request, before and after the plan.

use comity_core::command::{CancelRequest, Expire, LeaseOutcome, PlaceRequests};
use comity_core::demand::{RequestSpec, Share};
use comity_core::explain;
use comity_core::explain::{Quote, Reclaims, Waiting};
use comity_core::inventory::Sharing;
use comity_core::proposal::ProposedReclaim;
use comity_core::scheduler;
use comity_core::{Command, Millis, Timestamp};
use comity_types::{LeaseId, LeaseState, RequestId, RequestState};
use proptest::prelude::*;

use super::federation::{Federation, cluster, device, offer, spec};
use super::reclaim::{GRACE, MINUTE, at, urgent, yielding};

fn told(federation: &Federation, request: RequestId) -> Waiting {
    explain::explain_waiting(&federation.state, request).unwrap()
}

/// The leases that the next plan reclaims for `request`.
fn proposed(federation: &Federation, request: RequestId) -> Vec<LeaseId> {
    let plan = scheduler::plan(&federation.state, 512);
    let its = plan.reclaims.iter().filter(|reclaim| reclaim.reason.for_request() == Some(request));
    let mut its: Vec<LeaseId> = its.map(|reclaim| reclaim.lease).collect();
    its.sort_unstable();
    its
}

fn leases_of(reclaims: Option<&Reclaims>) -> Vec<LeaseId> {
    reclaims.into_iter().flat_map(|it| &it.leases).map(|it| it.lease).collect()
}

/// North is full of leases that do not yield; south has two leases of two GPUs each that do.
fn full() -> (Federation, LeaseId, LeaseId) {
    let mut federation = Federation::with_preemption();
    for _ in 0..2 {
        federation
            .running(at("north", RequestSpec { duration: Millis::from_hours(8), ..spec(8, Share::Whole, "big") }));
    }
    let (_, first) = federation.running(at("south", yielding(2, 20 * MINUTE)));
    let (_, second) = federation.running(at("south", yielding(2, 0)));
    (federation, first, second)
}

#[test]
fn a_quote_names_leases_to_reclaim_their_notice_and_the_start() {
    let (mut federation, first, second) = full();
    let now = federation.state.log_time;
    let quote: Quote = explain::quote(&federation.state, &urgent(4));
    let reclaims = quote.reclaims.unwrap();
    assert_eq!((&reclaims.donor, reclaims.given, reclaims.move_aside), (&cluster("south"), false, false));
    assert_eq!(leases_of(Some(&reclaims)), [first, second]);
    assert_eq!(reclaims.gpus_milli(), 4_000);
    // The first lease asks for more notice than the donor gives, the second for less.
    let notices: Vec<u64> = reclaims.leases.iter().map(|lease| lease.notice.0).collect();
    assert_eq!(notices, [20 * MINUTE, GRACE]);
    assert!(reclaims.leases.iter().all(|lease| lease.priority.as_ref().unwrap().as_str() == "normal"));
    let end = Timestamp(now.0 + 20 * MINUTE);
    assert_eq!(reclaims.until(), Some(end));
    assert_eq!(quote.earliest, Some((end, vec![cluster("south")])));
    assert!(quote.placements.is_empty());
    let summary = &quote.explanation.summary;
    let told_so = "it starts by room that is made at south: 2 leases of priority normal (4 GPUs) would be reclaimed to yield to it, \
                   with 20 min of notice; gone by ";
    assert!(summary.contains(told_so), "{summary}");
    let unblock = |quote: &explain::Explanation, donor: &str| {
        let verdict = quote.donors.iter().find(|verdict| verdict.donor == cluster(donor)).unwrap();
        verdict.obstacle.as_ref().unwrap().unblock.clone()
    };
    assert!(unblock(&quote.explanation, "south").contains("2 leases of priority normal (4 GPUs) would be reclaimed"));
    assert!(!unblock(&quote.explanation, "north").contains("reclaimed"));

    // Requests that may not preempt or start later see no reclaims.
    let plain = explain::quote(&federation.state, &spec(4, Share::Whole, "big"));
    assert!(plain.reclaims.is_none() && plain.earliest.unwrap().0 > end, "it waits for their terms");
    let later = RequestSpec { not_before: Some(Timestamp(now.0 + MINUTE)), ..urgent(4) };
    assert_eq!(explain::quote(&federation.state, &later).reclaims, None);
    // Leases yield only if they allow it.
    assert_eq!(explain::quote(&federation.state, &at("north", urgent(1))).reclaims, None);

    // A waiting request gets the same answer, before and after notice is given.
    let request = federation.submit(urgent(4));
    let next = told(&federation, request);
    assert_eq!(leases_of(next.reclaims.as_ref()), [first, second]);
    assert!(!next.reclaims.unwrap().given);
    let plan = scheduler::plan(&federation.state, 10);
    federation.reclaim(plan.reclaims);
    let waiting = told(&federation, request);
    let given = waiting.reclaims.unwrap();
    assert!(given.given);
    assert_eq!(leases_of(Some(&given)), [first, second]);
    let deadline =
        |federation: &Federation, lease: LeaseId| federation.state.leases[&lease].reclaim.clone().unwrap().deadline;
    assert_eq!(given.until(), Some(deadline(&federation, first)));
    assert_eq!(waiting.position.unwrap().earliest, Some((deadline(&federation, first), vec![cluster("south")])));
    let summary = &waiting.explanation.summary;
    assert!(
        summary.contains("it waits for 2 leases of priority normal (4 GPUs) at south, reclaimed to yield to it"),
        "{summary}"
    );
    assert!(unblock(&waiting.explanation, "south").contains("are being reclaimed for it"));

    // Their capacity is kept for it: smaller requests wait until it ends.
    let behind = explain::quote(&federation.state, &at("south", spec(1, Share::Whole, "big")));
    let (starts, _) = behind.earliest.unwrap();
    assert!(
        starts.0 >= deadline(&federation, first).0 + 30 * MINUTE,
        "it would start in what {request} gets: {starts:?}"
    );

    // The first lease has saved its work, and the request waits for the second one. Then the donor clears both.
    federation.report_lease("west", first, LeaseOutcome::Checkpointed);
    assert_eq!(federation.state.leases[&first].state, LeaseState::Ending);
    let waiting = told(&federation, request);
    assert_eq!(waiting.reclaims.unwrap().until(), Some(deadline(&federation, second)));
    federation.report_lease("west", second, LeaseOutcome::Checkpointed);
    let waiting = told(&federation, request);
    assert_eq!(waiting.reclaims.unwrap().until(), None);
    let summary = &waiting.explanation.summary;
    assert!(summary.ends_with("ended, and south has yet to clear them"), "{summary}");
    federation.stop(first);
    federation.stop(second);
    assert_eq!(federation.place().len(), 1);
    assert_eq!(federation.state.requests[&request].state, RequestState::Placed);
}

#[test]
fn a_quote_takes_its_turn_before_lower_priorities() {
    let (mut federation, first, second) = full();
    federation.ok(Command::CancelRequest(CancelRequest { request: federation.state.leases[&first].request }));
    federation.stop(first);
    // Two GPUs are free at south, and a request of lower priority waits for them.
    let low = federation.submit(at("south", spec(2, Share::Whole, "big")));
    let quote = explain::quote(&federation.state, &urgent(2));
    assert_eq!(quote.placements.len(), 1, "{quote:?}");
    assert_eq!(quote.reclaims, None);
    let same = explain::quote(&federation.state, &at("south", spec(2, Share::Whole, "big")));
    assert!(same.placements.is_empty(), "{low} is served before it: {same:?}");
    // Three GPUs need the place of one lease beside the free ones.
    let quote = explain::quote(&federation.state, &urgent(3));
    assert_eq!(leases_of(quote.reclaims.as_ref()), [second]);
}

/// Running leases: GPUs, minutes since the start, minutes of notice if they yield, whether at north.
type Running = Vec<(u32, u64, Option<u64>, bool)>;

fn running() -> impl Strategy<Value = Running> {
    prop::collection::vec((1_u32..=4, 1_u64..=100, prop::option::of(0_u64..=30), any::<bool>()), 1..=7)
}

/// A request for up to `most` GPUs, which may preempt or not.
fn asked(most: u32) -> impl Strategy<Value = RequestSpec> {
    (1..=most).prop_flat_map(|count| prop_oneof![Just(urgent(count)), Just(spec(count, Share::Whole, "big"))])
}

/// Requests that are queued before.
fn waiting() -> impl Strategy<Value = Vec<RequestSpec>> {
    prop::collection::vec(asked(5), 0..=3)
}

/// Six GPUs at north and four at south, with these running leases.
fn with_running(leases: &Running) -> Federation {
    let mut federation = Federation::with_preemption();
    let big = device(81_559, Sharing::Exclusive);
    federation.offer("north", offer(2, &[("n1", 6, big)]));
    let mut sorted = leases.clone();
    sorted.sort_by_key(|(_, minutes, ..)| std::cmp::Reverse(*minutes));
    let now = federation.now + 100 * MINUTE;
    for (gpus, minutes, notice, north) in sorted {
        federation.now = federation.now.max(now - minutes * MINUTE);
        let work = at(if north { "north" } else { "south" }, yielding(gpus, notice.unwrap_or(0) * MINUTE));
        let work = if notice.is_some() { work } else { RequestSpec { preemptible: None, ..work } };
        let request = federation.submit(work);
        federation.place().iter().for_each(|lease| federation.run(*lease));
        if federation.state.requests[&request].state == RequestState::Queued {
            federation.ok(Command::CancelRequest(CancelRequest { request }));
        }
    }
    federation.now = federation.now.max(now);
    federation.ok(Command::Expire(Expire {}));
    federation
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    /// A quote shows reclaims if and only if the next plan proposes exactly those once the request is submitted; and it
    /// shows a placement if and only if that plan makes it.
    #[test]
    fn the_plan_does_what_the_quote_says(running in running(), waits in waiting(), wanted in asked(6)) {
        let mut federation = with_running(&running);
        for before in waits {
            federation.submit(before);
        }
        let checked = comity_core::command::check_submission(&federation.state, &wanted, federation.state.log_time).unwrap();
        let quote = explain::quote(&federation.state, &checked);
        // Submits at the time of the quote.
        federation.now -= 1;
        let request = federation.submit(wanted);
        prop_assert_eq!(leases_of(quote.reclaims.as_ref()), proposed(&federation, request));
        let plan = scheduler::plan(&federation.state, 512);
        let placed = plan.placements.iter().filter(|placed| placed.request == request);
        let placed: Vec<_> = placed.flat_map(|placed| std::iter::once(&placed.placement).chain(&placed.more)).collect();
        prop_assert_eq!(quote.placements.iter().collect::<Vec<_>>(), placed);
        // The explanation of the waiting request agrees with the plan.
        let told = told(&federation, request);
        prop_assert_eq!(leases_of(told.reclaims.as_ref()), proposed(&federation, request));
        // The deadlines are those of the quote.
        if let Some(reclaims) = &quote.reclaims {
            federation.now -= 2;
            federation.ok(Command::PlaceRequests(PlaceRequests { placements: plan.placements }));
            federation.reclaim(plan.reclaims);
            for lease in &reclaims.leases {
                prop_assert_eq!(lease.until, federation.state.leases[&lease.lease].due());
            }
        }
    }

    /// Alone, a request starts when its quote says: not before, and then as soon as donors have cleared ended leases.
    #[test]
    fn a_request_starts_when_its_quote_says(running in running(), wanted in asked(6)) {
        let mut federation = with_running(&running);
        let quote = explain::quote(&federation.state, &wanted);
        let Some((earliest, donors)) = quote.earliest else { return Ok(()) };
        federation.now -= 1;
        let request = federation.submit(wanted);
        let is_placed = |federation: &Federation| federation.state.requests[&request].state == RequestState::Placed;
        loop {
            federation.now -= 1;
            let plan = scheduler::plan(&federation.state, 512);
            let reclaims: Vec<ProposedReclaim> = plan.reclaims.clone();
            prop_assert!(reclaims.iter().all(|it| it.reason.as_str() == "preempted"));
            federation.reclaim(reclaims);
            federation.now -= 1;
            let placed = federation.place();
            if is_placed(&federation) {
                break;
            }
            placed.iter().for_each(|lease| federation.run(*lease));
            // Advances time to the next end of a lease.
            let ends = federation.state.live_leases().filter(|(_, lease)| lease.state.is_in_force());
            let next = ends.filter_map(|(_, lease)| lease.due()).min().unwrap();
            federation.now = federation.now.max(next.0 - 1);
            prop_assert!(federation.now < earliest.0 + 100, "it should have started at {earliest:?}, and it is {}", federation.now);
            federation.ok(Command::Expire(Expire {}));
            let ending = federation.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending);
            let ending: Vec<LeaseId> = ending.map(|(id, _)| id).collect();
            ending.iter().for_each(|lease| federation.stop(*lease));
        }
        prop_assert!(federation.now >= earliest.0, "it started at {}, before {earliest:?}", federation.now);
        let lease = federation.state.requests[&request].lease.unwrap();
        prop_assert!(donors.contains(&federation.state.leases[&lease].placement.donor));
    }
}
