//! Measures Comity and compares it with its peers. Each result comes from one machine: compare ratios, not absolute numbers.

mod agent_command;
mod arguments;
mod batching_command;
mod bound_command;
mod burst_command;
mod chaos_command;
mod durable_command;
mod eviction_command;
mod failover_command;
mod failures_command;
mod fairness_command;
mod federation_command;
mod flood_command;
mod growth_command;
mod hostile_command;
mod place_command;
mod policy_command;
mod reclaim_command;
mod speed_command;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use comity_types::redact_secrets;
use mimalloc::MiMalloc;

/// The broker's allocator, because the benchmarks measure its core.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const EXAMPLES: &str = "Examples:
  comity-bench burst --runs 5
  comity-bench burst --runs 5 --json
  comity-bench agent --nodes 1000 --pods 10000
  comity-bench chaos --origins 10 --donors 5 --leases 50 --minutes 15 --json
  comity-bench chaos --brokers --minutes 15 --json
  comity-bench hostile --minutes 10 --seed 1
  comity-bench failover --kills 30 --json
  comity-bench durable --clients 1,16,64 --json
  comity-bench place --nodes nodes.csv --pods pods.csv --seeds 42..51 --policy comity
  comity-bench place --nodes nodes.csv --pods pods.csv --cpu-only-percent 25 --policy fgd
  comity-bench match --nodes nodes.csv --pods pods.csv --scale 1,8,64
  comity-bench federation --nodes nodes.csv --pods pods.csv --clusters 20 --plot federation.svg
  comity-bench bound --nodes nodes.csv --pods pods.csv
  comity-bench fairness --days 30 --plot month.svg
  comity-bench batching --days 14
  comity-bench reclaim --reclaims 1000 --seed 1 --json
  comity-bench failures --events 1000 --seed 1 --json
  comity-bench growth --gpus 1000000 --leases 100000
  comity-bench flood --floods quotes,lists
  comity-bench eviction --runs 20 --json
";

