//! Measures Comity beside its peers. Figures come from one run on one machine; they are ratios, not records.

mod agent;
mod batching;
mod bound;
mod burst;
mod chaos;
mod durable;
mod failover;
mod failures;
mod fairness;
mod federation;
mod growth;
mod place;
mod reclaim;
mod speed;
mod whole;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

/// The broker's: its core is measured with it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Measures Comity beside its peers
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  comity-bench burst --runs 5\n  comity-bench burst --runs 5 --json\n  comity-bench agent --nodes 1000 --pods 10000\n  comity-bench chaos --origins 10 --donors 5 --leases 50 --minutes 15 --json\n  comity-bench chaos --brokers --minutes 15 --json\n  comity-bench failover --kills 30 --json\n  comity-bench durable --clients 1,16,64 --json\n  comity-bench place --nodes nodes.csv --pods pods.csv --seeds 42..51 --policy comity\n  comity-bench place --nodes nodes.csv --pods pods.csv --cpu-only-percent 25 --policy fgd\n  comity-bench match --nodes nodes.csv --pods pods.csv --scale 1,8,64\n  comity-bench federation --nodes nodes.csv --pods pods.csv --clusters 20 --plot federation.svg\n  comity-bench bound --nodes nodes.csv --pods pods.csv\n  comity-bench fairness --days 30 --plot month.svg\n  comity-bench batching --days 14\n  comity-bench reclaim --reclaims 1000 --seed 1 --json\n  comity-bench failures --events 1000 --seed 1 --json\n  comity-bench growth --gpus 1000000 --leases 100000\n"
)]
struct Arguments {
    #[command(subcommand)]
    command: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Time from a pod created on a cluster without GPUs to its container running on another's
    ///
    /// Starts two clusters with real kubelets and Liqo on this machine (root on Linux) and measures, again for each
    /// run, what an administrator of both does by hand: `liqoctl peer`, then a ResourceSlice, then a pod on its virtual
    /// node. Then starts a federation over such a pair and runs untouched Jobs: cold (no peering before) and warm (a
    /// new lease on a peering that stands). Medians. A run takes about two minutes.
    Burst(burst::BurstArgs),
    /// What an agent costs a large cluster: memory, processor time, requests to the API server
    ///
    /// Starts a control plane with simulated nodes and pods on this machine, a federation of one broker, and an agent
    /// that observes the cluster; measures the agent at rest, while the simulated kubelets send their heartbeats, and
    /// then while pods come and go. Linux; five minutes at the usual size.
    Agent(agent::AgentArgs),
    /// Many origins and donors while brokers, agents, lines and API servers fail at random
    ///
    /// Starts real brokers, agents and control planes with simulated nodes on this machine; tenants borrow, release,
    /// cancel and let leases run out, and faults come by a seed. From the outside it is checked, from first to last,
    /// that no GPU is lent twice and no donor grants more than it has; in the end, that nothing is left on any broker,
    /// agent or API server. Ends with an error if anything was violated. With COMITY_CHAOS_LOGS=DIR the logs of such a
    /// run are kept there.
    ///
    /// With --brokers it is three brokers alone, each in a network namespace with a clock and a disk of its own (root
    /// on Linux, libfaketime, a C compiler), and requests that wait. Processes are killed and stopped, lines between
    /// brokers are cut both ways, one way and again and again, clocks jump, disks are full, slow, read-only, or lost.
    /// Clients note what they did and saw: in the end it is checked whether that is linearizable, whether all brokers
    /// have the same state, and whether each has every request that was accepted.
    Chaos(chaos::ChaosArgs),
    /// How long nobody can write when the leader dies, beside etcd
    ///
    /// Starts three brokers and a group of three etcd members with mutual TLS on this machine, on the same disk. A few
    /// clients write; the leader gets SIGKILL, first Comity's, then etcd's; what counts is the time until the next
    /// write is acknowledged that began after the kill, by any member: clients go on to another one by themselves. Then
    /// the leader is started again, and once all members agree it goes on. In the end each member is asked for all
    /// writes that were acknowledged: `lost` are those that one of them does not have. Exit code 1 if Comity lost any.
    /// With 30 kills the 99th percentile is the longest. Use a release build; some five minutes. TMPDIR says which
    /// disk.
    Failover(failover::FailoverArgs),
    /// How many durable writes a second, and how long each takes, beside etcd
    ///
    /// Starts three brokers on this machine and clients that each submit one request after the other to the leader and
    /// wait for its answer: one that is accepted, waits in the queue and is on the disks of a majority. The same with
    /// three members of etcd with mutual TLS on the same disk, where the same bytes are put under a key of their own.
    /// Each client has a connection of its own. Stores are new for each measurement, and which comes first alternates.
    /// Prints medians over the pairs, and which share of the processor time that clients and members take is the
    /// clients'. Use a release build; some three minutes. TMPDIR says which disk.
    Durable(durable::DurableArgs),
    /// How much of a cluster's GPUs gets allocated when a trace of tasks is placed on it, by Comity or by another
    /// policy
    ///
    /// Replays the tasks of a trace, shuffled and then sampled again until the demand is reached, one after the other,
    /// for good. Prints for each seed, and as a mean: GPU capacity allocated when 100 % and 130 % of it has been asked
    /// for; the demand at which a task with GPUs was refused first; tasks refused; decisions in a second; `-` for what
    /// was never reached, in the mean where that is so of any seed. Decisions and their times are those of a first
    /// pass, in which tables are filled: `comity-bench match` says how fast placing is once they are. The files are in
    /// the format of Alibaba's cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata). Policies: comity is the value
    /// function of the broker's core; fgd is fragmentation gradient descent (Weng et al., USENIX ATC 2023); best-fit
    /// and random are what they say. --sharing-percent and --cpu-only-percent make other workloads of the trace's own
    /// tasks, always the same. Exit code 1 and a sentence if a file cannot be used.
    Place(place::PlaceArgs),
    /// How many placements a second the broker's planner and state machine make, on one core and in memory
    ///
    /// Queues the trace's tasks in batches, plans and places each batch: once to fill the tables of node states, then
    /// to measure, then one request after the other for the percentiles. Nodes and tasks are taken several times over;
    /// more than 10,000 nodes are several donors. Prints for each scale: placements that the planner finds in a second,
    /// leases that come of them (each checked again) in a second, the planner's rate while the tables are filled, FGD's
    /// rate (looking at every node as its authors' simulator does), and the time from a queued request to its lease.
    /// Use a release build.
    Match(speed::MatchArgs),
    /// What institutions gain by lending to each other: a trace's nodes and tasks dealt out to them
    ///
    /// Replays the same arrivals three times: each institution keeps to itself; each asks the broker for what does not
    /// fit at home; all nodes are one cluster. Prints for each institution its GPUs, what its people ask for and what
    /// it lends; and for each of the three the GPUs of its own that nobody uses in the end (stranded), its tasks that
    /// found no place (waiting) and the GPUs that those ask for (unplaced). Borrowing goes through the broker's state
    /// machine and planner. Tasks without GPUs run at home or not at all, but in one cluster. Nothing ends.
    Federation(federation::FederationArgs),
    /// How much of a cluster's GPUs any policy could get allocated: a bound by linear programming
    ///
    /// Prints, for 100 % and 130 % demand, what a scheduler could allocate that takes whatever can be made to fit and
    /// may move all tasks at any time (work-conserving), and one that may refuse what it likes (free choice). Tasks are
    /// divisible and come in the trace's proportions, nodes of one shape are one, devices stay whole: what is relaxed
    /// only adds room. The files are those of `comity-bench place`. A minute or so.
    Bound(bound::BoundArgs),
    /// Who gets how much, and who waits how long, in a simulated month of five institutions on all sides of the world
    ///
    /// Runs the broker's state machine and planner in log time, with agents that do at once what they are asked. First
    /// local work and demand follow each institution's day and night: how long requests wait, beside how much each
    /// institution lends. Then, for a third of the time, all tenants have requests waiting: each tenant's part of the
    /// GPU-hours, beside the part that weights and reciprocity entitle it to. A seed gives one report. Minutes with a
    /// release build.
    Fairness(fairness::FairnessArgs),
    /// What it brings that requests which wait are placed together, and that leases move aside for them
    ///
    /// Runs the broker's state machine and planner in log time, over a campus of eight nodes with eight GPUs or over a
    /// trace. The same requests come in the same order and are served in three ways: one in each plan; all that wait in
    /// one plan; and that with a share of requests that say that their leases may move. What is asked for is as much as
    /// there is (--demand), for 1 to 24 hours each; who is not placed within four hours goes away. Prints how many came
    /// and got in, the same of gangs (those that ask for more than one GPU), what was allocated and what stood idle
    /// while requests asked for it, and the leases that moved. Exit code 1 if more moved for a request than the broker
    /// promises, one that had moved or begun less than an hour before, or one whose work had no other place. A seed
    /// gives one report.
    Batching(batching::BatchingArgs),
    /// Leases reclaimed at random: with notice, no more than needed, and moved where there is a place
    ///
    /// Runs the broker's state machine and planner in log time while local work, terms and demand change at random,
    /// until so many leases were reclaimed. Beside it, by arithmetic of its own, it is checked that none stopped before
    /// its notice unless its work was saved, that no other set of leases of the donor would have done with less (all
    /// sets are tried), and that no lease was left where another donor had room for it. Exit code 1 if any of that is
    /// wrong. A seed gives one report.
    Reclaim(reclaim::ReclaimArgs),
    /// Devices, nodes and donors that fail at random: nothing is placed on them, and what they hit goes on elsewhere
    ///
    /// Runs the broker's state machine and planner in log time while devices fall ill and get well, nodes stop
    /// answering, go and come back, and donors fall silent, so many times. Beside it, by a list of its own of what is
    /// ill and of what failed too often lately, it is checked that nothing was placed on that, that no lease was left
    /// on it, that what was hit had another place wherever there was one, and that none with notice stopped before it
    /// was over. Exit code 1 if any of that is wrong. A seed gives one report.
    Failures(failures::FailuresArgs),
    /// How large a federation one broker holds: memory, snapshot and restore with so many GPUs and active leases
    ///
    /// Starts a broker on this machine; donors join, offer their nodes, and tenants of twenty institutions borrow until
    /// all leases are active. The clusters are simulated down to their streams: each says what an agent says, and sets
    /// nothing up. Measures the broker's memory at rest and at its most, lists, renewals and snapshots; kills it
    /// (SIGKILL), starts it again, counts the leases; lets all clusters connect and offer again; and in the end
    /// releases everything. Needs comity-broker and comity beside it; use a release build. Some ten minutes and four GB
    /// of memory at the usual size.
    Growth(growth::GrowthArgs),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Benchmark::Burst(arguments) => burst::run(&arguments).await,
        Benchmark::Agent(arguments) => agent::run(&arguments).await,
        Benchmark::Chaos(arguments) => chaos::run(&arguments).await,
        Benchmark::Failover(arguments) => failover::run(&arguments).await,
        Benchmark::Durable(arguments) => durable::run(&arguments).await,
        Benchmark::Place(arguments) => place::run(&arguments),
        Benchmark::Match(arguments) => speed::run(&arguments),
        Benchmark::Federation(arguments) => federation::run(&arguments),
        Benchmark::Bound(arguments) => bound::run(&arguments),
        Benchmark::Fairness(arguments) => fairness::run(&arguments),
        Benchmark::Batching(arguments) => batching::run(&arguments),
        Benchmark::Reclaim(arguments) => reclaim::run(&arguments),
        Benchmark::Failures(arguments) => failures::run(&arguments),
        Benchmark::Growth(arguments) => growth::run(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("comity-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_reads_its_defaults() {
        const FILES: &str = "--nodes nodes.csv --pods pods.csv";
        let commands =
            ["burst", "agent", "chaos", "failover", "durable", "fairness", "batching", "reclaim", "failures", "growth"];
        let with_files = ["place", "match", "federation", "bound", "batching"].map(|name| format!("{name} {FILES}"));
        for line in commands.into_iter().map(str::to_owned).chain(with_files) {
            let read = Arguments::try_parse_from(std::iter::once("comity-bench").chain(line.split(' ')));
            assert!(read.is_ok(), "{line}: {read:?}");
        }
        for bad in ["--known-percent 0", "--sharing-percent 101", "--cpu-only-percent x", "--seeds 5..", "--inflate 0"]
        {
            let line = format!("comity-bench place {FILES} {bad}");
            let error = Arguments::try_parse_from(line.split(' ')).expect_err(bad).to_string();
            assert!(error.contains("write a"), "{bad}: {error}");
        }
    }
}
