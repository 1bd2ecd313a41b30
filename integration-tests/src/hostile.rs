//! A broker that somebody stole, with the federation's certificate authority and every disk, against real agents.
//!
//! ```text
//!              ┌──────────── hostile broker ────────────┐
//!  origin ◀════╪═ books (honest) ─ lies, by a seed ═════╪═══▶ donor
//!  agent       │ impostor: a cluster of its own keys ◀──┼──── tunnels, envelopes
//!              └──────────────── disk ──────────────────┘
//!                                 │
//!    kubeconfigs, identity ──▶ ledger ◀── grants, identity
//! ```
//!
//! The agents are the real ones, in this process, with real TLS, handshakes, seals and tunnels. Each attack changes one
//! thing of what an honest broker would say. The ledger shares no code with the agents: it looks at their disks, at
//! what the impostor's keys open, and at the impostor's end of each tunnel. A broker may always end leases and keep agents
//! from working. It may not obtain a credential, a tunnel or a grant that the donor's own policy does not allow, and
//! once it is honest again, leases must become active again.

mod agent_stores;
mod attack_kind;
mod attack_round;
mod books;
mod broker_core;
mod hostile_broker;
mod hostile_federation;
mod hostile_ledger;
mod hostile_planes;
mod hostile_report;
mod hostile_services;
mod impostor;
mod stolen_authority;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::Result;

pub use attack_kind::AttackKind;
pub use hostile_federation::Trust;
pub use hostile_report::HostileReport;

use attack_round::AttackRound;
use broker_core::WrongRenewal;
use hostile_federation::{HostileFederation, Setup};
use hostile_ledger::HostileLedger;

use crate::chaos::dice::Dice;

/// Life of the agents' certificates: short, so that renewals happen during a run. The third of it that an agent has left
/// is longer than the broker is ever silent: nobody renews what has expired.
const CERTIFICATE_VALIDITY: Duration = Duration::from_secs(60);
/// The donor's own limit: short, so that a lease reaches it during a run.
const MAX_LEASE_SECONDS: u64 = 40;
/// Clusters that the origin remembers at first: almost as many as it may.
const REMEMBERED: usize = 4_094;
/// One in so many rounds, renewals return a certificate of another key.
const WRONG_RENEWALS: u64 = 4;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct HostileConfig {
    /// How long to attack.
    pub length: Duration,
    /// Seed of the attacks.
    pub seed: u64,
    /// How far the agents trust what the broker says about each other.
    pub trust: Trust,
    /// Whether the agents have API servers, on which each has the rights of its ServiceAccount.
    pub kubernetes: bool,
}

/// Attacks for a while, and checks after each attack.
///
/// # Errors
/// When the run cannot be carried out. Violations are in the report.
pub async fn run(config: HostileConfig) -> Result<HostileReport> {
    let HostileConfig { length, seed, trust, kubernetes } = config;
    eprintln!("seed {seed}");
    let setup = Setup {
        certificate_validity: CERTIFICATE_VALIDITY,
        max_lease_seconds: MAX_LEASE_SECONDS,
        remembered: REMEMBERED,
        kubernetes,
        signed_policy: true,
        ..Setup::new(trust)
    };
    let mut federation = HostileFederation::start(setup).await?;
    let (mut ledger, mut dice, mut attacks) = (HostileLedger::default(), Dice::new(seed), BTreeMap::new());
    let (start, mut waiting, mut before) = (Instant::now(), VecDeque::new(), None);
    while start.elapsed() < length {
        let kind = match waiting.pop_front() {
            Some(kind) => kind,
            None => {
                eprintln!(
                    "{:>5} s: {} attacks, {} violations",
                    start.elapsed().as_secs(),
                    attacks.values().sum::<u64>(),
                    ledger.violations().len()
                );
                waiting = AttackKind::shuffled(&mut dice);
                continue;
            }
        };
        let healed = before.map_or_else(|| "the start".to_owned(), |kind: AttackKind| kind.name().to_owned());
        if !attack(&federation, &mut ledger, &mut dice, kind, &healed).await? {
            break;
        }
        *attacks.entry(kind).or_default() += 1;
        before = Some(kind);
    }
    if ledger.violations().is_empty() {
        for kind in AttackKind::AT_THE_END {
            attack(&federation, &mut ledger, &mut dice, kind, "the last attack").await?;
            *attacks.entry(kind).or_default() += 1;
        }
    }
    // Whatever was tried, honest work goes on.
    if let Err(error) = federation.active_lease(1).await {
        let state = federation.describe().await;
        ledger.violate(format!("no honest lease becomes active at the end: {error:#}\n{state}"));
    }
    ledger.check(&federation).await?;
    let (renewals, late_handshakes) =
        (federation.broker.renewals(), federation.broker.read(|books| books.late_handshakes));
    let refusals = HostileReport::count(&federation.broker.refused());
    let stores = federation.stop().await?;
    ledger.search_disks(&federation, &stores)?;
    Ok(HostileReport {
        seed,
        length: start.elapsed(),
        attacks,
        refusals,
        renewals,
        late_handshakes,
        checks: ledger.checks(),
        tokens: ledger.tokens(),
        received_bytes: federation.broker.disk().join("received").metadata()?.len(),
        violations: ledger.violations(),
    })
}

/// One attack, with the check of its effects; false if honest leases no longer become active after `before`.
async fn attack(
    federation: &HostileFederation,
    ledger: &mut HostileLedger,
    dice: &mut Dice,
    kind: AttackKind,
    before: &str,
) -> Result<bool> {
    let mut round = match AttackRound::begin(federation, ledger, dice).await {
        Ok(round) => round,
        Err(error) => {
            let state = federation.describe().await;
            ledger.violate(format!("after {before}: no honest lease becomes active: {error:#}\n{state}"));
            return Ok(false);
        }
    };
    if round.dice.one_in(WRONG_RENEWALS) && kind != AttackKind::TakeNextRootAway {
        federation.broker.lie(|whims| whims.renewals = vec![WrongRenewal::Key]);
    }
    let known = round.ledger.violations().len();
    kind.attack(&mut round).await;
    round.pause().await;
    round.ledger.check(federation).await?;
    for violation in round.ledger.violations().iter().skip(known) {
        eprintln!("{}: {violation}", kind.name());
    }
    round.end().await;
    Ok(true)
}
