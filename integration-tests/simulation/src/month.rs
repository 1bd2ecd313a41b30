//! Simulates a month of five institutions in different time zones, with the broker's state machine and planner.
//!
//! ```text
//! peaks    : local work and demand follow each institution's clock  ─▶ waiting times, by GPUs lent
//! backlog  : every tenant always has queued requests                ─▶ each tenant's share beside its entitlement
//! ```
//!
//! A seed determines durations, sizes and arrivals; nothing reads a clock, so it also determines the report.

mod accounting;
mod demand;
mod institutions;
mod line_chart;
mod month_federation;
mod month_report;

pub use line_chart::svg;
pub use month_report::{Fairness, InstitutionFigures, LendingFigures, MonthReport, TenantFigures};

use comity_core::Refusal;

use self::accounting::Accounting;
use self::demand::Demand;
use self::institutions::MEMBERS;
use self::month_federation::MonthFederation;
use self::month_report::by_lending;
use crate::random::Random;
use crate::time::{DAY, HOUR, MINUTE};

/// Interval between two batches of arrivals, in milliseconds.
const ARRIVAL_INTERVAL: u64 = 10 * MINUTE;
/// Queue length of each tenant during the backlog.
const BACKLOG_PER_TENANT: usize = 8;

/// The parameters of a simulated month.
#[derive(Clone, Copy, Debug)]
pub struct Month {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Days with peaks by local time.
    pub peak_days: u64,
    /// Days of backlog for all tenants. The first is not measured: it spans four half-lives of past usage.
    pub backlog_days: u64,
}

/// Days of backlog before shares are measured.
const SETTLING_DAYS: u64 = 1;
/// Distinct assignments of the lent nodes to five institutions; two lend the same number.
pub const ARRANGEMENTS: u8 = 60;

impl Month {
    /// Runs the month under `arrangements` assignments of lent nodes to institutions, because waiting times also depend
    /// on the time zone. `progress` receives the number of finished months.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    pub fn run_arranged(&self, arrangements: u8, mut progress: impl FnMut(usize)) -> Result<Fairness, Refusal> {
        let mut others = Vec::new();
        let month = self.run()?;
        for (done, nodes) in (1..).zip(institutions::arrangements().into_iter().take(usize::from(arrangements)).skip(1))
        {
            progress(done);
            others.push(self.run_with(nodes)?);
        }
        let months = || std::iter::once(&month).chain(&others);
        let worst_apart_percent = months().map(MonthReport::worst_apart_percent).fold(0.0, f64::max);
        Ok(Fairness { arrangements: months().count(), by_lending: by_lending(months), worst_apart_percent, month })
    }

    /// Runs the month with the default assignment.
    ///
    /// # Errors
    /// When the core refuses a command of the simulation.
    pub fn run(&self) -> Result<MonthReport, Refusal> {
        self.run_with(MEMBERS.map(|member| member.nodes))
    }

    fn run_with(&self, nodes: [usize; MEMBERS.len()]) -> Result<MonthReport, Refusal> {
        let mut federation = MonthFederation::new(nodes)?;
        let mut accounting = Accounting::default();
        let mut demand = Demand::new(Random::new(self.seed));
        let began = federation.now();
        let days = self.peak_days + self.backlog_days;
        for step in 0..days * DAY / ARRIVAL_INTERVAL {
            let (day, now) = (step * ARRIVAL_INTERVAL / DAY, began + step * ARRIVAL_INTERVAL);
            federation.run_until(now, &mut accounting)?;
            if (step * ARRIVAL_INTERVAL).is_multiple_of(HOUR) {
                federation.update_local_work(began)?;
            }
            let peaks = day < self.peak_days;
            accounting.waits_count = peaks;
            accounting.shares_count = day >= self.peak_days + SETTLING_DAYS;
            for index in 0..institutions::TENANTS.len() {
                let queued = federation.queued(index);
                let more =
                    if peaks { demand.arrivals(index, now - began) } else { BACKLOG_PER_TENANT.saturating_sub(queued) };
                for _ in 0..more {
                    let request = demand.draw();
                    accounting.turned_away += u64::from(!federation.submit(index, &request)?);
                }
            }
            federation.place(&mut accounting)?;
            accounting.sample(&federation.usage(), now - began);
        }
        federation.run_until(began + days * DAY, &mut accounting)?;
        Ok(accounting.report(self, nodes))
    }
}
