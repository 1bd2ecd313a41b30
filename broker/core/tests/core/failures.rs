//! Devices, nodes and donors that fail: affected leases are reclaimed or end, by severity, and move elsewhere.

use comity_core::command::{Expire, LeaseOutcome, MarkClusters, ReclaimLeases, ReviseOffer};
use comity_core::demand::{NvLink, RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::feasibility::spared;
use comity_core::health::{FIRST_QUARANTINE, FORGOTTEN_AFTER, GONE_AFTER, LONGEST_QUARANTINE};
use comity_core::inventory::{Device, Fault, FaultClass, Offer, Sharing};
use comity_core::proposal::ProposedReclaim;
use comity_core::reclaim::ReclaimReason;
use comity_core::scheduler::{Reclaimer, reclaims_at};
use comity_core::{Command, Millis, ReplyBody, State, Timestamp, snapshot};
use comity_types::{EndReason, LeaseId, LeaseState, RequestId, RequestState, namespace_name};

use super::boxes::obstacle;
use super::federation::{Federation, cluster, device, node, offer, spec};

const MINUTE: u64 = 60_000;
const GRACE: u64 = 5 * MINUTE;

fn big() -> Device {
    device(81_559, Sharing::Exclusive)
}

fn with_fault(class: FaultClass) -> Device {
    let fault = Some(Fault { class, message: "XID".to_owned() });
    Device { healthy: !class.withdraws(), fault, ..big() }
}

/// A node of eight devices; device `index` is replaced by `other`.
fn one_of_eight(generation: u64, index: usize, other: Device) -> Offer {
    let mut offer = offer(generation, &[("n1", 8, big())]);
    offer.nodes.get_mut(&node("n1")).unwrap().devices[index] = other;
    offer
}

fn device_failed(device: u32, class: FaultClass) -> ReclaimReason {
    ReclaimReason::DeviceFailed { node: node("n1"), device, class }
}

struct Story {
    it: Federation,
    generation: u64,
}

impl Story {
    /// `wanted` runs on devices 0 and 1 of `n1` at `north`; `south` has four free GPUs.
    fn begin(wanted: RequestSpec) -> (Self, RequestId, LeaseId) {
        let mut it = Federation::ready();
        it.offer("south", Offer { generation: 2, ..offer(2, &[]) });
        it.offer("north", offer(2, &[("n1", 8, big())]));
        let request = it.submit(wanted);
        let lease = it.place()[0];
        it.offer("south", offer(3, &[("s1", 4, big())]));
        let mut story = Self { it, generation: 2 };
        story.ready(lease);
        let devices: Vec<u32> =
            story.it.state.leases[&lease].placement.nodes[&node("n1")].devices.keys().copied().collect();
        assert_eq!(devices, [0, 1]);
        (story, request, lease)
    }

    fn both(&mut self, lease: LeaseId, outcome: &LeaseOutcome) {
        let held = &self.it.state.leases[&lease];
        for name in [held.placement.donor.to_string(), held.origin.to_string()] {
            self.it.report_lease(&name, lease, outcome.clone());
        }
    }

    fn ready(&mut self, lease: LeaseId) {
        self.both(lease, &LeaseOutcome::Ready { namespace: namespace_name(lease), secret_name: "s".into() });
    }

    /// Makes `north` advertise this offer.
    fn offers(&mut self, made: impl Fn(u64) -> Offer) {
        self.generation += 1;
        self.it.offer("north", made(self.generation));
    }

    fn found(&self) -> Vec<ReclaimReason> {
        let at = self.it.state.log_time;
        reclaims_at(&self.it.state, &cluster("north"), at).into_iter().map(|found| found.reason).collect()
    }

    /// Spares and reclaims leases as the leader does.
    fn reclaim(&mut self) {
        let state = &self.it.state;
        let (spare, reclaims) = (spared(state), Reclaimer::default().due_reclaims(state, state.log_time));
        match self.it.ok(Command::ReclaimLeases(ReclaimLeases { spare, reclaims })).reply {
            Ok(ReplyBody::Reclaimed { refused, .. }) => assert!(refused.is_empty(), "{refused:?}"),
            other => panic!("{other:?}"),
        }
    }

    fn state(&self) -> &State {
        &self.it.state
    }

    fn pass(&mut self, span: u64) {
        self.it.now += span;
        self.it.ok(Command::Expire(Expire {}));
    }
}

fn two() -> RequestSpec {
    spec(2, Share::Whole, "big")
}

#[test]
fn a_lease_on_a_degraded_device_is_reclaimed_with_notice_and_moves() {
    let (mut story, request, lease) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 1, with_fault(FaultClass::Degraded)));
    assert_eq!(story.found(), [device_failed(1, FaultClass::Degraded)]);
    story.reclaim();
    let held = &story.state().leases[&lease];
    assert_eq!((held.state, held.reclaim.as_ref().unwrap().grace.0), (LeaseState::Reclaiming, GRACE));
    let next = story.it.place()[0];
    story.ready(next);
    let part = story.state().leases[&next].placement.nodes.get(&node("n1"));
    assert!(part.is_none_or(|part| !part.devices.contains_key(&1)));
    story.pass(GRACE);
    assert_eq!(story.state().leases[&lease].end_reason, Some(EndReason::Reclaimed));
    assert_eq!(story.state().requests[&request].lease, Some(next));
}

