//! `comity-bench match`: placements per second of the broker's core.

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Result;
use comity_runtime::memory::use_small_pages;
use comity_simulation::speed::{SPEED_HEAD, SpeedTest, row};
use comity_simulation::trace::Trace;

use super::arguments::report_args::completed;
use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct MatchArgs {
    /// CSV of nodes with the columns sn, cpu_milli, memory_mib, gpu (their number) and model
    #[arg(long, value_name = "CSV")]
    nodes: PathBuf,
    /// CSV of pods with the columns cpu_milli, memory_mib, num_gpu, gpu_milli (of each GPU) and, where models matter,
    /// gpu_spec
    #[arg(long, value_name = "CSV")]
    pods: PathBuf,
    /// Multiples of the trace's nodes and tasks, separated by commas; one run each
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,8,64",
        value_name = "TIMES,...",
        value_parser = whole::<u16>(1..=256)
    )]
    scale: Vec<u16>,
    /// Requests queued before each plan
    #[arg(long, default_value_t = 2_048, value_parser = whole::<u16>(1..=2_048))]
    batch: u16,
    /// Maximum tasks per run; a broker keeps at most 200,000 leases
    #[arg(long, default_value_t = 200_000, value_parser = whole::<u32>(1..=200_000))]
    tasks: u32,
    /// Maximum measured passes; passes repeat for three seconds, and the median counts
    #[arg(long, default_value_t = 25, value_parser = whole::<u8>(1..=u8::MAX))]
    passes: u8,
    /// Seed of the arrivals
    #[arg(long, default_value_t = 42, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// When a file cannot be read, or the core refuses a command.
pub(crate) fn run(arguments: &MatchArgs) -> Result<()> {
    // As the broker does.
    use_small_pages();
    let trace = Trace::read(&arguments.nodes, &arguments.pods)?;
    if !arguments.json {
        println!("{SPEED_HEAD}");
    }
    let mut scales = Vec::new();
    for &scale in &arguments.scale {
        let test = SpeedTest {
            scale: usize::from(scale),
            batch: usize::from(arguments.batch),
            seed: arguments.seed,
            tasks: usize::try_from(arguments.tasks)?,
            passes: usize::from(arguments.passes),
        };
        let watched = !arguments.json && std::io::stderr().is_terminal();
        let speed = completed(test.run(&trace, |doing| {
            if watched {
                eprint!("\r\x1b[K{scale} times: {doing}");
            }
        }))?;
        if watched {
            eprint!("\r\x1b[K");
        }
        if !arguments.json {
            println!("{}", row(&speed));
        }
        scales.push(speed);
    }
    if arguments.json {
        println!("{}", serde_json::json!({ "scales": scales }));
    }
    Ok(())
}
