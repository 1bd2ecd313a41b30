//! A federation of broker and agent processes, driven through the `comity` command.

mod admin;
mod agent_processes;
pub(crate) mod broker_api;
mod broker_processes;
mod config;
pub(crate) mod policy_documents;
mod ports;
mod user_commands;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

pub use config::{AgentSpec, FederationConfig, InventorySource};
pub(crate) use ports::Ports;
pub use ports::free_port;

use crate::comity;
use crate::process::place::Place;
use crate::programs::{run, utf8};
use crate::wait::{PATIENCE, until};

use agent_processes::Agent;
use broker_processes::Broker;

/// A running federation. Dropping it kills every process and removes every file.
pub struct Federation {
    dir: tempfile::TempDir,
    place: Place,
    brokers: BTreeMap<u64, Broker>,
    agents: BTreeMap<String, Agent>,
    log: String,
    snapshot_every: u64,
    cluster_certificates_s: u64,
    ca: Option<PathBuf>,
}

impl Federation {
    /// Starts a federation and waits until its policy is applied.
    pub async fn start(config: FederationConfig) -> Result<Self> {
        let places = (0..config.brokers).map(|_| config.place.clone()).collect();
        Self::start_at(config, places, |_, data| Ok(data)).await
    }

    /// As [`Federation::start`], with a place for each broker. Before the first start of a broker, `prepare` receives
    /// its number and data directory and may move the directory; it returns the new path.
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
            ..Self::found(config.place, &members.join(","), &config.hosts, config.ca).await?
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
            federation.comity_as("admin", &["policy", "apply", utf8(&policy)?]).await.map(Some)
        })
        .await?;
        Ok(federation)
    }

    /// Creates the files of the first broker and of the users, and starts nothing.
    async fn found(place: Place, members: &str, hosts: &[String], ca: Option<PathBuf>) -> Result<Self> {
        let federation = Self {
            dir: tempfile::Builder::new().prefix("comity-scenario-").tempdir()?,
            place,
            brokers: BTreeMap::new(),
            agents: BTreeMap::new(),
            log: std::env::var("COMITY_TEST_LOG").unwrap_or_else(|_| "info,openraft=error".to_owned()),
            snapshot_every: 10_000,
            cluster_certificates_s: 86_400,
            ca,
        };
        let first = federation.broker_dir(1);
        let (data, admin) = (utf8(&first)?, comity::identity(federation.dir.path(), "admin"));
        let init = ["init", "--data", data, "--trust-domain", "comity.example", "--members", members];
        let mut more: Vec<&str> = hosts.iter().flat_map(|host| ["--host", host]).collect();
        if let Some(ca) = &federation.ca {
            more.extend(["--ca", utf8(ca)?]);
        }
        run("comity-broker", &[&init[..], &["--admin-out", utf8(&admin)?], &more].concat()).await?;
        // A submitter of poly-ml, and its admin.
        for user in ["alice", "bruno"] {
            let out = comity::identity(federation.dir.path(), user);
            run("comity-broker", &["issue-user", "--data", data, "--name", user, "--out", utf8(&out)?]).await?;
        }
        Ok(federation)
    }

    /// Creates the files of a federation whose brokers the caller starts, as pods. Clients reach them at the address of
    /// `place` and `client_port`.
    pub async fn found_elsewhere(place: Place, client_port: u16, members: &str) -> Result<Self> {
        let mut federation = Self::found(place.clone(), members, &[], None).await?;
        let (data, ports) = (federation.broker_dir(1), Ports { raft: 0, client: client_port });
        federation.brokers.insert(1, Broker { process: None, place, data, ports, is_founder: true });
        Ok(federation)
    }

    /// Directory of all files of this federation.
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

    /// The whole log of a process: "broker-1" or a cluster.
    pub fn log_of(&self, name: &str) -> Result<String> {
        Ok(std::fs::read_to_string(self.log_file(name))?)
    }

    /// Copies the logs of all processes into a directory, and creates it if absent.
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

    /// Copies the logs to the directory in `COMITY_CHAOS_LOGS`, if it is set.
    pub(crate) fn keep_logs(&self) {
        let Some(kept) = std::env::var_os("COMITY_CHAOS_LOGS") else { return };
        if let Err(error) = self.copy_logs(kept.as_ref()) {
            eprintln!("the logs are not kept: {error:#}");
        }
    }

    /// The ends of all logs, for error messages.
    #[must_use]
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        let brokers = self.brokers.iter().map(|(id, broker)| (format!("broker {id}"), &broker.process));
        // Agents first: their logs say more about a lease that does not become active.
        for (name, process) in self.agents.iter().map(|(name, agent)| (name.clone(), &agent.process)).chain(brokers) {
            if let Some(process) = process {
                logs.push_str(&format!("\n--- {name}\n{}", process.log_tail()));
            }
        }
        logs
    }
}
