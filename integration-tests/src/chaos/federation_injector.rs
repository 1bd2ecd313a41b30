//! Injects faults and measures the recovery.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use comity_testkit::Component;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::chaos_report::Faults;
use super::federation_faults::{BROKER_COUNT, FederationFault, FederationFaultKind};
use super::grants::{SharedLedger, with};
use super::misplaced_pod::MisplacedPod;
use super::retried::retried;
use super::world::World;
use crate::comity::Comity;
use crate::process::Process;
use crate::process::usage::memory;

/// Interval of the checks of processes.
const PROCESS_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Memory of a broker or agent: they need some 80 MiB here.
const MAX_RESIDENT_BYTES: u64 = 256 << 20;
/// End of the error of an agent that starts while its API server is down.
const NO_API_SERVER: &str = "as with kubectl get --raw /version";

type Recovery = (FederationFaultKind, Result<Duration>);

/// Injects the faults of a run.
pub(super) struct FederationInjector<'a> {
    world: &'a mut World,
    ledger: SharedLedger,
    comity: Comity,
    figures: Faults,
    recoveries: JoinSet<Recovery>,
    /// Target of the current fault of the group; such faults never overlap.
    hit: u64,
    /// Per donor, held while one of its nodes is used by hand: a kubelet would refuse a second pod without free GPUs.
    used_by_hand: BTreeMap<usize, Arc<Mutex<()>>>,
}

impl<'a> FederationInjector<'a> {
    pub(super) fn new(world: &'a mut World, ledger: SharedLedger) -> Self {
        let comity = world.federation.command();
        Self {
            world,
            ledger,
            comity,
            figures: Faults::default(),
            recoveries: JoinSet::new(),
            hit: 0,
            used_by_hand: BTreeMap::new(),
        }
    }

    /// Carries out all faults, each at its time after now, and waits for `length` to pass and for all recoveries.
    ///
    /// # Errors
    /// When a fault cannot be injected.
    pub(super) async fn run(mut self, faults: &[FederationFault], length: Duration) -> Result<Faults> {
        let start = Instant::now();
        let begins = faults.iter().map(|fault| (fault.at, true, *fault));
        let ends = faults.iter().map(|fault| (fault.at + fault.lasts, false, *fault));
        let mut moments: Vec<(Duration, bool, FederationFault)> = begins.chain(ends).collect();
        moments.sort_by_key(|(at, begins, _)| (*at, *begins));
        for (at, begins, fault) in moments {
            self.watch_until(start + at).await?;
            if begins {
                eprintln!("{:>7.1} s  {} {}, {:?}", at.as_secs_f64(), fault.kind.name(), fault.target, fault.lasts);
                self.begin(fault).await.with_context(|| format!("begin {fault:?}"))?;
            } else {
                self.end(fault).await.with_context(|| format!("end {fault:?}"))?;
            }
        }
        self.watch_until(start + length).await?;
        while let Some(recovery) = self.recoveries.join_next().await {
            self.note(recovery?);
        }
        Ok(self.figures)
    }

    /// Looks after processes and recoveries until it is time.
    async fn watch_until(&mut self, time: Instant) -> Result<()> {
        while Instant::now() < time {
            self.check_processes()?;
            sleep_until((Instant::now() + PROCESS_CHECK_INTERVAL).min(time)).await;
            while let Some(recovery) = self.recoveries.try_join_next() {
                self.note(recovery?);
            }
        }
        Ok(())
    }

    fn note(&mut self, (kind, took): Recovery) {
        match took {
            Ok(took) => self.figures.recovered.entry(kind).or_default().push(took),
            Err(error) => with(&self.ledger, |ledger| ledger.violated(format!("after {}: {error:#}", kind.name()))),
        }
    }

    /// Checks that no process has ended by itself, and records the memory of each.
    fn check_processes(&mut self) -> Result<()> {
        let federation = &mut self.world.federation;
        for id in federation.ended_brokers()? {
            with(&self.ledger, |ledger| ledger.violated(format!("broker {id} ended by itself")));
            federation.start_broker(id)?;
        }
        for cluster in federation.ended_agents()? {
            // An agent that finds no API server at its start exits with a message, and is restarted.
            if !federation.log_of(&cluster)?.trim_end().ends_with(NO_API_SERVER) {
                with(&self.ledger, |ledger| ledger.violated(format!("the agent of {cluster} ended by itself")));
            }
            federation.start_agent(&cluster)?;
        }
        let brokers = federation.broker_pids().into_iter().map(|pid| ("broker", pid));
        let agents = self.world.clusters.iter().filter_map(|cluster| {
            let kind = if cluster.plane.is_some() { "agent on Kubernetes" } else { "agent on a file" };
            Some((kind, federation.agent_pid(&cluster.id)?))
        });
        for (kind, pid) in brokers.chain(agents).collect::<Vec<_>>() {
            // A fault may just have killed it.
            let resident = memory(pid, "VmHWM").unwrap_or(0);
            let most = self.figures.resident.entry(kind).or_default();
            *most = resident.max(*most);
            if resident > MAX_RESIDENT_BYTES {
                with(&self.ledger, |ledger| {
                    ledger.violated(format!("a {kind} needs more than {} MiB", MAX_RESIDENT_BYTES >> 20))
                });
            }
        }
        Ok(())
    }

