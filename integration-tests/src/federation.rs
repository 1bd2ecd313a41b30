//! Brokers and agents as processes, driven through the `comity` command.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::admin;
use crate::comity::{self, Comity};
use crate::process::Process;
use crate::programs::program;
use crate::wait::until;

/// How processes are started in some place: on this host, or in a namespace of a test cluster.
pub type Launcher = std::sync::Arc<dyn Fn(&Path, &[String]) -> Command + Send + Sync>;

/// Where processes run and how others reach them there.
#[derive(Clone)]
pub struct Place {
    /// Starts a process there.
    pub launch: Launcher,
    /// Address at which others reach it.
    pub address: String,
}

impl Place {
    /// This host, on loopback.
    #[must_use]
    pub fn here() -> Self {
        let launch: Launcher = std::sync::Arc::new(|program: &Path, args: &[String]| {
            let mut command = Command::new(program);
            command.args(args);
            command
        });
        Self { launch, address: Ipv4Addr::LOCALHOST.to_string() }
    }
}

/// What is started.
pub struct FederationConfig {
    /// Brokers: one or three.
    pub brokers: u64,
    /// Directory of policy documents.
    pub policy: PathBuf,
    /// Where the brokers and the `comity` command run.
    pub place: Place,
    /// Log entries between two snapshots of a broker.
    pub snapshot_every: u64,
    /// How long certificates of clusters live, in seconds.
    pub cluster_certificates_s: u64,
}

impl FederationConfig {
    /// Three brokers on this host with the example policy.
    #[must_use]
    pub fn with_example_policy() -> Self {
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/examples");
        Self { brokers: 3, policy, place: Place::here(), snapshot_every: 10_000, cluster_certificates_s: 86_400 }
    }
}

/// What an agent lends from.
pub enum Donor {
    /// A Kubernetes cluster, by kubeconfig.
    Kubernetes(PathBuf),
    /// An inventory file on a host without Kubernetes; the echo API stands in for an API server.
    File(PathBuf),
}

/// One agent.
pub struct AgentSpec {
    /// Cluster id, named in the policy.
    pub cluster: String,
    /// What it sees and lends from.
    pub inventory: Donor,
    /// Where it runs.
    pub place: Place,
    /// `COMITY_AGENT_CRASH_AT`, if it is to crash once.
    pub crash_at: Option<String>,
    /// Mode of its fabric.
    pub fabric_mode: &'static str,
    /// Further sections of its configuration, YAML.
    pub more: String,
}

impl AgentSpec {
    /// An agent on this host.
    #[must_use]
    pub fn new(cluster: &str, inventory: Donor) -> Self {
        Self {
            cluster: cluster.to_owned(),
            inventory,
            place: Place::here(),
            crash_at: None,
            fabric_mode: "netstack",
            more: String::new(),
        }
    }
}

struct Broker {
    process: Option<Process>,
    place: Place,
    data: PathBuf,
    ports: Ports,
    /// Its files say where it listens.
    is_founder: bool,
}

/// Where a broker listens.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    raft: u16,
    client: u16,
}

impl Ports {
    /// Ports that nobody uses now.
    pub(crate) fn free() -> Result<Self> {
        let ports = free_ports(2)?;
        Ok(Self { raft: ports[0], client: ports[1] })
    }

    /// Where others reach a broker on these ports: brokers, clients.
    pub(crate) fn addresses(self, place: &Place) -> (String, String) {
        let at = |port: u16| format!("{}:{port}", place.address);
        (at(self.raft), at(self.client))
    }
}

struct Agent {
    spec: AgentSpec,
    fabric_port: u16,
    process: Option<Process>,
}

/// A running federation. Dropping it kills every process and removes every file.
pub struct Federation {
    dir: tempfile::TempDir,
    place: Place,
    brokers: BTreeMap<u64, Broker>,
    agents: BTreeMap<String, Agent>,
    log: String,
    snapshot_every: u64,
    cluster_certificates_s: u64,
}

/// Everything that may take a while in these tests is given this long. It is a limit against hanging, not a
/// measurement: a machine that flushes its disk can take half a minute for one fsync.
pub const PATIENCE: Duration = Duration::from_secs(180);

