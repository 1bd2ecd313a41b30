//! Two real agents, an origin and a donor, that joined a hostile broker. Where they are hosts without Kubernetes, an
//! donor is a host without Kubernetes, and the origin keeps its kubeconfigs in files.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use comity_agent::app::IDENTITY_KEY_FILE;
use comity_agent::config::{FabricSettings, KubernetesConfig, SignedPolicySettings};
use comity_agent::enrollment::token_source::JoinTokenSource;
use comity_agent::keys::pins::InstitutionPin;
use comity_agent::observe::LocalReserve;
use comity_agent::services::local_api::{Status, fetch_status};
use comity_agent::{Agent, Config};
use comity_agent_model::local_policy::LocalPolicy;
use comity_agent_state::record::{PeerRecord, Trust as PeerTrust};
use comity_agent_state::store::Store;
use comity_proto::v1;
use comity_runtime::{ClusterName, IdentityDir, IdentityKey, IdentitySignature, SystemEntropy};
#[cfg(test)]
use comity_testkit::ControlPlane;
use serde_json::Value;

use super::agent_stores::AgentStores;
use super::books::{Books, DONOR_CLUSTER, EARLIER, NODE_GPUS, ORIGIN_CLUSTER, POLICY_FOLDER, SignedHistory};
use super::hostile_broker::HostileBroker;
use super::hostile_planes::{DonorGrant, HostilePlanes};
use crate::wait::{PATIENCE, until};
use crate::watch::now_ms;

/// The institutions of the cluster that borrows, and of the one that lends.
const ORIGIN_INSTITUTION: &str = "polytech";
const DONOR_INSTITUTION: &str = "computing";

/// The donor's own limits: most GPUs lent at a time, and GPUs of each node that it keeps.
pub(crate) const MAX_LENT_GPUS: u32 = 5;
pub(crate) const RESERVED_PER_NODE: u32 = 1;
/// Longest lease by the donor's own limit, where a test sets none.
const DAY_SECONDS: u64 = 24 * 3_600;

/// Longest term of a lease.
const LONGEST_TERM_MS: u64 = 3_600_000;

/// Life of certificates that need no renewal during a test.
const LONG_VALIDITY: Duration = Duration::from_secs(3_600);
/// Limit of a wait for something that takes well under a second on an idle machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// Time in which the broker can show the commit that it names.
const SHOWN_WITHIN: Duration = Duration::from_secs(3);

/// Pause before another lease is granted in place of one that ended.
const GRANT_PAUSE: Duration = Duration::from_millis(500);
/// Refusals of each agent that a description has.
const SHOWN_REFUSALS: usize = 5;

/// How far the agents trust what a broker says about the other cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// They pin the institutions' keys, which vouch for both clusters.
    Pinned,
    /// They trust the key that they see first.
    FirstUse,
}

/// How the federation is set up.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// Trust of both agents.
    pub(crate) trust: Trust,
    /// Whether pinned agents need a voucher of everybody, not of the pinned institutions' clusters alone.
    pub(crate) require_vouchers: bool,
    /// Life of their certificates.
    pub(crate) certificate_validity: Duration,
    /// Clusters to which the donor lends.
    pub(crate) allowed_origins: &'static [&'static str],
    /// Longest lease of the donor's own limit.
    pub(crate) max_lease_seconds: u64,
    /// Clusters that the origin remembers from before, with no lease of any.
    pub(crate) remembered: usize,
    /// Whether both clusters have an API server; without, they are hosts.
    pub(crate) kubernetes: bool,
    /// Whether owners sign the policy, and the donor pins its first commit.
    pub(crate) signed_policy: bool,
}

impl Setup {
    /// A donor that lends to the honest origin alone, and certificates that last.
    pub(crate) const fn new(trust: Trust) -> Self {
        Self {
            trust,
            require_vouchers: true,
            certificate_validity: LONG_VALIDITY,
            allowed_origins: &[ORIGIN_CLUSTER],
            max_lease_seconds: DAY_SECONDS,
            remembered: 0,
            kubernetes: false,
            signed_policy: false,
        }
    }
}

