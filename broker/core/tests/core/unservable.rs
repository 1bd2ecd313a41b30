//! Requests that no donor could ever serve are refused, and those that need only wait are not.

use comity_core::command::MarkClusters;
use comity_core::demand::{DeviceChoice, Members, RequestSpec, Share};
use comity_core::inventory::{Device, Fault, FaultClass, Sharing};
use comity_core::refusal::Code;
use comity_core::{Command, Millis, explain};

use super::boxes::obstacle;
use super::federation::{Federation, cluster, device, node, offer, spec};

const GIB: u64 = 1_024;

/// The reason and remedy of a refusal as unservable; `None` if a donor could serve the request some day.
fn unservable(federation: &Federation, spec: &RequestSpec) -> Option<(String, String)> {
    let (reason, remedy) = unservable_after(federation, spec, Millis(0))?;
    assert!(remedy.ends_with("or set queue_anyway, and the request waits for such a change"), "{remedy}");
    Some((reason, remedy))
}

/// The same, `later` than the last change.
fn unservable_after(federation: &Federation, spec: &RequestSpec, later: Millis) -> Option<(String, String)> {
    let refusal = explain::unservable(&federation.state, spec, federation.state.log_time.after(later))?;
    assert_eq!(refusal.code, Code::Unservable);
    Some((refusal.reason, refusal.remedy))
}

fn summary(federation: &Federation, spec: &RequestSpec) -> String {
    explain::explain(&federation.state, spec).summary
}

/// A request for whole GPUs of `north` alone.
fn of_north(count: u32) -> RequestSpec {
    RequestSpec { allow_donors: vec![cluster("north")], ..spec(count, Share::Whole, "big") }
}

/// Leases all free GPUs.
fn in_use(federation: &mut Federation) {
    federation.submit(of_north(16));
    federation.submit(spec(4, Share::Whole, "big"));
    assert_eq!(federation.place().len(), 2);
}

#[test]
fn half_a_gpu_of_a_class_that_is_never_shared() {
    let federation = Federation::ready();
    let half = spec(1, Share::Milli(500), "big");
    let (reason, remedy) = unservable(&federation, &half).unwrap();
    assert!(reason.contains("no device of class big that can serve such a share"), "{reason}");
    assert!(remedy.starts_with("ask for another class or share"), "{remedy}");
    let summary = summary(&federation, &half);
    assert_eq!(summary, "not placed: none of 2 donors could ever serve it");
}

#[test]
fn a_profile_that_no_device_has_names_those_that_exist() {
    let mut federation = Federation::ready();
    let instances = ["1g.10gb+me", "3g.40gb"].map(|name| (name.to_owned(), 1)).into();
    let cut = device(81_559, Sharing::Mig { instances, layout: None });
    federation.offer("north", offer(2, &[("n1", 1, cut)]));
    let asking = |profile: &str| RequestSpec {
        allow_donors: vec![cluster("north")],
        ..spec(1, Share::MigProfile(profile.to_owned()), "big")
    };
    let (reason, remedy) = unservable(&federation, &asking("1g.10gb")).unwrap();
    let expected =
        "north has no MIG instance of profile 1g.10gb on devices of class big: these have 1g.10gb+me, 3g.40gb";
    assert!(reason.contains(expected), "{reason}");
    assert!(remedy.starts_with("ask for one of these profiles (1g.10gb+me, 3g.40gb)"), "{remedy}");
    assert_eq!(unservable(&federation, &asking("3g.40gb")), None);
    federation.offer("north", offer(3, &[("n1", 1, device(81_559, Sharing::Exclusive))]));
    let (reason, _) = unservable(&federation, &asking("1g.10gb")).unwrap();
    assert!(reason.contains("none is in MIG mode"), "{reason}");
}

#[test]
fn more_gpus_than_the_largest_donor_has() {
    let federation = Federation::ready();
    let (reason, remedy) = unservable(&federation, &spec(30, Share::Whole, "big")).unwrap();
    assert!(reason.contains("even when idle; 30 are asked for"), "{reason}");
    assert!(remedy.starts_with("ask for fewer"), "{remedy}");
}

#[test]
fn the_only_node_that_serves_is_found_among_many() {
    let mut federation = Federation::ready();
    let names: Vec<String> = (0..40).map(|number| format!("n{number:02}")).collect();
    for (generation, large) in (2..).zip(0..names.len()) {
        let gpus = |number| if number == large { 4 } else { 1 };
        let nodes = names.iter().enumerate();
        let nodes: Vec<_> =
            nodes.map(|(number, name)| (name.as_str(), gpus(number), device(81_559, Sharing::Exclusive))).collect();
        federation.offer("north", offer(generation, &nodes));
        let on_one_node = |count| {
            let mut spec = of_north(count);
            spec.topology.same_node = true;
            spec
        };
        assert_eq!(unservable(&federation, &on_one_node(4)), None, "{large}");
        assert!(unservable(&federation, &on_one_node(5)).is_some(), "{large}");
    }
}

