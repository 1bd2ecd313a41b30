//! Three brokers while everything under them fails: processes, lines, clocks, disks; and while others take their
//! places.
//!
//! ```text
//!   writers, readers ─▶ three brokers, each in a network namespace with a clock and a disk of its own
//!        │                  ▲
//!        │                  └─ faults, one after the other, drawn from a seed
//!        └─▶ history ─▶ linearizable? ─▶ and in the end: all members alike, and all there that was acknowledged?
//! ```
//!
//! Clients reach every broker at any time; only the lines between brokers are cut. Members are replaced meanwhile, so
//! that the three hosts are seats: on each runs one member after the other. After each fault the group must get well by
//! itself. Needs root on Linux: see [`missing`].

mod clients;
mod disk;
pub mod drills;
mod group;
mod host;
mod inject;
mod report;
pub mod schedule;
mod shell;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};

pub use host::missing;
pub use report::Report;

use clients::Clients;
use group::Group;
use inject::Injector;
use schedule::{FaultKind, schedule};

use crate::history::{account, check};

/// Clients are at work for so long before the first fault.
const CALM: Duration = Duration::from_secs(2);

/// What is run.
#[derive(Clone, Debug)]
pub struct BrokersConfig {
    /// How long faults come.
    pub length: Duration,
    /// Repeats their order.
    pub seed: u64,
    /// Kinds that are left out.
    pub without: Vec<FaultKind>,
}

/// Runs it.
///
/// # Errors
/// When it cannot be run. What it finds is in the report.
pub async fn run(config: &BrokersConfig) -> Result<Report> {
    let missing = missing();
    ensure!(missing.is_empty(), "this machine lacks: {}", missing.join("; "));
    eprintln!("seed {}", config.seed);
    let mut group = Group::start().await?;
    let outcome = drive(&mut group, config).await;
    match outcome {
        Ok(report) => {
            group.keep_logs(report.is_good());
            Ok(report)
        }
        Err(error) => Err(error.context(group.logs())),
    }
}

async fn drive(group: &mut Group, config: &BrokersConfig) -> Result<Report> {
    let clients = Clients::start(group, config.seed)?;
    tokio::time::sleep(CALM).await;
    let faults = schedule(config.seed, &config.without)?;
    let (figures, mut violations) = Injector::new(group).run(faults, config.length).await?;
    let (operations, more) = clients.stop().await?;
    violations.extend(more);
    violations.extend(group.converged().await.err().map(|error| format!("in the end: {error:#}")));
    let mut lost = BTreeSet::new();
    for seat in group::SEATS {
        let member = group.member(seat)?;
        match group.waiting_on(seat).await {
            Ok(waiting) => {
                let (gone, back) = account(&operations, &waiting);
                if !gone.is_empty() {
                    violations.push(format!("broker {member} lost {} requests: {}", gone.len(), report::few(&gone)));
                }
                lost.extend(gone);
                if !back.is_empty() {
                    violations.push(format!("broker {member} undid cancellations of {}", report::few(&back)));
                }
            }
            Err(error) => violations.push(format!("broker {member} cannot be read in the end: {error:#}")),
        }
    }
    let verdict = tokio::task::spawn_blocking({
        let operations = operations.clone();
        move || check(&operations)
    })
    .await?;
    Ok(Report { seed: config.seed, length: config.length, figures, operations, verdict, lost: lost.len(), violations })
}
