//! The agent's configuration: a YAML file, overridden by flags and the environment.

mod access;
mod address;
mod borrowing_section;
mod canary_settings;
mod data;
#[cfg(test)]
mod fuzz_config;
mod liqo_settings;
mod mig_section;
mod pending_section;
mod pins_section;
mod rdma;
mod signed_policy_settings;
mod standby_settings;
#[cfg(test)]
mod tests;
mod usage_settings;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use comity_agent_delivery::GuestPolicies;
use comity_agent_fabric::{DEFAULT_FABRIC_PORT, FabricMode, TunSettings};
use comity_agent_model::guest_labels::GuestLabels;
use comity_agent_model::local_policy::LocalPolicy;
use comity_agent_model::local_policy::borrowing_policy::BorrowingPolicy;
use comity_agent_model::settings::{InvalidSettings, SettingChecks};
use comity_agent_site::SiteSettings;
use comity_agent_workload::burst::BurstSettings;
use comity_agent_workload::webhook::WebhookSettings;
use comity_runtime::atomic_file::{self, FileError};
use comity_runtime::private_files::NotPrivate;
use comity_runtime::{BrokerEndpoints, Clock, IdentitySignature, LogFormat, strict_yaml, telemetry};
use comity_types::is_dns_label;
use serde::{Deserialize, Serialize};

pub use access::AccessSettings;
pub use canary_settings::{CanarySettings, NetworkPolicies};
pub use data::DataSettings;
pub use liqo_settings::{LiqoAuthentication, LiqoNetworkName, LiqoSettings};
pub use signed_policy_settings::SignedPolicySettings;
pub use standby_settings::StandbySettings;
pub use usage_settings::UsageSettings;

use address::is_host_port;

use crate::enrollment::token_source::JoinTokenSource;
use crate::keys::pins::{InstitutionPin, Pins};
use crate::mig::mig_settings::MigSettings;
use crate::observe::{LocalReserve, RdmaResource};

/// Largest configuration file in bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Most endpoints in a key bundle.
const MAX_ENDPOINTS: usize = 8;
/// Default port of metrics and probes.
const ADMIN_PORT: u16 = 7481;

/// Why a configuration is refused. One sentence each.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Other users could change the file.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// It is not YAML of this form.
    #[error("{path} is not a configuration of this agent: {reason}", path = .path.display())]
    Yaml {
        /// The file.
        path: PathBuf,
        /// All mistakes, with line and column.
        reason: String,
    },
    /// Invalid values.
    #[error(transparent)]
    Invalid(#[from] InvalidSettings),
}

/// Connection to this cluster's Kubernetes API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// A kubeconfig; absent: the ServiceAccount of the pod that the agent runs in.
    pub kubeconfig: Option<PathBuf>,
    /// Its context; absent: the current one.
    pub context: Option<String>,
    /// Whether the cluster lends although no admission policy restricts this agent's user: see `docs/install.md`.
    pub unrestricted: bool,
}

/// Settings of the fabric.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FabricSettings {
    /// UDP listen address.
    pub listen: SocketAddr,
    /// "host:port" at which others reach it, best first; port 0 stands for the listen port. Empty: the listen address,
    /// if it is specific. A donor needs at least one.
    pub endpoints: Vec<String>,
    /// Keepalive interval of idle tunnels, in seconds.
    pub keepalive_seconds: u64,
    /// `netstack`: the donor's API only, without privileges. `tun`: pods too, over a network device of this node.
    pub mode: FabricModeName,
    /// The device of mode `tun`.
    pub tun: TunSettings,
}

/// The name of a fabric's mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum FabricModeName {
    /// WireGuard and TCP in this process.
    #[default]
    Netstack,
    /// WireGuard over a network device; needs NET_ADMIN in the node's network namespace.
    Tun,
}

impl FabricSettings {
    /// The mode with its settings.
    #[must_use]
    pub fn fabric_mode(&self) -> FabricMode {
        match self.mode {
            FabricModeName::Netstack => FabricMode::Netstack,
            FabricModeName::Tun => FabricMode::Tun(self.tun.clone()),
        }
    }
}

