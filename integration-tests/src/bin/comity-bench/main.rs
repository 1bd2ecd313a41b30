//! Measures Comity beside its peers. Figures come from one run on one machine; they are ratios, not records.

mod agent;
mod burst;
mod chaos;
mod place;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures Comity beside its peers
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  comity-bench burst --runs 5\n  comity-bench burst --runs 5 --json\n  comity-bench agent --nodes 1000 --pods 10000\n  comity-bench chaos --origins 10 --donors 5 --leases 50 --minutes 15 --json\n  comity-bench place --nodes nodes.csv --pods pods.csv --seeds 42..51 --policy comity\n"
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
    /// Many origins and donors while brokers, agents, lines and API servers fail at random
    ///
    /// Starts real brokers, agents and control planes with simulated nodes on this machine; tenants borrow, release, cancel
    /// and let leases run out, and faults come by a seed. From the outside it is checked, from first to last, that no GPU is
    /// lent twice and no donor grants more than it has; in the end, that nothing is left on any broker, agent or API server.
    /// Ends with an error if anything was violated. With COMITY_CHAOS_LOGS=DIR the logs of such a run are kept there.
    Chaos(chaos::ChaosArgs),
    /// How much of a cluster's GPUs gets allocated when a trace of tasks is placed on it, by Comity or by another policy
    ///
    /// Replays the tasks of a trace, shuffled and then sampled anew until the demand is reached, one after the other, for
    /// good. Prints for each seed, and as a mean: GPU capacity allocated when 100 % and 130 % of it has been asked for; the
    /// demand at which a task with GPUs was refused first; tasks refused; decisions in a second. The files are in the format
    /// of Alibaba's cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata). Policies: comity is the value function of the
    /// broker's core; fgd is fragmentation gradient descent (Weng et al., USENIX ATC 2023); best-fit and random are what
    /// they say. Exit code 1 and a sentence if a file cannot be used.
    Place(place::PlaceArgs),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Benchmark::Burst(arguments) => burst::run(&arguments).await,
        Benchmark::Agent(arguments) => agent::run(&arguments).await,
        Benchmark::Chaos(arguments) => chaos::run(&arguments).await,
        Benchmark::Place(arguments) => place::run(&arguments),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("comity-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
