//! Builds and solves the linear programme.

use std::collections::BTreeMap;

use clarabel::algebra::CscMatrix;
use clarabel::solver::{DefaultSettings, DefaultSolver, IPSolver as _, SolverStatus, SupportedConeT};
use comity_core::packing::{Shape, Task};

use super::BoundError;
use super::patterns::{LEAST, Pattern, best, first, left};
use crate::arrivals::popularity;
use crate::trace::Trace;

/// Maximum number of pairs of a task type and a node shape that can run it.
const MOST_PAIRS: usize = 100_000;
/// Maximum rounds of column generation.
const MOST_ROUNDS: usize = 500;
/// Minimum reduced value of a new pattern, in tasks or devices.
const PAYS: f64 = 1e-6;
/// Fractions of the accepted tasks that the next step may lose: rounding may have accepted slightly too much. Starts
/// below the solver's accuracy and grows while it finds no solution.
const SLACKS: [f64; 3] = [1e-6, 1e-5, 1e-4];
/// Weight of a device beside a task: among schedulers with equally many tasks, prefers the one that allocates most.
const DEVICE_BESIDE_TASKS: f64 = 1e-3;

/// Number of tasks by index of their type.
pub(super) type Amounts = Vec<f64>;

/// Nodes of one shape.
struct Group {
    shape: Shape,
    nodes: f64,
    /// Patterns generated so far.
    patterns: Vec<Pattern>,
}

/// Shapes of node, types of task, and the patterns found so far.
pub(super) struct Programme {
    groups: Vec<Group>,
    types: Vec<Task>,
    /// Tasks of each type per percent of demand.
    per_percent: Vec<f64>,
    /// Sizes of the shares that are not divisible, ascending.
    sizes: Vec<u16>,
    /// Pairs of task type and group; each is a column.
    pairs: Vec<(usize, usize)>,
    capacity_milli: f64,
}

/// Rows of the programme. No row may be positive on balance: `Σ coefficient × column ≤ bound`.
#[derive(Default)]
struct Rows {
    row: Vec<usize>,
    column: Vec<usize>,
    value: Vec<f64>,
    bound: Vec<f64>,
}

impl Rows {
    fn open(&mut self, bound: f64) -> usize {
        self.bound.push(bound);
        self.bound.len() - 1
    }

    fn add(&mut self, row: usize, column: usize, value: f64) {
        if value != 0.0 {
            self.row.push(row);
            self.column.push(column);
            self.value.push(value);
        }
    }
}

/// Rows of one group in which its patterns have coefficients.
struct DeviceRows {
    devices: usize,
    sizes: Vec<usize>,
    fluid: usize,
}

#[expect(clippy::cast_precision_loss, reason = "amounts of a trace are far below 2^52")]
impl Programme {
    pub(super) fn new(trace: &Trace) -> Result<Self, BoundError> {
        let mut shapes: BTreeMap<&Shape, u64> = BTreeMap::new();
        for shape in trace.nodes.values() {
            *shapes.entry(shape).or_default() += 1;
        }
        let popular = popularity(&trace.tasks);
        let asked: u64 = popular.iter().map(|(task, count)| task.device_milli() * count).sum();
        let capacity_milli = trace.capacity_milli() as f64;
        let per_percent =
            popular.iter().map(|(_, count)| *count as f64 * capacity_milli / asked as f64 / 100.0).collect();
        let types: Vec<Task> = popular.into_iter().map(|(task, _)| task).collect();
        let mut sizes: Vec<u16> =
            types.iter().filter(|task| task.is_share() && task.milli >= LEAST).map(|task| task.milli).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let groups: Vec<Group> = shapes
            .into_iter()
            .map(|(shape, count)| Group { shape: shape.clone(), nodes: count as f64, patterns: first(&sizes) })
            .collect();
        let pairs: Vec<(usize, usize)> = (0..types.len())
            .flat_map(|task| (0..groups.len()).map(move |group| (task, group)))
            .filter(|&(task, group)| hosts(&groups[group].shape, &types[task]))
            .collect();
        if pairs.len() > MOST_PAIRS {
            return Err(BoundError::TooLarge { types: types.len(), shapes: groups.len(), most: MOST_PAIRS });
        }
        Ok(Self { groups, types, per_percent, sizes, pairs, capacity_milli })
    }