impl Default for FabricSettings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, DEFAULT_FABRIC_PORT)),
            endpoints: Vec::new(),
            keepalive_seconds: 25,
            mode: FabricModeName::default(),
            tun: TunSettings::default(),
        }
    }
}

/// Logs and traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LogSettings {
    /// `text` or `json`.
    pub format: LogFormat,
    /// As in "info,comity_agent=debug".
    pub filter: String,
    /// An OTLP/gRPC collector, as in "http://collector:4317".
    pub otlp_endpoint: Option<String>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::Text, filter: telemetry::DEFAULT_FILTER.to_owned(), otlp_endpoint: None }
    }
}

/// An agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Config {
    /// Directory of keys, certificate and records; made if absent, for this user only.
    pub state_dir: PathBuf,
    /// Brokers, "host:port"; empty: those of the join token.
    pub brokers: Vec<String>,
    /// File with a join token, or the token; used at the first start only.
    pub join_token_file: Option<JoinTokenSource>,
    /// The institution's signature over this agent's identity key, "ed25519:BASE64", if the federation requires one.
    pub voucher: Option<IdentitySignature>,
    /// Pinned keys of institutions, by institution, so that no broker can swap a cluster's keys.
    pub pinned_institutions: BTreeMap<String, InstitutionPin>,
    /// Whether this cluster peers only with clusters that a pinned institution vouches for.
    pub require_vouchers: bool,
    /// From which commit on this cluster verifies the policy by itself.
    pub signed_policy: SignedPolicySettings,
    /// The Kubernetes cluster. Either this or `inventoryFile`.
    pub kubernetes: Option<KubernetesConfig>,
    /// The inventory file of a host without Kubernetes. Either this or `kubernetes`.
    pub inventory_file: Option<PathBuf>,
    /// How a host without Kubernetes runs the pods of leases. Absent: it runs none, and leases only show their quota.
    pub site: Option<SiteSettings>,
    /// Limits on lending.
    pub sharing: LocalPolicy,
    /// Limits on borrowing.
    pub borrowing: BorrowingPolicy,
    /// Capacity reserved for local work.
    pub reserve: LocalReserve,
    /// Resources that count virtual functions of RDMA networks, each with its network and the Gbit/s of one function.
    pub rdma: Vec<RdmaResource>,
    /// Cutting of MIG devices as leases need them.
    pub mig: MigSettings,
    /// Datasets in the cluster.
    pub data: DataSettings,
    /// Tunnels.
    pub fabric: FabricSettings,
    /// Where tenants reach borrowed namespaces.
    pub access: AccessSettings,
    /// Virtual nodes through Liqo.
    pub liqo: LiqoSettings,
    /// Bursting of GPU pods to other clusters.
    pub burst: BurstSettings,
    /// Admission webhooks. Absent: pods that could burst only get tolerations once they are pending, in leases on
    /// several nodes tenants state each container's part themselves, and a virtual node has one node.
    pub webhook: Option<WebhookSettings>,
    /// How the use of GPUs is read, besides from pods and claims.
    pub usage: UsageSettings,
    /// Pods that prove each node before it lends. Absent: nodes lend unproved.
    pub canary: Option<CanarySettings>,
    /// Several replicas share this configuration, and one is active. Absent: the cluster has one agent process.
    pub standby: Option<StandbySettings>,
    /// Listen address of metrics and probes; unauthenticated.
    pub admin_listen: SocketAddr,
    /// Logs and traces.
    pub log: LogSettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state_dir: PathBuf::from("/var/lib/comity-agent"),
            brokers: Vec::new(),
            join_token_file: None,
            voucher: None,
            pinned_institutions: BTreeMap::new(),
            require_vouchers: false,
            signed_policy: SignedPolicySettings::default(),
            kubernetes: None,
            inventory_file: None,
            site: None,
            sharing: LocalPolicy::default(),
            borrowing: BorrowingPolicy::default(),
            reserve: LocalReserve::default(),
            rdma: Vec::new(),
            mig: MigSettings::default(),
            data: DataSettings::default(),
            fabric: FabricSettings::default(),
            access: AccessSettings::default(),
            liqo: LiqoSettings::default(),
            burst: BurstSettings::default(),
            webhook: None,
            usage: UsageSettings::default(),
            canary: None,
            standby: None,
            admin_listen: SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT)),
            log: LogSettings::default(),
        }
    }
}

