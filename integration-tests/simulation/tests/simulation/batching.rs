//! Batching on a campus of 64 GPUs: its effect, and the bound on migrations.

use comity_simulation::batching::{
    BatchingFigures, BatchingReport, BatchingTest, MOST_MOVES, Strategy, StrategyReport, campus,
};

const TEST: BatchingTest = BatchingTest { demand: 1.0, every: 600_000, days: 2, preemptible_percent: 100 };

fn run(strategy: Strategy, seed: u64) -> BatchingFigures {
    TEST.run(&campus(), strategy, seed).unwrap().figures
}

#[test]
fn leases_move_for_requests_within_the_bound() {
    let (mut moved, mut let_in) = (0.0, 0.0);
    for seed in [1, 2] {
        let figures = run(Strategy::Moved, seed);
        assert_eq!((figures.beyond_the_bound, figures.stopped), (0.0, 0.0), "{figures:?}");
        assert!(figures.most_moved_for_one <= MOST_MOVES as f64, "{figures:?}");
        assert!(figures.let_in_by_moving <= figures.leases_moved, "{figures:?}");
        (moved, let_in) = (moved + figures.leases_moved, let_in + figures.let_in_by_moving);
    }
    assert!(moved >= 2.0 && let_in >= 2.0, "{moved} leases moved, {let_in} requests got in");
}

#[test]
fn all_strategies_serve_the_same_arrivals() {
    let all = Strategy::ALL.map(|strategy| run(strategy, 3));
    for figures in &all {
        assert_eq!(
            (figures.requests, figures.gangs, figures.gpu_hours_asked),
            (all[0].requests, all[0].gangs, all[0].gpu_hours_asked)
        );
        assert!(figures.requests_let_in <= figures.requests && figures.gangs_let_in <= figures.gangs, "{figures:?}");
        assert!(figures.requests >= 80.0 && figures.requests_let_in > figures.requests / 2.0, "{figures:?}");
        assert!(figures.allocated_percent > 50.0 && figures.allocated_percent <= 100.0, "{figures:?}");
    }
    assert_eq!(all[0].leases_moved + all[1].leases_moved, 0.0);
    assert_eq!(run(Strategy::Moved, 3), all[2], "a seed is a run");
}

#[test]
fn without_preemptible_requests_moving_changes_nothing() {
    let test = BatchingTest { preemptible_percent: 0, ..TEST };
    let [together, moved] =
        [Strategy::Together, Strategy::Moved].map(|strategy| test.run(&campus(), strategy, 4).unwrap());
    assert_eq!(together, moved);
}

#[test]
fn a_report_says_whether_the_bound_held() {
    let trace = campus();
    let seeds = vec![TEST.run(&trace, Strategy::Moved, 5).unwrap()];
    let report = |seeds| BatchingReport::new(&TEST, &trace, vec![StrategyReport::new(Strategy::Moved, seeds)]);
    let fine = report(seeds.clone());
    assert!(fine.bound.holds && fine.conclusion().contains("held in all runs"), "{fine:?}");
    assert_eq!((fine.nodes, fine.gpus), (8, 64));
    let mut broken = seeds;
    broken[0].figures.beyond_the_bound = 1.0;
    let broken = report(broken);
    assert!(!broken.bound.holds && broken.conclusion().contains("VIOLATED"), "{broken:?}");
}
