//! Measures how fast an evicted cluster, a revoked user and a suspended institution lose what they had.
//!
//! ```text
//!   two control planes ─▶ for each case: three brokers, two agents, an active lease with a pod, calls on every broker
//!     ─▶ the command ─▶ time until the calls have ended ─▶ time until tunnel, rights, token and namespace are gone
//! ```
//!
//! Everything is observed from the outside: at the brokers' ports with the certificates of the subject, through the
//! tunnel with the kubeconfig of the lease, and at the API servers as administrator. Agents are asked for nothing but
//! whether their own stream has ended.

mod effect;
mod eviction_case;
mod eviction_report;
mod eviction_round;
mod lease_access;
mod open_calls;
mod tunnel_probe;
mod two_clusters;

use std::time::Duration;

use anyhow::Result;

pub use eviction_case::EvictionCase;
pub use eviction_report::EvictionReport;
use eviction_round::EvictionRound;
use two_clusters::TwoClusters;

/// An observation ends after this time, and counts as this long.
const GIVE_UP: Duration = Duration::from_secs(60);

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct EvictionConfig {
    /// Runs of each case.
    pub runs: u32,
    /// Cases, in the order in which each run tries them.
    pub cases: Vec<EvictionCase>,
    /// How long an offline donor is away.
    pub offline: Duration,
}

/// Measures; `progress` receives messages. A case that cannot be measured is a failure in the report and ends its run.
///
/// # Errors
/// When the control planes do not start or stop.
pub async fn run(config: &EvictionConfig, progress: impl Fn(&str)) -> Result<EvictionReport> {
    let mut report = EvictionReport::default();
    for number in 1..=config.runs {
        // New in each run, because an evicted donor keeps what it has lent.
        let clusters = TwoClusters::start().await?;
        for case in &config.cases {
            match EvictionRound::measure(*case, &clusters, config.offline).await {
                Ok(measured) => {
                    let times = measured.iter().map(|(effect, took)| format!("{effect} {:.2} s", took.as_secs_f64()));
                    progress(&format!("run {number}, {case}: {}", times.collect::<Vec<_>>().join(", ")));
                    report.add(*case, measured);
                }
                Err(error) => {
                    progress(&format!("run {number}, {case}: {error:#}"));
                    report.failures.push(format!("run {number}, {case}: {error:#}"));
                    break;
                }
            }
        }
        clusters.stop().await?;
    }
    Ok(report)
}
