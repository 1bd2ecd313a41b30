//! Draws all faults and their times from a seed before the run, so that a run can be repeated.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::dice::Dice;

/// Number of brokers.
pub const BROKER_COUNT: usize = 3;
/// Interval of faults in milliseconds.
const FAULT_INTERVAL_MS: RangeInclusive<u64> = 800..=4_000;
/// Time for a target to recover before its next fault.
const RECOVERY_INTERVAL: Duration = Duration::from_secs(4);

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FederationFaultKind {
    /// A broker gets SIGKILL and restarts later.
    BrokerKilled,
    /// The same for the leader.
    LeaderKilled,
    /// The same for all brokers.
    AllBrokersKilled,
    /// A broker gets SIGSTOP, and SIGCONT later.
    BrokerStopped,
    /// The leader gets SIGSTOP, and SIGCONT after another one was elected.
    LeaderStopped,
    /// An agent gets SIGKILL and restarts later.
    AgentKilled,
    /// An agent gets SIGSTOP, and SIGCONT later.
    AgentStopped,
    /// An agent is cut off from all brokers in both directions.
    AgentCut,
    /// A cluster's API server gets SIGKILL and restarts later.
    ApiServerKilled,
    /// The donor's own pods take GPUs.
    LocalUse,
    /// A pod of a lease is bound by hand to a node that the lease does not have.
    PodDrifted,
    /// A pod of the donor's own is bound by hand to a node with leases, and takes all its GPUs.
    LeasedNodeUsed,
}

/// The target of a fault; faults of one target never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Brokers,
    Agent(usize),
    ApiServer(usize),
    Nodes(usize),
}

impl FederationFaultKind {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::BrokerKilled,
        Self::LeaderKilled,
        Self::AllBrokersKilled,
        Self::BrokerStopped,
        Self::LeaderStopped,
        Self::AgentKilled,
        Self::AgentStopped,
        Self::AgentCut,
        Self::ApiServerKilled,
        Self::LocalUse,
        Self::PodDrifted,
        Self::LeasedNodeUsed,
    ];

    /// The name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BrokerKilled => "broker-killed",
            Self::LeaderKilled => "leader-killed",
            Self::AllBrokersKilled => "all-brokers-killed",
            Self::BrokerStopped => "broker-stopped",
            Self::LeaderStopped => "leader-stopped",
            Self::AgentKilled => "agent-killed",
            Self::AgentStopped => "agent-stopped",
            Self::AgentCut => "agent-cut",
            Self::ApiServerKilled => "api-server-killed",
            Self::LocalUse => "local-use",
            Self::PodDrifted => "pod-drifted",
            Self::LeasedNodeUsed => "leased-node-used",
        }
    }

    /// Relative frequency.
    const fn weight(self) -> u64 {
        match self {
            Self::AllBrokersKilled => 1,
            Self::BrokerKilled | Self::BrokerStopped | Self::LeaderKilled | Self::LeaderStopped | Self::LocalUse => 2,
            Self::PodDrifted | Self::LeasedNodeUsed => 3,
            Self::ApiServerKilled => 4,
            Self::AgentStopped | Self::AgentCut => 5,
            Self::AgentKilled => 6,
        }
    }

    /// Range of the duration in milliseconds. For agents it spans the heartbeat timeout.
    const fn lasts_ms(self) -> RangeInclusive<u64> {
        match self {
            Self::BrokerKilled | Self::LeaderKilled => 200..=8_000,
            Self::AllBrokersKilled => 200..=5_000,
            Self::BrokerStopped | Self::LeaderStopped => 1_000..=8_000,
            Self::AgentKilled => 100..=12_000,
            Self::AgentStopped | Self::AgentCut => 1_000..=20_000,
            Self::ApiServerKilled => 100..=8_000,
            Self::LocalUse => 8_000..=40_000,
            // They last until they are corrected.
            Self::PodDrifted | Self::LeasedNodeUsed => 5_000..=15_000,
        }
    }
}

