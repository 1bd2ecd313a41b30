//! Gangs on several donors, and members that join later.

use std::collections::BTreeSet;

use comity_core::command::{CancelRequest, Expire, LeaseOutcome, PlaceRequests, ReleaseLease, RenewLease};
use comity_core::demand::{Members, RequestSpec, Share};
use comity_core::explain;
use comity_core::inventory::Sharing;
use comity_core::limits::{MAX_LEASES_PER_COMMAND, MAX_PARTS, MAX_PLACEMENTS_PER_COMMAND};
use comity_core::proposal::{PlacementKind, ProposedPlacement};
use comity_core::refusal::Code;
use comity_core::{Command, Millis, ReplyBody, scheduler};
use comity_types::{EndReason, LeaseId, LeaseState, LeaseTreatment, RequestId, RequestState};
use proptest::prelude::*;

use super::federation::{Federation, RIVALS, cluster, device, offer, spec};
use super::revocations::evict;

/// Members of `count` GPUs each, on several donors if needed.
pub(super) fn gang(count: u32, min: u32, desired: u32) -> RequestSpec {
    let members = Some(Members { min, desired });
    RequestSpec { members, spread_donors: true, ..spec(count, Share::Whole, "big") }
}

impl Federation {
    /// Gives each donor this number of nodes with four GPUs.
    pub(super) fn nodes(&mut self, generation: u64, donors: &[(&str, usize)]) {
        let names = ["n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"];
        for (donor, many) in donors {
            let nodes: Vec<_> =
                names[..*many].iter().map(|name| (*name, 4, device(81_559, Sharing::Exclusive))).collect();
            self.offer(donor, offer(generation, &nodes));
        }
    }

    fn leases_of(&self, request: RequestId) -> Vec<LeaseId> {
        self.state.requests[&request].leases().collect()
    }

    /// Donor and number of GPUs of each lease.
    fn lies_at(&self, request: RequestId) -> Vec<(String, u32)> {
        let leases = self.leases_of(request).into_iter().map(|lease| &self.state.leases[&lease]);
        leases.map(|lease| (lease.placement.donor.to_string(), lease.gpus.count)).collect()
    }

    fn fail(&mut self, donor: &str, lease: LeaseId) {
        let (code, message) = ("quota".to_owned(), "it cannot".to_owned());
        self.report_lease(donor, lease, LeaseOutcome::Failed { code, message, highest_fencing_token: 0 });
    }

    /// Both sides of each ending lease report that they are clean.
    fn clean(&mut self) {
        let ending = self.state.live_leases().filter(|(_, lease)| lease.state == LeaseState::Ending);
        ending.map(|(id, _)| id).collect::<Vec<_>>().into_iter().for_each(|lease| self.stop(lease));
    }
}

fn at(donor: &str, gpus: u32) -> (String, u32) {
    (donor.to_owned(), gpus)
}

#[test]
fn a_gang_too_large_for_one_donor_uses_several_and_fails_with_any_part() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 3), ("south", 2)]);
    let request = federation.submit(gang(4, 4, 6));
    let submitted_at = federation.state.requests[&request].submitted_at;
    assert_eq!(federation.place().len(), 2);
    assert_eq!(federation.lies_at(request), [at("north", 12), at("south", 8)], "no more donors than it needs");
    let parts = federation.leases_of(request);
    federation.run(parts[0]);
    assert!(federation.place().is_empty(), "nobody joins what does not run yet");
    // One part fails before all are active: all end, and the request is queued again with its age.
    federation.fail("south", parts[1]);
    let ended: Vec<_> = parts.iter().map(|part| federation.state.leases[part].end_reason.unwrap()).collect();
    assert_eq!(ended, [EndReason::PartFailed, EndReason::DonorFailed]);
    let waiting = &federation.state.requests[&request];
    assert_eq!((waiting.state, waiting.submitted_at), (RequestState::Queued, submitted_at));
    assert!(waiting.parts.is_empty());
    federation.clean();
    assert_eq!(federation.place().len(), 2, "south failed it, and nobody else could serve");
    let parts = federation.leases_of(request);
    federation.run(parts[0]);
    federation.now += 30_000;
    federation.run(parts[1]);
    // The term of all begins when the last part is active; they are renewed and released together.
    let ends = |federation: &Federation| -> BTreeSet<_> {
        federation.leases_of(request).iter().map(|part| federation.state.leases[part].expires_at).collect()
    };
    assert_eq!(ends(&federation).len(), 1);
    let before = ends(&federation);
    federation.now += 60_000;
    federation.ok(Command::RenewLease(RenewLease { lease: parts[1], duration: Millis(0), may_shorten: false }));
    assert!(ends(&federation).len() == 1 && ends(&federation) > before);
    federation.ok(Command::ReleaseLease(ReleaseLease { lease: parts[1] }));
    let ended: Vec<_> = parts.iter().map(|part| federation.state.leases[part].end_reason.unwrap()).collect();
    assert_eq!(ended, [EndReason::Released; 2]);
    assert_eq!(federation.state.requests[&request].state, RequestState::Completed);
}

