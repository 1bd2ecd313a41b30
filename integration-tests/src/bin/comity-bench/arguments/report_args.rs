//! How a simulation prints its report, and the error of one that the core stopped.

use anyhow::{Result, anyhow};
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(crate) struct ReportArgs {
    /// Prints one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

impl ReportArgs {
    /// Prints the report as JSON, or as its table.
    pub(crate) fn print(&self, report: &impl Serialize, table: &str) -> Result<()> {
        if self.json {
            println!("{}", serde_json::to_string(report)?);
        } else {
            print!("{table}");
        }
        Ok(())
    }
}

/// The result of a simulation, unless the core refused one of its commands.
pub(crate) fn completed<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T> {
    result
        .map_err(|refusal| anyhow!("the core refused a command of the simulation, so there are no results: {refusal}"))
}