#[test]
fn more_memory_than_any_node_has() {
    let federation = Federation::ready();
    let mut wanted = spec(1, Share::Whole, "big");
    wanted.gpus.memory_mib_per_gpu = 9_999 * 1_024 * GIB;
    let (reason, remedy) = unservable(&federation, &wanted).unwrap();
    assert!(reason.contains("10238976Gi memory each"), "{reason}");
    assert!(remedy.starts_with("ask for less memory"), "{remedy}");
}

#[test]
fn a_reserve_that_takes_all_names_its_field_and_line() {
    let mut federation = Federation::ready();
    federation.with_terms("lends:", "localReserveGpus: 16, lends:");
    let (reason, remedy) = unservable(&federation, &of_north(1)).unwrap();
    let field = "`localReserveGpus` of Cluster north (all.yaml:";
    assert!(reason.contains(field) && reason.contains("keeps 16 GPUs free for local work"), "{reason}");
    assert!(remedy.starts_with("lower `localReserveGpus` there"), "{remedy}");
    // The explanation does not advise waiting either.
    let (code, reason, unblock) = obstacle(&federation, &of_north(1));
    assert_eq!(code, "local-reserve");
    assert!(reason.starts_with(field) && !unblock.contains("wait"), "{reason}; {unblock}");
}

#[test]
fn a_limit_of_policy_that_is_smaller_than_the_request() {
    let mut federation = Federation::ready();
    federation.with_terms("lends:", "maxLentGpus: 2, lends:");
    let (reason, remedy) = unservable(&federation, &of_north(3)).unwrap();
    assert!(
        reason.contains("allows 2 GPUs at a time, and the request needs 3, see Cluster north (all.yaml:"),
        "{reason}"
    );
    assert!(remedy.starts_with("ask for at most 2 GPUs"), "{remedy}");
    federation.submit(of_north(2));
    assert_eq!(federation.place().len(), 1);
    assert_eq!(obstacle(&federation, &of_north(2)).0, "donor-exhausted");
    assert_eq!(unservable(&federation, &of_north(2)), None, "two come back");
}

#[test]
fn a_gang_counts_the_room_of_all_donors() {
    let mut federation = Federation::ready();
    let gang = |min| RequestSpec {
        members: Some(Members { min, desired: min }),
        spread_donors: true,
        ..spec(4, Share::Whole, "big")
    };
    in_use(&mut federation);
    assert_eq!(unservable(&federation, &gang(5)), None);
    let (reason, remedy) = unservable(&federation, &gang(6)).unwrap();
    assert!(reason.contains("room for 5 of the 6 members that must start"), "{reason}");
    assert!(remedy.starts_with("ask for at most 5 members"), "{remedy}");
}

#[test]
fn capacity_in_use_comes_back_and_hides_no_lasting_reason() {
    let mut federation = Federation::ready();
    in_use(&mut federation);
    assert_eq!(unservable(&federation, &of_north(16)), None);
    assert!(summary(&federation, &of_north(16)).contains("can serve it now"));
    assert!(unservable(&federation, &of_north(17)).is_some());
    assert!(summary(&federation, &of_north(17)).contains("could ever serve it"));
}

#[test]
fn local_work_ends() {
    let mut federation = Federation::ready();
    let used = Device { local_use_milli: 1_000, ..device(81_559, Sharing::Exclusive) };
    federation.offer("north", offer(2, &[("n1", 8, used.clone()), ("n2", 8, used)]));
    assert_eq!(unservable(&federation, &of_north(16)), None);
}

#[test]
fn nodes_and_devices_recover() {
    let mut federation = Federation::ready();
    let fault = Some(Fault { class: FaultClass::Degraded, message: "XID".to_owned() });
    let ill = Device { healthy: false, fault, ..device(81_559, Sharing::Exclusive) };
    let mut offer = offer(2, &[("n1", 8, ill), ("n2", 8, device(81_559, Sharing::Exclusive))]);
    offer.nodes.get_mut(&node("n2")).unwrap().ready = false;
    federation.offer("north", offer);
    assert_eq!(unservable(&federation, &of_north(16)), None);
    assert!(unservable(&federation, &of_north(17)).is_some());
}

