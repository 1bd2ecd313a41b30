//! The configuration of a host that has none: from what is found here, and from flags.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::checks::{Check, Outcome};
use comity_runtime::{BrokerEndpoints, JoinToken};
use serde_json::Value;
use tokio::net::UdpSocket;

use super::settings::{CONFIG_FILE, Settings};
use crate::config::{Config, ConfigError, KubernetesConfig};
use crate::host::found_gpus;
use crate::host::host_inventory::inventory_of;
use crate::host::machine::Machine;
use crate::host::platform::{self, Place};
use crate::preflight::check_found_gpus;

/// Name of the inventory file in the state directory.
const INVENTORY_FILE: &str = "inventory.yaml";
const CONFIG_HEAD: &str = "# Written by comity-agent join. docs/join.md lists all fields with their defaults.\n";

/// A file that is not written yet.
pub(super) struct Draft {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// The configuration in force, and what has to be written for it.
pub(super) struct Setup {
    pub(super) config: Config,
    pub(super) config_file: PathBuf,
    pub(super) config_draft: Option<Draft>,
    pub(super) inventory_draft: Option<Draft>,
    /// What was found on this host.
    pub(super) found: Vec<Check>,
}

impl Setup {
    /// Writes the drafts.
    pub(super) fn write(&self) -> Result<(), FileError> {
        for draft in self.drafts() {
            if let Some(directory) = draft.path.parent() {
                atomic_file::create_private_dir(directory)?;
            }
            atomic_file::write(&draft.path, draft.text.as_bytes(), atomic_file::PRIVATE)?;
        }
        Ok(())
    }

    /// Whether everything that the drafts describe is known: files of a guess would be taken for the owner's words.
    pub(super) fn is_certain(&self) -> bool {
        self.found.iter().all(|check| check.result != Outcome::Failed)
    }

    pub(super) fn drafts(&self) -> impl Iterator<Item = &Draft> {
        self.inventory_draft.iter().chain(&self.config_draft)
    }
}

/// Reads the configuration, or makes one.
pub(super) async fn set_up(settings: Settings, token: Option<&JoinToken>) -> Result<Setup, ConfigError> {
    let file = settings.file();
    let mut config = settings.resolve()?;
    if let Some(config_file) = file {
        return Ok(Setup { config, config_file, config_draft: None, inventory_draft: None, found: Vec::new() });
    }
    make_paths_absolute(&mut config);
    let (mut inventory_draft, mut found) = (None, Vec::new());
    if config.kubernetes.is_none() && config.inventory_file.is_none() {
        match platform::place() {
            Place::Pod => {
                found.push(Check::ok("platform", "a pod of a Kubernetes cluster"));
                config.kubernetes = Some(KubernetesConfig::default());
            }
            Place::KubernetesNode => {
                found.push(Check::warning(
                    "platform",
                    "a node of a Kubernetes cluster, but no kubeconfig is given: only this host's GPUs are offered",
                    "to lend the cluster's GPUs, run the agent as a pod (docs/install.md), or give --kubeconfig FILE",
                ));
                inventory_draft = host_inventory(&mut config, &mut found).await;
            }
            Place::Host => {
                found.push(Check::ok("platform", "a host without Kubernetes"));
                inventory_draft = host_inventory(&mut config, &mut found).await;
            }
        }
    }
    if let (None, true, Some(token)) = (&config.kubernetes, config.fabric.endpoints.is_empty(), token) {
        config.fabric.endpoints = outward_endpoint(&token.brokers, config.fabric.listen).await;
    }
    let config_file = config.state_dir.join(CONFIG_FILE);
    let config_draft = Some(Draft { path: config_file.clone(), text: text_of(&config) });
    Ok(Setup { config, config_file, config_draft, inventory_draft, found })
}

/// The configuration that is written is read from any folder.
fn make_paths_absolute(config: &mut Config) {
    let kubeconfig = config.kubernetes.as_mut().and_then(|kubernetes| kubernetes.kubeconfig.as_mut());
    for path in [Some(&mut config.state_dir), config.inventory_file.as_mut(), kubeconfig].into_iter().flatten() {
        // An empty path, which the check of the configuration refuses, stays as it is.
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute;
        }
    }
}

