//! The member clusters: what each has, and its agent.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};

use comity_agent::app::IDENTITY_KEY_FILE;
use comity_agent::config::{FabricSettings, KubernetesConfig};
use comity_agent::{Agent, Config};
use comity_runtime::atomic_file::{self, PRIVATE};
use comity_runtime::{ClusterName, IdentityKey, IdentityPublicKey, SystemEntropy};

use super::home::Home;
use super::institutions::Institutions;
use crate::failure::Failure;

/// The clusters: the origin of the story, its donor, and two more.
pub(super) const NAMES: [&str; 4] = [ORIGIN, DONOR, "physics-farm", "startup-pc"];
/// Who asks.
pub(super) const ORIGIN: &str = "polytech-campus";
/// Who has what is asked for.
pub(super) const DONOR: &str = "ncc-main";

/// What the machines have, in the format of the agent's inventory file.
fn inventory(cluster: &str) -> Option<&'static str> {
    Some(match cluster {
        ORIGIN => {
            "nodes:
- name: lab-1
  cpu: '32'
  memory: 128Gi
  localUse: {gpus: 2}
  gpus:
  - {count: 4, product: NVIDIA-RTX-4000-Ada, memoryMiB: 20475, architecture: Ada Lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
"
        }
        DONOR => {
            "nodes:
- name: h100-1
  cpu: '192'
  memory: 2048Gi
  gpus:
  - {count: 8, product: NVIDIA-H100-80GB-HBM3, memoryMiB: 81559, architecture: Hopper, computeCapability: '9.0', driverVersion: 550.127.05}
- name: h100-2
  cpu: '192'
  memory: 2048Gi
  gpus:
  - {count: 8, product: NVIDIA-H100-80GB-HBM3, memoryMiB: 81559, architecture: Hopper, computeCapability: '9.0', driverVersion: 550.127.05}
- name: a100-1
  cpu: '128'
  memory: 1024Gi
  localUse: {gpus: 2, cpu: '32', memory: 256Gi}
  gpus:
  - {count: 8, product: NVIDIA-A100-SXM4-40GB, memoryMiB: 40960, architecture: Ampere, computeCapability: '8.0', driverVersion: 550.127.05}
"
        }
        "physics-farm" => {
            "nodes:
- name: farm-1
  cpu: '64'
  memory: 512Gi
  gpus:
  - {count: 8, product: NVIDIA-L40S, memoryMiB: 46068, architecture: Ada Lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
- name: farm-2
  cpu: '64'
  memory: 512Gi
  gpus:
  - {count: 8, product: NVIDIA-L40S, memoryMiB: 46068, architecture: Ada Lovelace, computeCapability: '8.9', driverVersion: 550.127.05}
"
        }
        "startup-pc" => {
            "nodes:
- name: pc
  cpu: '16'
  memory: 64Gi
  gpus:
  - {count: 1, product: NVIDIA-GeForce-RTX-4090, memoryMiB: 24564, architecture: Ada Lovelace, computeCapability: '8.9', driverVersion: 560.35.03}
"
        }
        _ => return None,
    })
}

/// A member whose agent is to be started.
#[derive(Debug)]
pub(super) struct Member {
    cluster: &'static str,
    state: PathBuf,
    config: Config,
}

fn failed(cluster: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::refused("agent-failed", format!("the agent of {cluster} does not start: {error}"))
}

/// Where the fabric listens. Its address is in the signed keys of each peering, so a cluster that comes back must come
/// back there: a home that is kept keeps the port that was free the first time.
fn fabric_address(home: &Home, state: &Path) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    if home.path_to_remove().is_some() {
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
        let (owner, institution) = institutions.owner(cluster).ok_or_else(|| failed(&"policy names no owner"))?;
        // What an administrator does once by hand: the institution's key vouches for the agent's.
        let key = IdentityKey::load_or_generate(&state.join(IDENTITY_KEY_FILE), &SystemEntropy)
            .map_err(|error| failed(&error))?;
        let name = ClusterName::new(cluster).map_err(|error| failed(&error))?;
        let pinned: BTreeMap<String, Vec<IdentityPublicKey>> = institutions.public_keys();
        debug_assert!(pinned.contains_key(owner));
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            state_dir: state.clone(),
            voucher: Some(institution.vouch(&name, &key.public())),
            pinned_institution_keys: pinned,
            fabric: FabricSettings {
                listen: fabric_address(home, &state).map_err(|error| failed(&error))?,
                ..FabricSettings::default()
            },
            admin_listen: loopback,
            ..Config::default()
        };
        match kubeconfig {
            Some(path) => {
                config.kubernetes = Some(KubernetesConfig { kubeconfig: Some(path.to_owned()), context: None })
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

    /// Its id.
    pub(super) const fn cluster(&self) -> &'static str {
        self.cluster
    }

    /// Whether it joined in an earlier run.
    pub(super) fn has_joined(&self) -> bool {
        comity_runtime::IdentityDir::new(self.state.join("identity")).exists()
    }

    /// Gives it its join token.
    pub(super) fn invite(&mut self, token: &str) -> Result<(), Failure> {
        let file = self.state.join("join.token");
        atomic_file::write(&file, token.as_bytes(), PRIVATE).map_err(|error| failed(self.cluster, &error))?;
        self.config.join_token_file = Some(file);
        Ok(())
    }

    /// Starts its agent, which joins first where it has not; the token is of no use afterwards and goes.
    pub(super) async fn start(self) -> Result<Agent, Failure> {
        let token = self.config.join_token_file.clone();
        let agent = Agent::start(self.config).await.map_err(|error| failed(self.cluster, &error))?;
        if let Some(token) = token {
            std::fs::remove_file(token).map_err(|error| failed(self.cluster, &error))?;
        }
        Ok(agent)
    }
}