/// Number of clusters by kind.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Clusters that lend. They are numbered from 0.
    pub donors: usize,
    /// Clusters that borrow. They are numbered after the donors.
    pub origins: usize,
    /// Clusters with an API server, the first ones.
    pub control_planes: usize,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FederationFault {
    /// Start of the fault, relative to the start of the run.
    pub at: Duration,
    /// Kind of the fault.
    pub kind: FederationFaultKind,
    /// Index of the broker (0 to 2), agent, API server or donor; a leader is determined at the start of the fault.
    pub target: usize,
    /// Duration of the fault.
    pub lasts: Duration,
}

/// The faults of a run in order of time; all end within `length`.
#[must_use]
pub fn schedule(seed: u64, shape: Shape, length: Duration) -> Vec<FederationFault> {
    let mut dice = Dice::new(seed);
    let mut free: BTreeMap<Object, Duration> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        at += dice.time(FAULT_INTERVAL_MS);
        if at >= length {
            return faults;
        }
        let (kind, object, target) = draw(&mut dice, shape);
        let lasts = dice.time(kind.lasts_ms());
        let busy = free.get(&object).is_some_and(|until| *until > at);
        if !busy && at + lasts <= length {
            free.insert(object, at + lasts + RECOVERY_INTERVAL);
            faults.push(FederationFault { at, kind, target, lasts });
        }
    }
}

fn draw(dice: &mut Dice, shape: Shape) -> (FederationFaultKind, Object, usize) {
    let all: u64 = FederationFaultKind::ALL.iter().map(|kind| kind.weight()).sum();
    let mut left = dice.within(1..=all);
    let mut drawn = FederationFaultKind::AgentKilled;
    for kind in FederationFaultKind::ALL {
        drawn = kind;
        if left <= kind.weight() {
            break;
        }
        left -= kind.weight();
    }
    match drawn {
        FederationFaultKind::BrokerKilled
        | FederationFaultKind::LeaderKilled
        | FederationFaultKind::AllBrokersKilled
        | FederationFaultKind::BrokerStopped
        | FederationFaultKind::LeaderStopped => (drawn, Object::Brokers, dice.index(BROKER_COUNT)),
        FederationFaultKind::AgentKilled | FederationFaultKind::AgentStopped | FederationFaultKind::AgentCut => {
            let agent = dice.index(shape.donors + shape.origins);
            (drawn, Object::Agent(agent), agent)
        }
        FederationFaultKind::ApiServerKilled => {
            let plane = dice.index(shape.control_planes);
            (drawn, Object::ApiServer(plane), plane)
        }
        FederationFaultKind::LocalUse | FederationFaultKind::PodDrifted | FederationFaultKind::LeasedNodeUsed => {
            let donor = dice.index(shape.donors);
            (drawn, Object::Nodes(donor), donor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { donors: 5, origins: 10, control_planes: 8 };
    const LENGTH: Duration = Duration::from_secs(900);

    #[test]
    fn a_seed_repeats_its_faults() {
        assert_eq!(schedule(1, SHAPE, LENGTH), schedule(1, SHAPE, LENGTH));
        assert_ne!(schedule(1, SHAPE, LENGTH), schedule(2, SHAPE, LENGTH));
    }

    #[test]
    fn every_kind_occurs_and_all_faults_end() {
        for seed in 0..20 {
            let faults = schedule(seed, SHAPE, LENGTH);
            for kind in FederationFaultKind::ALL {
                assert!(faults.iter().any(|fault| fault.kind == kind), "seed {seed} has no {kind:?}");
            }
            assert!(faults.iter().all(|fault| fault.at + fault.lasts <= LENGTH));
            assert!(faults.is_sorted_by_key(|fault| fault.at));
        }
    }

    #[test]
    fn faults_of_brokers_never_overlap() {
        let is_broker = |fault: &&FederationFault| fault.kind <= FederationFaultKind::LeaderStopped;
        for seed in 0..20 {
            let faults = schedule(seed, SHAPE, LENGTH);
            let brokers: Vec<&FederationFault> = faults.iter().filter(is_broker).collect();
            assert!(
                brokers.windows(2).all(|pair| pair[0].at + pair[0].lasts + RECOVERY_INTERVAL <= pair[1].at),
                "seed {seed}"
            );
        }
    }
}
