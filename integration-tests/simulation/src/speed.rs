//! Measures placements per second of the broker's planner and state machine, on one core and in memory.

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

/// Tasks that FGD places: it scans every node for each, so more would only take longer.
const FGD_TASKS: usize = 2_000;
/// Tasks placed one by one for the percentiles.
const TASKS_ONE_BY_ONE: usize = 20_000;

/// Duration of the rate measurements, within the maximum number of passes.
const LEAST_MEASURED: Duration = Duration::from_secs(3);

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct SpeedTest {
    /// Multiple of the trace's nodes and tasks.
    pub scale: usize,
    /// Requests queued before each plan.
    pub batch: usize,
    /// Seed of the arrivals.
    pub seed: u64,
    /// Maximum tasks per pass.
    pub tasks: usize,
    /// Maximum measured passes; rates are those of the median pass.
    pub passes: usize,
}

/// The result of one scale on one thread. Rates count placements in batches per second of processor time, so that other
/// processes hardly affect them; percentiles are wall-clock times of single placements.
#[derive(Clone, Debug, Serialize)]
pub struct Speed {
    /// Multiple of the trace's nodes.
    pub scale: usize,
    /// Number of nodes.
    pub nodes: usize,
    /// Number of donors, with at most 10,000 nodes each.
    pub donors: usize,
    /// Number of GPUs.
    pub gpus: u64,
    /// Requests queued before each plan.
    pub batch: usize,
    /// Tasks per pass, including those without GPUs.
    pub tasks: usize,
    /// Leases made per pass.
    pub placements: usize,
    /// Requested GPU capacity at the end of a pass, in percent.
    pub asked_percent: f64,
    /// Placements planned per second, with warm caches.
    pub placements_per_second: f64,
    /// Leases planned, checked again and made per second, with warm caches.
    pub leases_per_second: f64,
    /// Placements planned per second on the first pass, which fills the caches.
    pub cold_placements_per_second: f64,
    /// Median microseconds from a queued request to its lease, one by one, with warm caches.
    pub p50_us: f64,
    /// 99th percentile of that time.
    pub p99_us: f64,
    /// Maximum of that time.
    pub max_us: f64,
    /// Resident memory of this process; 0 where the system does not report it.
    pub resident_bytes: u64,
    /// Placements per second of FGD, which scans every node as its authors' simulator does.
    pub fgd_placements_per_second: f64,
}

/// The measurements of one pass.
#[derive(Debug, Default)]
struct Pass {
    placed: usize,
    planning: Duration,
    applying: Duration,
    /// Microseconds from plan to leases, by batch.
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
    /// Places the trace's tasks repeatedly: first to fill the caches, then to measure. `progress` receives the current
    /// phase.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    #[expect(clippy::cast_precision_loss, reason = "thousandths of GPUs are far below 2^52")]
    pub fn run(&self, trace: &Trace, mut progress: impl FnMut(&str)) -> Result<Speed, Refusal> {
        let members = members(trace, self.scale);
        let mut broker = Broker::new(&members, &trace.tasks)?;
        let tasks = self.arrivals(trace);
        progress("filling the caches");
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
        // Single placements mix local work and requests in another order, so nodes reach other states.
        let few = &tasks[..tasks.len().min(TASKS_ONE_BY_ONE)];
        progress("filling the caches for single placements");
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

    /// The trace's tasks, repeated like its nodes and shuffled each time, up to the maximum.
    fn arrivals<'t>(&self, trace: &'t Trace) -> Vec<&'t Task> {
        let seeds = self.seed..self.seed.saturating_add(self.scale as u64);
        let all = seeds.flat_map(|seed| arrivals(trace, seed, 1.0)).map(|index| &trace.tasks[index]);
        all.take(self.tasks.min(MAX_LEASES)).collect()
    }
}

/// Places `tasks` in batches. Tasks without GPUs run as local work on the node that the planner advises.
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

/// One borrower, and enough donors to offer all nodes.
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

/// FGD's rate on the same nodes.
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

/// Processor time of this thread, which other programs on the machine do not change.
#[must_use]
pub fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Resident memory of this process; 0 if unknown.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib * 1_024)
}

/// Head of the table; [`row`] has the same columns.
pub const SPEED_HEAD: &str = " scale   nodes    GPUs  placements  asked, %  placed/s  leases/s    cold/s   FGD/s  p50 us  p99 us    max us  \
                        \x20  MiB";

/// One row of the table under [`SPEED_HEAD`].
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
