//! What is measured, and what came of it.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use comity_core::fairness::Shares;
use comity_core::{LeaseId, State};
use serde::Serialize;

use super::federation::Federation;
use super::terms::{INSTITUTIONS, MEMBERS, TENANTS};
use super::{HOUR, Month};

/// Books that are kept while time passes.
#[derive(Default)]
pub(super) struct Books {
    /// Whether waits are measured now.
    pub(super) waits_count: bool,
    /// Whether shares are measured now.
    pub(super) shares_count: bool,
    /// By tenant, in thousandths of GPUs times milliseconds.
    held: [u128; TENANTS.len()],
    /// By tenant, in thousandths of GPUs times milliseconds, as weights and reciprocity say.
    entitled: [f64; TENANTS.len()],
    /// By member, in thousandths of GPUs times milliseconds.
    lent: [u128; MEMBERS.len()],
    /// By member, in milliseconds.
    waits: [Vec<u64>; MEMBERS.len()],
    placed: u64,
    /// Requests that were refused because their tenant had too many waiting.
    pub(super) turned_away: u64,
    samples: Vec<Sample>,
}

/// What members hold at a moment.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// Hours since the begin.
    pub hour: u64,
    /// GPUs held by tenants of each institution, in the order of the report.
    pub held: Vec<u64>,
}

impl Books {
    /// Time passes.
    pub(super) fn pass(&mut self, federation: &Federation, ms: u64) {
        let held: [u64; TENANTS.len()] = std::array::from_fn(|tenant| federation.held_milli(tenant));
        if self.waits_count {
            for (member, lent) in self.lent.iter_mut().enumerate() {
                *lent += u128::from(federation.lent_milli(member)) * u128::from(ms);
            }
        }
        if !self.shares_count || ms == 0 {
            return;
        }
        let all: u64 = held.iter().sum();
        let parts = entitlements(federation.state());
        for tenant in 0..TENANTS.len() {
            self.held[tenant] += u128::from(held[tenant]) * u128::from(ms);
            self.entitled[tenant] += parts[tenant] * real(all) * real(ms);
        }
    }

    /// A lease was made.
    pub(super) fn placed(&mut self, state: &State, lease: LeaseId) {
        self.placed += 1;
        let Some(lease) = state.leases.get(&lease).filter(|_| self.waits_count) else { return };
        let submitted = state.requests.get(&lease.request).map_or(lease.placed_at, |request| request.submitted_at);
        let member = MEMBERS.iter().position(|member| member.name == lease.institution.as_str());
        if let Some(waits) = member.and_then(|member| self.waits.get_mut(member)) {
            waits.push(lease.placed_at.since(submitted).0);
        }
    }

    /// For the plot.
    pub(super) fn sample(&mut self, federation: &Federation, elapsed: u64) {
        let hour = elapsed / HOUR;
        if self.samples.last().is_some_and(|last| last.hour == hour) {
            return;
        }
        let mut held = vec![0; MEMBERS.len()];
        for (tenant, (_, of, _)) in TENANTS.iter().enumerate() {
            held[*of] += federation.held_milli(tenant) / 1_000;
        }
        self.samples.push(Sample { hour, held });
    }

    pub(super) fn report(self, month: &Month, nodes: [usize; MEMBERS.len()]) -> MonthReport {
        let all = self.held.iter().sum::<u128>().max(1);
        let tenants = TENANTS.iter().enumerate().map(|(index, (tenant, of, weight))| {
            let share = whole(self.held[index]) / whole(all) * 100.0;
            let entitled = self.entitled[index] / whole(all) * 100.0;
            TenantFigures {
                tenant: (*tenant).to_owned(),
                institution: MEMBERS[*of].name.to_owned(),
                weight: *weight,
                entitled_percent: entitled,
                share_percent: share,
                apart_percent: if entitled > 0.0 { (share / entitled - 1.0) * 100.0 } else { 0.0 },
            }
        });
        let tenants = tenants.collect();
        let institutions =
            MEMBERS.iter().zip(self.lent).zip(self.waits).enumerate().map(|(at, ((member, lent), mut waits))| {
                waits.sort_unstable();
                let mean = real(waits.iter().sum::<u64>() / waits.len().max(1) as u64);
                let p95 = waits.get(waits.len() * 95 / 100).copied().unwrap_or(0);
                InstitutionFigures {
                    institution: member.name.to_owned(),
                    gpus: 8 * nodes[at],
                    lent_gpu_hours: whole(lent) / 1_000.0 / real(HOUR),
                    requests: waits.len(),
                    mean_wait_minutes: mean / 60_000.0,
                    p95_wait_minutes: real(p95) / 60_000.0,
                }
            });
        MonthReport {
            seed: month.seed,
            peak_days: month.peak_days,
            backlog_days: month.backlog_days,
            leases: self.placed,
            turned_away: self.turned_away,
            tenants,
            institutions: institutions.collect(),
            samples: self.samples,
        }
    }
}

