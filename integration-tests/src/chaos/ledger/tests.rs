use super::facts::Part;
use super::*;

fn lease(number: u64, devices: &[(u64, u64)]) -> LeaseFacts {
    LeaseFacts {
        id: format!("lease-{number}"),
        number,
        request: format!("req-{number}"),
        donor: "donor-1".to_owned(),
        parts: devices
            .iter()
            .map(|(device, milli)| Part { node: "n".to_owned(), device: *device, milli: *milli })
            .collect(),
        count: devices.len() as u64,
        fencing_token: number,
        state: "active".to_owned(),
        end_reason: None,
        reclaim_reason: None,
        was_active: true,
    }
}

fn set(leases: &[&str]) -> BTreeSet<String> {
    leases.iter().map(|lease| (*lease).to_owned()).collect()
}

fn one_violation(ledger: &Ledger, part: &str) {
    let violations = ledger.violations();
    assert!(violations.len() == 1 && violations.iter().all(|text| text.contains(part)), "{violations:?}");
}

#[test]
fn a_run_without_faults_violates_nothing() {
    let mut ledger = Ledger::default();
    ledger.donor_has("donor-1", 3);
    ledger.leases_are(4, vec![lease(1, &[(0, 500)]), lease(2, &[(0, 500), (1, 1000)])]);
    ledger.namespaces_are("donor-1", set(&["lease-1", "lease-2"]));
    ledger.quotas_are("donor-1", [("lease-1".to_owned(), 1), ("lease-2".to_owned(), 2)].into());
    ledger.namespaces_are("donor-1", set(&["lease-1"]));
    let ended =
        LeaseFacts { state: "ended".into(), end_reason: Some("released".into()), ..lease(2, &[(0, 500), (1, 1000)]) };
    ledger.leases_are(9, vec![lease(1, &[(0, 500)]), ended, lease(3, &[(1, 1000)])]);
    assert!(ledger.violations().is_empty() && ledger.unresolved().is_empty(), "{:?}", ledger.violations());
}

#[test]
fn a_device_lent_twice_by_the_brokers_is_found() {
    let mut ledger = Ledger::default();
    ledger.leases_are(1, vec![lease(1, &[(3, 750)]), lease(2, &[(3, 500)])]);
    one_violation(&ledger, "device 3 of node n of donor-1 1250/1000: lease-1, lease-2");
}

#[test]
fn two_namespaces_for_one_device_are_found_even_if_brokers_report_the_leases_later() {
    let mut ledger = Ledger::default();
    ledger.namespaces_are("donor-1", set(&["lease-1", "lease-2"]));
    ledger.namespaces_are("donor-1", set(&["lease-2"]));
    assert_eq!(ledger.unresolved().len(), 1);
    let ended = LeaseFacts { state: "ended".into(), end_reason: Some("expired".into()), ..lease(1, &[(0, 1000)]) };
    ledger.leases_are(1, vec![ended, lease(2, &[(0, 1000)])]);
    one_violation(&ledger, "donor-1 has namespaces that lend device 0");
    assert!(ledger.unresolved().is_empty());
}

#[test]
fn excess_grants_and_quotas_of_another_size_are_found() {
    let mut ledger = Ledger::default();
    ledger.donor_has("donor-1", 1);
    ledger.quotas_are("donor-1", [("lease-1".to_owned(), 1), ("lease-2".to_owned(), 1)].into());
    one_violation(&ledger, "donor-1 has 1 GPUs and grants 2");
    let mut ledger = Ledger::default();
    ledger.donor_has("donor-1", 9);
    ledger.quotas_are("donor-1", [("lease-1".to_owned(), 2)].into());
    ledger.leases_are(1, vec![lease(1, &[(0, 1000)])]);
    one_violation(&ledger, "grants 2 GPUs to lease-1, which is of 1");
}

#[test]
fn tokens_revisions_and_states_never_go_back() {
    let mut ledger = Ledger::default();
    ledger.leases_are(1, vec![lease(1, &[]), LeaseFacts { fencing_token: 1, ..lease(2, &[]) }]);
    one_violation(&ledger, "fencing tokens of donor-1 do not rise");
    let mut ledger = Ledger::default();
    ledger.leases_are(2, Vec::new());
    ledger.leases_are(1, Vec::new());
    one_violation(&ledger, "revision 2 was read, and then 1");
    let mut ledger = Ledger::default();
    ledger
        .leases_are(1, vec![LeaseFacts { state: "ended".into(), end_reason: Some("expired".into()), ..lease(1, &[]) }]);
    ledger.leases_are(2, vec![lease(1, &[])]);
    one_violation(&ledger, "lease-1 went back from ended to active");
}

const SECOND: Duration = Duration::from_secs(1);

/// donor-1 with a node of four GPUs, on which lease-1 has two and lease-2, on several nodes, one.
fn with_nodes() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.donor_has("donor-1", 8);
    ledger.leases_are(1, vec![lease(1, &[(0, 1_000), (1, 1_000)]), lease(2, &[(2, 1_000), (3, 1_000)])]);
    ledger.quotas_are("donor-1", [("lease-1".to_owned(), 2), ("lease-2".to_owned(), 2)].into());
    let leases = [("lease-1".to_owned(), None), ("lease-2".to_owned(), Some(1))];
    let nodes = [("a".to_owned(), DonorNode { gpus: 4, leases: leases.into() })];
    ledger.nodes_are("donor-1", nodes.into(), SECOND);
    ledger
}