#[test]
fn a_lease_stays_if_its_device_recovers_before_the_deadline() {
    let (mut story, _, lease) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 0, with_fault(FaultClass::Degraded)));
    story.reclaim();
    story.offers(|generation| offer(generation, &[("n1", 8, big())]));
    story.reclaim();
    assert_eq!(story.state().leases[&lease].state, LeaseState::Active);
}

#[test]
fn a_lease_on_a_lost_device_ends_at_once_and_its_request_is_placed_again() {
    let (mut story, request, lease) = Story::begin(two());
    let submitted = story.state().requests[&request].submitted_at;
    story.offers(|generation| one_of_eight(generation, 0, with_fault(FaultClass::Lost)));
    story.reclaim();
    let held = &story.state().leases[&lease];
    assert_eq!((held.state, held.end_reason), (LeaseState::Ending, Some(EndReason::DeviceLost)));
    assert!(held.message.contains("device 0 of node n1 is gone"), "{}", held.message);
    let waiting = &story.state().requests[&request];
    assert_eq!((waiting.state, waiting.submitted_at), (RequestState::Queued, submitted), "with the age that it had");
    let next = story.it.place()[0];
    assert_eq!(story.state().requests[&request].lease, Some(next));
}

#[test]
fn a_reclaimed_lease_whose_device_is_lost_yields_to_its_replacement_at_once() {
    let (mut story, request, lease) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 0, with_fault(FaultClass::Degraded)));
    story.reclaim();
    let next = story.it.place()[0];
    story.offers(|generation| one_of_eight(generation, 0, with_fault(FaultClass::Lost)));
    story.reclaim();
    assert_eq!(story.state().leases[&lease].end_reason, Some(EndReason::DeviceLost));
    assert_eq!(story.state().requests[&request].lease, Some(next));
}

#[test]
fn a_lease_that_is_not_active_yet_ends_at_once_and_its_request_is_placed_again() {
    let mut it = Federation::ready();
    it.offer("south", offer(2, &[]));
    let request = it.submit(two());
    let lease = it.place()[0];
    it.offer("south", offer(3, &[("s1", 4, big())]));
    let mut story = Story { it, generation: 2 };
    let at = story.state().leases[&lease].placement.nodes.keys().next().unwrap().to_string();
    story.offers(|generation| {
        let mut offer = offer(generation, &[("n1", 8, big()), ("n2", 8, big())]);
        offer.nodes.get_mut(&node(&at)).unwrap().ready = false;
        offer
    });
    story.reclaim();
    assert_eq!(story.state().leases[&lease].end_reason, Some(EndReason::NodeLost));
    assert_eq!(story.state().requests[&request].state, RequestState::Queued);
    assert_eq!(story.it.place().len(), 1);
}

#[test]
fn an_application_fault_reclaims_nothing() {
    let (mut story, _, _) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 0, with_fault(FaultClass::Application)));
    assert!(story.found().is_empty());
}