/// The part of all that each tenant is entitled to, if all are backlogged.
fn entitlements(state: &State) -> [f64; TENANTS.len()] {
    let Some(policy) = &state.policy else { return [0.0; TENANTS.len()] };
    let mut shares = Shares::new(state, &policy.bundle);
    let asks = |member: usize| TENANTS.iter().any(|(_, of, _)| *of == member);
    let weights: [f64; MEMBERS.len()] =
        std::array::from_fn(|member| if asks(member) { whole(shares.weight(MEMBERS[member].name)) } else { 0.0 });
    let all: f64 = weights.iter().sum();
    std::array::from_fn(|tenant| {
        let (_, of, weight) = TENANTS[tenant];
        let colleagues: u32 = TENANTS.iter().filter(|(_, other, _)| *other == of).map(|(.., weight)| weight).sum();
        weights[of] / all * f64::from(weight) / f64::from(colleagues)
    })
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn real(amount: u64) -> f64 {
    amount as f64
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn whole(amount: u128) -> f64 {
    amount as f64
}

/// One tenant while all were backlogged.
#[derive(Clone, Debug, Serialize)]
pub struct TenantFigures {
    /// Its name.
    pub tenant: String,
    /// Its institution.
    pub institution: String,
    /// Its weight within the institution; institutions weigh the same.
    pub weight: u32,
    /// What weights and reciprocity gave it, in percent of the GPU-hours that all had.
    pub entitled_percent: f64,
    /// What it had.
    pub share_percent: f64,
    /// By how much that is more or less, in percent of what it was entitled to.
    pub apart_percent: f64,
}

/// One institution while peaks were opposed.
#[derive(Clone, Debug, Serialize)]
pub struct InstitutionFigures {
    /// Its name.
    pub institution: String,
    /// GPUs of its cluster.
    pub gpus: usize,
    /// What others borrowed of it.
    pub lent_gpu_hours: f64,
    /// Requests of its tenants that were placed.
    pub requests: usize,
    /// From submission to placement.
    pub mean_wait_minutes: f64,
    /// So long or less for 95 of 100.
    pub p95_wait_minutes: f64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct MonthReport {
    /// Seed.
    pub seed: u64,
    /// Days with opposed peaks.
    pub peak_days: u64,
    /// Days on which all were backlogged.
    pub backlog_days: u64,
    /// Leases made.
    pub leases: u64,
    /// Requests that were refused because their tenant had too many waiting.
    pub turned_away: u64,
    /// By tenant.
    pub tenants: Vec<TenantFigures>,
    /// By institution, those on one side of the world before those on the next.
    pub institutions: Vec<InstitutionFigures>,
    /// Hour by hour.
    pub samples: Vec<Sample>,
}

impl MonthReport {
    /// The largest difference of a tenant from what it is entitled to, in percent of that.
    #[must_use]
    pub fn worst_apart_percent(&self) -> f64 {
        self.tenants.iter().map(|tenant| tenant.apart_percent.abs()).fold(0.0, f64::max)
    }

    /// For people.
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

/// What institutions gave and got that lend of so many GPUs, over months in which that was dealt in other ways.
#[derive(Clone, Debug, Serialize)]
pub struct LendingFigures {
    /// GPUs that they lend of.
    pub gpus: usize,
    /// What others borrowed of one, in a month.
    pub lent_gpu_hours: f64,
    /// Requests of theirs that were placed.
    pub requests: usize,
    /// From submission to placement.
    pub mean_wait_minutes: f64,
}

/// By what institutions lend of, most first.
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

/// A month, and the same one with what institutions lend of dealt to them in other ways.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    /// The month.
    #[serde(flatten)]
    pub month: MonthReport,
    /// How many such months.
    pub arrangements: usize,
    /// What they came to, by what institutions lend of.
    pub by_lending: Vec<LendingFigures>,
    /// The largest difference of a tenant from what it is entitled to in any of these months, in percent of that.
    pub worst_apart_percent: f64,
}

impl Fairness {
    /// For people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = self.month.table();
        if self.arrangements < 2 {
            return text;
        }
        let _ = writeln!(
            text,
            "\nover {} such months, with what institutions lend of dealt to them in other ways:\n",
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
        let _ = writeln!(
            text,
            "\nno tenant had more than {:.1} % more or less than it is entitled to",
            self.worst_apart_percent
        );
        text
    }
}