    async fn begin(&mut self, fault: FederationFault) -> Result<()> {
        *self.figures.count.entry(fault.kind).or_default() += 1;
        match fault.kind {
            FederationFaultKind::LeaderKilled | FederationFaultKind::LeaderStopped => {
                self.hit = leader(&self.comity).await.unwrap_or(fault.target as u64 + 1);
            }
            FederationFaultKind::BrokerKilled | FederationFaultKind::BrokerStopped => {
                self.hit = fault.target as u64 + 1
            }
            _ => {}
        }
        let federation = &mut self.world.federation;
        match fault.kind {
            FederationFaultKind::BrokerKilled | FederationFaultKind::LeaderKilled => {
                federation.kill_broker(self.hit).await?
            }
            FederationFaultKind::AllBrokersKilled => {
                for id in 1..=BROKER_COUNT as u64 {
                    federation.kill_broker(id).await?;
                }
                return Ok(());
            }
            FederationFaultKind::BrokerStopped | FederationFaultKind::LeaderStopped => {
                self.signal_broker("STOP").await?
            }
            FederationFaultKind::AgentKilled => federation.kill_agent(&self.world.clusters[fault.target].id).await?,
            FederationFaultKind::AgentStopped => self.signal_agent(fault, "STOP").await?,
            FederationFaultKind::AgentCut => self.world.clusters[fault.target].line.cut(),
            FederationFaultKind::ApiServerKilled => self.plane(fault)?.kill(Component::ApiServer),
            FederationFaultKind::LocalUse => self.use_locally(fault)?,
            FederationFaultKind::PodDrifted | FederationFaultKind::LeasedNodeUsed => self.misplace(fault)?,
        }
        if fault.kind <= FederationFaultKind::LeaderStopped {
            // The other brokers continue: the recovery is the time until one answers.
            self.recover(fault.kind, answers(self.comity.clone()));
        }
        Ok(())
    }

    async fn end(&mut self, fault: FederationFault) -> Result<()> {
        let federation = &mut self.world.federation;
        match fault.kind {
            FederationFaultKind::BrokerKilled | FederationFaultKind::LeaderKilled => {
                federation.start_broker(self.hit)?
            }
            FederationFaultKind::AllBrokersKilled => {
                for id in 1..=BROKER_COUNT as u64 {
                    federation.start_broker(id)?;
                }
                self.recover(fault.kind, answers(self.comity.clone()));
            }
            FederationFaultKind::BrokerStopped | FederationFaultKind::LeaderStopped => {
                self.signal_broker("CONT").await?
            }
            FederationFaultKind::AgentKilled => federation.start_agent(&self.world.clusters[fault.target].id)?,
            FederationFaultKind::AgentStopped => self.signal_agent(fault, "CONT").await?,
            FederationFaultKind::AgentCut => self.world.clusters[fault.target].line.restore(),
            FederationFaultKind::ApiServerKilled => {
                let plane = self.plane(fault)?;
                plane.restart(Component::ApiServer)?;
                let client = plane.client();
                self.recover(fault.kind, serves(client));
            }
            FederationFaultKind::LocalUse | FederationFaultKind::PodDrifted | FederationFaultKind::LeasedNodeUsed => {}
        }
        if matches!(
            fault.kind,
            FederationFaultKind::AgentKilled | FederationFaultKind::AgentStopped | FederationFaultKind::AgentCut
        ) {
            let id = self.world.clusters[fault.target].id.clone();
            let socket = self.world.federation.agent_dir(&id).join("agent.sock");
            self.recover(fault.kind, is_heard(self.comity.clone(), id, socket));
        }
        Ok(())
    }

    fn plane(&self, fault: FederationFault) -> Result<&comity_testkit::ControlPlane> {
        self.world.clusters[fault.target].plane.as_ref().context("the schedule names a cluster with an API server")
    }

    async fn signal_broker(&self, signal: &str) -> Result<()> {
        let pid = self.world.federation.broker_pid(self.hit).context("the broker runs")?;
        Process::signal(pid, signal).await
    }

