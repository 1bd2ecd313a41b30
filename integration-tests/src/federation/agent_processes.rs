//! Starts, stops and configures the agents of a federation.

use std::path::Path;

use anyhow::{Context as _, Result};

use super::Federation;
use super::config::{AgentSpec, InventorySource};
use super::ports::free_port;
use crate::comity::items;
use crate::process::Process;
use crate::programs::{program, utf8};
use crate::wait::{PATIENCE, until};

pub(super) struct Agent {
    pub(super) spec: AgentSpec,
    pub(super) fabric_port: u16,
    pub(super) process: Option<Process>,
}

impl Federation {
    /// Invites a cluster and starts its agent with the join token.
    pub async fn join(&mut self, spec: AgentSpec) -> Result<()> {
        let cluster = spec.cluster.clone();
        let invitation = self.comity_as("admin", &["cluster", "invite", &cluster]).await?;
        let token = invitation["token"].as_str().context("an invitation has a token")?;
        let dir = self.agent_dir(&cluster);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(self.dir.path().join(format!("{cluster}.token")), token)?;
        // As in production, an agent keeps its fabric port across restarts.
        let fabric_port = free_port()?;
        self.agents.insert(cluster.clone(), Agent { spec, fabric_port, process: None });
        self.start_agent(&cluster)
    }

    /// Starts a stopped agent.
    pub fn start_agent(&mut self, cluster: &str) -> Result<()> {
        let agent = self.agents.get(cluster).context("no such agent")?;
        let config = self.dir.path().join(format!("{cluster}.yaml"));
        let token = self.dir.path().join(format!("{cluster}.token"));
        std::fs::write(&config, agent_config(agent, &self.agent_dir(cluster), &token, &self.log)?)?;
        let args = ["run", "--config", utf8(&config)?].map(str::to_owned);
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

    /// Kills an agent and starts it again; `change` gets the additional sections of its configuration and returns others.
    pub async fn reconfigure_agent(&mut self, cluster: &str, change: impl FnOnce(&str) -> String) -> Result<()> {
        self.kill_agent(cluster).await?;
        let agent = self.agents.get_mut(cluster).context("no such agent")?;
        agent.spec.more = change(&agent.spec.more);
        self.start_agent(cluster)
    }

    /// Process id of an agent while it runs.
    #[must_use]
    pub fn agent_pid(&self, cluster: &str) -> Option<u32> {
        self.agents.get(cluster)?.process.as_ref()?.pid()
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

    /// Restarts the agents that have ended by themselves; returns their number.
    pub fn restart_ended_agents(&mut self) -> Result<usize> {
        let ended = self.ended_agents()?;
        for cluster in &ended {
            self.start_agent(cluster)?;
        }
        Ok(ended.len())
    }

    /// Waits until all agents are connected and have offers.
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
}

/// An agent's configuration file.
fn agent_config(agent: &Agent, state: &Path, token: &Path, log: &str) -> Result<String> {
    let Agent { spec, fabric_port, .. } = agent;
    let (state, token, address) = (utf8(state)?, utf8(token)?, &spec.place.address);
    let inventory = match &spec.inventory {
        InventorySource::Kubernetes(kubeconfig) => {
            format!("kubernetes:\n  kubeconfig: {}\n  unrestricted: true\n", utf8(kubeconfig)?)
        }
        InventorySource::AsAgent(kubeconfig) => format!("kubernetes:\n  kubeconfig: {}\n", utf8(kubeconfig)?),
        InventorySource::File(file) => format!("inventoryFile: {}\n", utf8(file)?),
    };
    let (mode, more) = (spec.fabric_mode, &spec.more);
    // Nodes of tests have their images from the host, and no registry.
    let has_section = more.lines().any(|line| line.starts_with("sharing:"));
    let sharing = if has_section { "" } else { "sharing: {alwaysPullImages: false}\n" };
    Ok(format!(
        "stateDir: {state}\njoinTokenFile: {token}\n{inventory}\
         fabric:\n  listen: {address}:{fabric_port}\n  mode: {mode}\n\
         adminListen: 127.0.0.1:0\nlog:\n  filter: {log}\n{sharing}{more}"
    ))
}
