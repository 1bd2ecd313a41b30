//! Ways to put one type of task on nodes, at hand by what they cost.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::cost::{Candidate, Costs, States};
use super::log::{Entry, Log};
use super::pool::Answers;
use super::task::Task;

/// States whose ways are looked up at once.
const LOOK_UPS: usize = 64;

/// A way to put a task on the nodes of a spot: cost, digest of their state, the spot, level.
type Way = (i32, u32, u32, u16);
/// The same with all prices.
pub(super) type Priced = (i64, u32, u32, u16);

/// Ways to put one type of task on nodes, cheapest first; fed when it is asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Lane {
    /// How many entries of the log were taken in.
    fed: usize,
    /// By shape, whether a node of it could ever run the task.
    runs: Vec<bool>,
    /// By front, the least of its rows' least: most fronts are passed over by it.
    least: Vec<i32>,
    fronts: Vec<Front>,
    /// Ways that it holds.
    pub(super) held: usize,
    /// Of what it is asked, until something changes.
    pub(super) answers: Answers,
}

/// How nodes are sorted in a lane: those of one site whose shapes are as scarce as each other are a *front*. All ways on it
/// have the same price, but for slots.
#[derive(Clone, Debug, Default)]
pub(super) struct Fronts {
    /// By shape: shapes with the same number are as scarce as each other.
    alike: Vec<u32>,
    /// How many such numbers there are.
    of_site: u32,
}

impl Fronts {
    pub(super) fn new(alike: Vec<u32>) -> Self {
        let of_site = alike.iter().map(|number| number + 1).max().unwrap_or(1);
        Self { alike, of_site }
    }

    /// The fronts of a site, each with the number that its shapes have.
    pub(super) fn of(&self, site: u32) -> impl Iterator<Item = (u32, u32)> {
        let first = site * self.of_site;
        (0..self.of_site).map(move |number| (first + number, number))
    }

    /// The number of a shape.
    pub(super) fn number(&self, shape: usize) -> u32 {
        self.alike[shape]
    }

    fn front(&self, entry: &Entry) -> usize {
        (entry.site * self.of_site + self.alike[entry.shape as usize]) as usize
    }
}

/// Ways on the nodes of one front.
#[derive(Clone, Debug, Default)]
struct Front {
    /// Those that came since it was looked into: many of them are past before it is looked into again.
    new: Vec<New>,
    /// One for each number of slots taken away.
    rows: Vec<Row>,
}

/// A way that is in no row yet, and the number of the slots that it takes away.
type New = (Way, u32);

/// Ways that take the same slots away: their price changes.
#[derive(Clone, Debug)]
struct Row {
    /// What its cheapest way costs without prices: by it most rows are passed over.
    least: i32,
    /// Number of the slots.
    loss: u32,
    /// Some on spots that have no node any more, and some twice.
    ways: BinaryHeap<Reverse<Way>>,
    /// How many there were after it was last tidied up.
    tidy: usize,
}

impl Lane {
    /// A lane for a task that runs on nodes of these shapes.
    pub(super) fn on(runs: Vec<bool>) -> Self {
        Self { runs, ..Self::default() }
    }

    /// Takes in what the log tells since the last time.
    pub(super) fn feed(
        &mut self,
        log: &Log,
        task: (u32, &Task),
        (costs, states): (&mut Costs, &mut States),
        fronts: &Fronts,
    ) {
        for entries in log.since(self.fed).chunks(LOOK_UPS) {
            costs.make_room();
            // All are looked up before anything is done with one: so the processor waits for memory once, not for each.
            let mut looked_up = [(0, None); LOOK_UPS];
            let mut count = 0;
            for (at, entry) in entries.iter().enumerate() {
                if entry.may_fit(task.1) && self.runs[entry.shape as usize] {
                    looked_up[count] = (at, costs.known(entry.state, task.0));
                    count += 1;
                }
            }
            for &(at, known) in &looked_up[..count] {
                let entry = &entries[at];
                let front = fronts.front(entry);
                if self.fronts.len() <= front {
                    self.fronts.resize(front + 1, Front::default());
                    self.least.resize(front + 1, i32::MAX);
                }
                costs.ways(states, task, (entry.state, known), |way| self.push(front, entry, way));
            }
        }
        self.fed = log.len();
    }