/// Names the inventory file in the state directory, and drafts it unless it exists.
async fn host_inventory(config: &mut Config, found: &mut Vec<Check>) -> Option<Draft> {
    let path = config.state_dir.join(INVENTORY_FILE);
    config.inventory_file = Some(path.clone());
    if path.exists() {
        return None;
    }
    let gpus = found_gpus::find().await;
    found.push(check_found_gpus(&gpus, &path));
    Some(Draft { path, text: inventory_of(&Machine::read(Path::new("/")), &gpus) })
}

/// The address from which this host reaches the brokers, with the port that the fabric listens on.
async fn outward_endpoint(brokers: &BrokerEndpoints, listen: SocketAddr) -> Vec<String> {
    // A specific address is an endpoint already.
    let (true, Some(broker)) = (listen.ip().is_unspecified(), brokers.addresses().first()) else { return Vec::new() };
    let address = async {
        // Connecting a UDP socket sends nothing.
        let socket = UdpSocket::bind((listen.ip(), 0)).await?;
        socket.connect(broker).await?;
        socket.local_addr()
    };
    address.await.map(|address| SocketAddr::new(address.ip(), 0).to_string()).into_iter().collect()
}

/// The fields that differ from the defaults, as YAML. A join token is left out: it is spent once.
fn text_of(config: &Config) -> String {
    let config = Config { join_token_file: None, ..config.clone() };
    let value = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let mut fields = difference(value(&config), &value(&Config::default())).unwrap_or_default();
    if let Value::Object(fields) = &mut fields {
        fields.insert("stateDir".to_owned(), Value::String(config.state_dir.display().to_string()));
    }
    let text = serde_saphyr::to_string(&fields).unwrap_or_default();
    format!("{CONFIG_HEAD}{text}")
}

/// What differs from another value; `None` if nothing does.
fn difference(value: Value, other: &Value) -> Option<Value> {
    if value == *other || value.is_null() {
        return None;
    }
    Some(match value {
        Value::Object(fields) => {
            let other = |name: &str| other.get(name).unwrap_or(&Value::Null);
            let fields = fields.into_iter().filter_map(|(name, field)| {
                let field = difference(field, other(&name))?;
                Some((name, field))
            });
            Value::Object(fields.collect())
        }
        other => other,
    })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn the_written_configuration_has_only_what_differs_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(CONFIG_FILE);
        let mut config = Config {
            kubernetes: Some(KubernetesConfig::default()),
            join_token_file: Some("comity-join-v1.abc".parse().unwrap()),
            ..Config::default()
        };
        config.fabric.endpoints = vec!["192.0.2.1:0".to_owned()];
        let text = text_of(&config);
        assert!(!text.contains("join-v1") && !text.contains("burst"), "{text}");
        std::fs::write(&path, &text).unwrap();
        config.join_token_file = None;
        assert_eq!(Config::read(&path).unwrap(), config, "{text}");
    }

    #[tokio::test]
    async fn written_paths_are_absolute() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            settings: Settings,
        }
        let words = ["agent", "--state", "no-such-state", "--inventory", "nodes.yaml"];
        let setup = set_up(<Line as clap::Parser>::parse_from(words).settings, None).await.unwrap();
        let here = std::env::current_dir().unwrap();
        let text = &setup.config_draft.as_ref().unwrap().text;
        for path in ["no-such-state", "nodes.yaml"] {
            assert!(text.contains(&format!(": {}", here.join(path).display())), "{text}");
        }
        assert_eq!(setup.config_file, here.join("no-such-state").join(CONFIG_FILE));
        let mut config = Config {
            kubernetes: Some(KubernetesConfig { kubeconfig: Some("kube.yaml".into()), ..Default::default() }),
            ..Config::default()
        };
        make_paths_absolute(&mut config);
        assert_eq!(config.kubernetes.unwrap().kubeconfig, Some(here.join("kube.yaml")));
    }

    #[tokio::test]
    async fn the_endpoint_is_the_address_toward_the_brokers() {
        let brokers: BrokerEndpoints = "127.0.0.1:7443".parse().unwrap();
        assert_eq!(outward_endpoint(&brokers, "0.0.0.0:51871".parse().unwrap()).await, ["127.0.0.1:0"]);
        assert!(outward_endpoint(&brokers, "192.0.2.1:51871".parse().unwrap()).await.is_empty());
    }
}
