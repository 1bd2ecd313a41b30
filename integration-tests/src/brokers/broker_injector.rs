//! Injects faults one after another and measures the recovery of the group.

mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::broker_faults::{BrokerFault, BrokerFaultKind};
use super::disk::Writes;
use super::group::{GROUP_RECOVERY_TIMEOUT, Group};
use super::host::SEATS;
use members::Victim;

/// Interval of the checks of processes and group health.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Duration of each cut, and of each pause, while a connection flaps.
const FLAP_INTERVAL: Duration = Duration::from_millis(400);
/// Time for which a broker is down before another loses its disk.
const DOWNTIME: Duration = Duration::from_secs(2);

/// Recovery times by kind of fault.
pub(super) type Figures = BTreeMap<BrokerFaultKind, Vec<Duration>>;

pub(super) struct BrokerInjector<'a> {
    group: &'a mut Group,
    figures: Figures,
    violations: Vec<String>,
}

impl<'a> BrokerInjector<'a> {
    pub(super) fn new(group: &'a mut Group) -> Self {
        Self { group, figures: Figures::new(), violations: Vec::new() }
    }

    /// Injects faults for `length`, and waits for the recovery after the last.
    ///
    /// # Errors
    /// When a fault cannot be injected.
    pub(super) async fn run(
        mut self,
        faults: impl Iterator<Item = BrokerFault>,
        length: Duration,
    ) -> Result<(Figures, Vec<String>)> {
        let start = Instant::now();
        for fault in faults {
            if start.elapsed() + fault.lasts > length {
                break;
            }
            let hit = self.hit(&fault).await;
            let (name, broker) = (fault.kind.name(), self.group.member(hit)?);
            eprintln!("{:>7.1} s  {name} {broker}, {:?}", start.elapsed().as_secs_f64(), fault.lasts);
            self.inject(&fault, hit).await.with_context(|| format!("{name} {broker}"))?;
            let over = Instant::now();
            let well = self.await_recovery(fault.kind).await;
            self.figures.entry(fault.kind).or_default().push(over.elapsed());
            if let Err(error) = well {
                self.violated(format!("not healthy {GROUP_RECOVERY_TIMEOUT:?} after {name} {broker}: {error:#}"));
                break;
            }
            sleep(fault.calm).await;
        }
        Ok((self.figures, self.violations))
    }

    fn violated(&mut self, what: String) {
        if !self.violations.contains(&what) {
            eprintln!("VIOLATED: {what}");
            self.violations.push(what);
        }
    }

    async fn hit(&self, fault: &BrokerFault) -> u64 {
        let leader = if fault.kind.targets_leader() { self.group.leader().await } else { None };
        leader.unwrap_or(fault.target)
    }

