//! Which faults come, in which order: drawn from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::group::SEATS;
use crate::chaos::dice::Dice;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A broker gets SIGKILL, and is started again later.
    BrokerKilled,
    /// The leader does.
    LeaderKilled,
    /// All brokers do.
    AllKilled,
    /// A broker gets SIGSTOP, and SIGCONT later.
    BrokerStopped,
    /// The leader does.
    LeaderStopped,
    /// A broker hears none of the others, and they do not hear it.
    Isolated,
    /// The leader hears none of the others, and they do not hear it.
    LeaderIsolated,
    /// A broker does not hear the others, who hear it.
    Deaf,
    /// The others do not hear a broker, who hears them.
    Mute,
    /// Two brokers do not hear each other.
    PairCut,
    /// A broker is isolated and not, in turn, many times.
    Flapping,
    /// The clock of a broker jumps, and back later.
    ClockStep,
    /// The clock of the leader jumps, and back later.
    LeaderClockStep,
    /// The clocks of two brokers jump by the same time, and back later.
    MajorityClockStep,
    /// The disk of a broker has no room.
    DiskFull,
    /// Each sync of a broker's disk takes long.
    DiskSlow,
    /// A broker's disk takes no writes.
    DiskReadOnly,
    /// A broker's disk fails: writes end with EIO.
    DiskFailing,
    /// A broker loses its disk while the others are well.
    DiskWiped,
    /// A broker is away for a while; then the others stop, one of them loses its disk, and those two are started. The
    /// third has everything, and is started later.
    DiskWipedBehind,
    /// The leader hands over to a member that is named, and that one to whose log is furthest.
    LeaderTransferred,
    /// Another broker takes the place of a member.
    MemberReplaced,
    /// Another broker takes the place of the leader.
    LeaderReplaced,
    /// Another broker takes the place of a member, and gets SIGKILL in the middle of it.
    SuccessorKilled,
    /// Another broker takes the place of a member, and who leads gets SIGKILL in the middle of it.
    LeaderKilledInReplacement,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::BrokerKilled,
        Self::LeaderKilled,
        Self::AllKilled,
        Self::BrokerStopped,
        Self::LeaderStopped,
        Self::Isolated,
        Self::LeaderIsolated,
        Self::Deaf,
        Self::Mute,
        Self::PairCut,
        Self::Flapping,
        Self::ClockStep,
        Self::LeaderClockStep,
        Self::MajorityClockStep,
        Self::DiskFull,
        Self::DiskSlow,
        Self::DiskReadOnly,
        Self::DiskFailing,
        Self::DiskWiped,
        Self::DiskWipedBehind,
        Self::LeaderTransferred,
        Self::MemberReplaced,
        Self::LeaderReplaced,
        Self::SuccessorKilled,
        Self::LeaderKilledInReplacement,
    ];

    /// Its name in figures and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BrokerKilled => "broker-killed",
            Self::LeaderKilled => "leader-killed",
            Self::AllKilled => "all-killed",
            Self::BrokerStopped => "broker-stopped",
            Self::LeaderStopped => "leader-stopped",
            Self::Isolated => "isolated",
            Self::LeaderIsolated => "leader-isolated",
            Self::Deaf => "deaf",
            Self::Mute => "mute",
            Self::PairCut => "pair-cut",
            Self::Flapping => "flapping",
            Self::ClockStep => "clock-step",
            Self::LeaderClockStep => "leader-clock-step",
            Self::MajorityClockStep => "majority-clock-step",
            Self::DiskFull => "disk-full",
            Self::DiskSlow => "disk-slow",
            Self::DiskReadOnly => "disk-read-only",
            Self::DiskFailing => "disk-failing",
            Self::DiskWiped => "disk-wiped",
            Self::DiskWipedBehind => "disk-wiped-behind",
            Self::LeaderTransferred => "leader-transferred",
            Self::MemberReplaced => "member-replaced",
            Self::LeaderReplaced => "leader-replaced",
            Self::SuccessorKilled => "successor-killed",
            Self::LeaderKilledInReplacement => "leader-killed-in-replacement",
        }
    }

    /// Whether it befalls whoever leads.
    pub(super) const fn is_of_leader(self) -> bool {
        matches!(
            self,
            Self::LeaderKilled
                | Self::LeaderStopped
                | Self::LeaderIsolated
                | Self::LeaderClockStep
                | Self::LeaderTransferred
                | Self::LeaderReplaced
        )
    }

    /// Whether a broker may end by itself under it; it is started again when it is over.
    pub(super) const fn may_end_brokers(self) -> bool {
        matches!(self, Self::DiskFull | Self::DiskReadOnly | Self::DiskFailing)
    }

    /// How long it lasts, in milliseconds.
    const fn lasts_ms(self) -> RangeInclusive<u64> {
        match self {
            Self::BrokerKilled | Self::LeaderKilled | Self::AllKilled | Self::DiskWiped => 200..=4_000,
            Self::DiskWipedBehind => 4_000..=8_000,
            Self::LeaderTransferred | Self::MemberReplaced | Self::LeaderReplaced => 100..=1_000,
            Self::SuccessorKilled | Self::LeaderKilledInReplacement => 100..=3_000,
            _ => 1_000..=8_000,
        }
    }
}

