//! `comity-bench federation`: the gain of institutions that lend to each other.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use comity_simulation::federation::{FederationTest, Skew, svg};
use comity_simulation::trace::Trace;

use super::arguments::report_args::ReportArgs;
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct FederationArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (their number) and model
    #[arg(long, value_name = "CSV")]
    nodes: PathBuf,
    /// CSV of pods with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU) and, where models matter,
    /// gpu_spec
    #[arg(long, value_name = "CSV")]
    pods: PathBuf,
    /// Institutions with one cluster each; nodes are assigned round-robin in order of name
    #[arg(long, default_value_t = 20, value_parser = whole::<u16>(2..=100))]
    clusters: u16,
    /// Distribution of the tasks: capacity (by each one's GPUs) or zipf (the first requests twice as much as the
    /// second)
    #[arg(long, default_value = "capacity")]
    skew: Skew,
    /// Demand as a multiple of the GPU capacity
    #[arg(long, default_value_t = 1.0, value_parser = super::place_command::inflate)]
    inflate: f64,
    /// Seed of the arrivals and of their institutions
    #[arg(long, default_value_t = 42, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Writes an SVG of each institution's stranded GPUs and unplaced demand
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    output: ReportArgs,
}

/// Replays and prints.
///
/// # Errors
/// When a file cannot be read or written, or the core refuses a command.
pub(crate) fn run(arguments: &FederationArgs) -> Result<()> {
    let trace = Trace::read(&arguments.nodes, &arguments.pods)?;
    let test = FederationTest {
        clusters: usize::from(arguments.clusters),
        seed: arguments.seed,
        inflate: arguments.inflate,
        skew: arguments.skew,
    };
    let report = test.run(&trace)?;
    if let Some(path) = &arguments.plot {
        std::fs::write(path, svg(&report)).with_context(|| format!("cannot write the plot to {}", path.display()))?;
    }
    arguments.output.print(&report, &report.table())
}