    /// No task of any type.
    pub(super) fn nothing(&self) -> Amounts {
        vec![0.0; self.types.len()]
    }

    /// `accepted` plus the tasks that arrive within `percent` of demand.
    pub(super) fn arrived(&self, accepted: &Amounts, percent: f64) -> Amounts {
        accepted.iter().zip(&self.per_percent).map(|(accepted, each)| accepted + each * percent).collect()
    }

    /// GPU capacity of the `accepted` tasks in percent. At most 100: the solver meets its rows only within a tolerance.
    pub(super) fn allocated_percent(&self, accepted: &Amounts) -> f64 {
        let milli: f64 = accepted.iter().zip(&self.types).map(|(count, task)| count * task.device_milli() as f64).sum();
        (milli / self.capacity_milli * 100.0).min(100.0)
    }

    /// The most tasks, with at least `least` and at most `most` of each type.
    pub(super) fn most_tasks(&mut self, least: &Amounts, most: &Amounts) -> Result<Amounts, String> {
        let mut unsolved = String::new();
        for slack in SLACKS {
            let kept: Amounts = least.iter().map(|least| least * (1.0 - slack)).collect();
            match self.maximise(&kept, most, |task| 1.0 + DEVICE_BESIDE_TASKS * devices(task)) {
                Ok(accepted) => return Ok(accepted),
                Err(reason) => unsolved = reason,
            }
        }
        Err(unsolved)
    }

    /// The most devices, with at most `most` tasks of each type.
    pub(super) fn most_devices(&mut self, most: &Amounts) -> Result<Amounts, String> {
        let least = self.nothing();
        self.maximise(&least, most, devices)
    }

    /// Solves the programme by column generation: adds patterns until none improves it.
    fn maximise(&mut self, least: &Amounts, most: &Amounts, value: impl Fn(&Task) -> f64) -> Result<Amounts, String> {
        for _ in 0..MOST_ROUNDS {
            let (rows, device_rows) = self.rows(least, most);
            let columns = self.columns();
            let mut cost = vec![0.0; columns];
            for (column, &(task, _)) in self.pairs.iter().enumerate() {
                cost[column] = -value(&self.types[task]);
            }
            let (solution, duals) = solve(&cost, rows, columns)?;
            if !self.add_patterns(&device_rows, &duals) {
                let mut accepted = self.nothing();
                for (column, &(task, _)) in self.pairs.iter().enumerate() {
                    accepted[task] += solution[column];
                }
                for ((accepted, least), most) in accepted.iter_mut().zip(least).zip(most) {
                    *accepted = accepted.max(*least).min(*most);
                }
                return Ok(accepted);
            }
        }
        Err(format!("patterns still paid after {MOST_ROUNDS} rounds"))
    }

    fn columns(&self) -> usize {
        self.pairs.len() + self.groups.iter().map(|group| group.patterns.len()).sum::<usize>()
    }