impl Federation {
    /// Founds a federation and waits until its policy is in force.
    pub async fn start(config: FederationConfig) -> Result<Self> {
        let places = (0..config.brokers).map(|_| config.place.clone()).collect();
        Self::start_at(config, places, |_, data| Ok(data)).await
    }

    /// As [`Federation::start`], with a place for each broker. `prepare` gets the number and the data directory of each
    /// before it is started for the first time, and says where the directory is from then on.
    pub(crate) async fn start_at(
        config: FederationConfig,
        places: Vec<Place>,
        mut prepare: impl FnMut(u64, PathBuf) -> Result<PathBuf>,
    ) -> Result<Self> {
        let ports = places.iter().map(|_| Ports::free()).collect::<Result<Vec<Ports>>>()?;
        let brokers = || (1..).zip(places.iter().zip(&ports));
        let members: Vec<String> = brokers()
            .map(|(id, (place, ports))| {
                let (raft, client) = ports.addresses(place);
                format!("{id}={raft}/{client}")
            })
            .collect();
        let mut federation = Self {
            snapshot_every: config.snapshot_every,
            cluster_certificates_s: config.cluster_certificates_s,
            ..Self::found(config.place, &members.join(",")).await?
        };
        for (id, _) in brokers().skip(1) {
            federation.add_identity(1, id).await?;
        }
        for (id, (place, &ports)) in brokers() {
            let data = prepare(id, federation.broker_dir(id))?;
            let broker = Broker { process: None, place: place.clone(), data, ports, is_founder: true };
            federation.brokers.insert(id, broker);
            federation.start_broker(id)?;
        }
        let policy = config.policy;
        until("the policy to be applied", PATIENCE, async || {
            federation.comity_as("admin", &["policy", "apply", text(&policy)?]).await.map(Some)
        })
        .await?;
        Ok(federation)
    }

    /// Makes the first broker's files and those of the users, and starts nothing.
    async fn found(place: Place, members: &str) -> Result<Self> {
        let federation = Self {
            dir: tempfile::Builder::new().prefix("comity-scenario-").tempdir()?,
            place,
            brokers: BTreeMap::new(),
            agents: BTreeMap::new(),
            log: std::env::var("COMITY_TEST_LOG").unwrap_or_else(|_| "info,openraft=error".to_owned()),
            snapshot_every: 10_000,
            cluster_certificates_s: 86_400,
        };
        let first = federation.broker_dir(1);
        let (data, admin) = (text(&first)?, comity::identity(federation.dir.path(), "admin"));
        let init = ["init", "--data", data, "--trust-domain", "comity.example", "--members", members];
        run("comity-broker", &[&init[..], &["--admin-out", text(&admin)?]].concat()).await?;
        let alice = comity::identity(federation.dir.path(), "alice");
        run("comity-broker", &["issue-user", "--data", data, "--name", "alice", "--out", text(&alice)?]).await?;
        Ok(federation)
    }

    /// As the files of [`Federation::start`], for brokers that somebody else starts from them: as pods. They are
    /// reached at the address of `place` and this port.
    pub async fn found_elsewhere(place: Place, client_port: u16, members: &str) -> Result<Self> {
        let mut federation = Self::found(place.clone(), members).await?;
        let (data, ports) = (federation.broker_dir(1), Ports { raft: 0, client: client_port });
        federation.brokers.insert(1, Broker { process: None, place, data, ports, is_founder: true });
        Ok(federation)
    }

    /// The directory of everything this federation writes.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Data directory of a broker.
    #[must_use]
    pub fn broker_dir(&self, id: u64) -> PathBuf {
        let here = || self.dir.path().join(format!("broker-{id}"));
        self.brokers.get(&id).map_or_else(here, |broker| broker.data.clone())
    }

    /// State directory of an agent.
    #[must_use]
    pub fn agent_dir(&self, cluster: &str) -> PathBuf {
        self.dir.path().join(format!("agent-{cluster}"))
    }

    fn log_file(&self, name: &str) -> PathBuf {
        self.dir.path().join(format!("{name}.log"))
    }

