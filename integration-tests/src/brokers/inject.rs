//! Injects faults one after another and measures the recovery of the group.

mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::disk::Writes;
use super::group::{Group, RECOVERY};
use super::host::SEATS;
use super::schedule::{Fault, FaultKind};
use members::Victim;

/// Interval of the checks of processes and group health.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Duration of each cut, and of each pause, while a connection flaps.
const FLAP: Duration = Duration::from_millis(400);
/// Time for which a broker is down before another loses its disk.
const AWAY: Duration = Duration::from_secs(2);

/// Recovery times by kind of fault.
pub(super) type Figures = BTreeMap<FaultKind, Vec<Duration>>;

pub(super) struct Injector<'a> {
    group: &'a mut Group,
    figures: Figures,
    violations: Vec<String>,
}

impl<'a> Injector<'a> {
    pub(super) fn new(group: &'a mut Group) -> Self {
        Self { group, figures: Figures::new(), violations: Vec::new() }
    }

    /// Injects faults for `length`, and waits for the recovery after the last.
    ///
    /// # Errors
    /// When a fault cannot be injected.
    pub(super) async fn run(
        mut self,
        faults: impl Iterator<Item = Fault>,
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
                self.violated(format!("not well {RECOVERY:?} after {name} {broker}: {error:#}"));
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

    async fn hit(&self, fault: &Fault) -> u64 {
        let leader = if fault.kind.targets_leader() { self.group.leader().await } else { None };
        leader.unwrap_or(fault.target)
    }

    async fn inject(&mut self, fault: &Fault, hit: u64) -> Result<()> {
        let others = SEATS.filter(|seat| *seat != hit);
        match fault.kind {
            FaultKind::BrokerKilled | FaultKind::LeaderKilled => {
                self.group.kill(hit).await?;
                self.hold(fault).await?;
                self.group.start_on(hit)?;
            }
            FaultKind::AllKilled => {
                self.each(SEATS, Power::Off).await?;
                self.hold(fault).await?;
                self.each(SEATS, Power::On).await?;
            }
            FaultKind::BrokerStopped | FaultKind::LeaderStopped => {
                self.group.signal(hit, "STOP").await?;
                self.hold(fault).await?;
                self.group.signal(hit, "CONT").await?;
            }
            FaultKind::Isolated | FaultKind::LeaderIsolated => {
                self.group.hosts.isolate(hit)?;
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            FaultKind::Deaf | FaultKind::Mute => {
                for other in others {
                    let (from, to) = if fault.kind == FaultKind::Deaf { (other, hit) } else { (hit, other) };
                    self.group.hosts.cut(from, to)?;
                }
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            FaultKind::PairCut => {
                let other = next(hit);
                self.group.hosts.cut(hit, other)?;
                self.group.hosts.cut(other, hit)?;
                self.hold(fault).await?;
                self.group.hosts.join()?;
            }
            FaultKind::Flapping => self.flap(fault, hit).await?,
            FaultKind::ClockStep | FaultKind::LeaderClockStep => {
                self.group.hosts.set_clock(hit, fault.step_s)?;
                self.hold(fault).await?;
                self.group.hosts.set_clock(hit, 0)?;
            }
            FaultKind::MajorityClockStep => {
                self.group.hosts.set_clock(hit, fault.step_s)?;
                self.group.hosts.set_clock(next(hit), fault.step_s)?;
                self.hold(fault).await?;
                self.group.hosts.set_clock(hit, 0)?;
                self.group.hosts.set_clock(next(hit), 0)?;
            }
            FaultKind::DiskFull => {
                self.group.hosts.disk(hit)?.fill()?;
                self.hold(fault).await?;
                self.group.hosts.disk(hit)?.empty()?;
            }
            FaultKind::DiskSlow | FaultKind::DiskReadOnly | FaultKind::DiskFailing => {
                let (slower, writes) = match fault.kind {
                    FaultKind::DiskReadOnly => (Duration::ZERO, Writes::ReadOnly),
                    FaultKind::DiskFailing => (Duration::ZERO, Writes::Failing),
                    _ => (fault.slower, Writes::Done),
                };
                self.group.hosts.disk(hit)?.disturb(slower, writes)?;
                self.hold(fault).await?;
                self.group.hosts.disk(hit)?.disturb(Duration::ZERO, Writes::Done)?;
            }
            FaultKind::DiskWiped => {
                self.group.kill(hit).await?;
                self.group.wipe(hit)?;
                self.hold(fault).await?;
                self.group.start_on(hit)?;
            }
            FaultKind::DiskWipedBehind => self.wipe_up_to_date_peer(fault, hit).await?,
            FaultKind::LeaderTransferred => self.transfer(fault, hit).await?,
            FaultKind::MemberReplaced | FaultKind::LeaderReplaced => self.replace(fault, hit, None).await?,
            FaultKind::SuccessorKilled => self.replace(fault, hit, Some(Victim::Successor)).await?,
            FaultKind::LeaderKilledInReplacement => self.replace(fault, hit, Some(Victim::Leader)).await?,
        }
        Ok(())
    }

    /// Broker `hit` lags while down, then restarts with a broker that lost its disk; the third, up-to-date one restarts
    /// last.
    async fn wipe_up_to_date_peer(&mut self, fault: &Fault, hit: u64) -> Result<()> {
        let (wiped, whole) = (next(hit), next(next(hit)));
        self.group.kill(hit).await?;
        sleep(AWAY).await;
        self.group.kill(wiped).await?;
        self.group.kill(whole).await?;
        self.group.wipe(wiped)?;
        self.group.start_on(wiped)?;
        self.group.start_on(hit)?;
        self.hold(fault).await?;
        self.group.start_on(whole)
    }

    async fn flap(&mut self, fault: &Fault, hit: u64) -> Result<()> {
        let until = Instant::now() + fault.lasts;
        while Instant::now() < until {
            self.group.hosts.isolate(hit)?;
            sleep(FLAP).await;
            self.group.hosts.join()?;
            sleep(FLAP).await;
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
    async fn hold(&mut self, fault: &Fault) -> Result<()> {
        let until = Instant::now() + fault.lasts;
        while Instant::now() < until {
            sleep(LOOK_EVERY).await;
            if !fault.kind.may_end_brokers() {
                self.start_ended(fault.kind)?;
            }
        }
        Ok(())
    }

    fn start_ended(&mut self, kind: FaultKind) -> Result<()> {
        for id in self.group.ended()? {
            if !kind.may_end_brokers() {
                let why = self.group.last_log_line(id);
                self.violated(format!("broker {id} ended by itself during or after {}: {why}", kind.name()));
            }
            self.group.start_broker(id)?;
        }
        Ok(())
    }

    async fn await_recovery(&mut self, kind: FaultKind) -> Result<()> {
        let until = Instant::now() + RECOVERY;
        loop {
            self.start_ended(kind)?;
            match self.group.check_healthy().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => sleep(LOOK_EVERY).await,
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
