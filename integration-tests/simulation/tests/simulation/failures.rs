//! Random failures of devices, nodes and donors, checked against an independent list of failures.

use comity_core::limits::MAX_REPLACED;
use comity_simulation::failures::Failures;

/// Bound on the rounds of the leader's loops after each event: leases are reclaimed, placed again, reclaimed there, and
/// so on.
const MOST_ROUNDS: u64 = 16;

#[test]
fn leases_leave_failed_hardware_and_continue() {
    for seed in [5, 6] {
        let report = Failures { seed, events: 300 }.run().unwrap();
        let table = report.table();
        assert_eq!(report.placed_on_unhealthy, 0, "nothing is placed on unhealthy or quarantined hardware:\n{table}");
        assert_eq!(report.could_have_gone_on, 0, "affected requests have another place if there is one:\n{table}");
        assert_eq!(report.for_nothing, 0, "no lease is reclaimed for hardware that it does not use:\n{table}");
        assert_eq!(report.missed, 0, "no lease stays where something failed:\n{table}");
        assert!(report.holds(), "{table}");
        let bounded = report.longest_chain <= MAX_REPLACED as u64 + 1 && report.most_rounds <= MOST_ROUNDS;
        assert!(bounded, "{table}");
        // The invariants did not hold only because nothing happened.
        assert!(report.events >= 300 && report.placed >= 50 && report.reclaimed >= 20, "{table}");
        assert!(report.lost >= 5 && report.given_up >= 1 && report.spared >= 5, "{table}");
        assert!(report.went_on >= 5 && report.waited_again >= 5, "{table}");
        assert!(report.most_quarantined >= 1 && report.longest_chain >= 2, "{table}");
    }
}

#[test]
fn a_seed_repeats_its_run() {
    let short = || Failures { seed: 3, events: 40 }.run().unwrap();
    assert_eq!(short(), short());
}
