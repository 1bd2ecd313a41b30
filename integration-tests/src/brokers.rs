//! Chaos test of three brokers: processes, networks, clocks and disks fail, and members are replaced.
//!
//! ```text
//!   writers, readers ─▶ three brokers, each in a network namespace with a clock and a disk of its own
//!        │                  ▲
//!        │                  └─ faults, one after another, drawn from a seed
//!        └─▶ history ─▶ linearizable? ─▶ at the end: all members alike, no acknowledged write lost?
//! ```
//!
//! Clients always reach every broker; only connections between brokers are cut. Each of the three hosts is a seat, on
//! which members replace one another. After each fault the group must recover by itself. Needs root on Linux: see
//! [`missing`].

pub mod broker_faults;
mod broker_injector;
mod brokers_report;
mod clients;
mod disk;
pub mod drills;
mod group;
mod host;
mod shell;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};

pub use brokers_report::BrokersReport;
pub use host::missing;

use broker_faults::{BrokerFaultKind, schedule};
use broker_injector::BrokerInjector;
use clients::Clients;
use group::Group;

use crate::history::{account, check};

/// Time with clients but without faults at the start.
const CLIENT_WARM_UP: Duration = Duration::from_secs(2);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct BrokersConfig {
    /// Duration of the faults.
    pub length: Duration,
    /// Seed of the order of faults.
    pub seed: u64,
    /// Kinds of faults to leave out.
    pub without: Vec<BrokerFaultKind>,
}

/// Runs the chaos test.
///
/// # Errors
/// When the test cannot run. Violations are in the report.
pub async fn run(config: &BrokersConfig) -> Result<BrokersReport> {
    let missing = missing();
    ensure!(missing.is_empty(), "this machine lacks: {}", missing.join("; "));
    eprintln!("seed {}", config.seed);
    let mut group = Group::start().await?;
    let outcome = drive(&mut group, config).await;
    match outcome {
        Ok(report) => {
            if !report.is_good() {
                group.keep_logs();
            }
            Ok(report)
        }
        Err(error) => Err(error.context(group.logs())),
    }
}

async fn drive(group: &mut Group, config: &BrokersConfig) -> Result<BrokersReport> {
    let clients = Clients::start(group, config.seed)?;
    tokio::time::sleep(CLIENT_WARM_UP).await;
    let faults = schedule(config.seed, &config.without)?;
    let (figures, mut violations) = BrokerInjector::new(group).run(faults, config.length).await?;
    let (operations, more) = clients.stop().await?;
    violations.extend(more);
    violations.extend(group.await_convergence().await.err().map(|error| format!("at the end: {error:#}")));
    let mut lost = BTreeSet::new();
    for seat in host::SEATS {
        let member = group.member(seat)?;
        match group.queued_on(seat).await {
            Ok(waiting) => {
                let (gone, back) = account(&operations, &waiting);
                if !gone.is_empty() {
                    violations.push(format!(
                        "broker {member} lost {} requests: {}",
                        gone.len(),
                        brokers_report::few(&gone)
                    ));
                }
                lost.extend(gone);
                if !back.is_empty() {
                    violations.push(format!("broker {member} undid cancellations of {}", brokers_report::few(&back)));
                }
            }
            Err(error) => violations.push(format!("broker {member} cannot be read at the end: {error:#}")),
        }
    }
    let verdict = tokio::task::spawn_blocking({
        let operations = operations.clone();
        move || check(&operations)
    })
    .await?;
    Ok(BrokersReport {
        seed: config.seed,
        length: config.length,
        figures,
        operations,
        verdict,
        lost: lost.len(),
        violations,
    })
}
