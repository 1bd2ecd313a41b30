//! A few days of the simulated month: shares match entitlements, and lending pays.

use comity_simulation::month::{Month, svg};

#[test]
fn shares_match_entitlements_and_lenders_wait_less() {
    // Two days of peaks are too few to compare waiting times.
    let fairness = Month { seed: 7, peak_days: 4, backlog_days: 2 }.run_arranged(1, |_| ()).unwrap();
    assert_eq!(fairness.by_lending.iter().map(|lending| lending.gpus).collect::<Vec<_>>(), [24, 16, 8, 0]);
    let requests: usize = fairness.month.institutions.iter().map(|institution| institution.requests).sum();
    assert_eq!(fairness.by_lending.iter().map(|lending| lending.requests).sum::<usize>(), requests);
    let report = fairness.month;
    assert!(report.worst_apart_percent() <= 5.0, "{}", report.table());
    let [first, _, _, _, last, _] = report.institutions.as_slice() else { panic!("{report:?}") };
    assert!(first.lent_gpu_hours > last.lent_gpu_hours, "{}", report.table());
    assert!(first.mean_wait_minutes < last.mean_wait_minutes, "{}", report.table());
    // Equal weights would give each institution a fifth; reciprocity for lending changes that.
    let share = |institution: &str| -> f64 {
        report.tenants.iter().filter(|t| t.institution == institution).map(|t| t.share_percent).sum()
    };
    assert!(share("atlas") > share("cassini") && share("cassini") > share("eos"), "{}", report.table());
    assert!(svg(&report).contains("polyline"));
}
