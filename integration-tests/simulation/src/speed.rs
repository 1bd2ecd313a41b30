//! How fast the broker's core places: its planner and its state machine, on one core, in memory.

use std::time::{Duration, Instant};

use comity_core::Refusal;
use comity_core::limits::{MAX_LEASES, MAX_NODES_PER_OFFER, MAX_PLACEMENTS_PER_PLAN};
use comity_core::packing::{Shape, Task};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::arrivals::arrivals;
use crate::broker::{Broker, Member};
use crate::policy::{Fgd, Policy as _};
use crate::trace::Trace;

/// Tasks that FGD places for its figure: it looks at every node for each, so that more take long and say no more.
const FGD_TASKS: usize = 2_000;
/// Tasks that are placed one by one for the percentiles.
const TASKS_ONE_BY_ONE: usize = 20_000;

/// Rates are measured for so long, unless that takes too many passes.
const LEAST_MEASURED: Duration = Duration::from_secs(3);

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct SpeedTest {
    /// Times the trace's nodes, and its tasks.
    pub scale: usize,
    /// Requests that are queued before each plan.
    pub batch: usize,
    /// Seed of the arrivals.
    pub seed: u64,
    /// Most tasks that are placed in one pass.
    pub tasks: usize,
    /// Most passes that are measured; rates are those of the median.
    pub passes: usize,
}

/// What came of one scale, by one thread. Rates are of placements in batches, in processor time, so that what else runs
/// on the machine has little to do with them; percentiles are of placements one by one, by the clock.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Times the trace's nodes.
    pub scale: usize,
    /// Nodes.
    pub nodes: usize,
    /// Clusters that offer them: one offers at most 10,000.
    pub donors: usize,
    /// GPUs.
    pub gpus: u64,
    /// Requests that were queued before each plan.
    pub batch: usize,
    /// Tasks that came in one pass, those without GPUs among them.
    pub tasks: usize,
    /// Leases that were made in one pass.
    pub placements: usize,
    /// GPU capacity asked for in the end, in percent.
    pub asked_percent: f64,
    /// Placements that the planner finds in a second, tables warm.
    pub placements_per_second: f64,
    /// Placements that are planned, checked again and made leases of in a second, tables warm.
    pub leases_per_second: f64,
    /// The planner on the first pass, which fills the tables.
    pub cold_placements_per_second: f64,
    /// Median time from a queued request to its lease, one by one, tables warm.
    pub p50_us: f64,
    /// Of 100 of them 99 took at most so many microseconds.
    pub p99_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// Memory of this process with everything in it; 0 where the system does not say.
    pub resident_bytes: u64,
    /// Placements that FGD finds in a second, looking at every node as its authors' simulator does.
    pub fgd_placements_per_second: f64,
}

/// Time that one pass took.
#[derive(Debug, Default)]
struct Pass {
    placed: usize,
    planning: Duration,
    applying: Duration,
    /// Microseconds that each batch took to plan and to place.
    each: Vec<f64>,
}

impl Pass {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn rate(&self, time: Duration) -> f64 {
        if time.is_zero() { 0.0 } else { self.placed as f64 / time.as_secs_f64() }
    }

    fn percentile(&self, percent: usize) -> f64 {
        let last = self.each.len().saturating_sub(1);
        self.each.get((self.each.len() * percent / 100).min(last)).copied().unwrap_or(0.0)
    }
}

impl SpeedTest {
    /// Places the trace's tasks again and again: first to fill the tables, then to measure. `progress` is told what is
    /// being done.
    ///
    /// # Errors
    /// What the core refuses that it should not.
    #[expect(clippy::cast_precision_loss, reason = "thousandths of GPUs are far below 2^52")]
    pub fn run(&self, trace: &Trace, mut progress: impl FnMut(&str)) -> Result<Speed, Refusal> {
        let members = members(trace, self.scale);
        let mut broker = Broker::new(&members, &trace.tasks)?;
        let tasks = self.arrivals(trace);
        progress("filling the tables");
        let cold = pass(&mut broker, &tasks, self.batch)?;
        broker.drain()?;
        progress("measuring rates");
        let mut passes = Vec::new();
        let mut measured = Duration::ZERO;
        while passes.is_empty() || measured < LEAST_MEASURED && passes.len() < self.passes {
            let warm = pass(&mut broker, &tasks, self.batch)?;
            broker.drain()?;
            measured += warm.planning + warm.applying;
            passes.push(warm);
        }
        passes.sort_unstable_by_key(|pass| pass.planning);
        let warm = passes.swap_remove(passes.len() / 2);
        // One by one, local work and requests come in another order, and nodes are in other states.
        let few = &tasks[..tasks.len().min(TASKS_ONE_BY_ONE)];
        progress("filling the tables for one by one");
        pass(&mut broker, few, 1)?;
        broker.drain()?;
        progress("measuring times");
        let mut alone = pass(&mut broker, few, 1)?;
        alone.each.sort_unstable_by(f64::total_cmp);
        let resident_bytes = resident_bytes();
        progress("measuring FGD");
        let capacity: u64 = trace.capacity_milli() * self.scale as u64;
        let asked: u64 = tasks.iter().map(|task| task.device_milli()).sum();
        Ok(Speed {
            scale: self.scale,
            nodes: trace.nodes.len() * self.scale,
            donors: members.len() - 1,
            gpus: capacity / 1_000,
            batch: self.batch,
            tasks: tasks.len(),
            placements: warm.placed,
            asked_percent: asked as f64 * 100.0 / capacity as f64,
            placements_per_second: warm.rate(warm.planning),
            leases_per_second: warm.rate(warm.planning + warm.applying),
            cold_placements_per_second: cold.rate(cold.planning),
            p50_us: alone.percentile(50),
            p99_us: alone.percentile(99),
            max_us: alone.each.last().copied().unwrap_or(0.0),
            resident_bytes,
            fgd_placements_per_second: fgd(trace, self.scale, &tasks),
        })
    }