/// A running federation.
pub(crate) struct HostileFederation {
    /// The broker.
    pub(crate) broker: HostileBroker,
    agents: BTreeMap<&'static str, Agent>,
    planes: Option<HostilePlanes>,
    max_lease_seconds: u64,
    has_remembered: bool,
    // Dropped last, because the processes use it.
    home: tempfile::TempDir,
}

impl HostileFederation {
    /// Starts the broker, lets both agents join, and waits until it has their offers.
    ///
    /// # Errors
    /// When a part does not start.
    pub(crate) async fn start(setup: Setup) -> Result<Self> {
        comity_runtime::install_crypto_provider();
        let home = tempfile::Builder::new().prefix("comity-hostile-").tempdir()?;
        let institutions = [(ORIGIN_CLUSTER, ORIGIN_INSTITUTION), (DONOR_CLUSTER, DONOR_INSTITUTION)];
        let named = institutions.map(|(cluster, institution)| (cluster.to_owned(), institution.to_owned()));
        let broker = HostileBroker::start(home.path(), named.into(), setup.certificate_validity).await?;
        let keys: BTreeMap<String, IdentityKey> = institutions
            .iter()
            .map(|(_, institution)| ((*institution).to_owned(), IdentityKey::generate(&SystemEntropy)))
            .collect();
        broker.change(|books| books.term_ms = LONGEST_TERM_MS.min(setup.max_lease_seconds * 1_000));
        if setup.signed_policy {
            let folder = home.path().join("policy");
            broker.sign_policy(SignedHistory::create(&folder, ORIGIN_INSTITUTION, DONOR_INSTITUTION)?);
        }
        let planes = if setup.kubernetes { Some(HostilePlanes::start(home.path()).await?) } else { None };
        let (max_lease_seconds, has_remembered) = (setup.max_lease_seconds, setup.remembered > 0);
        let mut federation = Self { broker, agents: BTreeMap::new(), planes, max_lease_seconds, has_remembered, home };
        for (cluster, institution) in institutions {
            let mut config = federation.agent_config(cluster, &setup).await?;
            if setup.trust == Trust::Pinned {
                let state = config.state_dir.clone();
                config.voucher = Some(vouch(&state, institution, cluster, &keys[institution])?);
                let pin = |(cluster, institution): (&str, &str)| {
                    let pin = InstitutionPin {
                        keys: vec![keys[institution].public()],
                        clusters: [cluster.to_owned()].into(),
                    };
                    (institution.to_owned(), pin)
                };
                config.pinned_institutions = institutions.into_iter().map(pin).collect();
                config.require_vouchers = setup.require_vouchers;
            }
            if cluster == ORIGIN_CLUSTER {
                remember(&config.state_dir, setup.remembered).await?;
            }
            federation.agents.insert(cluster, Agent::start(config).await?);
        }
        let broker = &federation.broker;
        until("the donor's offer", SOON, async || {
            Ok(broker
                .read(|books| books.offers.get(DONOR_CLUSTER).is_some_and(|offer| offer.nodes.len() == 2))
                .then_some(()))
        })
        .await?;
        Ok(federation)
    }

    async fn agent_config(&self, cluster: &'static str, setup: &Setup) -> Result<Config> {
        let state_dir = self.state_dir(cluster);
        comity_runtime::atomic_file::create_private_dir(&state_dir)?;
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut config = Config {
            state_dir,
            join_token_file: Some(JoinTokenSource::Inline(self.broker.join_token(cluster)?)),
            fabric: FabricSettings { listen: loopback, ..FabricSettings::default() },
            admin_listen: loopback,
            ..Config::default()
        };
        if let Some(planes) = &self.planes {
            let kubeconfig = planes.agent_kubeconfig(cluster, self.home.path()).await?;
            config.kubernetes =
                Some(KubernetesConfig { kubeconfig: Some(kubeconfig), context: None, unrestricted: false });
        } else {
            let inventory = self.home.path().join(format!("{cluster}.inventory.yaml"));
            std::fs::write(
                &inventory,
                if cluster == DONOR_CLUSTER { donor_inventory() } else { "nodes: []\n".to_owned() },
            )?;
            config.inventory_file = Some(inventory);
        }
        if cluster == DONOR_CLUSTER {
            config.sharing = LocalPolicy {
                max_lent_gpus: Some(MAX_LENT_GPUS),
                allowed_origins: setup.allowed_origins.iter().map(|origin| (*origin).to_owned()).collect(),
                max_lease_seconds: Some(setup.max_lease_seconds),
                ..LocalPolicy::default()
            };
            if let Some(history) = self.broker.signed_history() {
                let (commit, folder) = (Some(history.first.parse()?), POLICY_FOLDER.parse()?);
                config.signed_policy = SignedPolicySettings { commit, folder, shown_within: SHOWN_WITHIN };
            }
            config.reserve = LocalReserve { gpus_per_node: RESERVED_PER_NODE, ..LocalReserve::default() };
        }
        Ok(config)
    }