    fn push(&mut self, front: usize, entry: &Entry, way: Candidate) {
        self.least[front] = way.cost.min(self.least[front]);
        self.fronts[front].new.push(((way.cost, entry.tie, entry.spot, way.level), way.loss));
        self.held += 1;
    }

    /// The log was shortened: so many entries are left ahead of each place.
    pub(super) fn log_shortened(&mut self, ahead: &[u32]) {
        self.fed = ahead[self.fed] as usize;
    }

    /// What its cheapest way on a front costs at least, without prices; `None` if there is none.
    pub(super) fn least(&self, front: u32) -> Option<i32> {
        self.least.get(front as usize).copied().filter(|least| *least != i32::MAX)
    }

    /// The cheapest way on a front, or `best` if that is cheaper. `price` comes on top of what each way costs, and what is
    /// `lost` with the slots that it takes away.
    pub(super) fn cheapest(
        &mut self,
        front: u32,
        (best, price): (Option<Priced>, i64),
        lost: impl Fn(u32) -> i64,
        live: &[bool],
    ) -> Option<Priced> {
        let (at, mut best, mut least) = (front as usize, best, i32::MAX);
        let Some(front) = self.fronts.get_mut(at) else { return best };
        self.held -= front.sort_in(live);
        for row in &mut front.rows {
            // Slots only become fewer, and prices are not negative: what costs more without them costs more with them.
            if best.is_none_or(|best| i64::from(row.least).saturating_add(price) <= best.0) {
                let price = price + lost(row.loss);
                while best.is_none_or(|best| i64::from(row.least).saturating_add(price) <= best.0)
                    && let Some(&Reverse((cost, tie, spot, level))) = row.ways.peek()
                {
                    if !live[spot as usize] {
                        row.ways.pop();
                        self.held -= 1;
                        row.least = row.ways.peek().map_or(i32::MAX, |Reverse(way)| way.0);
                        continue;
                    }
                    let way = (i64::from(cost) + price, tie, spot, level);
                    if best.is_none_or(|best| way < best) {
                        best = Some(way);
                    }
                    break;
                }
            }
            least = least.min(row.least);
        }
        self.least[at] = least;
        best
    }
}

impl Front {
    /// Puts those that are new into their rows; how many ways were forgotten, for their spots have no nodes any more.
    fn sort_in(&mut self, live: &[bool]) -> usize {
        let mut forgotten = 0;
        for (way, loss) in self.new.drain(..) {
            if !live[way.2 as usize] {
                forgotten += 1;
                continue;
            }
            let at = self.rows.iter().position(|row| row.loss == loss).unwrap_or_else(|| {
                self.rows.push(Row { least: i32::MAX, loss, ways: BinaryHeap::new(), tidy: 0 });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            row.least = row.least.min(way.0);
            if row.ways.len() > 2 * row.tidy + 64 {
                forgotten += row.tidy_up(live);
            }
            row.ways.push(Reverse(way));
        }
        forgotten
    }
}

impl Row {
    /// Forgets ways on spots without nodes, and those that are there twice; how many.
    fn tidy_up(&mut self, live: &[bool]) -> usize {
        let before = self.ways.len();
        let mut ways = std::mem::take(&mut self.ways).into_vec();
        ways.retain(|Reverse(way)| live[way.2 as usize]);
        ways.sort_unstable();
        ways.dedup();
        self.tidy = ways.len();
        self.ways = BinaryHeap::from(ways);
        before - self.tidy
    }
}