impl std::str::FromStr for FaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("write one of {}", names()))
    }
}

/// Changes that a replacement consists of.
pub(super) const REPLACEMENT: usize = 3;
/// Seconds by which clocks jump.
const STEPS_S: [i64; 5] = [7_200, -7_200, 90_000, -90_000, 315_360_000];

/// One fault.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The seat that it befalls, unless it is the leader's.
    pub(super) target: u64,
    pub(super) lasts: Duration,
    /// By how much a clock jumps.
    pub(super) step_s: i64,
    /// By how much a sync is slower.
    pub(super) slower: Duration,
    /// Which change of a replacement is broken off, counted from 0, and how long after it began.
    pub(super) breaks: (usize, Duration),
    /// Calm after it.
    pub(super) calm: Duration,
}

/// Faults without end. Each kind comes once before any comes again, in an order of its own each time.
///
/// # Errors
/// When no kind is left.
pub(super) fn schedule(seed: u64, without: &[FaultKind]) -> Result<impl Iterator<Item = Fault>> {
    let kinds: Vec<FaultKind> = FaultKind::ALL.into_iter().filter(|kind| !without.contains(kind)).collect();
    ensure!(!kinds.is_empty(), "all kinds of faults are left out: leave some");
    let (mut dice, mut left) = (Dice::new(seed), Vec::new());
    Ok(std::iter::from_fn(move || {
        if left.is_empty() {
            left.clone_from(&kinds);
        }
        let kind = left.swap_remove(dice.index(left.len()));
        Some(Fault {
            kind,
            target: dice.within(SEATS),
            lasts: dice.time(kind.lasts_ms()),
            step_s: STEPS_S[dice.index(STEPS_S.len())],
            slower: dice.time(100..=2_000),
            breaks: (dice.index(REPLACEMENT), dice.time(0..=300)),
            calm: dice.time(200..=1_500),
        })
    }))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_faults_and_every_kind_comes_in_turn() {
        let drawn = |seed| -> Vec<String> {
            schedule(seed, &[]).unwrap().take(2 * FaultKind::ALL.len()).map(|fault| format!("{fault:?}")).collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let kinds: Vec<FaultKind> =
            schedule(7, &[]).unwrap().take(FaultKind::ALL.len()).map(|fault| fault.kind).collect();
        assert!(FaultKind::ALL.iter().all(|kind| kinds.contains(kind)));
    }

    #[test]
    fn kinds_are_left_out_by_name() {
        let without: Vec<FaultKind> = ["clock-step", "disk-wiped"].map(|name| name.parse().unwrap()).into();
        assert!(schedule(1, &without).unwrap().take(100).all(|fault| !without.contains(&fault.kind)));
        assert!(schedule(1, &FaultKind::ALL).is_err());
        assert!("meteor".parse::<FaultKind>().unwrap_err().contains("disk-full"));
    }
}
