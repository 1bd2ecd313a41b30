//! Chaos test of many origins and donors: brokers, agents, networks and API servers fail at random.
//!
//! ```text
//! tenants ─▶ comity ─▶ brokers ═ lines ═ agents ─▶ API servers (real), nodes (simulated)
//!               │         ▲         ▲       ▲            ▲  │
//!               │         └─────────┴─ faults, by a seed ┘  │ namespaces, quotas
//!               └─ leases and requests, by a quorum ──▶ ledger ◀─┘
//! ```
//!
//! The ledger compares the brokers' leases with the objects on the donors' API servers, and shares no code with either.
//! It also compares the donors' nodes with their pods and leases: no node may stay over-committed. So every donor has an
//! API server; origins share the remaining ones, and the others are hosts with an inventory file.
//!
//! Leases are compared device by device, as the brokers placed them. Local use is compared node by node: the nodes are
//! simulated, so no kubelet gives devices to pods. Where one does, the scenario `real_kubelets` compares devices.

mod chaos_policy;
mod chaos_report;
pub(crate) mod dice;
pub mod federation_faults;
mod federation_injector;
mod grants;
pub mod ledger;
mod leftovers;
mod misplaced_pod;
mod relay;
mod retried;
mod tenants;
mod view;
mod world;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use chaos_report::ChaosReport;

use dice::Dice;
use federation_faults::{Shape, schedule};
use federation_injector::FederationInjector;
use grants::{Grants, SharedLedger};
use ledger::Ledger;
use tenants::{Submissions, Tenant};
use view::Poller;
use world::World;

/// Time with tenants but without faults at the start.
const TENANT_WARM_UP: Duration = Duration::from_secs(5);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct ChaosConfig {
    /// Number of clusters by kind.
    pub shape: Shape,
    /// Number of tenants; each borrows one lease after another.
    pub leases: usize,
    /// Duration of the faults.
    pub length: Duration,
    /// Seed of the faults.
    pub seed: u64,
}

/// Runs the chaos test.
///
/// # Errors
/// When the test cannot run. Violations are in the report.
pub async fn run(config: ChaosConfig) -> Result<ChaosReport> {
    let ChaosConfig { shape, leases, length, seed } = config;
    ensure!(
        (shape.donors..=shape.donors + shape.origins).contains(&shape.control_planes),
        "{} control planes for {} donors and {} origins: each donor needs one, and no cluster has two",
        shape.control_planes,
        shape.donors,
        shape.origins
    );
    eprintln!("seed {seed}");
    let mut world = World::start(shape).await?;
    let ledger = SharedLedger::default();
    let outcome = drive(&mut world, &ledger, config).await;
    let report = match outcome {
        Ok((faults, submissions)) => read_ledger(&ledger, |ledger| {
            ChaosReport::new(seed, length, ledger, &faults, submissions.accepted.len(), submissions.repeated)
        }),
        Err(error) => return Err(error.context(world.federation.logs())),
    };
    if !report.violations.is_empty() {
        world.federation.keep_logs();
    }
    world.stop().await?;
    eprintln!("{leases} tenants, {} violations", report.violations.len());
    Ok(report)
}

async fn drive(
    world: &mut World,
    ledger: &SharedLedger,
    config: ChaosConfig,
) -> Result<(chaos_report::Faults, Submissions)> {
    let ChaosConfig { shape, leases, length, seed } = config;
    let mut watches = Vec::new();
    for plane in world.clusters.iter().take(shape.donors).filter_map(|cluster| cluster.plane.as_ref()) {
        watches.push(Grants::follow(plane, ledger).await?);
    }
    let comity = world.federation.command();
    let poller = Poller::start(comity.clone(), ledger.clone());
    let submissions = Arc::new(Mutex::new(Submissions::default()));
    let until = Instant::now() + TENANT_WARM_UP + length;
    let mut dice = Dice::new(seed);
    let mut tenants = JoinSet::new();
    for number in 0..leases {
        let tenant = Tenant {
            number,
            dice: dice.split(),
            comity: comity.clone(),
            shape,
            view: poller.view(),
            ledger: ledger.clone(),
            submissions: Arc::clone(&submissions),
            until,
        };
        tenants.spawn(tenant.run());
    }
    tokio::time::sleep(TENANT_WARM_UP).await;
    let faults = FederationInjector::new(world, ledger.clone()).run(&schedule(seed, shape, length), length).await?;
    while let Some(tenant) = tenants.join_next().await {
        if let Err(error) = tenant? {
            grants::with(ledger, |ledger| ledger.violated(format!("{error:#}")));
        }
    }
    let submissions = std::mem::take(&mut *submissions.lock().unwrap_or_else(PoisonError::into_inner));
    leftovers::check(world, ledger, &submissions.accepted).await?;
    drop(watches);
    Ok((faults, submissions))
}

fn read_ledger<T>(ledger: &SharedLedger, read: impl FnOnce(&Ledger) -> T) -> T {
    grants::with(ledger, |ledger| read(ledger))
}