impl Config {
    /// Reads a file over the defaults, without [`check`](Self::check).
    ///
    /// # Errors
    /// [`ConfigError`] with all mistakes, each with field, line and column; unknown fields are errors.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &atomic_file::read_bounded(path, MAX_CONFIG_BYTES)?)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, ConfigError> {
        let wrong = |reason: String| ConfigError::Yaml { path: path.to_owned(), reason };
        let text = str::from_utf8(bytes).map_err(|_| wrong("it is not UTF-8 text".to_owned()))?;
        strict_yaml::read(text).map_err(|mistakes| {
            let mistakes: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
            wrong(mistakes.join("; "))
        })
    }

    /// Checks values beyond their types.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`], with all invalid values.
    pub fn check(&self) -> Result<(), ConfigError> {
        let mut checks = SettingChecks::default();
        self.check_source(&mut checks);
        if !self.brokers.is_empty()
            && let Err(error) = BrokerEndpoints::new(&self.brokers)
        {
            checks.refuse("brokers", self.brokers.join(","), error.to_string());
        }
        if self.fabric.endpoints.len() > MAX_ENDPOINTS {
            let reason = format!("name at most {MAX_ENDPOINTS}, best first");
            checks.refuse("fabric.endpoints", self.fabric.endpoints.len(), reason);
        }
        for endpoint in self.fabric.endpoints.iter().filter(|endpoint| !is_host_port(endpoint)).take(MAX_ENDPOINTS) {
            checks.refuse("fabric.endpoints", endpoint, "write host:port, as in gateway.example.org:51871");
        }
        let keepalive = self.fabric.keepalive_seconds;
        if keepalive == 0 || keepalive > 120 {
            checks.refuse("fabric.keepaliveSeconds", keepalive, "want 1 to 120; 25 suits most");
        }
        for (field, endpoint) in [("usage.dcgm", &self.usage.dcgm), ("usage.devices", &self.usage.devices)] {
            if let (Some(endpoint), None) = (endpoint, &self.kubernetes) {
                let reason = "without kubernetes no pods use leases; leave it out";
                checks.refuse(field, String::from(endpoint.clone()), reason);
            }
        }
        if let Some(site) = &self.site {
            site.check(&mut checks);
            if self.kubernetes.is_some() {
                checks.refuse("site", "set", "a cluster runs its own pods; use it with an inventoryFile");
            }
        }
        if self.sharing.hold && self.kubernetes.is_none() {
            checks.refuse("sharing.hold", true, "placeholder pods need Kubernetes; leave it out with an inventoryFile");
        }
        if self.sharing.clean_nodes && self.kubernetes.is_none() {
            checks.refuse(
                "sharing.cleanNodes",
                true,
                "cleaning pods need Kubernetes; leave it out with an inventoryFile",
            );
        }
        if self.sharing.placeholder_image.trim().is_empty() {
            checks.refuse(
                "sharing.placeholderImage",
                "",
                "name an image, or leave the key out: its default does nothing",
            );
        }
        pins_section::check(&self.pins(), &mut checks);
        self.signed_policy.check(&mut checks);
        borrowing_section::check(&self.borrowing, &mut checks);
        self.sharing.egress.check(&mut checks);
        pending_section::check(&self.sharing.reclaim_for_pending, &mut checks);
        rdma::check(&self.rdma, self.kubernetes.is_some(), &mut checks);
        mig_section::check(&self.mig, self.kubernetes.is_some(), &mut checks);
        self.data.check(&mut checks);
        self.access.check(&mut checks);
        self.liqo.check(self.kubernetes.is_some(), &mut checks);
        if let Some(class) = self.sharing.runtime_class.as_deref().filter(|class| !is_dns_label(class)) {
            checks.refuse("sharing.runtimeClass", class, "write the name of a RuntimeClass, a DNS label");
        }
        if let Some(canary) = &self.canary {
            canary.check(self.kubernetes.is_some(), &mut checks);
        }
        if let Some(standby) = &self.standby {
            standby.check(self.kubernetes.is_some(), &mut checks);
            if self.liqo.pod_metrics.is_some() {
                let reason =
                    "the Service of liqo.podMetrics cannot follow the active replica; leave one of the two out";
                checks.refuse("standby", "", reason);
            }
        }
        self.burst.gather(&mut checks);
        if let Some(webhook) = &self.webhook {
            webhook.gather(&mut checks);
        }
        if self.burst.enabled && !self.liqo.enabled {
            let reason = "pods burst to virtual nodes; set liqo.enabled too";
            checks.refuse("burst.enabled", self.burst.enabled, reason);
        }
        checks.take(self.fabric.tun.check());
        address::check_listeners(self, &mut checks);
        if let Err(error) = telemetry::check_filter(&self.log.filter) {
            checks.refuse("log.filter", &self.log.filter, error.to_string());
        }
        Ok(checks.finish()?)
    }

    /// Pinned institutions, and whether vouchers are required.
    #[must_use]
    pub fn pins(&self) -> Pins {
        Pins { institutions: self.pinned_institutions.clone(), require_vouchers: self.require_vouchers }
    }

    /// Labels of guests' namespaces. Without a webhook, which would add them, pods must state `void` devices themselves.
    #[must_use]
    pub fn guest_labels(&self) -> GuestLabels {
        GuestLabels {
            runtime_class: self.sharing.runtime_class.clone(),
            void_devices: self.sharing.void_devices,
            always_pull: self.sharing.always_pull_images,
        }
    }

    /// Whether the NetworkPolicies of guests are enforced, as far as the agent knows; empty without guests.
    #[must_use]
    pub fn network_policies(&self) -> &'static str {
        match &self.canary {
            _ if self.kubernetes.is_none() || !self.sharing.enabled => "",
            None => "not proved: guests may reach this cluster's networks",
            Some(CanarySettings { network_policies: NetworkPolicies::Required, .. }) => {
                "proved on each node before it lends"
            }
            Some(CanarySettings { network_policies: NetworkPolicies::NotEnforced, .. }) => {
                "not enforced: guests reach this cluster's networks"
            }
        }
    }

    /// The check of the policies that lending needs.
    #[must_use]
    pub fn guest_policies(&self, client: kube::Client, clock: Arc<dyn Clock>) -> GuestPolicies {
        let is_accepted = self.kubernetes.as_ref().is_some_and(|kubernetes| kubernetes.unrestricted);
        GuestPolicies::new(client, clock).with_unrestricted_agent(is_accepted)
    }

    /// Checks where the inventory comes from.
    fn check_source(&self, checks: &mut SettingChecks) {
        let is_empty = |path: &PathBuf| path.as_os_str().is_empty();
        match (&self.kubernetes, &self.inventory_file) {
            (None, None) => checks.refuse(
                "kubernetes",
                "",
                "write kubernetes: {} in a pod, give a kubeconfig (--kubeconfig FILE), or on a host without Kubernetes an \
                 inventoryFile (--inventory FILE)",
            ),
            (Some(_), Some(file)) => {
                checks.refuse("inventoryFile", file.display(), "kubernetes is given too; leave one of them out");
            }
            (Some(kubernetes), None) if kubernetes.kubeconfig.as_ref().is_some_and(is_empty) => checks.refuse(
                "kubernetes.kubeconfig",
                "",
                "name the file (--kubeconfig FILE); in a pod leave the field out",
            ),
            (None, Some(file)) if is_empty(file) => {
                checks.refuse("inventoryFile", "", "name the file (--inventory FILE)");
            }
            _ => {}
        }
    }

    /// Endpoints of the fabric for key bundles; `local` is its listen address.
    #[must_use]
    pub fn fabric_endpoints(&self, local: SocketAddr) -> Vec<String> {
        let filled = |endpoint: &String| match endpoint.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", local.port()),
            None => endpoint.clone(),
        };
        if self.fabric.endpoints.is_empty() && !local.ip().is_unspecified() {
            return vec![local.to_string()];
        }
        self.fabric.endpoints.iter().map(filled).collect()
    }

    /// The effective configuration as YAML; it contains no secrets.
    #[must_use]
    pub fn dump(&self) -> String {
        serde_saphyr::to_string(self).unwrap_or_else(|error| format!("# cannot be shown: {error}\n"))
    }
}