    // --- brokers --------------------------------------------------------------------------------------------------

    /// Starts a broker that does not run.
    pub fn start_broker(&mut self, id: u64) -> Result<()> {
        let data = self.broker_dir(id);
        let every = self.snapshot_every.to_string();
        let broker = self.brokers.get(&id).context("no such broker")?;
        let admin = format!("{}:0", broker.place.address);
        let args = ["run", "--data", text(&data)?, "--admin-listen", &admin, "--snapshot-every", &every];
        let validity = self.cluster_certificates_s.to_string();
        let args = args
            .into_iter()
            .chain(["--cluster-certificates-s", &validity, "--log", &self.log])
            .map(str::to_owned)
            .chain(self.listens_on(id))
            .collect::<Vec<_>>();
        let broker = self.brokers.get_mut(&id).context("no such broker")?;
        let command = (broker.place.launch)(&program("comity-broker")?, &args);
        let (name, log) = (format!("broker-{id}"), self.dir.path().join(format!("broker-{id}.log")));
        broker.process = Some(Process::start(&name, command, &log)?);
        Ok(())
    }

    /// Flags of a broker whose files do not say where it listens.
    fn listens_on(&self, id: u64) -> Vec<String> {
        let Some(broker) = self.brokers.get(&id).filter(|broker| !broker.is_founder) else { return Vec::new() };
        let (raft, client) = broker.ports.addresses(&broker.place);
        ["--raft-listen".to_owned(), raft, "--client-listen".to_owned(), client].into()
    }

    /// Takes ports for a further broker, and starts nothing; where others reach it: Raft, clients.
    pub fn add_broker(&mut self, id: u64) -> Result<(String, String)> {
        let (data, ports) = (self.broker_dir(id), Ports::free()?);
        Ok(self.add_broker_at(id, self.place.clone(), data, ports))
    }

    /// As [`Federation::add_broker`], in a place, on ports and with a data directory of the caller's choice.
    pub(crate) fn add_broker_at(&mut self, id: u64, place: Place, data: PathBuf, ports: Ports) -> (String, String) {
        let addresses = ports.addresses(&place);
        self.brokers.insert(id, Broker { process: None, place, data, ports, is_founder: false });
        addresses
    }

    /// Makes the files of a further broker on the machine of broker `from`, as docs/disaster.md shows.
    ///
    /// # Errors
    /// With what the program said.
    pub(crate) async fn add_identity(&self, from: u64, id: u64) -> Result<()> {
        let (from, out) = (self.broker_dir(from), self.broker_dir(id));
        let args = ["add-identity", "--data", text(&from)?, "--id", &id.to_string(), "--out", text(&out)?];
        run("comity-broker", &args).await
    }

    /// Kills a broker if it runs, and knows it no more; gives its ports back.
    ///
    /// # Errors
    /// When there is no such broker.
    pub(crate) async fn forget_broker(&mut self, id: u64) -> Result<Ports> {
        let mut broker = self.brokers.remove(&id).context("no such broker")?;
        if let Some(mut process) = broker.process.take()
            && !process.has_ended()?
        {
            process.kill().await?;
        }
        Ok(broker.ports)
    }

    /// Kills a broker with SIGKILL.
    pub async fn kill_broker(&mut self, id: u64) -> Result<()> {
        let process =
            self.brokers.get_mut(&id).and_then(|broker| broker.process.take()).context("no such broker runs")?;
        process.kill().await
    }

    /// Where clients reach the brokers, "host:port" each.
    #[must_use]
    pub fn broker_addresses(&self) -> Vec<String> {
        self.brokers.values().map(|broker| broker.ports.addresses(&broker.place).1).collect()
    }

    /// Where clients reach a broker, "host:port".
    ///
    /// # Errors
    /// When there is no such broker.
    pub fn broker_address(&self, id: u64) -> Result<String> {
        let broker = self.brokers.get(&id).context("no such broker")?;
        Ok(broker.ports.addresses(&broker.place).1)
    }

    /// Process id of a broker that runs.
    #[must_use]
    pub fn broker_pid(&self, id: u64) -> Option<u32> {
        self.brokers.get(&id)?.process.as_ref()?.pid()
    }

