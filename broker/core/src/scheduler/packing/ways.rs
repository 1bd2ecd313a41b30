//! Ways to put one type of task on nodes, sorted as far as it takes to know the cheapest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::scheduler::packing::cost::Candidate;
use crate::scheduler::packing::log::Entry;

/// So many ways more than twice as many as were left the last time are looked through for those that are past.
const UNTIDY: usize = 64;

/// A way to put a task on the nodes of a spot: cost, digest of their state, the spot, level.
type Way = (i32, u32, u32, u16);
/// The same with all prices.
pub(crate) type Priced = (i64, u32, u32, u16);

/// By spot, whether it has nodes: a bit of each is at hand where the rest is not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Live {
    bits: Vec<u64>,
}

impl Live {
    /// Says it of a spot; of those that nothing was said of, it has none.
    pub(crate) fn set(&mut self, spot: u32, live: bool) {
        let (at, bit) = (spot as usize / 64, 1 << (spot % 64));
        if self.bits.len() <= at {
            self.bits.resize(at + 1, 0);
        }
        if live { self.bits[at] |= bit } else { self.bits[at] &= !bit }
    }

    fn is(&self, spot: u32) -> bool {
        self.bits.get(spot as usize / 64).is_some_and(|bits| bits & 1 << (spot % 64) != 0)
    }
}

/// Ways by front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ways {
    /// By front, what its cheapest way costs at least, without prices: most fronts are passed over by it.
    least: Vec<i32>,
    fronts: Vec<Front>,
    /// How many they are.
    held: usize,
}

/// Ways on the nodes of one front.
#[derive(Clone, Debug)]
struct Front {
    /// Those that came since it was sorted: hardly any is the cheapest, and most are past before it is sorted again.
    new: Vec<New>,
    /// What the cheapest of them costs without prices.
    least_new: i32,
    /// How many there were after those that are past were forgotten the last time.
    tidy: usize,
    /// One for each number of slots taken away.
    rows: Vec<Row>,
    /// Ways that it holds.
    held: usize,
}

impl Default for Front {
    fn default() -> Self {
        Self { new: Vec::new(), least_new: i32::MAX, tidy: 0, rows: Vec::new(), held: 0 }
    }
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

impl Ways {
    /// How many they are; some are past, and some there twice.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// One more way, on the spot of an entry.
    pub(crate) fn push(&mut self, front: usize, entry: &Entry, way: Candidate) {
        if self.fronts.len() <= front {
            self.fronts.resize(front + 1, Front::default());
            self.least.resize(front + 1, i32::MAX);
        }
        self.least[front] = way.cost.min(self.least[front]);
        let front = &mut self.fronts[front];
        front.least_new = way.cost.min(front.least_new);
        front.new.push(((way.cost, entry.tie, entry.spot, way.level), way.loss));
        front.held += 1;
        self.held += 1;
    }

    /// What the cheapest way on a front costs at least, without prices; `None` if there is none.
    pub(crate) fn least(&self, front: u32) -> Option<i32> {
        self.least.get(front as usize).copied().filter(|least| *least != i32::MAX)
    }

    /// The cheapest way on a front, or `best` if that is cheaper. `price` comes on top of what each way costs, and what
    /// is `lost` with the slots that it takes away.
    pub(crate) fn cheapest(
        &mut self,
        front: u32,
        (best, price): (Option<Priced>, i64),
        lost: impl Fn(u32) -> i64,
        live: &Live,
    ) -> Option<Priced> {
        let at = front as usize;
        let Some(front) = self.fronts.get_mut(at) else { return best };
        let before = front.held;
        let mut best = front.cheapest((best, price), &lost, live);
        if best.is_none_or(|best| i64::from(front.least_new).saturating_add(price) <= best.0) && !front.new.is_empty() {
            front.sort_in(live);
            best = front.cheapest((best, price), &lost, live);
        } else if front.new.len() > 2 * front.tidy + UNTIDY {
            front.forget_past(live);
        }
        self.least[at] = front.rows.iter().map(|row| row.least).fold(front.least_new, i32::min);
        self.held -= before - front.held;
        best
    }
}

impl Front {
    /// The cheapest way that is in a row, or `best` if that is cheaper; what is past goes.
    fn cheapest(
        &mut self,
        (mut best, price): (Option<Priced>, i64),
        lost: impl Fn(u32) -> i64,
        live: &Live,
    ) -> Option<Priced> {
        for row in &mut self.rows {
            // Slots only become fewer, and prices are not negative: what costs more without them costs more with them.
            if best.is_some_and(|best| i64::from(row.least).saturating_add(price) > best.0) {
                continue;
            }
            let price = price + lost(row.loss);
            while best.is_none_or(|best| i64::from(row.least).saturating_add(price) <= best.0)
                && let Some(&Reverse((cost, tie, spot, level))) = row.ways.peek()
            {
                if live.is(spot) {
                    let way = (i64::from(cost) + price, tie, spot, level);
                    best = Some(best.map_or(way, |best| best.min(way)));
                    break;
                }
                row.ways.pop();
                self.held -= 1;
                row.least = row.ways.peek().map_or(i32::MAX, |Reverse(way)| way.0);
            }
        }
        best
    }

    /// Puts those that are new into their rows, unless their spots have no nodes any more.
    fn sort_in(&mut self, live: &Live) {
        self.forget_past(live);
        for (way, loss) in self.new.drain(..) {
            let at = self.rows.iter().position(|row| row.loss == loss).unwrap_or_else(|| {
                self.rows.push(Row { least: i32::MAX, loss, ways: BinaryHeap::new(), tidy: 0 });
                self.rows.len() - 1
            });
            let row = &mut self.rows[at];
            row.least = row.least.min(way.0);
            if row.ways.len() > 2 * row.tidy + UNTIDY {
                self.held -= row.tidy_up(live);
            }
            row.ways.push(Reverse(way));
        }
        (self.least_new, self.tidy) = (i32::MAX, 0);
    }

    /// Forgets those of the new whose spots have no nodes any more.
    fn forget_past(&mut self, live: &Live) {
        let before = self.new.len();
        self.new.retain(|(way, _)| live.is(way.2));
        self.held -= before - self.new.len();
        self.least_new = self.new.iter().map(|(way, _)| way.0).min().unwrap_or(i32::MAX);
        self.tidy = self.new.len();
    }
}

impl Row {
    /// Forgets ways on spots without nodes, and those that are there twice; how many.
    fn tidy_up(&mut self, live: &Live) -> usize {
        let before = self.ways.len();
        let mut ways = std::mem::take(&mut self.ways).into_vec();
        ways.retain(|Reverse(way)| live.is(way.2));
        ways.sort_unstable();
        ways.dedup();
        self.tidy = ways.len();
        self.ways = BinaryHeap::from(ways);
        before - self.tidy
    }
}
