//! Replays of a small trace divided among institutions.

use std::path::Path;

use comity_simulation::federation::{FederationError, FederationReport, FederationTest, Skew, svg};
use comity_simulation::speed::SpeedTest;
use comity_simulation::trace::Trace;

fn trace() -> Trace {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Trace::read(&fixtures.join("nodes.csv"), &fixtures.join("pods.csv")).unwrap()
}

fn run(skew: Skew) -> FederationReport {
    FederationTest { clusters: 5, seed: 42, inflate: 1.0, skew }.run(&trace()).unwrap()
}

#[test]
fn lending_reduces_stranded_gpus_and_waiting_tasks() {
    for skew in [Skew::Capacity, Skew::Zipf] {
        let all = run(skew).all;
        assert!(all.isolated.stranded_milli > all.federated.stranded_milli, "{skew:?}: {all:?}");
        assert!(all.isolated.unplaced_milli > all.federated.unplaced_milli, "{skew:?}: {all:?}");
        assert!(all.lent_milli > 0 && all.lent_milli == all.borrowed_milli, "{skew:?}: {all:?}");
    }
    // More uneven demand makes institutions lend more.
    assert!(run(Skew::Zipf).all.lent_milli > run(Skew::Capacity).all.lent_milli);
}

#[test]
fn no_work_and_no_gpu_is_lost() {
    for skew in [Skew::Capacity, Skew::Zipf] {
        let report = run(skew);
        let all = &report.all;
        assert_eq!((all.nodes, all.gpus_milli), (80, 416_000));
        for (way, figures) in [("isolated", all.isolated), ("federated", all.federated), ("one", all.one_cluster)] {
            let used = all.asked_milli - figures.unplaced_milli;
            assert_eq!(used + figures.stranded_milli, all.gpus_milli, "{skew:?}, {way}: {all:?}");
        }
        assert_eq!(report.institutions.iter().map(|one| one.tasks).sum::<u64>(), all.tasks);
        assert_eq!(report, run(skew), "a seed means the same run each time");
    }
}

#[test]
fn the_table_and_the_plot_have_all_institutions() {
    let report = run(Skew::Zipf);
    let (table, plot) = (report.table(), svg(&report));
    assert_eq!(table.lines().count(), 2 + 5 + 1, "{table}");
    assert!((1..=5).all(|number| table.contains(&format!("institution-{number:02}"))), "{table}");
    // Background, legend and bars; each bar names its institution, each axis its unit.
    assert_eq!(plot.matches("<rect").count(), 1 + 3 + 2 * 3 * 5, "{plot}");
    assert!(plot.contains("<title>institution-05, one cluster of all nodes: "), "{plot}");
    let axes = [">GPUs</text>", ">number of the institution</text>"].map(|axis| plot.matches(axis).count());
    assert_eq!(axes, [2, 2], "{plot}");
    assert!(plot.starts_with("<svg") && plot.ends_with("</svg>\n"));
}

#[test]
fn institutions_without_nodes_are_refused() {
    let test = FederationTest { clusters: 81, seed: 42, inflate: 1.0, skew: Skew::Capacity };
    let error = test.run(&trace()).unwrap_err();
    assert!(matches!(error, FederationError::TooManyClusters { clusters: 81, nodes: 80 }));
    assert!("fair".parse::<Skew>().unwrap_err().to_string().contains("capacity or zipf"));
}

#[test]
fn speed_is_measured_over_all_nodes_and_tasks() {
    let test = SpeedTest { scale: 2, batch: 64, seed: 42, tasks: 300, passes: 1 };
    let speed = test.run(&trace(), |_| {}).unwrap();
    assert_eq!((speed.nodes, speed.donors, speed.gpus, speed.tasks), (160, 1, 832, 300));
    assert!(speed.placements > 200 && speed.placements <= 300, "{speed:?}");
    let rates = [speed.placements_per_second, speed.leases_per_second, speed.cold_placements_per_second];
    assert!(rates.iter().chain([&speed.fgd_placements_per_second]).all(|&rate| rate > 0.0), "{speed:?}");
    assert!(speed.leases_per_second < speed.placements_per_second, "{speed:?}");
    assert!(speed.p50_us <= speed.p99_us && speed.p99_us <= speed.max_us, "{speed:?}");
}