    /// What a broker that runs tells Prometheus.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn broker_metrics(&self, id: u64) -> Result<String> {
        let log = self.log_of(&format!("broker-{id}"))?;
        // It took a free port, and says which with its last start.
        let started = log.lines().rev().find(|line| line.contains("broker started")).context("it has not started")?;
        let address = started.split("admin=").nth(1).and_then(|rest| rest.split_whitespace().next());
        admin::get(address.context("a start names the address")?, "/metrics").await
    }

    /// Process ids of the brokers that run.
    #[must_use]
    pub fn broker_pids(&self) -> Vec<u32> {
        self.brokers.values().filter_map(|broker| broker.process.as_ref()?.pid()).collect()
    }

    /// The leader, as all brokers that run see it.
    pub async fn leader(&self) -> Result<u64> {
        let running = self.broker_pids().len();
        until("a leader that all know", PATIENCE, async || {
            let status = self.comity_as("admin", &["raft", "status"]).await?;
            let brokers = status["brokers"].as_array().context("a status names brokers")?;
            let leaders: BTreeSet<u64> =
                brokers.iter().filter(|b| b["error"].is_null()).filter_map(|b| b["leader"].as_u64()).collect();
            let answered = brokers.iter().filter(|b| b["error"].is_null()).count();
            let [leader] = *leaders.into_iter().collect::<Vec<_>>() else { bail!("they do not agree: {status}") };
            let runs = self.brokers.get(&leader).is_some_and(|broker| broker.process.is_some());
            ensure!(runs && answered == running, "not yet: {status}");
            Ok(Some(leader))
        })
        .await
    }

    /// Revision and digest of the state, once all brokers that run have the same.
    pub async fn agreed_state(&self) -> Result<(u64, String)> {
        let running = self.broker_pids().len();
        until("all brokers to agree", PATIENCE, async || {
            let status = self.comity_as("admin", &["raft", "status"]).await?;
            let states: BTreeSet<(u64, String)> = status["brokers"]
                .as_array()
                .context("a status names brokers")?
                .iter()
                .filter(|b| b["error"].is_null())
                .filter_map(|b| Some((b["revision"].as_u64()?, b["stateSha256"].as_str()?.to_owned())))
                .collect();
            let answered = status["brokers"].as_array().into_iter().flatten().filter(|b| b["error"].is_null()).count();
            ensure!(states.len() == 1 && answered == running, "not yet: {status}");
            Ok(states.into_iter().next())
        })
        .await
    }

    // --- agents ---------------------------------------------------------------------------------------------------

    /// Invites a cluster and starts its agent with the join token.
    pub async fn join(&mut self, spec: AgentSpec) -> Result<()> {
        let cluster = spec.cluster.clone();
        let invitation = self.comity_as("admin", &["cluster", "invite", &cluster]).await?;
        let token = invitation["token"].as_str().context("an invitation has a token")?;
        let dir = self.agent_dir(&cluster);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(self.dir.path().join(format!("{cluster}.token")), token)?;
        // As in production an agent keeps its fabric port over restarts.
        let fabric_port = free_ports(1)?[0];
        self.agents.insert(cluster.clone(), Agent { spec, fabric_port, process: None });
        self.start_agent(&cluster)
    }

    /// Starts an agent that does not run.
    pub fn start_agent(&mut self, cluster: &str) -> Result<()> {
        let agent = self.agents.get(cluster).context("no such agent")?;
        let config = self.dir.path().join(format!("{cluster}.yaml"));
        let token = self.dir.path().join(format!("{cluster}.token"));
        std::fs::write(&config, agent_config(agent, &self.agent_dir(cluster), &token, &self.log)?)?;
        let args = ["run", "--config", text(&config)?].map(str::to_owned);
        let mut command = (agent.spec.place.launch)(&program("comity-agent")?, &args);
        if let Some(step) = &agent.spec.crash_at {
            command.env("COMITY_AGENT_CRASH_AT", step);
        }
        let process = Process::start(cluster, command, &self.log_file(cluster))?;
        self.agents.get_mut(cluster).context("no such agent")?.process = Some(process);
        Ok(())
    }

    /// Kills an agent with SIGKILL.
    pub async fn kill_agent(&mut self, cluster: &str) -> Result<()> {
        let process =
            self.agents.get_mut(cluster).and_then(|agent| agent.process.take()).context("no such agent runs")?;
        process.kill().await
    }

    /// Process id of an agent that runs.
    #[must_use]
    pub fn agent_pid(&self, cluster: &str) -> Option<u32> {
        self.agents.get(cluster)?.process.as_ref()?.pid()
    }

    /// Brokers that have ended by themselves.
    pub fn ended_brokers(&mut self) -> Result<Vec<u64>> {
        let mut ended = Vec::new();
        for (id, broker) in &mut self.brokers {
            if let Some(process) = &mut broker.process
                && process.has_ended()?
            {
                ended.push(*id);
            }
        }
        Ok(ended)
    }

    /// Agents that have ended by themselves.
    pub fn ended_agents(&mut self) -> Result<Vec<String>> {
        let mut ended = Vec::new();
        for (cluster, agent) in &mut self.agents {
            if let Some(process) = &mut agent.process
                && process.has_ended()?
            {
                ended.push(cluster.clone());
            }
        }
        Ok(ended)
    }

    /// Starts every agent again that has ended by itself; how many there were.
    pub fn restart_ended_agents(&mut self) -> Result<usize> {
        let ended = self.ended_agents()?;
        for cluster in &ended {
            self.start_agent(cluster)?;
        }
        Ok(ended.len())
    }

    /// Waits until all agents that were started are heard, with their offers.
    pub async fn all_connected(&self) -> Result<()> {
        let count = self.agents.len();
        until("all agents to be connected", PATIENCE, async || {
            let clusters = self.comity_as("admin", &["cluster", "list"]).await?;
            let connected =
                items(&clusters)?.iter().filter(|c| c["connected"] == true && c["offerGeneration"] != 0).count();
            Ok((connected == count).then_some(()))
        })
        .await
    }

    // --- the command ----------------------------------------------------------------------------------------------

    /// The command, for tasks that go on while brokers and agents come and go.
    #[must_use]
    pub fn command(&self) -> Comity {
        self.command_at(&self.broker_addresses())
    }

    /// The command with these addresses of brokers, in this order.
    pub(crate) fn command_at(&self, brokers: &[String]) -> Comity {
        Comity::new(self.place.clone(), brokers, self.dir.path())
    }

    /// Runs `comity -o json ARGS` as `user`; exit code, standard output, standard error.
    pub async fn run_comity(&self, user: &str, args: &[&str]) -> Result<(i32, String, String)> {
        self.command().run(user, args).await
    }

    /// What `comity -o json ARGS` prints, as `user`; an error if it fails.
    pub async fn comity_as(&self, user: &str, args: &[&str]) -> Result<Value> {
        self.command().json(user, args).await
    }

    /// What `comity -o json ARGS` prints, as alice of poly-ml.
    pub async fn comity(&self, args: &[&str]) -> Result<Value> {
        self.comity_as("alice", args).await
    }

    /// Asks for `gpus` whole GPUs of `class` for poly-ml; the request's id.
    pub async fn submit(&self, gpus: u32, class: &str) -> Result<String> {
        let gpus = gpus.to_string();
        let args = [
            "request",
            "submit",
            "--tenant",
            "poly-ml",
            "--origin",
            "polytech-campus",
            "--class",
            class,
            "--gpus",
            &gpus,
        ];
        let request = self
            .comity(&[&args[..], &["--cpu-per-gpu", "1", "--memory-per-gpu", "1Gi", "--duration", "1h"]].concat())
            .await?;
        Ok(request["id"].as_str().context("a request has an id")?.to_owned())
    }

    /// The lease of a request, once there is one.
    pub async fn lease_of(&self, request: &str) -> Result<String> {
        until("a lease", PATIENCE, async || {
            let seen = self.comity(&["request", "show", request]).await?;
            if let Some(lease) = seen["lease"].as_str().filter(|lease| !lease.is_empty()) {
                return Ok(Some(lease.to_owned()));
            }
            bail!("not placed: {}", self.comity(&["request", "explain", request]).await?)
        })
        .await
    }

    /// Waits until no peering is open.
    ///
    /// # Errors
    /// Which are.
    pub async fn no_peering(&self, limit: Duration) -> Result<()> {
        until("the peerings to be closed", limit, async || {
            let peerings = self.comity_as("admin", &["peering", "list"]).await?;
            ensure!(peerings["items"].as_array().is_none_or(Vec::is_empty), "still there: {peerings}");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until a lease is in `state`.
    pub async fn lease_in(&self, lease: &str, state: &str, limit: Duration) -> Result<Value> {
        until(&format!("{lease} to be {state}"), limit, async || {
            let seen = self.comity(&["lease", "show", lease]).await?;
            if seen["state"] == state {
                return Ok(Some(seen));
            }
            bail!("it is {}: {}", seen["state"], seen["message"])
        })
        .await
    }

    /// The kubeconfig of a lease, from the origin's agent.
    pub async fn kubeconfig(&self, lease: &str, origin: &str) -> Result<PathBuf> {
        let socket = self.agent_dir(origin).join("agent.sock");
        let file = self.dir.path().join(format!("{lease}.kubeconfig"));
        // An agent that was restarted a moment ago has to open its side of the tunnel first.
        until("the kubeconfig", PATIENCE, async || {
            let args = ["lease", "kubeconfig", lease, "--agent", text(&socket)?, "--output-file", text(&file)?];
            self.comity(&args).await.map(Some)
        })
        .await?;
        Ok(file)
    }

    /// The whole log of a process: "broker-1" or a cluster.
    pub fn log_of(&self, name: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_file(name))?)
    }

    /// Copies the logs of all processes into a directory, made if absent.
    pub fn copy_logs(&self, to: &Path) -> Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(self.dir.path())? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "log")) {
                std::fs::copy(&path, to.join(name))?;
            }
        }
        Ok(())
    }

    /// Ends of all logs, for a message when a test fails.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        let brokers = self.brokers.iter().map(|(id, broker)| (format!("broker {id}"), &broker.process));
        for (name, process) in brokers.chain(self.agents.iter().map(|(name, agent)| (name.clone(), &agent.process))) {
            if let Some(process) = process {
                logs.push_str(&format!("\n--- {name}\n{}", process.log_tail()));
            }
        }
        logs
    }
}