#[test]
fn silent_donors_come_back() {
    let mut federation = Federation::ready();
    let silent = vec![cluster("north"), cluster("south")];
    federation.ok(Command::MarkClusters(MarkClusters { heard: Vec::new(), silent }));
    assert_eq!(unservable(&federation, &of_north(1)), None);
    assert!(unservable(&federation, &of_north(17)).is_some(), "its offer is known");
}

#[test]
fn donors_that_offer_nothing_yet_or_have_yet_to_join_may_serve() {
    let mut federation = Federation::with_policy();
    federation.join("west");
    assert_eq!(unservable(&federation, &of_north(17)), None, "no donor has joined");
    federation.join("south");
    assert_eq!(unservable(&federation, &of_north(17)), None, "it has yet to join");
    federation.offer("south", offer(1, &[("s1", 4, device(81_559, Sharing::Exclusive))]));
    assert!(unservable(&federation, &spec(5, Share::Whole, "big")).is_some());
    federation.join("north");
    assert_eq!(unservable(&federation, &spec(5, Share::Whole, "big")), None, "it has yet to offer");
}

#[test]
fn a_silent_donor_without_an_offer_is_waited_for_only_a_while() {
    const A_WHILE: Millis = Millis::from_mins(10);
    let wanted = spec(5, Share::Whole, "big");
    let mut federation = Federation::with_policy();
    for name in ["west", "north", "south"] {
        federation.join(name);
    }
    assert_eq!(unservable_after(&federation, &wanted, Millis::from_mins(9)), None, "agents are starting");
    let (reason, remedy) = unservable_after(&federation, &wanted, A_WHILE).unwrap();
    let since = federation.state.clusters[&cluster("north")].since.to_minute();
    assert_eq!(
        reason,
        format!(
            "no donor has reported its devices yet; north has not reported since {since}; \
             south has not reported since {since}"
        )
    );
    assert_eq!(remedy, "start the agent of north; or set queue_anyway, and the request waits for it");

    // South alone can never serve it, and north has never been heard.
    let heard = vec![cluster("south")];
    federation.ok(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }));
    federation.offer("south", offer(1, &[("s1", 4, device(81_559, Sharing::Exclusive))]));
    assert_eq!(unservable_after(&federation, &wanted, Millis::from_mins(9)), None);
    let (reason, remedy) = unservable_after(&federation, &wanted, A_WHILE).unwrap();
    assert!(reason.starts_with("no donor that has reported could ever serve this request: south has room"), "{reason}");
    assert!(reason.ends_with(&format!("; north has not reported since {since}")), "{reason}");
    assert!(remedy.starts_with("start the agent of north; or ask for fewer"), "{remedy}");
    assert_eq!(unservable_after(&federation, &spec(4, Share::Whole, "big"), A_WHILE), None, "south can");
    let gang = RequestSpec {
        members: Some(Members { min: 2, desired: 2 }),
        spread_donors: true,
        ..spec(4, Share::Whole, "big")
    };
    assert_eq!(unservable_after(&federation, &gang, Millis(0)), None);
    let (reason, _) = unservable_after(&federation, &gang, A_WHILE).unwrap();
    assert!(reason.contains("room for 1 of the 2 members") && reason.contains("; north has not"), "{reason}");

    // Once connected, it is about to report; and an empty offer is a report.
    let heard = vec![cluster("north")];
    federation.ok(Command::MarkClusters(MarkClusters { heard, silent: Vec::new() }));
    assert_eq!(unservable_after(&federation, &wanted, A_WHILE), None);
    federation.offer("north", offer(1, &[]));
    let (reason, _) = unservable_after(&federation, &wanted, A_WHILE).unwrap();
    assert!(!reason.contains("reported"), "{reason}");
}

#[test]
fn a_selector_accepts_all_classes_of_the_tenant() {
    let mut federation = Federation::ready();
    let selected = |count, selector: &str| {
        let mut wanted = spec(count, Share::Whole, "big");
        wanted.gpus.devices = DeviceChoice::Selector(selector.to_owned());
        wanted
    };
    in_use(&mut federation);
    assert_eq!(unservable(&federation, &selected(16, "device.memoryMiB > 1")), None);
    assert!(unservable(&federation, &selected(17, "device.memoryMiB > 1")).is_some());
    let (reason, _) = unservable(&federation, &selected(1, "device.memoryMiB > 100000")).unwrap();
    assert!(reason.contains("no device of north that belongs to a class is selected"), "{reason}");
}

#[test]
fn an_excluded_donor_is_the_last_reason() {
    let federation = Federation::ready();
    let (reason, _) = unservable(&federation, &of_north(17)).unwrap();
    let expected = "no donor could ever serve this request: north has room for 16 such shares";
    assert!(reason.starts_with(expected) && reason.ends_with("; the request excludes south"), "{reason}");
}
