//! How much of a cluster's GPUs a policy gets allocated.

use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use comity_simulation::arrivals::known;
use comity_simulation::policy::PolicyName;
use comity_simulation::replay::replay;
use comity_simulation::report::{HEAD, Report, row};
use comity_simulation::seeds::Seeds;
use comity_simulation::trace::Trace;

use super::whole::whole;
use super::workload::WorkloadArgs;

#[derive(Debug, clap::Args)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Seeds of the arrivals, first and last included
    #[arg(long, default_value = "42..51", value_name = "FIRST..LAST")]
    seeds: Seeds,
    /// How much is asked for, in parts of the GPU capacity; above 1 there is more than can be served
    #[arg(long, default_value_t = 1.3, value_parser = inflate)]
    inflate: f64,
    /// Who decides: comity, fgd, best-fit or random
    #[arg(long, default_value_t = PolicyName::Comity)]
    policy: PolicyName,
    /// CSV of pods that comity and fgd know as history, instead of the pods that are replayed
    #[arg(long, value_name = "CSV")]
    history: Option<PathBuf>,
    /// Percent of the history that they know, drawn at random
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
/// When a file cannot be read or holds nothing to place.
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
    ensure!(!history.is_empty(), "{} % of the history are no task; know more of it", arguments.known_percent);
    let mut policy = arguments.policy.start(&trace, &history)?;
    if !arguments.json {
        println!("{HEAD}");
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
        bail!("the core refused what it should not have, so these figures mean nothing: {fault}");
    }
    let report = Report::new(arguments.policy, &trace, results);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        println!("{}", row("mean", &report.mean));
    }
    Ok(())
}