#[test]
fn an_nvlink_fault_affects_only_leases_that_require_nvlink() {
    let clique = |class: Option<FaultClass>| {
        let device = class.map_or_else(big, with_fault);
        device.wired(None, Some("a"))
    };
    let joined = RequestSpec { topology: Topology { nvlink: NvLink::Required, ..Topology::default() }, ..two() };
    for (wanted, hit) in [(joined, true), (two(), false)] {
        let mut it = Federation::ready();
        it.offer("south", offer(2, &[]));
        it.offer("north", offer(2, &[("n1", 4, clique(None))]));
        it.submit(wanted.clone());
        let lease = it.place()[0];
        let mut story = Story { it, generation: 2 };
        story.ready(lease);
        story.offers(|generation| {
            let mut offer = offer(generation, &[("n1", 4, clique(None))]);
            // The failed device is not leased, but nobody knows which pairs are still joined.
            offer.nodes.get_mut(&node("n1")).unwrap().devices[3] = clique(Some(FaultClass::Link));
            offer
        });
        let expected: &[ReclaimReason] = if hit { &[device_failed(0, FaultClass::Link)] } else { &[] };
        assert_eq!(story.found(), expected);
        // Two are free for a request without NVLink.
        let fits =
            |spec| explain::explain(story.state(), &spec).donors.into_iter().find(|d| d.donor == cluster("north"));
        assert!(fits(two()).unwrap().obstacle.is_none());
        if hit {
            let obstacle = fits(wanted).unwrap().obstacle.unwrap();
            assert_eq!(obstacle.code, "unhealthy");
            assert!(obstacle.reason.contains("NVLink of clique a"), "{}", obstacle.reason);
        }
    }
}

#[test]
fn unhealthy_devices_without_a_fault_reclaim_leases_only_if_too_few_are_left() {
    let sick = Device { healthy: false, ..big() };
    let (mut story, _, _) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 1, sick.clone()));
    assert!(story.found().is_empty(), "seven are well, and two are lent");
    let (mut story, _, _) = Story::begin(spec(2, Share::Whole, "big"));
    story.offers(|generation| {
        let mut offer = offer(generation, &[("n1", 8, sick.clone())]);
        offer.nodes.get_mut(&node("n1")).unwrap().devices[7].healthy = true;
        offer
    });
    assert_eq!(story.found(), [device_failed(0, FaultClass::Degraded)]);
}

#[test]
fn leases_on_an_unready_node_get_notice_and_on_a_removed_node_none() {
    let (mut story, request, lease) = Story::begin(two());
    let both = |generation| offer(generation, &[("n1", 8, big()), ("n2", 8, big())]);
    story.offers(|generation| {
        let mut offer = both(generation);
        offer.nodes.get_mut(&node("n1")).unwrap().ready = false;
        offer
    });
    assert_eq!(story.found(), [ReclaimReason::NodeFailed { node: node("n1"), gone: false }]);
    story.offers(both);
    assert!(story.found().is_empty());

    story.offers(|generation| offer(generation, &[("n2", 8, big())]));
    assert!(story.found().is_empty(), "it may be back in a moment");
    story.pass(GONE_AFTER.0);
    assert_eq!(story.found(), [ReclaimReason::NodeFailed { node: node("n1"), gone: true }]);
    story.reclaim();
    assert_eq!(story.state().leases[&lease].end_reason, Some(EndReason::NodeLost));
    assert_eq!(story.it.place().len(), 1);
    assert_eq!(story.state().requests[&request].state, RequestState::Placed);
}

#[test]
fn an_offer_without_nodes_reclaims_nothing() {
    let (mut story, _, _) = Story::begin(two());
    story.offers(|generation| offer(generation, &[]));
    story.pass(10 * GONE_AFTER.0);
    assert!(story.found().is_empty(), "an offer without nodes says that it cannot lend");
}

