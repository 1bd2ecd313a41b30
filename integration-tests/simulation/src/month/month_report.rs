//! The result of a month, as data and as tables.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use super::institutions::INSTITUTIONS;

/// GPUs in use at one hour.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Hours since the start.
    pub hour: u64,
    /// GPUs held by tenants of each institution, in the order of the report.
    pub held: Vec<u64>,
}

/// A tenant's share during the backlog.
#[derive(Clone, Debug, Serialize)]
pub struct TenantFigures {
    /// Its name.
    pub tenant: String,
    /// Its institution.
    pub institution: String,
    /// Its weight within the institution; institutions weigh the same.
    pub weight: u32,
    /// Its entitlement by weights and reciprocity, in percent of all used GPU-hours.
    pub entitled_percent: f64,
    /// Its use, in percent of all used GPU-hours.
    pub share_percent: f64,
    /// Deviation of its use from its entitlement, in percent of the entitlement.
    pub apart_percent: f64,
}

/// An institution's loans and waiting times during the days with peaks.
#[derive(Clone, Debug, Serialize)]
pub struct InstitutionFigures {
    /// Its name.
    pub institution: String,
    /// GPUs of its cluster.
    pub gpus: usize,
    /// GPU-hours that others borrowed from it.
    pub lent_gpu_hours: f64,
    /// Placed requests of its tenants.
    pub requests: usize,
    /// Mean time from submission to placement.
    pub mean_wait_minutes: f64,
    /// 95th percentile of the time from submission to placement.
    pub p95_wait_minutes: f64,
}

/// The result of one month.
#[derive(Clone, Debug, Serialize)]
pub struct MonthReport {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Days with peaks by local time.
    pub peak_days: u64,
    /// Days of backlog for all tenants.
    pub backlog_days: u64,
    /// Leases made.
    pub leases: u64,
    /// Requests refused because their tenant's queue was full.
    pub turned_away: u64,
    /// One entry per tenant.
    pub tenants: Vec<TenantFigures>,
    /// One entry per institution, in order of time zone.
    pub institutions: Vec<InstitutionFigures>,
    /// One sample per hour.
    pub samples: Vec<Sample>,
}

impl MonthReport {
    /// The largest deviation of a tenant from its entitlement, in percent of the entitlement.
    #[must_use]
    pub fn worst_apart_percent(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.apart_percent.abs()).fold(0.0, f64::max)
    }

    /// The report as text.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{:<18}{:>8}{:>12}{:>9}{:>9}\n", "tenant", "weight", "entitled %", "had %", "apart %");
        for t in &self.tenants {
            let _ = writeln!(
                text,
                "{:<18}{:>8}{:>12.2}{:>9.2}{:>+9.2}",
                t.tenant, t.weight, t.entitled_percent, t.share_percent, t.apart_percent
            );
        }
        let _ = writeln!(
            text,
            "\n{:<18}{:>8}{:>16}{:>10}{:>15}{:>14}",
            "institution", "GPUs", "lent GPU-hours", "requests", "mean wait min", "p95 wait min"
        );
        for i in &self.institutions {
            let _ = writeln!(
                text,
                "{:<18}{:>8}{:>16.0}{:>10}{:>15.1}{:>14.1}",
                i.institution, i.gpus, i.lent_gpu_hours, i.requests, i.mean_wait_minutes, i.p95_wait_minutes
            );
        }
        let _ = writeln!(text, "\n{} leases; {} requests refused by a full queue", self.leases, self.turned_away);
        text
    }
}

/// Loans and waiting times of all institutions that lend the same number of GPUs, over all arrangements.
#[derive(Clone, Debug, Serialize)]
pub struct LendingFigures {
    /// GPUs that each of them offers.
    pub gpus: usize,
    /// Mean GPU-hours that others borrowed from one of them, per month.
    pub lent_gpu_hours: f64,
    /// Placed requests of their tenants.
    pub requests: usize,
    /// Mean time from submission to placement.
    pub mean_wait_minutes: f64,
}

/// Groups the institutions of all months by the GPUs they offer, most first.
pub(super) fn by_lending<'m, I: Iterator<Item = &'m MonthReport>>(months: impl Fn() -> I) -> Vec<LendingFigures> {
    let institutions = || months().flat_map(|month| month.institutions.iter().take(INSTITUTIONS));
    let sizes: BTreeSet<usize> = institutions().map(|institution| institution.gpus).collect();
    let figures = |gpus: usize| {
        let such: Vec<&InstitutionFigures> = institutions().filter(|institution| institution.gpus == gpus).collect();
        let requests = such.iter().map(|institution| institution.requests).sum();
        let waited = |of: &&InstitutionFigures| of.mean_wait_minutes * real(of.requests as u64);
        LendingFigures {
            gpus,
            lent_gpu_hours: such.iter().map(|of| of.lent_gpu_hours).sum::<f64>() / real(such.len().max(1) as u64),
            requests,
            mean_wait_minutes: such.iter().map(waited).sum::<f64>() / real(requests.max(1) as u64),
        }
    };
    sizes.into_iter().rev().map(figures).collect()
}

/// One month, and a summary of the same month under other assignments of lent nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    /// The month with the default assignment.
    #[serde(flatten)]
    pub month: MonthReport,
    /// Number of months.
    pub arrangements: usize,
    /// Results by the GPUs that institutions offer.
    pub by_lending: Vec<LendingFigures>,
    /// The largest deviation of a tenant from its entitlement in any month, in percent of the entitlement.
    pub worst_apart_percent: f64,
}

impl Fairness {
    /// The report as text.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = self.month.table();
        if self.arrangements < 2 {
            return text;
        }
        let _ = writeln!(
            text,
            "\nover {} months with different assignments of the lent nodes to institutions:\n",
            self.arrangements
        );
        let _ = writeln!(
            text,
            "{:>13}{:>24}{:>10}{:>15}",
            "lends of GPUs", "lent GPU-hours a month", "requests", "mean wait min"
        );
        for l in &self.by_lending {
            let _ = writeln!(
                text,
                "{:>13}{:>24.0}{:>10}{:>15.1}",
                l.gpus, l.lent_gpu_hours, l.requests, l.mean_wait_minutes
            );
        }
        let _ =
            writeln!(text, "\nlargest deviation of a tenant from its entitlement: {:.1} %", self.worst_apart_percent);
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn real(amount: u64) -> f64 {
    amount as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
pub(super) fn whole(amount: u128) -> f64 {
    amount as f64
}