    async fn signal_agent(&self, fault: FederationFault, signal: &str) -> Result<()> {
        let id = &self.world.clusters[fault.target].id;
        Process::signal(self.world.federation.agent_pid(id).context("the agent runs")?, signal).await
    }

    /// Measures until `done`; then the invariants are checked on every broker that answers.
    fn recover(&mut self, kind: FederationFaultKind, done: impl Future<Output = Result<()>> + Send + 'static) {
        let (comity, ledger, began) = (self.comity.clone(), self.ledger.clone(), Instant::now());
        self.recoveries.spawn(async move {
            let result = done.await.map(|()| began.elapsed());
            check_invariants(&comity, &ledger).await;
            (kind, result)
        });
    }

    /// Binds a pod by hand, and measures until that is corrected.
    fn misplace(&mut self, fault: FederationFault) -> Result<()> {
        let plane = self.plane(fault)?;
        let misplaced = MisplacedPod {
            client: plane.client(),
            donor: plane.name().to_owned(),
            name: format!("misplaced-{}", fault.at.as_millis()),
            ledger: self.ledger.clone(),
        };
        if fault.kind == FederationFaultKind::PodDrifted {
            self.recoveries.spawn(async move { (fault.kind, misplaced.drift().await) });
            return Ok(());
        }
        let by_hand = Arc::clone(self.used_by_hand.entry(fault.target).or_default());
        if let Ok(alone) = by_hand.try_lock_owned() {
            self.recoveries.spawn(async move {
                let corrected = misplaced.use_leased_node().await;
                drop(alone);
                (fault.kind, corrected)
            });
        }
        Ok(())
    }

    /// Takes GPUs of a donor for a while, with a pod of its own.
    fn use_locally(&mut self, fault: FederationFault) -> Result<()> {
        let api = Api::<Pod>::namespaced(self.plane(fault)?.client(), "default");
        let name = format!("local-{}", fault.at.as_millis());
        let gpus = fault.at.as_millis() % 4 + 1;
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "work", "image": "registry.example/work:1",
                    "resources": { "limits": { "nvidia.com/gpu": gpus.to_string() } },
                }],
            },
        }))?;
        self.recoveries.spawn(async move {
            let worked = borrow_locally(api, pod, name, fault.lasts).await;
            (fault.kind, worked.map(|()| Duration::ZERO))
        });
        Ok(())
    }
}

async fn borrow_locally(api: Api<Pod>, pod: Pod, name: String, lasts: Duration) -> Result<()> {
    // The API server may be down meanwhile.
    retried("a pod of the donor's own", || async {
        match api.create(&PostParams::default(), &pod).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(true),
            result => Ok(result.map(|_| true)?),
        }
    })
    .await?;
    tokio::time::sleep(lasts).await;
    retried("the donor's own pod to go", || async {
        match api.delete(&name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            result => Ok(result.map(|_| false)?),
        }
    })
    .await
}

/// Waits until a quorum of the brokers answers.
async fn answers(comity: Comity) -> Result<()> {
    retried("a quorum to answer", || async { comity.json("alice", &["lease", "list"]).await.map(|_| true) }).await
}

/// Waits until an agent has its stream and the brokers count it as connected.
async fn is_heard(comity: Comity, id: String, socket: PathBuf) -> Result<()> {
    retried(&format!("{id} to be heard"), || async {
        if !comity_agent::services::local_api::fetch_status(&socket).await?.connected {
            bail!("its agent has no stream");
        }
        Ok(comity.json("admin", &["cluster", "show", &id]).await?["connected"] == true)
    })
    .await
}

/// Waits until an API server answers.
async fn serves(client: kube::Client) -> Result<()> {
    let pods = Api::<Pod>::namespaced(client, "default");
    let none = kube::api::ListParams::default().limit(1);
    retried("the API server", || async { Ok(pods.list_metadata(&none).await.map(|_| true)?) }).await
}

async fn leader(comity: &Comity) -> Result<u64> {
    let status = comity.json("admin", &["raft", "status"]).await?;
    let brokers = status["brokers"].as_array().context("a status names brokers")?;
    let newest = brokers.iter().max_by_key(|broker| broker["term"].as_u64()).context("no broker answers")?;
    newest["leader"].as_u64().filter(|leader| *leader > 0).context("no leader is known")
}

/// Records the invariant violations that the brokers report.
pub(super) async fn check_invariants(comity: &Comity, ledger: &SharedLedger) {
    // No broker may be up; a later check then reads the violations.
    let Ok(status) = comity.json("admin", &["raft", "status"]).await else { return };
    for broker in status["brokers"].as_array().into_iter().flatten() {
        for broken in broker["violations"].as_array().into_iter().flatten() {
            with(ledger, |ledger| ledger.violated(format!("broker {}: {broken}", broker["id"])));
        }
    }
}