#[test]
fn an_unhealthy_device_is_not_the_reason_if_the_reserve_is_one_anyway() {
    let (mut story, _, _) = Story::begin(two());
    story.offers(|generation| one_of_eight(generation, 7, with_fault(FaultClass::Degraded)));
    let six = RequestSpec { allow_donors: vec![cluster("north")], ..spec(6, Share::Whole, "big") };
    assert_eq!(obstacle(&story.it, &six).0, "unhealthy");
    story.it.with_terms_of_north(
        "\napiVersion: policy.comity.dev/v1\nkind: Cluster\nmetadata: {name: north}\nspec: {institution: lenders, \
         lends: [{classes: [big, small]}], delivery: [namespace, virtual-node], localReserveGpus: 3}\n",
    );
    // With device 7 healthy six would be free, and lending them would leave none for local work.
    assert_eq!(obstacle(&story.it, &six).0, "local-reserve");
    // Five free devices are healthy: lending two leaves three.
    let two = RequestSpec { gpus: spec(2, Share::Whole, "big").gpus, ..six.clone() };
    assert!(explain::explain(story.state(), &two).donors.iter().any(|donor| donor.obstacle.is_none()));
    let (code, reason, _) = obstacle(&story.it, &RequestSpec { gpus: spec(3, Share::Whole, "big").gpus, ..six });
    assert_eq!(
        (code.as_str(), reason.as_str()),
        ("local-reserve", "north keeps 3 GPUs free for local work; 5 are free")
    );
}

#[test]
fn free_gpus_of_a_cordoned_node_are_not_lent() {
    let (mut story, _, _) = Story::begin(two());
    story.offers(|generation| {
        let mut offer = offer(generation, &[("n1", 8, big()), ("n2", 8, big())]);
        offer.nodes.get_mut(&node("n2")).unwrap().schedulable = false;
        offer
    });
    let of_north = |count| RequestSpec { allow_donors: vec![cluster("north")], ..spec(count, Share::Whole, "big") };
    let (code, reason, unblock) = obstacle(&story.it, &of_north(10));
    assert_eq!(code, "not-lent");
    let expected = "north has room for 6 of 10 shares of class big now, and for all of them if this were lent: node n2, \
                    which is cordoned";
    assert_eq!((reason.as_str(), unblock.as_str()), (expected, "wait until its owner lends it again"));
    // Even with that node it would not fit now.
    assert_eq!(obstacle(&story.it, &of_north(15)).0, "no-capacity");
}

#[test]
fn each_repeated_failure_doubles_the_quarantine() {
    let (mut story, _, _) = Story::begin(two());
    let ill = |generation| one_of_eight(generation, 7, with_fault(FaultClass::Degraded));
    let well = |generation| offer(generation, &[("n1", 8, big())]);
    let until = |story: &Story| story.state().clusters[&cluster("north")].health.node(&node("n1"))?.device_until(7);
    for _ in 0..3 {
        story.offers(ill);
        story.offers(well);
    }
    assert_eq!(until(&story), None);
    let mut expected = FIRST_QUARANTINE.0;
    for _ in 0..10 {
        story.offers(ill);
        let kept_out = until(&story).unwrap().since(story.state().log_time).0;
        assert_eq!(kept_out, expected.min(LONGEST_QUARANTINE.0));
        story.offers(well);
        // All devices that are not leased, that one included.
        let all = RequestSpec { allow_donors: vec![cluster("north")], ..spec(6, Share::Whole, "big") };
        let obstacle =
            explain::explain(story.state(), &all).donors.into_iter().find_map(|donor| donor.obstacle).unwrap();
        assert_eq!(obstacle.code, "quarantined");
        let date = until(&story).unwrap().to_minute();
        assert!(
            obstacle.reason.contains(&format!("device 7 of node n1, quarantined until {date}")),
            "{}",
            obstacle.reason
        );
        assert!(obstacle.unblock.contains(&date), "{}", obstacle.unblock);
        let (earliest, _) = explain::quote(story.state(), &all).earliest.unwrap();
        assert!(earliest <= until(&story).unwrap(), "it comes back by itself: {earliest:?}");
        assert_eq!(story.state().occupancy().lent_milli(&cluster("north")), 2_000);
        story.pass(kept_out);
        assert_eq!(until(&story), None);
        assert!(!explain::quote(story.state(), &all).placements.is_empty());
        for _ in 0..3 {
            story.offers(ill);
            story.offers(well);
        }
        expected *= 2;
    }
    story.pass(FORGOTTEN_AFTER.0);
    assert!(story.state().clusters[&cluster("north")].health.is_empty());
}