/// Eight GPUs in one request.
const EIGHT: &str = r"
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: eight}
spec: {tenant: team, maxGpusPerRequest: 8}
";

#[test]
fn limits_per_request_count_all_its_leases() {
    let mut federation = Federation::ready();
    federation.also(EIGHT);
    federation.nodes(2, &[("north", 1), ("south", 3)]);
    // A larger gang waits for ever, and its explanation says why.
    let many = federation.submit(gang(1, 13, 13));
    assert!(federation.place().is_empty());
    let said = explain::explain(&federation.state, &gang(1, 13, 13)).summary;
    assert!(said.contains("room for 8 of the 13 members") && said.contains("quota `eight` allows 8 GPUs"), "{said}");
    federation.ok(Command::CancelRequest(CancelRequest { request: many }));
    // The gang has as many members as the quota allows, at one donor or several, and no more join.
    for donors in [vec![], vec![cluster("south")]] {
        let spread = donors.is_empty();
        let asked = RequestSpec { spread_donors: spread, allow_donors: donors, ..gang(1, 4, 12) };
        let request = federation.submit(asked);
        federation.place();
        let held = |federation: &Federation| federation.lies_at(request).iter().map(|(_, gpus)| gpus).sum::<u32>();
        assert_eq!(held(&federation), 8);
        federation.leases_of(request).into_iter().for_each(|lease| federation.run(lease));
        federation.now += 60_000;
        assert!(federation.place().is_empty() && held(&federation) == 8);
        federation.leases_of(request).into_iter().for_each(|lease| {
            drop(federation.try_apply(Command::ReleaseLease(ReleaseLease { lease })));
        });
        federation.clean();
    }
    // Joining members count together with running ones.
    federation.nodes(3, &[("north", 0), ("south", 1)]);
    let request = federation.submit(RequestSpec { spread_donors: false, ..gang(1, 4, 12) });
    federation.place();
    assert_eq!(federation.lies_at(request), [at("south", 4)]);
    federation.leases_of(request).into_iter().for_each(|lease| federation.run(lease));
    federation.nodes(4, &[("south", 4)]);
    federation.now += 60_000;
    federation.place();
    assert_eq!(federation.lies_at(request), [at("south", 4), at("south", 4)]);
}

