//! `comity-bench place`: the GPU capacity that a policy allocates.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use comity_simulation::arrivals::known;
use comity_simulation::policy::PolicyName;
use comity_simulation::replay::replay;
use comity_simulation::replay_report::{REPLAY_HEAD, ReplayReport, row};
use comity_simulation::seeds::Seeds;
use comity_simulation::trace::Trace;

use super::arguments::whole::whole;
use super::arguments::workload::WorkloadArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Seeds of the arrivals, first and last included
    #[arg(long, default_value = "42..51", value_name = "FIRST..LAST")]
    seeds: Seeds,
    /// Demand as a multiple of the GPU capacity; above 1 it exceeds the capacity
    #[arg(long, default_value_t = 1.3, value_parser = inflate)]
    inflate: f64,
    /// Placement policy: comity, fgd, best-fit or random
    #[arg(long, default_value_t = PolicyName::Comity)]
    policy: PolicyName,
    /// CSV of pods from which comity and fgd learn, instead of the replayed pods
    #[arg(long, value_name = "CSV")]
    history: Option<PathBuf>,
    /// Percent of the history from which they learn, drawn at random
    #[arg(long, default_value_t = 100, value_parser = whole::<u8>(1..=100))]
    known_percent: u8,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn inflate(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.01..=10.0).contains(value));
    value.ok_or_else(|| "write a number from 0.01 to 10, such as 1.3".to_owned())
}

/// Replays and prints.
///
/// # Errors
/// When a file cannot be read or holds no tasks.
pub(crate) fn run(arguments: &PlaceArgs) -> Result<()> {
    let learns = matches!(arguments.policy, PolicyName::Comity | PolicyName::Fgd);
    let told = arguments.history.is_some() || arguments.known_percent < 100;
    ensure!(
        learns || !told,
        "--policy {} learns nothing from a history; leave --history and --known-percent out, or use comity or fgd",
        arguments.policy
    );
    let trace = arguments.workload.read()?;
    let history = match &arguments.history {
        Some(pods) => Trace::read(&arguments.workload.nodes, pods)?.tasks,
        None => trace.tasks.clone(),
    };
    let history = known(history, arguments.known_percent);
    ensure!(!history.is_empty(), "--known-percent {} leaves no task of the history; raise it", arguments.known_percent);
    let mut policy = arguments.policy.start(&trace, &history)?;
    if !arguments.json {
        println!("{REPLAY_HEAD}");
    }
    let seeds = arguments.seeds.iter().map(|seed| {
        let result = replay(&trace, policy.as_mut(), seed, arguments.inflate);
        if !arguments.json {
            println!("{}", row(&seed.to_string(), &result.figures));
        }
        result
    });
    let results = seeds.collect();
    if let Some(fault) = policy.fault() {
        bail!("the core refused a command of the simulation, so these results are invalid: {fault}");
    }
    let report = ReplayReport::new(arguments.policy, &trace, results);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", row("mean", &report.mean));
    }
    Ok(())
}