#[test]
fn snapshots_hold_the_failure_history_and_revisions_count_like_offers() {
    let flap = |revise: bool| {
        let (mut story, _, _) = Story::begin(two());
        for round in 0..8_u64 {
            let made = |generation| match round % 2 {
                0 => one_of_eight(generation, 7, with_fault(FaultClass::Lost)),
                _ => offer(generation, &[("n1", 8, big())]),
            };
            if revise {
                let (revises, generation) = (story.generation, story.generation + 1);
                story.generation = generation;
                story.it.ok(Command::ReviseOffer(ReviseOffer {
                    cluster: cluster("north"),
                    revises,
                    generation,
                    nodes: made(generation).nodes,
                    gone: std::collections::BTreeSet::new(),
                }));
            } else {
                story.offers(made);
            }
        }
        story
    };
    let (offered, revised) = (flap(false), flap(true));
    let bytes = snapshot::encode(offered.state()).unwrap();
    assert_eq!(bytes, snapshot::encode(revised.state()).unwrap());
    let read = snapshot::decode(&bytes).unwrap();
    assert_eq!(read.clusters[&cluster("north")].health, offered.state().clusters[&cluster("north")].health);
    assert_eq!(read.next_due(), offered.state().next_due());
    let seven = RequestSpec { allow_donors: vec![cluster("north")], ..spec(6, Share::Whole, "big") };
    assert!(explain::quote(&read, &seven).placements.is_empty());
}

#[test]
fn requests_of_a_donor_that_stays_silent_are_placed_elsewhere() {
    let (mut story, request, lease) = Story::begin(RequestSpec { duration: Millis::from_hours(8), ..two() });
    story.it.ok(Command::MarkClusters(MarkClusters { heard: vec![], silent: vec![cluster("north")] }));
    assert_eq!(story.state().leases[&lease].state, LeaseState::Suspect);
    story.it.now += 29 * MINUTE;
    story.it.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("west")], silent: vec![] }));
    assert!(story.found().is_empty(), "cannot see is not gone");
    story.it.now += MINUTE;
    story.it.ok(Command::MarkClusters(MarkClusters { heard: vec![cluster("west")], silent: vec![] }));
    assert_eq!(story.found(), [ReclaimReason::DonorSilent]);
    story.reclaim();
    let next = story.it.place()[0];
    assert_eq!(story.state().leases[&next].placement.donor, cluster("south"));
    story.ready(next);
    let held = story.state().leases[&lease].clone();
    assert_eq!(held.state, LeaseState::Reclaiming);
    story.pass(held.due().unwrap().since(story.state().log_time).0);
    assert_eq!(story.state().leases[&lease].end_reason, Some(EndReason::DonorLost));
    assert_eq!(story.state().requests[&request].lease, Some(next));
}

#[test]
fn a_proposed_reclaim_is_checked_against_the_current_offer() {
    let (mut story, _, lease) = Story::begin(two());
    for reason in [
        device_failed(0, FaultClass::Lost),
        ReclaimReason::NodeFailed { node: node("n1"), gone: true },
        ReclaimReason::DonorSilent,
    ] {
        let reclaims = vec![ProposedReclaim { lease, reason }];
        match story.it.ok(Command::ReclaimLeases(ReclaimLeases { spare: vec![], reclaims })).reply {
            Ok(ReplyBody::Reclaimed { leases, refused, .. }) => assert_eq!((leases.len(), refused.len()), (0, 1)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(story.state().leases[&lease].state, LeaseState::Active);
    let at: Timestamp = story.state().log_time;
    assert!(Reclaimer::default().due_reclaims(story.state(), at).is_empty());
}

#[test]
fn faults_that_contradict_the_device_are_refused() {
    let mut federation = Federation::ready();
    let contradicts = Device { healthy: true, ..with_fault(FaultClass::Lost) };
    let loud = Device { fault: Some(Fault { class: FaultClass::Link, message: "x".repeat(129) }), ..big() };
    for (bad, field) in [(contradicts, "fault"), (loud, "fault.message")] {
        let offer = one_of_eight(9, 2, bad);
        let command = comity_core::command::AdvertiseOffer { cluster: cluster("north"), offer };
        let refusal = federation.refused(Command::AdvertiseOffer(command));
        assert_eq!(refusal.field, format!("offer.nodes[n1].devices[2].{field}"));
    }
}
