//! Measures use, loans and waits while simulated time passes.

use comity_core::State;
use comity_core::fairness::Shares;
use comity_types::LeaseId;

use super::Month;
use super::institutions::{GPUS_PER_NODE, MEMBERS, TENANTS};
use super::month_report::{InstitutionFigures, MonthReport, Sample, TenantFigures, real, whole};
use crate::time::HOUR;

/// GPUs in use at one moment, in thousandths.
pub(super) struct Usage {
    /// Held by each tenant.
    pub(super) held_milli: [u64; TENANTS.len()],
    /// Lent by each member.
    pub(super) lent_milli: [u64; MEMBERS.len()],
}

/// Totals since the month began.
#[derive(Default)]
pub(super) struct Accounting {
    /// Whether waits are measured now.
    pub(super) waits_count: bool,
    /// Whether shares are measured now.
    pub(super) shares_count: bool,
    /// GPU time by tenant, in thousandths of GPUs times milliseconds.
    held: [u128; TENANTS.len()],
    /// Entitlement by tenant, in thousandths of GPUs times milliseconds.
    entitled: [f64; TENANTS.len()],
    /// Lent GPU time by member, in thousandths of GPUs times milliseconds.
    lent: [u128; MEMBERS.len()],
    /// Waiting times by member, in milliseconds.
    waits: [Vec<u64>; MEMBERS.len()],
    placed: u64,
    /// Requests refused because their tenant's queue was full.
    pub(super) turned_away: u64,
    samples: Vec<Sample>,
}

impl Accounting {
    /// Counts `usage` for the `ms` milliseconds that it lasted.
    pub(super) fn add_usage(&mut self, state: &State, usage: &Usage, ms: u64) {
        let held = usage.held_milli;
        if self.waits_count {
            for (total, lent) in self.lent.iter_mut().zip(usage.lent_milli) {
                *total += u128::from(lent) * u128::from(ms);
            }
        }
        if !self.shares_count || ms == 0 {
            return;
        }
        let all: u64 = held.iter().sum();
        let parts = entitlements(state);
        for tenant in 0..TENANTS.len() {
            self.held[tenant] += u128::from(held[tenant]) * u128::from(ms);
            self.entitled[tenant] += parts[tenant] * real(all) * real(ms);
        }
    }

    /// Counts a new lease, and how long its request waited.
    pub(super) fn placed(&mut self, state: &State, lease: LeaseId) {
        self.placed += 1;
        let Some(lease) = state.leases.get(&lease).filter(|_| self.waits_count) else { return };
        let submitted = state.requests.get(&lease.request).map_or(lease.placed_at, |request| request.submitted_at);
        let member = MEMBERS.iter().position(|member| member.name == lease.institution.as_str());
        if let Some(waits) = member.and_then(|member| self.waits.get_mut(member)) {
            waits.push(lease.placed_at.since(submitted).0);
        }
    }

    /// Keeps one sample an hour for the plot; `elapsed` is in milliseconds.
    pub(super) fn sample(&mut self, usage: &Usage, elapsed: u64) {
        let hour = elapsed / HOUR;
        if self.samples.last().is_some_and(|last| last.hour == hour) {
            return;
        }
        let mut held = vec![0; MEMBERS.len()];
        for (tenant, (_, of, _)) in TENANTS.iter().enumerate() {
            held[*of] += usage.held_milli[tenant] / 1_000;
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
                    gpus: GPUS_PER_NODE * nodes[at],
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

/// Each tenant's entitled fraction of the used GPUs while all tenants are backlogged.
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