#[test]
fn missing_members_join_a_running_gang_and_end_with_it() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 2), ("south", 0)]);
    let home = federation.submit(RequestSpec { spread_donors: false, ..gang(4, 2, 4) });
    federation.place();
    assert_eq!(federation.lies_at(home), [at("north", 8)]);
    federation.nodes(3, &[("north", 3), ("south", 3)]);
    assert!(federation.place().is_empty(), "it does not run yet");
    let first = federation.leases_of(home)[0];
    federation.run(first);
    let sought = explain::explain_pending(&federation.state, home).unwrap();
    assert_eq!(sought.summary, "2 more of its members would join: fits on north");
    assert!(sought.donors.iter().any(|donor| donor.donor == cluster("south") && donor.obstacle.is_some()));
    let joined = federation.place();
    assert_eq!(federation.lies_at(home), [at("north", 8), at("north", 4)], "at its own donor only");
    assert!(federation.place().is_empty(), "one lease at a time");
    // A joining lease that fails before it is active does not affect the gang.
    federation.fail("north", joined[0]);
    assert_eq!(federation.lies_at(home), [at("north", 8)]);
    assert!(federation.state.leases[&first].state.is_in_force());
    federation.clean();
    assert!(federation.place().is_empty(), "a donor that failed it is not asked for more");

    let spread = federation.submit(gang(4, 1, 6));
    federation.place();
    assert_eq!(federation.lies_at(spread), [at("south", 12)]);
    let parts = federation.leases_of(spread);
    federation.run(parts[0]);
    federation.now += 60_000;
    let joined = federation.place();
    assert_eq!(federation.lies_at(spread), [at("south", 12), at("north", 4)]);
    federation.run(joined[0]);
    assert_eq!(federation.state.leases[&joined[0]].expires_at, federation.state.leases[&parts[0]].expires_at);
    // The gang survives the loss of one part, but not of both.
    federation.fail("south", parts[0]);
    assert_eq!(federation.lies_at(spread), [at("north", 4)]);
    assert_eq!(federation.state.requests[&spread].state, RequestState::Placed);
    federation.fail("north", joined[0]);
    assert_eq!(federation.state.requests[&spread].state, RequestState::Queued);
    federation.ok(Command::CancelRequest(CancelRequest { request: home }));
    assert_eq!(federation.state.leases[&first].end_reason, Some(EndReason::Cancelled));
}

#[test]
fn a_part_that_finishes_keeps_its_gang_from_being_renewed() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 3), ("south", 2)]);
    let request = federation.submit(gang(4, 4, 6));
    federation.place().into_iter().for_each(|part| federation.run(part));
    let renew = |lease| Command::RenewLease(RenewLease { lease, duration: Millis(0), may_shorten: false });
    let parts = federation.leases_of(request);
    assert_eq!(parts.len(), 2);
    federation.ok(renew(parts[0]));
    federation.ok(evict("south", LeaseTreatment::Finish));
    for part in parts {
        let refusal = federation.refused(renew(part));
        assert_eq!((refusal.code, refusal.value.as_str()), (Code::Revoked, "south"), "{refusal}");
    }
}

