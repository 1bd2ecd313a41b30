//! A month of a federation: five institutions whose days and nights are opposed, through the broker's state machine and
//! planner, in log time.
//!
//! ```text
//! peaks    : local work and demand follow each institution's clock  ─▶ how long requests wait, by who lends how much
//! backlog  : every tenant has requests waiting all the time         ─▶ each tenant's share beside its entitlement
//! ```
//!
//! Durations, sizes and arrivals are drawn by a seed; nothing reads a clock, so a seed gives one report.

mod demand;
mod federation;
mod plot;
mod report;
mod terms;

pub use plot::svg;
pub use report::{Fairness, InstitutionFigures, LendingFigures, MonthReport, TenantFigures};

use comity_core::Refusal;

use self::demand::Demand;
use self::federation::Federation;
use self::report::{Books, by_lending};
use self::terms::MEMBERS;
use crate::random::Random;

const MINUTE: u64 = 60_000;
/// An hour in milliseconds.
pub(crate) const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// Between two looks at who asks for something.
const STEP: u64 = 10 * MINUTE;
/// Requests that each tenant has waiting while all are backlogged.
const BACKLOG: usize = 8;

/// What is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Month {
    /// Seed of all that is drawn.
    pub seed: u64,
    /// Days with opposed peaks.
    pub peak_days: u64,
    /// Days on which all tenants are backlogged. Nothing is measured on the first: four half-lives of past use.
    pub backlog_days: u64,
}

/// Days of a backlog before shares are measured.
const SETTLING_DAYS: u64 = 1;
/// Ways to deal what institutions lend of out to them: five, of whom two lend the same.
pub const ARRANGEMENTS: u8 = 60;

impl Month {
    /// Runs it, and the same month with what institutions lend of dealt to them in other ways, `arrangements` months in
    /// all: how long somebody waits hangs on the side of the world, too. `progress` is told how many are done.
    ///
    /// # Errors
    /// What the core refused that it should not have.
    pub fn run_arranged(&self, arrangements: u8, mut progress: impl FnMut(usize)) -> Result<Fairness, Refusal> {
        let mut others = Vec::new();
        let month = self.run()?;
        for (done, nodes) in (1..).zip(terms::arrangements().into_iter().take(usize::from(arrangements)).skip(1)) {
            progress(done);
            others.push(self.run_with(nodes)?);
        }
        let months = || std::iter::once(&month).chain(&others);
        let worst_apart_percent = months().map(MonthReport::worst_apart_percent).fold(0.0, f64::max);
        Ok(Fairness { arrangements: months().count(), by_lending: by_lending(months), worst_apart_percent, month })
    }

    /// Runs it.
    ///
    /// # Errors
    /// What the core refused that it should not have.
    pub fn run(&self) -> Result<MonthReport, Refusal> {
        self.run_with(MEMBERS.map(|member| member.nodes))
    }

    fn run_with(&self, nodes: [usize; MEMBERS.len()]) -> Result<MonthReport, Refusal> {
        let mut federation = Federation::new(nodes)?;
        let mut books = Books::default();
        let mut demand = Demand::new(Random::new(self.seed));
        let began = federation.now();
        let days = self.peak_days + self.backlog_days;
        for step in 0..days * DAY / STEP {
            let (day, now) = (step * STEP / DAY, began + step * STEP);
            federation.run_until(now, &mut books)?;
            if (step * STEP).is_multiple_of(HOUR) {
                federation.work_locally(began)?;
            }
            let peaks = day < self.peak_days;
            books.waits_count = peaks;
            books.shares_count = day >= self.peak_days + SETTLING_DAYS;
            for index in 0..terms::TENANTS.len() {
                let waiting = federation.waiting(index);
                let more = if peaks { demand.arrivals(index, now - began) } else { BACKLOG.saturating_sub(waiting) };
                for _ in 0..more {
                    let asked = demand.draw();
                    books.turned_away += u64::from(!federation.submit(index, &asked)?);
                }
            }
            federation.place(&mut books)?;
            books.sample(&federation, now - began);
        }
        federation.run_until(began + days * DAY, &mut books)?;
        Ok(books.report(self, nodes))
    }
}
