//! Ways to put one type of task on the nodes of one shape, at hand by what they cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cost::{Costs, States};
use super::task::Task;

/// States whose ways are looked up at once.
const LOOK_UPS: usize = 32;

/// A way to put a task on a state: cost, digest of the state, the state, level.
pub(super) type Way = (i64, u64, u32, u16);

/// Ways to put one type of task on nodes of one shape, cheapest first; fed when it is asked for.
#[derive(Clone, Debug)]
pub(super) struct Lane {
    /// The least of its rows' least: most lanes are passed over by it.
    pub(super) least: i64,
    /// How much of the shape's log was taken in, and of which generation of it.
    fed: usize,
    generation: u64,
    /// One for each number of slots taken away, whose price changes.
    rows: Vec<Row>,
}

impl Default for Lane {
    fn default() -> Self {
        Self { least: i64::MAX, fed: 0, generation: 0, rows: Vec::new() }
    }
}

/// Ways that take the same slots away.
#[derive(Clone, Debug)]
struct Row {
    /// What its cheapest way costs without prices: by it most rows are passed over.
    least: i64,
    /// Number of the slots.
    loss: u32,
    ways: BinaryHeap<Reverse<Way>>,
}

/// States of one shape that came to have nodes, in the order in which they did.
#[derive(Clone, Debug, Default)]
pub(super) struct Log {
    pub(super) generation: u64,
    /// With the digest by which equal costs are told apart.
    pub(super) states: Vec<(u32, u64)>,
    pub(super) live: usize,
}

impl Lane {
    /// Takes in what the log of its shape tells since the last time.
    pub(super) fn feed(
        &mut self,
        log: &Log,
        task: (usize, &Task),
        costs: &mut Costs,
        states: &mut States,
        peopled: &[bool],
    ) {
        if self.generation != log.generation {
            *self = Self { generation: log.generation, ..Self::default() };
        }
        for states_of_log in log.states[self.fed..].chunks(LOOK_UPS) {
            costs.make_room();
            // All are looked up before anything is done with one: so the processor waits for memory once, not for each.
            let mut known = [(0, 0, None); LOOK_UPS];
            let mut count = 0;
            for &(state, tie) in states_of_log.iter().filter(|(state, _)| peopled[*state as usize]) {
                known[count] = (state, tie, costs.begin_of(state, task.0));
                count += 1;
            }
            for &(state, tie, begin) in &known[..count] {
                for way in costs.ways(states, task, (state, begin)) {
                    self.least = self.least.min(way.cost);
                    let row = self.of_loss(way.loss);
                    row.least = row.least.min(way.cost);
                    row.ways.push(Reverse((way.cost, tie, state, way.level)));
                }
            }
        }
        self.fed = log.states.len();
    }

    /// Its cheapest way, or `best` if that is cheaper. `price` comes on top of what each way costs, and what is `lost` with
    /// the slots that it takes away.
    pub(super) fn cheapest(
        &mut self,
        (best, price): (Option<Way>, i64),
        lost: impl Fn(u32) -> i64,
        peopled: &[bool],
    ) -> Option<Way> {
        let mut best = best;
        for row in &mut self.rows {
            // Slots only become fewer, and prices are not negative: what costs more without them costs more with them.
            if best.is_some_and(|best| row.least.saturating_add(price) > best.0) {
                continue;
            }
            let price = price + lost(row.loss);
            while best.is_none_or(|best| row.least.saturating_add(price) <= best.0)
                && let Some(&Reverse((cost, digest, state, level))) = row.ways.peek()
            {
                if !peopled[state as usize] {
                    row.ways.pop();
                    row.least = row.ways.peek().map_or(i64::MAX, |Reverse(way)| way.0);
                    continue;
                }
                let way = (cost + price, digest, state, level);
                if best.is_none_or(|best| way < best) {
                    best = Some(way);
                }
                break;
            }
        }
        self.least = self.rows.iter().map(|row| row.least).min().unwrap_or(i64::MAX);
        best
    }

    /// Ways that take those slots away.
    fn of_loss(&mut self, loss: u32) -> &mut Row {
        let at = self.rows.iter().position(|row| row.loss == loss).unwrap_or_else(|| {
            self.rows.push(Row { least: i64::MAX, loss, ways: BinaryHeap::new() });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }
}
