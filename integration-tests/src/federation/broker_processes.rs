//! Starts, stops and inspects the brokers of a federation.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};

use super::ports::Ports;
use super::{Federation, admin};
use crate::process::Process;
use crate::process::place::Place;
use crate::programs::{program, run, utf8};
use crate::wait::{PATIENCE, until};

pub(super) struct Broker {
    pub(super) process: Option<Process>,
    pub(super) place: Place,
    pub(super) data: PathBuf,
    pub(super) ports: Ports,
    /// Whether its files name its addresses, as those of the first brokers do.
    pub(super) is_founder: bool,
}

impl Federation {
    /// Starts a stopped broker.
    pub fn start_broker(&mut self, id: u64) -> Result<()> {
        let data = self.broker_dir(id);
        let every = self.snapshot_every.to_string();
        let broker = self.brokers.get(&id).context("no such broker")?;
        let admin = format!("{}:0", broker.place.address);
        let args = ["run", "--data", utf8(&data)?, "--admin-listen", &admin, "--snapshot-every", &every];
        let validity = self.cluster_certificates_s.to_string();
        let args = args
            .into_iter()
            .chain(["--cluster-certificates-s", &validity, "--log", &self.log])
            .map(str::to_owned)
            .chain(self.address_flags(id))
            .chain(self.ca_flags()?)
            .collect::<Vec<_>>();
        let broker = self.brokers.get_mut(&id).context("no such broker")?;
        let command = (broker.place.launch)(&program("comity-broker")?, &args);
        let (name, log) = (format!("broker-{id}"), self.dir.path().join(format!("broker-{id}.log")));
        broker.process = Some(Process::start(&name, command, &log)?);
        Ok(())
    }

    /// Address flags of a broker whose files do not name its addresses.
    fn address_flags(&self, id: u64) -> Vec<String> {
        let Some(broker) = self.brokers.get(&id).filter(|broker| !broker.is_founder) else { return Vec::new() };
        let (raft, client) = broker.ports.addresses(&broker.place);
        ["--raft-listen".to_owned(), raft, "--client-listen".to_owned(), client].into()
    }

    /// Flags of brokers whose authority another program keeps current.
    fn ca_flags(&self) -> Result<Vec<String>> {
        let Some(ca) = &self.ca else { return Ok(Vec::new()) };
        Ok(["--ca", utf8(ca)?].map(str::to_owned).into())
    }

    /// Adds a broker without starting it; returns its Raft and its client address.
    pub fn add_broker(&mut self, id: u64) -> Result<(String, String)> {
        let (data, ports) = (self.broker_dir(id), Ports::free()?);
        Ok(self.add_broker_at(id, self.place.clone(), data, ports))
    }

    /// As [`Federation::add_broker`], with the caller's place, data directory and ports.
    pub(crate) fn add_broker_at(&mut self, id: u64, place: Place, data: PathBuf, ports: Ports) -> (String, String) {
        let addresses = ports.addresses(&place);
        self.brokers.insert(id, Broker { process: None, place, data, ports, is_founder: false });
        addresses
    }

    /// Creates the files of another broker from those of broker `from`, as docs/disaster.md shows.
    ///
    /// # Errors
    /// When the program fails, with its output.
    pub(crate) async fn add_identity(&self, from: u64, id: u64) -> Result<()> {
        let (from, out) = (self.broker_dir(from), self.broker_dir(id));
        let args = ["add-identity", "--data", utf8(&from)?, "--id", &id.to_string(), "--out", utf8(&out)?];
        run("comity-broker", &args).await
    }

    /// Kills a broker if it runs, and removes it from this federation; returns its ports.
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

    /// Client addresses of all brokers, "host:port".
    #[must_use]
    pub fn broker_addresses(&self) -> Vec<String> {
        self.brokers.values().map(|broker| broker.ports.addresses(&broker.place).1).collect()
    }

    /// Client address of a broker, "host:port".
    ///
    /// # Errors
    /// When there is no such broker.
    pub fn broker_address(&self, id: u64) -> Result<String> {
        let broker = self.brokers.get(&id).context("no such broker")?;
        Ok(broker.ports.addresses(&broker.place).1)
    }

    /// Process id of a broker while it runs.
    #[must_use]
    pub fn broker_pid(&self, id: u64) -> Option<u32> {
        self.brokers.get(&id)?.process.as_ref()?.pid()
    }

    /// The Prometheus metrics of a running broker.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn broker_metrics(&self, id: u64) -> Result<String> {
        let log = self.log_of(&format!("broker-{id}"))?;
        // Its admin port is dynamic; the log names it at each start.
        let started = log.lines().rev().find(|line| line.contains("broker started")).context("it has not started")?;
        let address = started.split("admin=").nth(1).and_then(|rest| rest.split_whitespace().next());
        admin::get(address.context("a start names the address")?, "/metrics").await
    }

    /// Process ids of the running brokers.
    #[must_use]
    pub fn broker_pids(&self) -> Vec<u32> {
        self.brokers.values().filter_map(|broker| broker.process.as_ref()?.pid()).collect()
    }

    /// Waits until all running brokers agree on the leader; returns it.
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

    /// Waits until all running brokers have the same state; returns its revision and digest.
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
}
