//! Draws the order and parameters of faults from a seed.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::host::SEATS;
use crate::chaos::dice::Dice;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokerFaultKind {
    /// A broker gets SIGKILL and restarts later.
    BrokerKilled,
    /// The same for the leader.
    LeaderKilled,
    /// The same for all brokers.
    AllKilled,
    /// A broker gets SIGSTOP, and SIGCONT later.
    BrokerStopped,
    /// The same for the leader.
    LeaderStopped,
    /// A broker is cut off from the others in both directions.
    Isolated,
    /// The leader is cut off from the others in both directions.
    LeaderIsolated,
    /// A broker receives nothing from the others, but they receive from it.
    Deaf,
    /// The others receive nothing from a broker, but it receives from them.
    Mute,
    /// Two brokers are cut off from each other.
    PairCut,
    /// A broker is isolated and reconnected repeatedly.
    Flapping,
    /// The clock of a broker jumps, and back later.
    ClockStep,
    /// The clock of the leader jumps, and back later.
    LeaderClockStep,
    /// The clocks of two brokers jump by the same time, and back later.
    MajorityClockStep,
    /// A broker's disk is full.
    DiskFull,
    /// Each sync of a broker's disk is slow.
    DiskSlow,
    /// A broker's disk is read-only.
    DiskReadOnly,
    /// A broker's disk fails: writes end with EIO.
    DiskFailing,
    /// A broker loses its disk while the others are healthy.
    DiskWiped,
    /// A broker is down for a while; then the others stop, one of them loses its disk, and those two restart. The
    /// third, up-to-date one restarts last.
    DiskWipedBehind,
    /// Leadership moves to a named member, and from it to the member with the longest log.
    LeaderTransferred,
    /// A new broker replaces a member.
    MemberReplaced,
    /// A new broker replaces the leader.
    LeaderReplaced,
    /// A new broker replaces a member and gets SIGKILL during the replacement.
    SuccessorKilled,
    /// A new broker replaces a member, and the leader gets SIGKILL during the replacement.
    LeaderKilledInReplacement,
}

impl BrokerFaultKind {
    /// All kinds.
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

    /// The name in reports and on the command line.
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

    /// Whether the fault targets the leader.
    pub(super) const fn targets_leader(self) -> bool {
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

    /// Whether brokers may exit during the fault; they restart after it.
    pub(super) const fn may_end_brokers(self) -> bool {
        matches!(self, Self::DiskFull | Self::DiskReadOnly | Self::DiskFailing)
    }

    /// Range of the duration, in milliseconds.
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

impl std::str::FromStr for BrokerFaultKind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::name).join(", ");
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| format!("write one of {}", names()))
    }
}

/// Number of member changes in a replacement.
pub(super) const REPLACEMENT: usize = 3;
/// Seconds by which clocks jump.
const STEPS_S: [i64; 5] = [7_200, -7_200, 90_000, -90_000, 315_360_000];

/// One fault.
#[derive(Clone, Debug)]
pub(super) struct BrokerFault {
    pub(super) kind: BrokerFaultKind,
    /// The seat, unless the fault targets the leader.
    pub(super) target: u64,
    pub(super) lasts: Duration,
    /// Clock step in seconds.
    pub(super) step_s: i64,
    /// Additional time of each disk sync.
    pub(super) slower: Duration,
    /// Index of the interrupted change of a replacement, and the time from its start to the interruption.
    pub(super) breaks: (usize, Duration),
    /// Pause after the fault.
    pub(super) calm: Duration,
}

/// An endless sequence of faults: random permutations of all kinds but `without`.
///
/// # Errors
/// When `without` names all kinds.
pub(super) fn schedule(seed: u64, without: &[BrokerFaultKind]) -> Result<impl Iterator<Item = BrokerFault>> {
    let kinds: Vec<BrokerFaultKind> = BrokerFaultKind::ALL.into_iter().filter(|kind| !without.contains(kind)).collect();
    ensure!(!kinds.is_empty(), "all kinds of faults are left out: leave some");
    let (mut dice, mut left) = (Dice::new(seed), Vec::new());
    Ok(std::iter::from_fn(move || {
        if left.is_empty() {
            left.clone_from(&kinds);
        }
        let kind = left.swap_remove(dice.index(left.len()));
        Some(BrokerFault {
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
            schedule(seed, &[])
                .unwrap()
                .take(2 * BrokerFaultKind::ALL.len())
                .map(|fault| format!("{fault:?}"))
                .collect()
        };
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        let kinds: Vec<BrokerFaultKind> =
            schedule(7, &[]).unwrap().take(BrokerFaultKind::ALL.len()).map(|fault| fault.kind).collect();
        assert!(BrokerFaultKind::ALL.iter().all(|kind| kinds.contains(kind)));
    }

    #[test]
    fn kinds_are_left_out_by_name() {
        let without: Vec<BrokerFaultKind> = ["clock-step", "disk-wiped"].map(|name| name.parse().unwrap()).into();
        assert!(schedule(1, &without).unwrap().take(100).all(|fault| !without.contains(&fault.kind)));
        assert!(schedule(1, &BrokerFaultKind::ALL).is_err());
        assert!("meteor".parse::<BrokerFaultKind>().unwrap_err().contains("disk-full"));
    }
}
