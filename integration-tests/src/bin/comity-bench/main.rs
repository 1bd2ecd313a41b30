//! Measures Comity beside its peers. Figures come from one run on one machine; they are ratios, not records.

mod agent;
mod burst;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Comity beside its peers
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  comity-bench burst --runs 5\n  comity-bench burst --runs 5 --json\n  comity-bench agent --nodes 1000 --pods 10000\n"
)]
struct Arguments {
    #[command(subcommand)]
    command: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Time from a pod created on a cluster without GPUs to its container running on another's
    ///
    /// Starts two clusters with real kubelets and Liqo on this machine (root on Linux) and measures `liqoctl peer` between
    /// them, anew for each run; then starts a federation over such a pair and runs untouched Jobs: cold (no peering before)
    /// and warm (a new lease on a peering that stands). Medians. A run takes about two minutes.
    Burst(burst::BurstArgs),
    /// What an agent costs a large cluster: memory, processor time, requests to the API server
    ///
    /// Starts a control plane with simulated nodes and pods on this machine, a federation of one broker, and an agent that
    /// observes the cluster; measures the agent at rest, while the simulated kubelets send their heartbeats, and then while
    /// pods come and go. Linux; five minutes at the usual size.
    Agent(agent::AgentArgs),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Benchmark::Burst(arguments) => burst::run(&arguments).await,
        Benchmark::Agent(arguments) => agent::run(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("comity-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