fn pods(pods: &[(&str, Option<&str>, u64)]) -> BTreeMap<String, DonorPod> {
    let pod = |(name, lease, gpus): &(&str, Option<&str>, u64)| {
        ((*name).to_owned(), DonorPod { node: "a".to_owned(), lease: lease.map(str::to_owned), gpus: *gpus })
    };
    pods.iter().map(pod).collect()
}

#[test]
fn a_node_is_overcommitted_by_local_use_and_by_pods_beyond_their_lease() {
    type Case = (&'static str, &'static [(&'static str, Option<&'static str>, u64)], bool);
    let cases: [Case; 6] = [
        ("nothing runs", &[], false),
        ("leases are used", &[("x", Some("lease-1"), 2), ("y", Some("lease-2"), 1)], false),
        ("a free GPU is used", &[("x", None, 1)], false),
        ("a leased GPU is used", &[("x", None, 2)], true),
        ("one more than a lease's part", &[("x", None, 1), ("y", Some("lease-2"), 2)], true),
        ("a pod of a lease that is elsewhere", &[("x", None, 1), ("y", Some("lease-3"), 1)], true),
    ];
    for (name, running, is_over) in cases {
        let mut ledger = with_nodes();
        ledger.pods_are("donor-1", pods(running), SECOND);
        assert_eq!(ledger.is_overcommitted("donor-1", "a"), is_over, "{name}");
    }
}

#[test]
fn an_overcommitted_node_is_a_violation_once_it_lasts() {
    let mut ledger = with_nodes();
    ledger.pods_are("donor-1", pods(&[("x", None, 2)]), SECOND);
    ledger.check_nodes("donor-1", SECOND * 121);
    assert!(ledger.violations().is_empty(), "{:?}", ledger.violations());
    assert_eq!(ledger.longest_overcommitted()["donor-1"], SECOND * 120);
    // It was over for a moment.
    ledger.pods_are("donor-1", pods(&[]), SECOND * 122);
    ledger.pods_are("donor-1", pods(&[("x", None, 2)]), SECOND * 123);
    ledger.check_nodes("donor-1", SECOND * 240);
    assert!(ledger.violations().is_empty(), "{:?}", ledger.violations());
    ledger.check_nodes("donor-1", SECOND * 244);
    one_violation(&ledger, "a has 4 GPUs, with 2 in local use");
}

#[test]
fn a_lease_that_is_called_back_is_no_longer_promised() {
    let mut ledger = with_nodes();
    ledger.pods_are("donor-1", pods(&[("x", None, 2)]), SECOND);
    let called_back = LeaseFacts {
        state: "reclaiming".into(),
        reclaim_reason: Some("local-need".into()),
        ..lease(1, &[(0, 1_000), (1, 1_000)])
    };
    ledger.leases_are(2, vec![called_back]);
    assert!(!ledger.is_overcommitted("donor-1", "a"));
}

#[test]
fn a_lease_that_is_set_up_is_not_promised_yet() {
    let two = |state: &str| LeaseFacts { state: state.into(), ..lease(1, &[(0, 1_000), (1, 1_000)]) };
    let mut ledger = Ledger::default();
    ledger.donor_has("donor-1", 2);
    ledger.leases_are(1, vec![two("connecting")]);
    ledger.quotas_are("donor-1", [("lease-1".to_owned(), 2)].into());
    let node = DonorNode { gpus: 2, leases: [("lease-1".to_owned(), None)].into() };
    ledger.nodes_are("donor-1", [("a".to_owned(), node)].into(), SECOND);
    ledger.pods_are("donor-1", pods(&[("x", None, 1)]), SECOND);
    assert!(!ledger.is_overcommitted("donor-1", "a"));
    ledger.leases_are(2, vec![two("active")]);
    assert!(ledger.is_overcommitted("donor-1", "a"));
}

#[test]
fn a_reclaimed_lease_has_a_reason_and_may_stay() {
    let reclaimed = |reason: Option<&str>| LeaseFacts {
        state: "reclaiming".into(),
        reclaim_reason: reason.map(str::to_owned),
        ..lease(1, &[])
    };
    let mut ledger = Ledger::default();
    for (revision, lease) in [lease(1, &[]), reclaimed(Some("local-need")), lease(1, &[])].into_iter().enumerate() {
        ledger.leases_are(revision as u64 + 1, vec![lease]);
    }
    assert!(ledger.violations().is_empty(), "{:?}", ledger.violations());
    ledger.leases_are(4, vec![reclaimed(None)]);
    one_violation(&ledger, "lease-1 is reclaiming without a reason");
    let mut ledger = Ledger::default();
    ledger.leases_are(1, vec![lease(1, &[])]);
    ledger.leases_are(2, vec![LeaseFacts { state: "lost".into(), ..lease(1, &[]) }]);
    assert!(ledger.violations().iter().any(|text| text.contains("a state that is not known")));
}