/// An agent's configuration file.
fn agent_config(agent: &Agent, state: &Path, token: &Path, log: &str) -> Result<String> {
    let Agent { spec, fabric_port, .. } = agent;
    let (state, token, address) = (text(state)?, text(token)?, &spec.place.address);
    let inventory = match &spec.inventory {
        Donor::Kubernetes(kubeconfig) => format!("kubernetes:\n  kubeconfig: {}\n", text(kubeconfig)?),
        Donor::File(file) => format!("inventoryFile: {}\n", text(file)?),
    };
    let (mode, more) = (spec.fabric_mode, &spec.more);
    Ok(format!(
        "stateDir: {state}\njoinTokenFile: {token}\n{inventory}fabric:\n  listen: {address}:{fabric_port}\n  mode: {mode}\nadminListen: 127.0.0.1:0\nlog:\n  filter: {log}\n{more}"
    ))
}

/// The items of a list as `comity` prints it.
pub(crate) fn items(list: &Value) -> Result<&Vec<Value>> {
    list["items"].as_array().or_else(|| list.as_array()).context("a list has items")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("paths of tests are text")
}

async fn run(name: &str, args: &[&str]) -> Result<()> {
    let output = Command::new(program(name)?).args(args).output().await?;
    ensure!(output.status.success(), "{name} {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Ports that nobody uses now, TCP or UDP. They are below the range from which the system takes ports for connections
/// (32768 on Linux), so that none is taken while its owner is down.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    let mut ports = Vec::new();
    for _ in 0..PORTS {
        if ports.len() == count {
            return Ok(ports);
        }
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset)?;
        let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
        if tcp.is_ok() && udp.is_ok() {
            ports.push(port);
        }
    }
    bail!("no free ports between {FIRST} and {}", FIRST + PORTS)
}
