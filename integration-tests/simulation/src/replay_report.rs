//! The result of a policy over several seeds, as JSON and as a table.

use std::fmt::Write as _;

use serde::Serialize;

use crate::policy::PolicyName;
use crate::replay::{ReplayFigures, ReplayResult};
use crate::trace::Trace;

/// The results of one policy on one trace.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// Name of the policy.
    pub policy: String,
    /// Nodes of the trace.
    pub nodes: usize,
    /// Devices of the trace.
    pub gpus: u64,
    /// The result of each seed.
    pub seeds: Vec<ReplayResult>,
    /// Mean over the seeds; `None` for a value that some seed lacks.
    pub mean: ReplayFigures,
}

/// Head of the table; [`row`] has the same columns.
pub const REPLAY_HEAD: &str =
    "  seed  at 100 %  at 130 %  first refused  refused GPU  refused CPU-only  decisions/s    p99 us";

impl ReplayReport {
    /// Summarises the results of all seeds.
    #[must_use]
    pub fn new(policy: PolicyName, trace: &Trace, seeds: Vec<ReplayResult>) -> Self {
        let mean = mean(&seeds);
        let gpus = trace.capacity_milli() / 1_000;
        Self { policy: policy.to_string(), nodes: trace.nodes.len(), gpus, seeds, mean }
    }
}

/// One row of the table under [`REPLAY_HEAD`].
#[must_use]
pub fn row(name: &str, figures: &ReplayFigures) -> String {
    let mut line = format!("{name:>6}");
    let percent = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let _ = write!(line, "{:>10}", percent(figures.allocated_percent_at_100));
    let _ = write!(line, "{:>10}", percent(figures.allocated_percent_at_130));
    let _ = write!(line, "{:>15}", percent(figures.first_refused_gpu_task_at_percent));
    let _ = write!(line, "{:>13.1}{:>18.1}", figures.refused_gpu_tasks, figures.refused_cpu_only_tasks);
    let _ = write!(line, "{:>13.0}{:>10.1}", figures.decisions_per_second, figures.p99_us);
    line
}

#[expect(clippy::cast_precision_loss, reason = "a thousand seeds at most")]
fn mean(seeds: &[ReplayResult]) -> ReplayFigures {
    let count = seeds.len().max(1) as f64;
    let of =
        |figure: &dyn Fn(&ReplayFigures) -> f64| seeds.iter().map(|seed| figure(&seed.figures)).sum::<f64>() / count;
    let of_all = |figure: &dyn Fn(&ReplayFigures) -> Option<f64>| {
        let values: Option<Vec<f64>> = seeds.iter().map(|seed| figure(&seed.figures)).collect();
        values.filter(|values| !values.is_empty()).map(|values| values.iter().sum::<f64>() / count)
    };
    ReplayFigures {
        allocated_percent_at_100: of_all(&|figures| figures.allocated_percent_at_100),
        allocated_percent_at_130: of_all(&|figures| figures.allocated_percent_at_130),
        first_refused_gpu_task_at_percent: of_all(&|figures| figures.first_refused_gpu_task_at_percent),
        refused_gpu_tasks: of(&|figures| figures.refused_gpu_tasks),
        refused_cpu_only_tasks: of(&|figures| figures.refused_cpu_only_tasks),
        decisions_per_second: of(&|figures| figures.decisions_per_second),
        p99_us: of(&|figures| figures.p99_us),
    }
}
