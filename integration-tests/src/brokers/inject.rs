//! Carries the faults out, one after the other, and measures how long it takes until the group is well again.

mod members;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::time::{Instant, sleep};

use super::disk::Writes;
use super::group::{Group, RECOVERY, SEATS};
use super::schedule::{Fault, FaultKind};
use members::Victim;

/// How often it is looked whether brokers run and the group is well.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How long a line is cut, and whole, while it flaps.
const FLAP: Duration = Duration::from_millis(400);
/// How long a broker is away before another loses its disk.
const AWAY: Duration = Duration::from_secs(2);

/// How many faults of a kind, and how long each recovery took.
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

    /// Carries out faults for `length`, and lets the group get well after the last.
    ///
    /// # Errors
    /// When a fault cannot be carried out.
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
            self.carry_out(&fault, hit).await.with_context(|| format!("{name} {broker}"))?;
            let over = Instant::now();
            let well = self.get_well(fault.kind).await;
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
        let leader = if fault.kind.is_of_leader() { self.group.leader().await } else { None };
        leader.unwrap_or(fault.target)
    }

    async fn carry_out(&mut self, fault: &Fault, hit: u64) -> Result<()> {
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
            FaultKind::DiskWipedBehind => self.wipe_behind(fault, hit).await?,
            FaultKind::LeaderTransferred => self.transfer(fault, hit).await?,
            FaultKind::MemberReplaced | FaultKind::LeaderReplaced => self.replace(fault, hit, None).await?,
            FaultKind::SuccessorKilled => self.replace(fault, hit, Some(Victim::Successor)).await?,
            FaultKind::LeaderKilledInReplacement => self.replace(fault, hit, Some(Victim::Leader)).await?,
        }
        Ok(())
    }

    /// `hit` is away, then meets another that lost its disk; the third, which has everything, comes back last.
    async fn wipe_behind(&mut self, fault: &Fault, hit: u64) -> Result<()> {
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

    /// Waits until the fault is over. Brokers that end by themselves and must not are noted and started again.
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
                let why = self.group.last_words(id);
                self.violated(format!("broker {id} ended by itself during or after {}: {why}", kind.name()));
            }
            self.group.start_broker(id)?;
        }
        Ok(())
    }

    async fn get_well(&mut self, kind: FaultKind) -> Result<()> {
        let until = Instant::now() + RECOVERY;
        loop {
            self.start_ended(kind)?;
            match self.group.well().await {
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

/// The seat after this one, around.
fn next(seat: u64) -> u64 {
    seat % *SEATS.end() + 1
}
