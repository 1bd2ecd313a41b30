//! Some dozens of failures at random: nothing is placed on what is not well, and what is hit goes on where there is a place.
#![expect(clippy::unwrap_used, reason = "tests")]

use comity_simulation::failures::Failures;

#[test]
fn what_fails_is_left_and_what_it_hit_goes_on() {
    for seed in [1, 2] {
        let report = Failures { seed, events: 200 }.run().unwrap();
        assert!(report.holds(), "{}", report.table());
        assert!(report.placed > 0 && report.called_back + report.lost > 0, "{}", report.table());
        assert!(report.went_on + report.waited_again > 0, "{}", report.table());
    }
    let short = || Failures { seed: 3, events: 40 }.run().unwrap();
    assert_eq!(short(), short(), "a seed is a run");
}