    /// All rows, and for each group those in which its patterns have coefficients.
    fn rows(&self, least: &Amounts, most: &Amounts) -> (Rows, Vec<DeviceRows>) {
        let mut rows = Rows::default();
        let mut of_groups = Vec::new();
        let mut cpu_and_memory = Vec::new();
        for Group { shape, nodes, .. } in &self.groups {
            let cpu = rows.open(nodes * shape.cpu_milli as f64 / 1e3);
            let memory = rows.open(nodes * shape.memory_mib as f64 / 1024.0);
            cpu_and_memory.push((cpu, memory));
            of_groups.push(DeviceRows {
                devices: rows.open(nodes * f64::from(shape.devices)),
                sizes: self.sizes.iter().map(|_| rows.open(0.0)).collect(),
                fluid: rows.open(0.0),
            });
        }
        let at_most: Vec<usize> = most.iter().map(|most| rows.open(*most)).collect();
        let at_least: Vec<usize> = least.iter().map(|least| rows.open(-*least)).collect();
        for (column, &(task, group)) in self.pairs.iter().enumerate() {
            let (cpu, memory) = cpu_and_memory[group];
            let (of_group, Task { cpu_milli, memory_mib, milli, .. }) = (&of_groups[group], &self.types[task]);
            rows.add(cpu, column, *cpu_milli as f64 / 1e3);
            rows.add(memory, column, *memory_mib as f64 / 1024.0);
            match self.sizes.binary_search(milli) {
                Ok(size) => rows.add(of_group.sizes[size], column, 1.0),
                Err(_) if self.types[task].is_share() => rows.add(of_group.fluid, column, f64::from(*milli) / 1e3),
                Err(_) => rows.add(of_group.devices, column, devices(&self.types[task])),
            }
            rows.add(at_most[task], column, 1.0);
            rows.add(at_least[task], column, -1.0);
        }
        let mut column = self.pairs.len();
        for (group, of_group) in self.groups.iter().zip(&of_groups) {
            for pattern in &group.patterns {
                rows.add(of_group.devices, column, 1.0);
                for (&row, &count) in of_group.sizes.iter().zip(pattern) {
                    rows.add(row, column, -f64::from(count));
                }
                rows.add(of_group.fluid, column, -f64::from(left(pattern, &self.sizes)) / 1e3);
                column += 1;
            }
        }
        (rows, of_groups)
    }

    /// Adds the best pattern of each group if it improves the solution; returns whether any did.
    fn add_patterns(&mut self, device_rows: &[DeviceRows], duals: &[f64]) -> bool {
        let mut added = false;
        for (group, rows) in self.groups.iter_mut().zip(device_rows) {
            let values: Vec<f64> = rows.sizes.iter().map(|&row| duals[row]).collect();
            let (most, pattern) = best(&self.sizes, &values, duals[rows.fluid] / 1e3);
            let has_devices = group.shape.devices > 0;
            if has_devices && most > duals[rows.devices] + PAYS && !group.patterns.contains(&pattern) {
                group.patterns.push(pattern);
                added = true;
            }
        }
        added
    }
}

fn devices(task: &Task) -> f64 {
    f64::from(task.devices) * f64::from(task.milli) / 1e3
}

/// Whether an idle node of a shape could run a task.
fn hosts(shape: &Shape, task: &Task) -> bool {
    task.cpu_milli <= shape.cpu_milli
        && task.memory_mib <= shape.memory_mib
        && task.devices <= shape.devices
        && task.takes(shape.kind)
}

/// Minimises `cost` over non-negative columns under `rows`: the columns, and each row's dual value.
fn solve(cost: &[f64], mut rows: Rows, columns: usize) -> Result<(Vec<f64>, Vec<f64>), String> {
    let count = rows.bound.len();
    for column in 0..columns {
        let row = rows.open(0.0);
        rows.add(row, column, -1.0);
    }
    let all = rows.bound.len();
    let quadratic = CscMatrix::zeros((columns, columns));
    let matrix = CscMatrix::new_from_triplets(all, columns, rows.row, rows.column, rows.value);
    let cones = [SupportedConeT::NonnegativeConeT(all)];
    let settings = DefaultSettings { verbose: false, ..DefaultSettings::default() };
    let mut solver = DefaultSolver::new(&quadratic, cost, &matrix, &rows.bound, &cones, settings)
        .map_err(|error| error.to_string())?;
    solver.solve();
    match solver.solution.status {
        SolverStatus::Solved | SolverStatus::AlmostSolved => {
            solver.solution.z.truncate(count);
            Ok((std::mem::take(&mut solver.solution.x), std::mem::take(&mut solver.solution.z)))
        }
        other => Err(format!("the solver ended with {other:?}")),
    }
}
