//! `comity-bench policy`: decisions of a large policy per second.

use anyhow::Result;
use comity_policy_bench::federation::Size;
use comity_policy_bench::measure::{Options, measure};

use super::arguments::whole::whole;

#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    /// Tenants, each with a quota, in 50 institutions with 100 clusters
    #[arg(long, default_value_t = 1_000, value_parser = whole::<u16>(500..=4_000))]
    tenants: u16,
    /// Agreements between the institutions
    #[arg(long, default_value_t = 500, value_parser = whole::<u16>(50..=1_000))]
    agreements: u16,
    /// Rules
    #[arg(long, default_value_t = 50, value_parser = whole::<u8>(0..=100))]
    rules: u8,
    /// Seconds of processor time of each measurement
    #[arg(long, default_value_t = 5, value_parser = whole::<u16>(1..=600))]
    seconds: u16,
    /// Seed of the requests
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
///
/// # Errors
/// When Comity and Rego disagree about a request.
pub(crate) fn run(arguments: &PolicyArgs) -> Result<()> {
    let options = Options {
        size: Size { tenants: usize::from(arguments.tenants), agreements: usize::from(arguments.agreements) },
        rules: usize::from(arguments.rules),
        seconds: u64::from(arguments.seconds),
        seed: arguments.seed,
    };
    let report = measure(&options)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
        return Ok(());
    }
    println!(
        "documents {}, rules {}, requests allowed {:.0} %",
        report.documents, report.rules, report.allowed_percent
    );
    println!("{:<44}{:>12}", "", "decisions/s");
    println!("{:<44}{:>12.0}", "comity, as the planner asks", report.decisions_per_second);
    println!("{:<44}{:>12.0}", "comity, with all documents behind it", report.explained_per_second);
    println!("{:<44}{:>12.0}", "rego (regorus), yes or no", report.rego_per_second);
    println!("both agree on {} requests", report.compared);
    println!("{} documents checked in {:.2} s", report.checked_documents, report.check_seconds);
    Ok(())
}
