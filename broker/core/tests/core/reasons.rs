//! The first reason against a donor is the true one, and its remedy helps.

use comity_core::command::SubmitRequest;
use comity_core::demand::{Members, NvLink, RequestSpec, Share, Topology};
use comity_core::explain;
use comity_core::{Command, Millis, Timestamp, scheduler};

use super::boxes::{GIB, aligned, asking, federation, hgx_h100, l40s, nvlink, obstacle, placed};
use super::federation::{Federation, cluster, spec};

const HOUR: u64 = 3_600_000;

fn whole(count: u32) -> RequestSpec {
    asking(count, Topology { whole_node: true, ..Topology::default() })
}

#[test]
fn too_little_cpu_or_memory_of_any_node_is_named() {
    let federation = federation(&[hgx_h100(), l40s()]);
    let mut wanted = asking(1, Topology::default());
    wanted.gpus.cpu_milli_per_gpu = 100_000_000;
    let (code, reason, remedy) = obstacle(&federation, &wanted);
    assert_eq!(code, "no-such-devices");
    assert!(
        reason.contains("room for 0 of 1 shares with 100000 CPU each") && reason.ends_with("has is 112 CPU"),
        "{reason}"
    );
    assert_eq!(remedy, "ask for less CPU with each");
    let mut wanted = asking(1, Topology::default());
    wanted.gpus.memory_mib_per_gpu = 3_000 * GIB;
    let (_, reason, remedy) = obstacle(&federation, &wanted);
    assert!(reason.contains("with 3000Gi memory each") && reason.ends_with("has is 2048Gi memory"), "{reason}");
    assert_eq!(remedy, "ask for less memory with each");
    // Seven shares with 16 cores each fit in 112 cores, and four in 64.
    let mut wanted = asking(12, Topology::default());
    wanted.gpus.cpu_milli_per_gpu = 16_000;
    let (_, reason, remedy) = obstacle(&federation, &wanted);
    assert!(reason.contains("room for 11 of 12 shares") || remedy.contains("at most 11 shares"), "{reason} {remedy}");
    // If there are too few devices, they are the reason.
    let (_, reason, _) = obstacle(&federation, &asking(17, Topology::default()));
    assert!(reason.contains("room for 16 such shares in all even when idle"), "{reason}");
}

#[test]
fn limits_on_members_and_gpus_name_their_own_field() {
    let mut federation = Federation::ready();
    let many = Some(Members { min: 1, desired: 65 });
    for (spec, field, value) in [
        (RequestSpec { members: many, ..spec(1, Share::Whole, "big") }, "spec.members.desired", "65"),
        (spec(65, Share::Whole, "big"), "spec.gpus.count", "65"),
    ] {
        let refusal = federation.refused(Command::SubmitRequest(SubmitRequest { spec, submitted_by: "alice".into() }));
        assert_eq!((refusal.field.as_str(), refusal.value.as_str()), (field, value), "{refusal}");
    }
}

#[test]
fn a_member_that_no_node_holds_is_named() {
    let federation = Federation::ready();
    let members =
        |count| RequestSpec { members: Some(Members { min: 2, desired: 2 }), ..spec(count, Share::Whole, "big") };
    let (code, reason, remedy) = obstacle(&federation, &members(9));
    assert_eq!(code, "no-such-devices");
    assert!(reason.contains("no node of north has 9 such shares") && reason.contains("the most is 8"), "{reason}");
    assert_eq!(remedy, "ask for members of at most 8");
    // There are eight devices, but 128 cores are too few for them.
    let mut wanted = members(8);
    wanted.gpus.cpu_milli_per_gpu = 20_000;
    let (_, reason, remedy) = obstacle(&federation, &wanted);
    assert!(reason.contains("20 CPU each, in members of 8") && reason.ends_with("has is 128 CPU"), "{reason}");
    assert_eq!(remedy, "ask for less CPU with each");
}

#[test]
fn a_count_that_fills_no_whole_nodes_gets_the_counts_that_do() {
    let mut federation = federation(&[hgx_h100(), hgx_h100()]);
    let three = |federation: &Federation| obstacle(federation, &whole(3));
    let idle = three(&federation);
    assert_eq!(idle.0, "no-such-devices");
    assert!(idle.1.contains("3 shares fill no whole nodes of north"), "{}", idle.1);
    assert!(idle.2.contains("ask for 8, which do"), "{}", idle.2);
    let (_, _, remedy) = obstacle(&federation, &whole(11));
    assert!(remedy.contains("ask for 8 or 16"), "{remedy}");
    // Waiting does not help, whatever is in use.
    placed(&mut federation, asking(4, Topology::default()));
    assert_eq!(three(&federation), idle);
    // For a count that fills whole nodes, waiting helps.
    let (code, _, remedy) = obstacle(&federation, &whole(16));
    assert_eq!(code, "no-capacity");
    assert!(remedy.contains("wait until such nodes are free"), "{remedy}");
}

