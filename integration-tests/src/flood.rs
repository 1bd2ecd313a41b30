//! Measures how much one caller's flood delays the requests that another submits.
//!
//! ```text
//!   for each flood:  three brokers, donors offer ─▶ alice submits alone ─▶ mallory floods ─▶ alice submits meanwhile
//! ```
//!
//! Alice and mallory belong to different institutions, and both use the leader. The flood's threads run at a lower
//! priority than the brokers, as if it came from other machines, and other threads of that priority keep all cores busy
//! in both measurements: what delays alice is what the brokers do for mallory. With an idle baseline there are no other
//! threads, and the flood's have the brokers' priority: then its own work on this machine delays alice, too.

mod busy_cores;
mod flood_kind;
mod flood_policy;
mod flood_report;
mod flooder;
mod submitter;

use std::time::Duration;

use anyhow::{Context as _, Result};
use comity_runtime::{BrokerChannel, BrokerEndpoints};
use tokio::sync::watch;

use crate::federation::broker_api::{JoinedCluster, invite, join, user_channel};
use crate::federation::{Federation, FederationConfig};
use crate::growth::inventory;
use crate::growth::member::Member;
use crate::process::place::Place;
use crate::programs::{run as run_program, utf8};

use busy_cores::BusyCores;
use flood_report::FloodRow;
use flooder::Flooder;
use submitter::SteadySubmitter;

pub use flood_kind::FloodKind;
pub use flood_report::FloodReport;

/// Donors, which offer nodes of eight GPUs.
const FLOOD_DONORS: usize = 4;
/// The user who floods.
const MALLORY: &str = "mallory";
/// Time for a flood to reach its strength before the measurement.
const FLOOD_WARM_UP: Duration = Duration::from_secs(1);

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct FloodConfig {
    /// Floods, one row each.
    pub floods: Vec<FloodKind>,
    /// Nodes of each donor.
    pub nodes_per_donor: usize,
    /// Duration of each measurement: without the flood, and during it.
    pub length: Duration,
    /// Whether nothing else keeps the cores busy, and the flood has the brokers' priority.
    pub has_idle_baseline: bool,
}

/// Measures each flood on new brokers; `progress` receives messages.
///
/// # Errors
/// When a process does not start, or no submission succeeds.
pub async fn run(config: &FloodConfig, progress: impl Fn(&str)) -> Result<FloodReport> {
    let mut report = FloodReport::default();
    for kind in &config.floods {
        let run = FloodRun::start(config).await?;
        let row = run.measure(*kind, config).await;
        let row = row.with_context(|| format!("flood {kind}{}", run.federation.logs()))?;
        progress(&row.to_string());
        report.rows.push(row);
    }
    Ok(report)
}

struct FloodRun {
    federation: Federation,
    /// The leader's address.
    leader: BrokerEndpoints,
    /// The flooding institution's cluster.
    loud: JoinedCluster,
    _donors: Vec<Member>,
    /// Lets the donors connect.
    _open: watch::Sender<bool>,
    _policy: tempfile::TempDir,
}

impl FloodRun {
    async fn start(config: &FloodConfig) -> Result<Self> {
        let policy = tempfile::tempdir()?;
        flood_policy::write_policy(policy.path(), FLOOD_DONORS)?;
        let federation = Federation::start(FederationConfig {
            brokers: 3,
            policy: policy.path().to_owned(),
            place: Place::here(),
            snapshot_every: 10_000,
            cluster_certificates_s: 86_400,
            hosts: Vec::new(),
            ca: None,
        })
        .await?;
        let (data, out) = (federation.broker_dir(1), crate::comity::identity(federation.dir(), MALLORY));
        run_program("comity-broker", &["issue-user", "--data", utf8(&data)?, "--name", MALLORY, "--out", utf8(&out)?])
            .await?;
        let admin = || {
            let brokers = BrokerEndpoints::new(federation.broker_addresses())?;
            user_channel(federation.dir(), "admin", &brokers)
        };
        let open = watch::Sender::new(true);
        let mut donors = Vec::new();
        for number in 0..FLOOD_DONORS {
            let name = flood_policy::donor(number);
            let donor = Member::join(&name, &invite(admin()?, &name).await?, open.subscribe()).await?;
            donor.offer(inventory::offer(number, &name, config.nodes_per_donor, 1)).await?;
            donors.push(donor);
        }
        join(flood_policy::QUIET, &invite(admin()?, flood_policy::QUIET).await?).await?;
        let loud = join(flood_policy::LOUD, &invite(admin()?, flood_policy::LOUD).await?).await?;
        let leader = BrokerEndpoints::new([federation.broker_address(federation.leader().await?)?])?;
        Ok(Self { federation, leader, loud, _donors: donors, _open: open, _policy: policy })
    }

    fn channel(&self, user: &str) -> Result<BrokerChannel> {
        user_channel(self.federation.dir(), user, &self.leader)
    }

    async fn measure(&self, kind: FloodKind, config: &FloodConfig) -> Result<FloodRow> {
        let length = config.length;
        let mut submitter = SteadySubmitter::new(self.channel("alice")?)?;
        let _busy = BusyCores::start(config.has_idle_baseline)?;
        // For connections and caches.
        submitter.submit_for(FLOOD_WARM_UP).await?;
        let alone = submitter.submit_for(length).await?;
        let flooder =
            Flooder::start(kind, config.has_idle_baseline, || self.channel(MALLORY), &self.leader, &self.loud)?;
        tokio::time::sleep(FLOOD_WARM_UP).await;
        let before = flooder.counts();
        let flooded = submitter.submit_for(length).await?;
        let counts = flooder.counts().since(before);
        Ok(FloodRow { kind, alone, flooded, counts, seconds: length.as_secs_f64() })
    }
}