    /// The API server of a cluster.
    ///
    /// # Errors
    /// When the clusters have none.
    #[cfg(test)]
    pub(crate) fn plane(&self, cluster: &str) -> Result<&ControlPlane> {
        self.planes.as_ref().context("these clusters have no API servers")?.of(cluster)
    }

    /// Longest lease of the donor's own limit.
    pub(crate) const fn max_lease_seconds(&self) -> u64 {
        self.max_lease_seconds
    }

    /// Whether the origin remembers clusters from before.
    pub(crate) const fn has_remembered(&self) -> bool {
        self.has_remembered
    }

    /// State directory of an agent.
    pub(crate) fn state_dir(&self, cluster: &str) -> PathBuf {
        self.home.path().join(cluster)
    }

    /// Grants an honest lease of whole GPUs, and waits until it is active; returns its id. As a scheduler does, it
    /// grants another one in place of a lease that ended before it was active.
    ///
    /// # Errors
    /// When none becomes active.
    pub(crate) async fn active_lease(&self, gpus: usize) -> Result<String> {
        let mut granted = None;
        until("an honest lease to be active", PATIENCE, async || {
            let lease = match granted.take() {
                Some(lease) => lease,
                None => self.grant(gpus)?,
            };
            let is_active = self.is_active(&lease);
            if is_active.is_err() {
                tokio::time::sleep(GRANT_PAUSE).await;
                return is_active.map(|_| None);
            }
            granted = Some(lease.clone());
            Ok(is_active?.then_some(lease))
        })
        .await
    }

    /// Grants a lease of GPUs that are free.
    fn grant(&self, gpus: usize) -> Result<String> {
        self.broker.change(|books| {
            let free = books.place(DONOR_CLUSTER, gpus).resource_count;
            if free < gpus as u64 {
                bail!("{free} GPUs are free: {}", described_leases(books));
            }
            Ok(books.grant(ORIGIN_CLUSTER, DONOR_CLUSTER, gpus, now_ms()))
        })
    }

    /// Whether a lease is active.
    ///
    /// # Errors
    /// When it ended.
    pub(crate) fn is_active(&self, lease: &str) -> Result<bool> {
        self.tend();
        self.broker.read(|books| {
            let found = books.leases.get(lease).with_context(|| format!("{lease} ended"))?;
            match found.state() {
                v1::LeaseState::Active => Ok(true),
                v1::LeaseState::Ending => bail!("{lease} ends: {}", found.message),
                _ => Ok(false),
            }
        })
    }

    /// Begins the next epochs of handshakes that failed or take too long, and ends leases whose term is over. Agents are
    /// told only if there are any.
    pub(crate) fn tend(&self) {
        if self.broker.read(|books| books.is_due(now_ms())) {
            self.broker.change(|books| books.tend(now_ms()));
        }
    }

    /// Waits until both sides have reported the end of each lease that ends.
    ///
    /// # Errors
    /// When one is not reported.
    pub(crate) async fn leases_ended(&self) -> Result<()> {
        until("leases to end", PATIENCE, async || {
            let is_ending = |lease: &v1::Lease| lease.state() == v1::LeaseState::Ending;
            Ok(self.broker.read(|books| !books.leases.values().any(is_ending)).then_some(()))
        })
        .await
    }