#[test]
fn if_terms_lend_whole_nodes_the_remedy_is_a_count_that_fills_them() {
    let mut federation = federation(&[hgx_h100(), hgx_h100()]);
    federation.with_terms("lends:", "nodeSharing: {nvlink: whole-nodes}, lends:");
    let (code, reason, remedy) = obstacle(&federation, &asking(2, nvlink()));
    assert_eq!(code, "no-nvlink");
    assert!(reason.contains("by whole nodes only, and 2 shares fill none"), "{reason}");
    assert!(
        remedy.contains("ask for 8,") && remedy.contains("only prefer NVLink") && !remedy.contains("wait"),
        "{remedy}"
    );
}

#[test]
fn topology_wishes_that_fit_singly_but_not_together_are_named() {
    let federation = federation(&[hgx_h100(), hgx_h100()]);
    let wanted = |count| {
        let mut spec = asking(count, Topology { rdma_gbits: 4_000, nvlink: NvLink::None, ..aligned() });
        spec.gpus.cpu_milli_per_gpu = 15_000;
        spec
    };
    let (code, reason, remedy) = obstacle(&federation, &wanted(8));
    assert_eq!(code, "no-rdma");
    assert!(reason.contains("room for 7 of 8") && reason.contains("together, for 6 when idle"), "{reason}");
    assert!(remedy.contains("at most 6 shares"), "{remedy}");
    let (code, reason, remedy) = obstacle(&federation, &wanted(7));
    assert_eq!(code, "wiring-together");
    assert!(reason.contains("room for 6 of 7 shares even when idle"), "{reason}");
    assert!(remedy.contains("at most 6") && !remedy.contains("wait"), "{remedy}");
    assert_eq!(explain::quote(&federation.state, &wanted(6)).placements.len(), 1, "the remedy helps");
}

#[test]
fn the_earliest_start_is_within_the_requested_window() {
    let mut federation = Federation::ready();
    let all = |count| RequestSpec { duration: Millis(2 * HOUR), ..spec(count, Share::Whole, "big") };
    let earliest = |federation: &Federation, after: u64| {
        let opens = Timestamp(federation.state.log_time.0 + after);
        let wanted = RequestSpec { not_before: Some(opens), ..spec(1, Share::Whole, "big") };
        let start = explain::quote(&federation.state, &wanted).earliest.unwrap();
        (start.0, opens)
    };
    let (at, opens) = earliest(&federation, 2 * HOUR);
    assert_eq!(at, opens, "all is free, but it is not wanted now");
    for count in [8, 8, 4] {
        federation.submit(all(count));
    }
    assert_eq!(federation.place().len(), 3);
    let (full, opens) = earliest(&federation, HOUR);
    assert!(full > opens, "all is in use until then");
    let (at, opens) = earliest(&federation, 3 * HOUR);
    assert_eq!(at, opens, "never before its window");
    // The same holds for a waiting request.
    let wanted = RequestSpec { not_before: Some(opens), ..spec(1, Share::Whole, "big") };
    let id = federation.submit(wanted);
    let position = explain::explain_waiting(&federation.state, id).unwrap().position.unwrap();
    assert_eq!(position.earliest.unwrap().0, opens);
}

#[test]
fn a_request_that_would_delay_a_reservation_starts_after_it() {
    let mut federation = Federation::ready();
    for hours in [2, 2, 2, 2, 3] {
        federation.submit(RequestSpec { duration: Millis(hours * HOUR), ..spec(4, Share::Whole, "big") });
    }
    assert_eq!(federation.place().len(), 5);
    let gang = federation.submit(RequestSpec {
        topology: Topology { same_node: true, ..Topology::default() },
        duration: Millis(HOUR),
        ..spec(8, Share::Whole, "big")
    });
    // After 90 minutes one of the four leases at north ends, and the gang gets a reservation there.
    federation.now += 90 * 60_000;
    let at_north = federation.state.live_leases().find(|(_, lease)| lease.placement.donor == cluster("north"));
    let first = at_north.unwrap().0;
    super::boxes::end(&mut federation, first);
    let reserved = scheduler::plan(&federation.state, 10).reserved.unwrap();
    assert_eq!(reserved.request, gang);
    // Four GPUs are free, but a long lease would delay the gang.
    let long = RequestSpec { duration: Millis(12 * HOUR), ..spec(4, Share::Whole, "big") };
    let quote = explain::quote(&federation.state, &long);
    assert!(quote.placements.is_empty(), "{quote:?}");
    let summary = &quote.explanation.summary;
    assert!(summary.contains("fits on north; it must not delay") && summary.ends_with("reserved"), "{summary}");
    let (at, _) = quote.earliest.unwrap();
    assert!(at >= reserved.at, "{at:?} is before what is reserved");
    // A waiting request gets the same answer.
    let id = federation.submit(long);
    let position = explain::explain_waiting(&federation.state, id).unwrap().position.unwrap();
    assert_eq!(position.earliest.unwrap().0, at);
    // A request that ends before the reservation may pass.
    let short = RequestSpec { duration: Millis(60_000), ..spec(4, Share::Whole, "big") };
    let quote = explain::quote(&federation.state, &short);
    assert_eq!(quote.earliest.unwrap().0, federation.state.log_time);
}