    async fn inject(&mut self, fault: &BrokerFault, hit: u64) -> Result<()> {
        let others = SEATS.filter(|seat| *seat != hit);
        match fault.kind {
            BrokerFaultKind::BrokerKilled | BrokerFaultKind::LeaderKilled => {
                self.group.kill(hit).await?;
                self.hold(fault).await?;
                self.group.start_on(hit)?;
            }
            BrokerFaultKind::AllKilled => {
                self.each(SEATS, Power::Off).await?;
                self.hold(fault).await?;
                self.each(SEATS, Power::On).await?;
            }
            BrokerFaultKind::BrokerStopped | BrokerFaultKind::LeaderStopped => {
                self.group.signal(hit, "STOP").await?;
                self.hold(fault).await?;
                self.group.signal(hit, "CONT").await?;
            }
            BrokerFaultKind::Isolated | BrokerFaultKind::LeaderIsolated => {
                self.group.hosts.isolate(hit)?;
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            BrokerFaultKind::Deaf | BrokerFaultKind::Mute => {
                for other in others {
                    let (from, to) = if fault.kind == BrokerFaultKind::Deaf { (other, hit) } else { (hit, other) };
                    self.group.hosts.cut(from, to)?;
                }
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            BrokerFaultKind::PairCut => {
                let other = next(hit);
                self.group.hosts.cut(hit, other)?;
                self.group.hosts.cut(other, hit)?;
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            BrokerFaultKind::Flapping => self.flap(fault, hit).await?,
            BrokerFaultKind::ClockStep | BrokerFaultKind::LeaderClockStep => {
                self.group.hosts.set_clock(hit, fault.step_s)?;
                self.hold(fault).await?;
                self.group.hosts.set_clock(hit, 0)?;
            }
            BrokerFaultKind::MajorityClockStep => {
                self.group.hosts.set_clock(hit, fault.step_s)?;
                self.group.hosts.set_clock(next(hit), fault.step_s)?;
                self.hold(fault).await?;
                self.group.hosts.set_clock(hit, 0)?;
                self.group.hosts.set_clock(next(hit), 0)?;
            }
            BrokerFaultKind::DiskFull => {
                self.group.hosts.disk(hit)?.fill()?;
                self.hold(fault).await?;
                self.group.hosts.disk(hit)?.empty()?;
            }
            BrokerFaultKind::DiskSlow | BrokerFaultKind::DiskReadOnly | BrokerFaultKind::DiskFailing => {
                let (slower, writes) = match fault.kind {
                    BrokerFaultKind::DiskReadOnly => (Duration::ZERO, Writes::ReadOnly),
                    BrokerFaultKind::DiskFailing => (Duration::ZERO, Writes::Failing),
                    _ => (fault.slower, Writes::Done),
                };
                self.group.hosts.disk(hit)?.disturb(slower, writes)?;
                self.hold(fault).await?;
                self.group.hosts.disk(hit)?.disturb(Duration::ZERO, Writes::Done)?;
            }
            BrokerFaultKind::DiskWiped => {
                self.group.kill(hit).await?;
                self.group.wipe(hit)?;
                self.hold(fault).await?;
                self.group.start_on(hit)?;
            }
            BrokerFaultKind::DiskWipedBehind => self.wipe_up_to_date_peer(fault, hit).await?,
            BrokerFaultKind::LeaderTransferred => self.transfer(fault, hit).await?,
            BrokerFaultKind::MemberReplaced | BrokerFaultKind::LeaderReplaced => self.replace(fault, hit, None).await?,
            BrokerFaultKind::SuccessorKilled => self.replace(fault, hit, Some(Victim::Successor)).await?,
            BrokerFaultKind::LeaderKilledInReplacement => self.replace(fault, hit, Some(Victim::Leader)).await?,
        }
        Ok(())
    }

    /// Broker `hit` lags while down, then restarts with a broker that lost its disk; the third, up-to-date one restarts
    /// last.
    async fn wipe_up_to_date_peer(&mut self, fault: &BrokerFault, hit: u64) -> Result<()> {
        let (wiped, whole) = (next(hit), next(next(hit)));
        self.group.kill(hit).await?;
        sleep(DOWNTIME).await;
        self.group.kill(wiped).await?;
        self.group.kill(whole).await?;
        self.group.wipe(wiped)?;
        self.group.start_on(wiped)?;
        self.group.start_on(hit)?;
        self.hold(fault).await?;
        self.group.start_on(whole)
    }

    async fn flap(&mut self, fault: &BrokerFault, hit: u64) -> Result<()> {
        let until = Instant::now() + fault.lasts;
        while Instant::now() < until {
            self.group.hosts.isolate(hit)?;
            sleep(FLAP_INTERVAL).await;
            self.group.hosts.join()?;
            sleep(FLAP_INTERVAL).await;
        }
        Ok(())
    }

    async fn each(&mut self, seats: impl Iterator<Item = u64>, power: Power) -> Result<()> {
        for seat in seats {
            match power {
                Power::On => self.group.start_on(seat)?,
                Power::Off => self.group.kill(seat).await?,
            }
        }
        Ok(())
    }

    /// Waits until the fault ends. Restarts brokers that end by themselves, and records those that must not.
    async fn hold(&mut self, fault: &BrokerFault) -> Result<()> {
        let until = Instant::now() + fault.lasts;
        while Instant::now() < until {
            sleep(GROUP_POLL_INTERVAL).await;
            if !fault.kind.may_end_brokers() {
                self.start_ended(fault.kind)?;
            }
        }
        Ok(())
    }

    fn start_ended(&mut self, kind: BrokerFaultKind) -> Result<()> {
        for id in self.group.ended()? {
            if !kind.may_end_brokers() {
                let why = self.group.last_log_line(id);
                self.violated(format!("broker {id} ended by itself during or after {}: {why}", kind.name()));
            }
            self.group.start_broker(id)?;
        }
        Ok(())
    }

    async fn await_recovery(&mut self, kind: BrokerFaultKind) -> Result<()> {
        let until = Instant::now() + GROUP_RECOVERY_TIMEOUT;
        loop {
            self.start_ended(kind)?;
            match self.group.check_healthy().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => sleep(GROUP_POLL_INTERVAL).await,
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Power {
    On,
    Off,
}

/// The next seat, cyclically.
fn next(seat: u64) -> u64 {
    seat % *SEATS.end() + 1
}