    /// Waits until the peering of a lease is established; false if the lease ended meanwhile.
    ///
    /// # Errors
    /// When neither comes about.
    pub(crate) async fn peering_established(&self, lease: &str) -> Result<bool> {
        until(&format!("the peering of {lease} to be established"), PATIENCE, async || {
            self.tend();
            self.broker.read(|books| {
                let held = books.leases.get(lease).filter(|held| held.state() != v1::LeaseState::Ending);
                let Some(held) = held else { return Ok(Some(false)) };
                match books.peerings.get(&held.peering).map(|entry| entry.peering.state()) {
                    Some(v1::PeeringState::Established) => Ok(Some(true)),
                    state => bail!("it is {state:?}"),
                }
            })
        })
        .await
    }

    /// The state of books and agents, for people who look for the cause of a violation.
    pub(crate) async fn describe(&self) -> String {
        let mut text = self.broker.read(|books| {
            let peerings = books.peerings.values().map(|entry| {
                let v1::Peering { id, origin, donor, epoch, message, .. } = &entry.peering;
                let (state, played) = (entry.peering.state(), entry.played);
                format!("{id} of {origin} and {donor}: {state:?}, epoch {epoch}, played {played:?}: {message}")
            });
            let envelopes = books.envelopes.iter().map(|waiting| {
                let v1::Envelope { peering, epoch, lease, step, sequence, to, .. } = waiting;
                format!("{step} {sequence} of epoch {epoch} of {peering} {lease} for {to}")
            });
            let (peerings, envelopes): (Vec<_>, Vec<_>) = (peerings.collect(), envelopes.collect());
            let leases = described_leases(books);
            format!("books: peerings {peerings:#?}\nenvelopes that wait {envelopes:#?}\nleases: {leases}\n")
        });
        for cluster in self.agents.keys() {
            let refused = self.broker.refused();
            let last: Vec<String> = refused
                .iter()
                .rev()
                .filter(|refused| refused.cluster == *cluster)
                .take(SHOWN_REFUSALS)
                .map(|refused| format!("{}: {} ({})", refused.subject, refused.message, refused.code))
                .collect();
            let status = match self.status(cluster).await {
                Ok(status) => format!("{status:#?}"),
                Err(error) => format!("no status: {error:#}"),
            };
            text.push_str(&format!("agent of {cluster}: {status}\nits last refusals, the newest first: {last:#?}\n"));
        }
        text
    }

    /// The status of an agent, as it tells people on its host.
    ///
    /// # Errors
    /// When the agent does not answer.
    pub(crate) async fn status(&self, cluster: &str) -> Result<Status> {
        let agent = self.agents.get(cluster).context("no such agent")?;
        Ok(fetch_status(agent.socket()).await?)
    }

    /// The donor's grants, as they are on its disk or API server.
    ///
    /// # Errors
    /// When the file is not what an agent writes, or the API server does not answer.
    pub(crate) async fn grants(&self) -> Result<Vec<DonorGrant>> {
        if let Some(planes) = &self.planes {
            return planes.grants().await;
        }
        let Ok(text) = std::fs::read_to_string(self.state_dir(DONOR_CLUSTER).join("site/leases.json")) else {
            return Ok(Vec::new());
        };
        let leases: BTreeMap<String, Value> = serde_json::from_str(&text)?;
        let grant = |(lease, value): (String, Value)| {
            let origin = value["origin"].as_str().context("a grant has an origin")?.to_owned();
            Ok(DonorGrant { lease, origin, gpus: value["gpus"].as_u64().context("a grant has GPUs")? })
        };
        leases.into_iter().map(grant).collect()
    }

