//! A few days of the simulated month: shares come out as they should, and lending pays.
#![expect(clippy::unwrap_used, reason = "tests")]

use comity_simulation::month::{Month, svg};

#[test]
fn shares_are_as_entitled_and_who_lends_more_waits_less() {
    // Two days of peaks are too few to tell who waits less.
    let fairness = Month { seed: 7, peak_days: 4, backlog_days: 2 }.run_arranged(3, |_| ()).unwrap();
    assert!(fairness.worst_apart_percent <= 5.0, "{}", fairness.table());
    let [most, .., none] = fairness.by_lending.as_slice() else { panic!("{}", fairness.table()) };
    assert!((most.gpus, none.gpus, fairness.arrangements) == (24, 0, 3), "{}", fairness.table());
    assert!(most.lent_gpu_hours > none.lent_gpu_hours, "{}", fairness.table());
    assert!(most.mean_wait_minutes < none.mean_wait_minutes, "{}", fairness.table());
    let report = fairness.month;
    // Equal weights would give each institution a fifth; lending moves that.
    let share = |institution: &str| -> f64 {
        report.tenants.iter().filter(|t| t.institution == institution).map(|t| t.share_percent).sum()
    };
    assert!(share("atlas") > share("cassini") && share("cassini") > share("eos"), "{}", report.table());
    assert!(svg(&report).contains("polyline"));
}
