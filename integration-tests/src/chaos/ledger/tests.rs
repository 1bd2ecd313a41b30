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