#[test]
fn no_part_of_a_gang_is_placed_alone_and_each_donor_keeps_its_limits() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 2), ("south", 2)]);
    let request = federation.submit(gang(4, 3, 3));
    let good = scheduler::plan(&federation.state, 10).placements.remove(0);
    assert_eq!(good.more.len(), 1);
    let alone = ProposedPlacement { more: Vec::new(), ..good.clone() };
    let twice = ProposedPlacement { more: vec![good.placement.clone()], ..good.clone() };
    let joins = ProposedPlacement { kind: PlacementKind::Join, more: Vec::new(), ..good.clone() };
    for forged in [alone, twice, joins] {
        let placements = vec![forged];
        match federation.ok(Command::PlaceRequests(PlaceRequests { placements })).reply {
            Ok(ReplyBody::Placed { leases, refused }) => {
                assert_eq!((leases.len(), refused.len()), (0, 1), "{refused:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(federation.state.live_leases().count(), 0);
    // A donor's limit on lending affects only that donor's part.
    let quote = explain::quote(&federation.state, &gang(4, 3, 3));
    assert!(quote.placements.is_empty(), "{request} comes first and leaves too little");
    federation.with_terms(
        "name: south}\nspec: {institution: lenders,",
        "name: south}\nspec: {institution: lenders, maxLentGpus: 4,",
    );
    assert_eq!(federation.place().len(), 2);
    assert_eq!(federation.lies_at(request), [at("north", 8), at("south", 4)]);
    let explanation = explain::explain(&federation.state, &gang(4, 2, 2));
    assert!(explanation.summary.starts_with("not placed"), "{}", explanation.summary);
}

#[test]
fn broker_proposes_a_plan_without_end() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 2), ("south", 2)]);
    federation.submit(gang(4, 3, 3));
    let good = scheduler::plan(&federation.state, 10).placements.remove(0);
    let wide = ProposedPlacement { more: vec![good.placement.clone(); MAX_PARTS - 1], ..good.clone() };
    let alone = ProposedPlacement { more: Vec::new(), ..good.clone() };
    let (gangs, placements) = (MAX_LEASES_PER_COMMAND / MAX_PARTS, MAX_PLACEMENTS_PER_COMMAND);
    for (placement, most, field) in [(&wide, gangs, "leases"), (&alone, placements, "placements")] {
        let beyond = PlaceRequests { placements: vec![placement.clone(); most + 1] };
        let refused = federation.refused(Command::PlaceRequests(beyond));
        assert_eq!((refused.code, refused.field.as_str()), (Code::InvalidField, field), "{refused}");
        assert!(refused.reason.contains("too many for one command"), "{refused}");
        // As much as fits is taken up, and the scheduler splits the rest.
        federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![placement.clone(); most] }));
        let sizes = PlaceRequests::of_plan(vec![placement.clone(); most + 1]).map(|command| command.placements.len());
        assert_eq!(sizes.collect::<Vec<_>>(), [most, 1]);
    }
    assert_eq!(federation.state.live_leases().count(), 0, "none of these is a valid placement");
    let wider = ProposedPlacement { more: vec![good.placement.clone(); MAX_PARTS], ..good };
    match federation.ok(Command::PlaceRequests(PlaceRequests { placements: vec![wider] })).reply {
        Ok(ReplyBody::Placed { leases, refused }) => {
            assert_eq!((leases.len(), refused.len()), (0, 1));
            assert!(refused[0].1.reason.contains("17 parts are too many"), "{refused:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn explanations_combine_the_capacity_of_several_donors() {
    let mut federation = Federation::ready();
    federation.nodes(2, &[("north", 2), ("south", 2)]);
    let hour = |hours| RequestSpec { duration: Millis::from_hours(hours), ..gang(4, 2, 2) };
    let (_, first) = federation.running(RequestSpec { allow_donors: vec![cluster("north")], ..hour(1) });
    let (_, second) = federation.running(RequestSpec { allow_donors: vec![cluster("south")], ..hour(2) });
    let asked = gang(4, 3, 4);
    let summary = explain::explain(&federation.state, &asked).summary;
    assert!(summary.contains("not placed"), "{summary}");
    let quote = explain::quote(&federation.state, &asked);
    let end = federation.state.leases[&second].expires_at.unwrap();
    assert_eq!(quote.earliest, Some((end, vec![cluster("north"), cluster("south")])), "only with both gone");
    federation.ok(Command::ReleaseLease(ReleaseLease { lease: first }));
    federation.stop(first);
    let summary = explain::explain(&federation.state, &asked).summary;
    assert!(summary.contains("room for 2 of the 3 members"), "{summary}");
    federation.ok(Command::ReleaseLease(ReleaseLease { lease: second }));
    federation.stop(second);
    let summary = explain::explain(&federation.state, &asked).summary;
    assert!(summary.contains("together: 2 at north, 2 at south"), "{summary}");
    let quote = explain::quote(&federation.state, &asked);
    assert_eq!(quote.placements.iter().map(comity_core::placement::Placement::milli).sum::<u64>(), 16_000);
}

#[test]
fn spread_donors_with_contradicting_fields_is_refused() {
    let good = gang(2, 1, 4);
    assert!(good.check().is_ok());
    let mut same_node = good.clone();
    same_node.topology.same_node = true;
    let mut rdma = good.clone();
    rdma.topology.rdma_gbits = 100;
    for bad in [RequestSpec { members: None, ..good }, same_node, rdma] {
        let refusal = bad.check().unwrap_err();
        assert!(refusal.field == "spec.spread_donors" && !refusal.remedy.is_empty(), "{refusal}");
    }
}

/// The next event in a federation of gangs.
#[derive(Clone, Debug)]
enum Event {
    Submit(Box<RequestSpec>),
    Place,
    /// A lease, picked by number, becomes active.
    Run(usize),
    Fail(usize),
    Release(usize),
    Clean,
}

fn any_gang() -> impl Strategy<Value = RequestSpec> {
    (1..5_u32, 1..5_u32, 0..4_u32, proptest::bool::weighted(0.7), 0..3_usize).prop_map(
        |(count, min, more, spread_donors, only)| {
            let donors = [Vec::new(), vec![cluster("north"), cluster("east")], vec![cluster("south")]];
            RequestSpec { spread_donors, allow_donors: donors[only].clone(), ..gang(count, min, min + more) }
        },
    )
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => any_gang().prop_map(|gang| Event::Submit(Box::new(gang))),
        3 => Just(Event::Place),
        6 => any::<usize>().prop_map(Event::Run),
        1 => any::<usize>().prop_map(Event::Fail),
        1 => any::<usize>().prop_map(Event::Release),
        2 => Just(Event::Clean),
    ]
}

impl Federation {
    fn pick(&self, number: usize, which: impl Fn(LeaseState) -> bool) -> Option<(LeaseId, String)> {
        let leases = self.state.live_leases().filter(|(_, lease)| which(lease.state));
        let leases: Vec<_> = leases.map(|(id, lease)| (id, lease.placement.donor.to_string())).collect();
        (!leases.is_empty()).then(|| leases[number % leases.len()].clone())
    }

    fn happen(&mut self, event: Event) {
        let lives = |state: LeaseState| state.is_held() || state.is_in_force();
        match event {
            Event::Submit(spec) => drop(self.submit(*spec)),
            Event::Place => drop(self.place()),
            Event::Run(number) => {
                self.pick(number, LeaseState::is_held).into_iter().for_each(|(lease, _)| self.run(lease));
            }
            Event::Fail(number) => {
                self.pick(number, lives).into_iter().for_each(|(lease, donor)| self.fail(&donor, lease));
            }
            Event::Release(number) => self.pick(number, lives).into_iter().for_each(|(lease, _)| {
                self.ok(Command::ReleaseLease(ReleaseLease { lease }));
            }),
            Event::Clean => self.clean(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Gangs of random sizes, at random donors, with parts that fail: none is ever half placed (the invariants are
    /// checked after each apply), none holds capacity while it waits for another one, and in the end each is served,
    /// refused, or too large for all donors together.
    #[test]
    fn gangs_over_donors_are_never_half_placed_and_all_are_served(events in proptest::collection::vec(any_event(), 1..60)) {
        let mut federation = Federation::with_rivals();
        federation.also(&RIVALS.replace("parties: [western, eastern]", "borrowers: [western], lenders: [eastern]"));
        federation.nodes(2, &[("north", 3), ("south", 2), ("east", 1)]);
        for event in events {
            federation.happen(event);
        }
        // From now on nothing fails; running leases are released once nothing more can be placed.
        for round in 0_usize.. {
            prop_assert!(round < 200, "it does not come to an end");
            while let Some((lease, _)) = federation.pick(0, LeaseState::is_held) {
                federation.run(lease);
            }
            federation.clean();
            if !federation.place().is_empty() {
                continue;
            }
            if let Some((lease, _)) = federation.pick(0, LeaseState::is_in_force) {
                federation.ok(Command::ReleaseLease(ReleaseLease { lease }));
                continue;
            }
            let Some(retry_at) = federation.state.requests.values().filter_map(|request| request.retry_at).min() else {
                break;
            };
            federation.now = federation.now.max(retry_at.0);
            federation.ok(Command::Expire(Expire {}));
        }
        for (id, request) in &federation.state.requests {
            if !request.state.is_final() {
                let summary = explain::explain(&federation.state, &request.spec).summary;
                prop_assert!(summary.starts_with("not placed"), "{} waits: {}", id, summary);
            }
        }
        prop_assert_eq!(federation.state.occupancy().lent_milli(&cluster("north")), 0);
    }
}