    /// Leases for which the origin has a kubeconfig, in a file or Secret, with the tokens in them.
    ///
    /// # Errors
    /// When the directory or the Secrets cannot be read.
    pub(crate) async fn kubeconfigs(&self) -> Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::new();
        if let Some(planes) = &self.planes {
            for (lease, text) in planes.kubeconfigs().await? {
                found.insert(lease, token_of(&text)?);
            }
            return Ok(found);
        }
        let folder = self.state_dir(ORIGIN_CLUSTER).join("kubeconfigs");
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry?.path();
            let Some(lease) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".kubeconfig")) else {
                continue;
            };
            // It may be removed meanwhile.
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            found.insert(lease.to_owned(), token_of(&text)?);
        }
        Ok(found)
    }

    /// Whether the identity of each agent is still its own: readable, with the key of its certificate, under its name.
    ///
    /// # Errors
    /// Which is not.
    pub(crate) fn check_identities(&self) -> Result<()> {
        for cluster in self.agents.keys() {
            let (_, identity) = IdentityDir::new(self.state_dir(cluster).join("identity")).load()?;
            let name = identity.id().as_cluster().map(ToString::to_string);
            if name.as_deref() != Some(cluster) {
                bail!("the agent of {cluster} has the identity {}", identity.id());
            }
        }
        Ok(())
    }

    /// Root certificates that an agent trusts, by their hashes.
    ///
    /// # Errors
    /// When its identity cannot be read.
    pub(crate) fn trusted_roots(&self, cluster: &str) -> Result<BTreeSet<String>> {
        let (_, identity) = IdentityDir::new(self.state_dir(cluster).join("identity")).load()?;
        Ok(identity.roots().hashes().map(|root| root.to_string()).collect())
    }

    /// Stops the agents and the API servers; returns what the agents have kept.
    ///
    /// # Errors
    /// When a store cannot be read.
    pub(crate) async fn stop(&mut self) -> Result<AgentStores> {
        let mut stores = BTreeMap::new();
        for (cluster, agent) in std::mem::take(&mut self.agents) {
            agent.shutdown().await;
            // A task that ends late may hold the lock a little longer.
            let open = async || Ok(Some(Store::open(&self.state_dir(cluster))?));
            stores.insert(cluster, until("the agent's store", SOON, open).await?);
        }
        if let Some(planes) = self.planes.take() {
            planes.stop().await?;
        }
        Ok(AgentStores(stores))
    }
}

/// The token in a kubeconfig.
fn token_of(kubeconfig: &str) -> Result<String> {
    let token = kubeconfig.lines().find_map(|line| line.trim().strip_prefix("token: "));
    Ok(token.context("a kubeconfig has a token")?.trim_matches('"').to_owned())
}

/// Lets an agent that has not started yet remember other clusters.
async fn remember(state: &Path, clusters: usize) -> Result<()> {
    if clusters == 0 {
        return Ok(());
    }
    let identity_key = IdentityKey::generate(&SystemEntropy).public();
    let peer = move |number: usize| PeerRecord {
        cluster: format!("{EARLIER}{number}"),
        identity_key,
        trust: PeerTrust::FirstUse,
        institution: "elsewhere".to_owned(),
        since_ms: number as u64,
        had_lease: false,
        refused: None,
    };
    Store::open(state)?.update(move |change| (0..clusters).for_each(|number| change.put_peer(peer(number)))).await?;
    Ok(())
}

fn described_leases(books: &Books) -> String {
    let described = books.leases.values().map(|lease| {
        let (state, v1::Lease { id, peering, fencing_token, donor_ready, origin_ready, message, .. }) =
            (lease.state(), lease);
        format!(
            "{id} over {peering}: {state:?}, token {fencing_token}, donor {donor_ready}, origin {origin_ready}: {message}"
        )
    });
    format!("{:#?}", described.collect::<Vec<_>>())
}

/// The institution's voucher for an agent that has not started yet.
fn vouch(state: &Path, institution: &str, cluster: &str, signing_key: &IdentityKey) -> Result<IdentitySignature> {
    let key = IdentityKey::load_or_generate(&state.join(IDENTITY_KEY_FILE), &SystemEntropy)?;
    Ok(signing_key.vouch(institution, &ClusterName::new(cluster)?, &key.public()))
}

fn donor_inventory() -> String {
    let node = |number| {
        format!(
            "- name: node-{number}\n  cpu: '64'\n  memory: 512Gi\n  gpus:\n  - {{count: {NODE_GPUS}, product: \
             NVIDIA-H100-80GB-HBM3, memoryMiB: 81559, architecture: hopper, computeCapability: '9.0', driverVersion: \
             550.127.05}}\n"
        )
    };
    format!("nodes:\n{}{}", node(1), node(2))
}
