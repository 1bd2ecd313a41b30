//! Random reclaims of some dozen leases: with notice, no more than needed, and moved where possible.

use comity_simulation::reclaim::Reclaims;

#[test]
fn leases_are_reclaimed_with_notice_no_more_than_needed_and_move() {
    for seed in 1..=5 {
        let report = Reclaims { seed, reclaims: 60 }.run().unwrap();
        assert!(report.holds() && report.could_have_moved == 0, "seed {seed}\n{}", report.table());
        assert!(report.reclaimed >= 60 && report.sets_checked >= 20, "{}", report.table());
        assert!(report.for_local_need > 0 && report.for_policy > 0 && report.for_requests > 0, "{}", report.table());
        assert_eq!(report.reclaimed, report.for_local_need + report.for_policy + report.for_requests, "seed {seed}");
        assert!(report.moved > 0 && report.waited_again > 0 && report.saved > 0, "{}", report.table());
    }
    // A replacement lease was reclaimed itself while the lease it replaces was still active.
    let report = Reclaims { seed: 1, reclaims: 232 }.run().unwrap();
    assert!(report.holds(), "{}", report.table());
    let short = || Reclaims { seed: 3, reclaims: 8 }.run().unwrap();
    assert_eq!(short(), short(), "a seed is a run");
}
