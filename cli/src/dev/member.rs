//! A member cluster: its agent's configuration, joining and start.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use comity_agent::app::IDENTITY_KEY_FILE;
use comity_agent::config::{FabricSettings, KubernetesConfig};
use comity_agent::enrollment::token_source::JoinTokenSource;
use comity_agent::{Agent, Config};
use comity_runtime::atomic_file::{self, PRIVATE};
use comity_runtime::{ClusterName, IdentityKey, SystemEntropy};

use super::brokers::has_ended;
use super::home::Home;
use super::institutions::Institutions;
use super::inventories::inventory;
use crate::failure::Failure;

/// A member cluster whose agent is not started yet.
#[derive(Debug)]
pub(super) struct Member {
    cluster: &'static str,
    state: PathBuf,
    config: Config,
}

fn failed(cluster: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("agent-failed", format!("the agent of {cluster} failed to start: {error}"))
}

/// Listen address of the fabric. The signed keys of each peering contain it, so a kept home keeps the port of its first
/// run; a temporary one takes any port.
fn fabric_address(home: &Home, state: &Path) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if home.temporary_path().is_some() {
        return Ok(any);
    }
    let file = state.join("fabric-address");
    if file.exists() {
        return Ok(std::fs::read_to_string(&file)?.trim().parse()?);
    }
    let address = UdpSocket::bind(any)?.local_addr()?;
    atomic_file::write(&file, address.to_string().as_bytes(), PRIVATE)?;
    Ok(address)
}

impl Member {
    /// A member on a file inventory, or on the Kubernetes cluster behind a kubeconfig.
    pub(super) fn new(
        home: &Home,
        cluster: &'static str,
        kubeconfig: Option<&Path>,
        institutions: &Institutions,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| failed(cluster, error);
        let state = home.dir("agents").join(cluster);
        atomic_file::create_private_dir(&state).map_err(|error| failed(&error))?;
        let (owner, institution) = institutions.owner(cluster).ok_or_else(|| failed(&"the policy names no owner"))?;
        // Vouch for the agent's key with the institution's, as an administrator does once by hand.
        let key = IdentityKey::load_or_generate(&state.join(IDENTITY_KEY_FILE), &SystemEntropy)
            .map_err(|error| failed(&error))?;
        let name = ClusterName::new(cluster).map_err(|error| failed(&error))?;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            state_dir: state.clone(),
            voucher: Some(institution.vouch(owner, &name, &key.public())),
            pinned_institutions: institutions.pins(),
            require_vouchers: true,
            fabric: FabricSettings {
                listen: fabric_address(home, &state).map_err(|error| failed(&error))?,
                ..FabricSettings::default()
            },
            admin_listen: loopback,
            ..Config::default()
        };
        match kubeconfig {
            Some(path) => {
                // The user's own kubeconfig, which no policy restricts.
                let kubeconfig = Some(path.to_owned());
                config.kubernetes = Some(KubernetesConfig { kubeconfig, context: None, unrestricted: true });
                // Its nodes may have images that no registry has.
                config.sharing.always_pull_images = false;
            }
            None => {
                let file = state.join("inventory.yaml");
                let text = inventory(cluster).ok_or_else(|| failed(&"it has no inventory"))?;
                if !file.exists() {
                    atomic_file::write(&file, text.as_bytes(), PRIVATE).map_err(|error| failed(&error))?;
                }
                config.inventory_file = Some(file);
            }
        }
        Ok(Self { cluster, state, config })
    }

    /// Cluster id.
    pub(super) const fn cluster(&self) -> &'static str {
        self.cluster
    }

    /// Whether it joined in an earlier run, and its certificate has not ended since.
    pub(super) fn has_joined(&self) -> bool {
        let identity = self.state.join("identity");
        comity_runtime::IdentityDir::new(&identity).exists() && !has_ended(&identity)
    }

    /// Stores the join token for the agent.
    pub(super) fn set_join_token(&mut self, token: &str) -> Result<(), Failure> {
        let file = self.state.join("join.token");
        atomic_file::write(&file, token.as_bytes(), PRIVATE).map_err(|error| failed(self.cluster, &error))?;
        self.config.join_token_file = Some(JoinTokenSource::File(file));
        Ok(())
    }

    /// Starts the agent, which joins first if it has not, and deletes the used token.
    pub(super) async fn start(self) -> Result<Agent, Failure> {
        let token = self.config.join_token_file.as_ref().and_then(|source| source.file()).map(Path::to_owned);
        let agent = Agent::start(self.config).await.map_err(|error| failed(self.cluster, &error))?;
        if let Some(token) = token {
            std::fs::remove_file(token).map_err(|error| failed(self.cluster, &error))?;
        }
        Ok(agent)
    }
}