/// Measures Comity and compares it with its peers
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = EXAMPLES
)]
struct Arguments {
    #[command(subcommand)]
    command: Benchmark,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    /// Time from a pod on a cluster without GPUs to its running container on another cluster
    ///
    /// Starts two clusters with real kubelets and Liqo on this machine (root on Linux). Each run first measures the
    /// manual steps of an administrator: `liqoctl peer`, a ResourceSlice, and a pod on its virtual node. Then it starts
    /// a federation over two such clusters and runs unmodified Jobs: cold (no peering yet) and warm (a new lease on an
    /// open peering). Prints medians. A run takes about two minutes.
    Burst(burst_command::BurstArgs),
    /// Cost of an agent on a large cluster: memory, processor time, requests to the API server
    ///
    /// Starts a control plane with simulated nodes and pods, one broker, and an agent that observes the cluster.
    /// Measures the agent at rest, with only the heartbeats of the simulated kubelets, and again while pods come and
    /// go. Linux; five minutes at the default size.
    Agent(agent_command::AgentArgs),
    /// Many origins and donors while brokers, agents, networks and API servers fail at random
    ///
    /// Starts real brokers, agents and control planes with simulated nodes on this machine. Tenants borrow, release,
    /// cancel and let leases expire while a seed draws faults. An outside observer checks throughout that no GPU is
    /// lent twice and no donor grants more than it has, and at the end that nothing is left on any broker, agent or API
    /// server. Fails on any violation; COMITY_CHAOS_LOGS=DIR keeps the logs of a failed run.
    ///
    /// With --brokers it runs three brokers alone, each in a network namespace with its own clock and disk (root on
    /// Linux, libfaketime, a C compiler), and queued requests. Processes are killed and stopped; connections between
    /// brokers are cut in both directions, in one direction and repeatedly; clocks jump; disks are full, slow,
    /// read-only or lost. Clients record their history. At the end it checks that the history is linearizable, that all
    /// brokers have the same state, and that each has every acknowledged request.
    Chaos(chaos_command::ChaosArgs),
    /// A stolen broker, with the federation's CA key, that tries everything against two agents
    ///
    /// Starts a broker that says whatever a seed draws, an origin and a donor on this machine, without Kubernetes. After
    /// each attack it checks the agents' disks, the envelopes that the broker can open and the tunnels that it has: no
    /// credential, tunnel or grant may exist that the donor's own policy does not allow, and honest leases must still
    /// become active. At the end it searches everything that the broker received for tokens and pre-shared keys. Exit
    /// code 1 and the seed on any violation.
    Hostile(hostile_command::HostileArgs),
    /// Time without writes after the leader dies, compared with etcd
    ///
    /// Starts three brokers and three etcd members with mutual TLS on this machine, on the same disk. While clients
    /// write, the leader gets SIGKILL: first Comity's, then etcd's. The result is the time until any member
    /// acknowledges a write that began after the kill; clients try the next member by themselves. The leader then
    /// restarts, and the next kill follows once all members agree. At the end every member is asked for all
    /// acknowledged writes; `lost` counts those that some member lacks. Exit code 1 if Comity lost any. With 30 kills
    /// the 99th percentile is the maximum. Use a release build; about five minutes. TMPDIR selects the disk.
    Failover(failover_command::FailoverArgs),
    /// Durable writes per second and their latency, compared with etcd
    ///
    /// Starts three brokers on this machine. Each client submits one request after another to the leader and waits
    /// until it is accepted: queued, and on the disks of a majority. Then three etcd members with mutual TLS on the
    /// same disk store the same bytes under a new key each. Each client has its own connection. Stores are new for each
    /// measurement, and their order alternates. Prints medians over the pairs, and the clients' share of the processor
    /// time of clients and members. Use a release build; about three minutes. TMPDIR selects the disk.
    Durable(durable_command::DurableArgs),
    /// GPU capacity that Comity or another policy allocates when a trace of tasks is placed on a cluster
    ///
    /// Replays the tasks of a trace, shuffled and then sampled again up to the demand, one after another; none ends.
    /// Prints, for each seed and as a mean: the GPU capacity allocated at 100 % and 130 % demand, the demand at the
    /// first refusal of a GPU task, refused tasks, and decisions per second. `-` marks a value that was never reached;
    /// a mean is `-` if any seed never reached it. Decision rates are those of a first pass, which fills caches;
    /// `comity-bench match` measures placement with warm caches. Files have the format of Alibaba's
    /// cluster-trace-gpu-v2023 (github.com/alibaba/clusterdata). Policies: comity is the value function of the broker's
    /// core, fgd is fragmentation gradient descent (Weng et al., USENIX ATC 2023), and best-fit and random are the
    /// usual heuristics. --sharing-percent and --cpu-only-percent derive other workloads from the trace, always the
    /// same ones. Exit code 1 and a message if a file is unusable.
    Place(place_command::PlaceArgs),
    /// Placements per second of the broker's planner and state machine, on one core and in memory
    ///
    /// Queues the trace's tasks in batches, then plans and places each batch: once to warm the caches of node states,
    /// then to measure, and then one request at a time for the percentiles. --scale multiplies nodes and tasks; more
    /// than 10,000 nodes become several donors. Prints for each scale: placements planned per second, leases made per
    /// second (the state machine checks each again), the planner's rate with cold caches, the rate of FGD (which scans
    /// every node, as its authors' simulator does), and the time from a queued request to its lease. Use a release
    /// build.
    Match(speed_command::MatchArgs),
    /// Decisions of a large policy per second, compared with OPA's Rego
    ///
    /// Makes a federation of 50 institutions with 100 clusters, leases in use, and requests, nine in ten for a donor that
    /// lends to the tenant under an agreement. Then it decides them on one thread: by the policy crate, as the broker's
    /// planner asks and with the documents behind each answer, and by the same rules in Rego in regorus' virtual machine,
    /// which says yes or no. Rates are per second of processor time. Both must agree on the first 2,000 requests. Last it
    /// reads, checks and compiles a bundle of 10,000 documents. Use a release build; half a minute.
    Policy(policy_command::PolicyArgs),
    /// Gain of institutions that lend to each other, with the nodes and tasks of a trace divided among them
    ///
    /// Replays the same arrivals three times: each institution keeps to itself; each asks the broker for what does not
    /// fit at home; all nodes form one cluster. Prints each institution's GPUs, demand and lent GPUs, and for each of
    /// the three cases its GPUs that stay unused (stranded), its tasks without a place (waiting) and the GPUs that
    /// those request (unplaced). Borrowing goes through the broker's state machine and planner. Tasks without GPUs run
    /// at home only, except in the one-cluster case. No task ends.
    Federation(federation_command::FederationArgs),
    /// Upper bound, by linear programming, on the GPU capacity that any policy allocates
    ///
    /// Prints, for 100 % and 130 % demand, the allocation of a scheduler that takes every task it can fit and may
    /// migrate all tasks at any time (work-conserving), and of one that may refuse tasks (free choice). The relaxation
    /// only adds capacity: tasks are divisible and arrive in the trace's proportions, nodes of one shape are merged,
    /// devices stay whole. Files as for `comity-bench place`. About a minute.
    Bound(bound_command::BoundArgs),
    /// Shares and waiting times over a simulated month of five institutions in different time zones
    ///
    /// Runs the broker's state machine and planner in simulated time; agents carry out every order at once. First,
    /// local work and demand follow each institution's day and night: compare waiting times with how much each
    /// institution lends. Then, for a third of the time, every tenant has queued requests: compare each tenant's share
    /// of the GPU-hours with its entitlement by weights and reciprocity. A seed determines the report. Takes minutes
    /// with a release build.
    Fairness(fairness_command::FairnessArgs),
    /// Effect of placing queued requests together, and of migrating leases for them
    ///
    /// Runs the broker's state machine and planner in simulated time over a campus of eight nodes with eight GPUs, or
    /// over a trace. The same arrivals are served in three ways: one request per plan; all queued requests in one plan;
    /// and the latter with a percentage of preemptible requests. Requests last 1 to 24 hours, demand follows --demand,
    /// and a request that is not placed within four hours gives up. Prints requests and gangs (requests for more than
    /// one GPU), in total and placed; allocated GPUs; GPUs that stayed idle while requests needed them; and migrated
    /// leases. Exit code 1 if more leases moved for a request than the broker promises, if one moved within an hour of
    /// its start or last move, or if one was stopped without a new place. A seed determines the report.
    Batching(batching_command::BatchingArgs),
    /// Leases reclaimed at random: with notice, no more than needed, and migrated where possible
    ///
    /// Runs the broker's state machine and planner in simulated time while local work, lending terms and demand change
    /// at random, until --reclaims leases were reclaimed. An independent checker verifies that no lease stopped before
    /// its notice was over unless its work was saved, that no smaller set of the donor's leases would have sufficed (it
    /// tries all sets), and that no lease was stopped while another donor had room for it. Exit code 1 on any
    /// violation. A seed determines the report.
    Reclaim(reclaim_command::ReclaimArgs),
    /// Devices, nodes and donors that fail at random: nothing is placed on them, and affected leases continue elsewhere
    ///
    /// Runs the broker's state machine and planner in simulated time while devices fail and recover, nodes stop
    /// answering, leave and return, and donors fall silent, for --events events. An independent checker, with its own
    /// list of failed and recently flapping hardware, verifies that nothing is placed or left there, that affected
    /// leases move wherever another donor has room, and that no lease with notice stops before its end. Exit code 1 on
    /// any violation. A seed determines the report.
    Failures(failures_command::FailuresArgs),
    /// Largest federation that one broker holds: memory, snapshot and restore by GPUs and active leases
    ///
    /// Starts a broker on this machine. Donors join and offer their nodes, and tenants of twenty institutions borrow
    /// until --leases leases are active. Clusters are simulated up to their streams: each speaks an agent's protocol
    /// and provisions nothing. Measures the broker's memory at rest and at its peak, lists, renewals and snapshots;
    /// kills it (SIGKILL), restarts it and counts the leases; lets all clusters reconnect and offer again; and finally
    /// releases everything. Needs comity-broker and comity in its own folder; use a release build. About ten minutes
    /// and 4 GB of memory at the default size.
    Growth(growth_command::GrowthArgs),
    /// Delay of one caller's requests while another floods the leader
    ///
    /// Starts three brokers on this machine for each flood; four donors offer their nodes. Alice submits one request
    /// after another, first alone, then while mallory, of another institution, does one thing as fast as possible: ask
    /// for quotes, submit requests, connect without a certificate, open watches, report as an agent, or read lists and
    /// the policy. Prints alice's times, their ratio, and how much of the flood the brokers answered and refused. Needs
    /// comity-broker and comity in its own folder; use a release build. About three minutes.
    Flood(flood_command::FloodArgs),
    /// How fast evicted clusters, revoked users and suspended institutions lose what they had
    ///
    /// Starts a control plane for the origin and one for the donor, and for each case three brokers, two agents, a
    /// lease with a pod, and streams and watches on every broker. Then it gives the command, and measures the time
    /// until the calls have ended (limit 5 s), and until the tunnel, the rights, the token and the namespace are gone
    /// (limit 10 s), as seen from outside. In two cases the donor's agent is stopped or dead meanwhile: the 10 s count
    /// from its return. Exit code 1 on any time over its limit. Linux; a run takes about three minutes.
    Eviction(eviction_command::EvictionArgs),
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let said = error.to_string();
            let shown = redact_secrets(&said);
            if shown == said {
                error.exit();
            }
            eprint!("{shown}");
            return ExitCode::from(2);
        }
    };
    let outcome = match arguments.command {
        Benchmark::Burst(arguments) => burst_command::run(&arguments).await,
        Benchmark::Agent(arguments) => agent_command::run(&arguments).await,
        Benchmark::Chaos(arguments) => chaos_command::run(&arguments).await,
        Benchmark::Hostile(arguments) => hostile_command::run(&arguments).await,
        Benchmark::Failover(arguments) => failover_command::run(&arguments).await,
        Benchmark::Durable(arguments) => durable_command::run(&arguments).await,
        Benchmark::Place(arguments) => place_command::run(&arguments),
        Benchmark::Match(arguments) => speed_command::run(&arguments),
        Benchmark::Policy(arguments) => policy_command::run(&arguments),
        Benchmark::Federation(arguments) => federation_command::run(&arguments),
        Benchmark::Bound(arguments) => bound_command::run(&arguments),
        Benchmark::Fairness(arguments) => fairness_command::run(&arguments),
        Benchmark::Batching(arguments) => batching_command::run(&arguments),
        Benchmark::Reclaim(arguments) => reclaim_command::run(&arguments),
        Benchmark::Failures(arguments) => failures_command::run(&arguments),
        Benchmark::Growth(arguments) => growth_command::run(&arguments).await,
        Benchmark::Flood(arguments) => flood_command::run(&arguments).await,
        Benchmark::Eviction(arguments) => eviction_command::run(&arguments).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("comity-bench: {}", redact_secrets(&format!("{error:#}")));
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
        let commands = [
            "burst", "agent", "chaos", "hostile", "failover", "durable", "fairness", "batching", "reclaim", "failures",
            "growth", "flood", "eviction", "policy",
        ];
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