    /// The trace's tasks as often as its nodes, each time in another order: as many as are asked for, and as leases may
    /// be.
    fn arrivals<'t>(&self, trace: &'t Trace) -> Vec<&'t Task> {
        let seeds = self.seed..self.seed.saturating_add(self.scale as u64);
        let all = seeds.flat_map(|seed| arrivals(trace, seed, 1.0)).map(|index| &trace.tasks[index]);
        all.take(self.tasks.min(MAX_LEASES)).collect()
    }
}

/// Places `tasks` in batches. Work without GPUs is no request: it runs on some node that the planner advises.
fn pass(broker: &mut Broker, tasks: &[&Task], batch: usize) -> Result<Pass, Refusal> {
    let mut pass = Pass::default();
    let donors = broker.len() - 1;
    for (number, batch) in tasks.chunks(batch.clamp(1, MAX_PLACEMENTS_PER_PLAN)).enumerate() {
        for task in batch {
            if task.devices > 0 {
                broker.submit(0, task)?;
            } else if let Some(node) = broker.advise(1 + number % donors, task) {
                broker.run_locally(1 + number % donors, &node, |node| {
                    node.local_cpu_milli += task.cpu_milli;
                    node.local_memory_mib += task.memory_mib;
                })?;
            }
        }
        if broker.state.queued_len() == 0 {
            continue;
        }
        let (began, processor) = (Instant::now(), processor_time());
        let plan = broker.plan(MAX_PLACEMENTS_PER_PLAN);
        let planned = processor_time();
        pass.placed += broker.place(plan.placements)?.len();
        pass.each.push(began.elapsed().as_secs_f64() * 1e6);
        pass.planning += planned.saturating_sub(processor);
        pass.applying += processor_time().saturating_sub(planned);
        for request in plan.unplaced {
            broker.cancel(request)?;
        }
    }
    Ok(pass)
}

/// One that asks, and as many donors as it takes to offer all nodes.
fn members(trace: &Trace, scale: usize) -> Vec<Member<'_>> {
    let copies = (MAX_NODES_PER_OFFER / trace.nodes.len().max(1)).max(1);
    let origin = Member { name: "origin".to_owned(), nodes: Vec::new() };
    let donors = (0..scale.div_ceil(copies)).map(|donor| {
        let copies = copies.min(scale - donor * copies);
        let nodes: Vec<&Shape> = (0..copies).flat_map(|_| trace.nodes.values()).collect();
        Member { name: format!("donor-{donor:03}"), nodes }
    });
    std::iter::once(origin).chain(donors).collect()
}

/// FGD's rate over the same nodes.
#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn fgd(trace: &Trace, scale: usize, tasks: &[&Task]) -> f64 {
    let copy = |copy: usize| trace.nodes.iter().map(move |(name, shape)| (format!("{copy:03}-{name}"), shape.clone()));
    let scaled = Trace { nodes: (0..scale).flat_map(copy).collect(), tasks: Vec::new() };
    let mut fgd = Fgd::new(&scaled, &trace.tasks);
    fgd.restart(0);
    let tasks = &tasks[..tasks.len().min((FGD_TASKS / scale.max(1)).max(20))];
    let began = processor_time();
    let placed = tasks.iter().filter(|task| fgd.place(task)).count();
    placed as f64 / processor_time().saturating_sub(began).as_secs_f64().max(1e-9)
}

/// Processor time that this thread took so far.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1_024)
}

/// Head of the table; [`row`] has the same columns.
pub const HEAD: &str = " scale   nodes    GPUs  placements  asked, %  placed/s  leases/s    cold/s   FGD/s  p50 us  p99 us    max us     MiB";

/// One line of the table.
#[must_use]
pub fn row(speed: &Speed) -> String {
    format!(
        "{:>6}{:>8}{:>8}{:>12}{:>10.1}{:>10.0}{:>10.0}{:>10.0}{:>8.0}{:>8.1}{:>8.1}{:>10.1}{:>8}",
        speed.scale,
        speed.nodes,
        speed.gpus,
        speed.placements,
        speed.asked_percent,
        speed.placements_per_second,
        speed.leases_per_second,
        speed.cold_placements_per_second,
        speed.fgd_placements_per_second,
        speed.p50_us,
        speed.p99_us,
        speed.max_us,
        speed.resident_bytes >> 20
    )
}
