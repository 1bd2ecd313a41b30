//! Runs bursts: clusters with real kubelets and Liqo, a federation over them, and an origin without GPUs.

mod by_hand;
mod checkpoint_bucket;
mod clean;
mod install;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{Binaries, LiqoConfig, LiqoVersion, Needs, RealCluster, RealClusters, RealClustersConfig, Where};
use serde_json::Value;

use crate::federation::{AgentSpec, Federation, FederationConfig, InventorySource};
use crate::process::place::Place;
use crate::wait::{PATIENCE, until};
use crate::watch::{Seen, Watch, now_ms};

pub use by_hand::ByHand;
pub use checkpoint_bucket::{CHECKPOINT_SECRET, add_checkpoint_bucket};
pub(crate) use install::install_webhooks;
use install::{add_kueue, install_agent};

/// The origin, as the example policy names it.
pub const ORIGIN: &str = "polytech-campus";
/// The donor, as the example policy names it.
pub const DONOR: &str = "physics-farm";
/// The second donor, as the example policy names it.
pub const SECOND_DONOR: &str = "ncc-main";
/// Namespace of the workloads, which has opted in to bursting.
pub const NAMESPACE: &str = "team-a";

/// The clusters and the federation over them.
pub struct Burst {
    /// Programs of the test clusters.
    pub binaries: Binaries,
    /// The clusters.
    pub clusters: Arc<RealClusters>,
    federation: Option<Federation>,
}

/// Name and time of each phase of a burst, in milliseconds after the pod was created.
#[derive(Clone, Debug, Default)]
pub struct Phases(pub Vec<(&'static str, u64)>);

impl Phases {
    /// Name of the phase in which the container runs.
    pub const STARTED: &'static str = "container started on the donor";

    /// Time of [`Self::STARTED`], in milliseconds after the pod was created.
    #[must_use]
    pub fn started_ms(&self) -> Option<u64> {
        self.0.iter().find(|(name, _)| *name == Self::STARTED).map(|(_, ms)| *ms)
    }
}

impl std::fmt::Display for Phases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, ms) in &self.0 {
            writeln!(f, "{ms:>7} ms  {name}")?;
        }
        Ok(())
    }
}

/// A place inside the test clusters.
#[must_use]
pub fn place(clusters: &Arc<RealClusters>, at: Where, address: &str) -> Place {
    let clusters = Arc::clone(clusters);
    let launch = move |program: &Path, args: &[String]| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        clusters.command_in(at, program, &args)
    };
    Place { launch: Arc::new(launch), address: address.to_owned() }
}

/// The parameters of a burst.
#[derive(Clone, Debug)]
pub struct BurstConfig {
    /// GPUs of the donor.
    pub donor_gpus: u32,
    /// GPUs of the second donor; 0: there is none.
    pub second_donor_gpus: u32,
    /// Nodes of origin and donor. Where there are several, Node objects name the networks of their pods.
    pub nodes: u32,
    /// Whether pods of both clusters have the same addresses.
    pub pods_overlap: bool,
    /// Idle time after which a peering closes, in policy syntax.
    pub peering_idle: &'static str,
    /// Further settings of the donor's section `liqo`, each a line of YAML.
    pub donor_liqo: &'static [&'static str],
    /// Further sections of the donors' configuration, in YAML.
    pub donor_sections: &'static str,
    /// Whether the origin has Kueue, whose ProvisioningRequests its agent serves.
    pub with_kueue: bool,
    /// Whether [`Burst::by_hand`] will be called.
    pub with_liqoctl: bool,
}

impl Default for BurstConfig {
    fn default() -> Self {
        Self {
            donor_gpus: 4,
            second_donor_gpus: 0,
            nodes: 1,
            pods_overlap: false,
            peering_idle: "20s",
            donor_liqo: &[],
            donor_sections: "",
            with_kueue: false,
            with_liqoctl: false,
        }
    }
}

impl Burst {
    /// Starts clusters and federation. The origin has no GPU.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn start(config: &BurstConfig) -> Result<Self> {
        let mut burst = Self::clusters(config).await?;
        burst.federate(config).await?;
        Ok(burst)
    }

    /// A burst over clusters whose brokers and agents the caller started.
    #[must_use]
    pub fn over(binaries: Binaries, clusters: Arc<RealClusters>, federation: Federation) -> Self {
        Self { binaries, clusters, federation: Some(federation) }
    }

    /// Starts the clusters with Liqo, without Comity.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn clusters(config: &BurstConfig) -> Result<Self> {
        let needs = if config.with_liqoctl { Needs::Benchmark } else { Needs::Liqo };
        let version = LiqoVersion::from_environment()?;
        let binaries = Binaries::with_liqo(needs, version).await?;
        let config = RealClustersConfig {
            origin_gpus: 0,
            donor_gpus: config.donor_gpus,
            second_donor_gpus: config.second_donor_gpus,
            origin_nodes: config.nodes,
            donor_nodes: config.nodes,
            names_pod_networks: config.nodes > 1,
            pods_overlap: config.pods_overlap,
            dns: true,
            liqo: Some(LiqoConfig { version, ..LiqoConfig::default() }),
            ..RealClustersConfig::default()
        };
        let clusters = Arc::new(RealClusters::start(&binaries, config).await?);
        Ok(Self { binaries, clusters, federation: None })
    }

    /// Starts brokers and agents, and opens the namespace of the workloads.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn federate(&mut self, config: &BurstConfig) -> Result<()> {
        let clusters = &self.clusters;
        let policy = tempfile::tempdir()?;
        copy_policy(&FederationConfig::with_example_policy().policy, policy.path(), config.peering_idle)?;
        let router = clusters.router_address(Where::Origin);
        let mut federation = Federation::start(FederationConfig {
            brokers: 3,
            place: place(clusters, Where::Router, router),
            policy: policy.path().to_owned(),
            ..FederationConfig::with_example_policy()
        })
        .await?;
        let second = clusters.second_donor.iter().map(|real| (SECOND_DONOR, real, Where::SecondDonor));
        let first = [(ORIGIN, &clusters.origin, Where::Origin), (DONOR, &clusters.donor, Where::Donor)];
        for (cluster, real, at) in first.into_iter().chain(second) {
            let inventory = InventorySource::AsAgent(install_agent(real).await?);
            let mut spec = AgentSpec {
                place: place(clusters, at, real.node_ip()),
                fabric_mode: "tun",
                ..AgentSpec::new(cluster, inventory)
            };
            // A cluster's only node carries no spec.podCIDR: the container network here is a plain bridge.
            spec.more =
                format!("liqo:\n  enabled: true\n  podCidrs: [{}]\n{}", real.pod_cidr(), peer_addresses(clusters));
            if cluster == DONOR {
                spec.more.extend(config.donor_liqo.iter().map(|line| format!("  {line}\n")));
            }
            spec.more.push_str(if cluster == ORIGIN { BURST_SECTION } else { config.donor_sections });
            if cluster == ORIGIN && config.with_kueue {
                spec.more.push_str("  provisioningRequests: true\n");
                add_kueue(&self.binaries, real).await?;
            }
            // Addresses of remapped pods are written by the webhook of both sides.
            if cluster == ORIGIN || config.pods_overlap {
                spec.more.push_str(&webhook_section(real.node_ip()));
                let file = real.admin_kubeconfig_path().with_file_name("webhooks.yaml");
                std::fs::write(&file, &spec.more)?;
                install_webhooks(clusters, at, real, &file).await?;
            }
            federation.join(spec).await?;
        }
        federation.all_connected().await?;
        self.federation = Some(federation);
        self.open().await
    }

    /// Waits until the donors offer virtual nodes, and creates the namespace of the workloads.
    ///
    /// # Errors
    /// When a donor does not offer them in time, with its offer.
    pub async fn open(&self) -> Result<()> {
        until("the donors to offer virtual nodes", PATIENCE, async || {
            for (cluster, _) in self.donors() {
                let offer = self.federation().comity_as("admin", &["offers", cluster]).await?;
                ensure!(offer.to_string().contains("virtual-node"), "{offer}");
            }
            Ok(Some(()))
        })
        .await?;
        let namespace = format!(
            "{{\"apiVersion\": \"v1\", \"kind\": \"Namespace\", \"metadata\": {{\"name\": \"{NAMESPACE}\", \
             \"labels\": {{\"comity.dev/offload\": \"true\", \"comity.dev/tenant\": \"poly-ml\"}}}}}}"
        );
        self.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &namespace).await?;
        Ok(())
    }

    /// The federation.
    ///
    /// # Panics
    /// Before [`federate`](Self::federate).
    #[must_use]
    pub fn federation(&self) -> &Federation {
        self.federation.as_ref().expect("federate() comes first")
    }

    /// The donors, with the names that the policy gives them.
    pub fn donors(&self) -> impl Iterator<Item = (&'static str, &RealCluster)> {
        let second = self.clusters.second_donor.iter().map(|real| (SECOND_DONOR, real));
        std::iter::once((DONOR, &self.clusters.donor)).chain(second)
    }

    /// As [`federation`](Self::federation), to kill and restart its processes.
    ///
    /// # Panics
    /// Before [`federate`](Self::federate).
    pub fn federation_mut(&mut self) -> &mut Federation {
        self.federation.as_mut().expect("federate() comes first")
    }

    /// Watches objects of the origin.
    ///
    /// # Errors
    /// When kubectl cannot be started.
    pub fn watch_origin(&self, args: &[&str]) -> Result<Watch> {
        Watch::start(&self.clusters, &self.clusters.origin, Where::Origin, &self.binaries, args)
    }

    /// An ordinary Job of one pod with `gpus` GPUs that runs `args` of the test workload. Nothing in it knows of
    /// Comity.
    #[must_use]
    pub fn job(name: &str, gpus: u32, args: &[&str]) -> String {
        let args = serde_json::to_string(args).unwrap_or_default();
        format!(
            r#"{{"apiVersion": "batch/v1", "kind": "Job", "metadata": {{"name": "{name}", "namespace": "{NAMESPACE}"}},
  "spec": {{"backoffLimit": 0, "template": {{"metadata": {{"labels": {{"app": "{name}"}}}}, "spec": {{"restartPolicy": "Never",
    "containers": [{{"name": "work", "image": "{PROBE_IMAGE}", "imagePullPolicy": "IfNotPresent", "args": {args},
      "ports": [{{"containerPort": 8080}}],
      "resources": {{"limits": {{"cpu": "500m", "memory": "128Mi", "nvidia.com/gpu": {gpus}}}}}}}]}}}}}}}}"#
        )
    }

    /// Creates a Job without waiting for it.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn submit_job(&self, name: &str, gpus: u32, args: &[&str]) -> Result<()> {
        self.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &Self::job(name, gpus, args)).await?;
        Ok(())
    }

    /// A Job's pods, the namespace's other pods and all nodes, for people.
    async fn described(&self, job: &str) -> String {
        let selector = format!("job-name={job}");
        let mut text = String::new();
        for args in [
            &["-n", NAMESPACE, "describe", "pods", "-l", &selector][..],
            &["-n", NAMESPACE, "get", "pods", "-o", "wide"],
            &["describe", "nodes"],
        ] {
            text += &self.clusters.origin.kubectl(args).await.unwrap_or_else(|error| error.to_string());
        }
        text
    }

    /// Creates a Job and waits until its container runs; returns the time of each phase.
    ///
    /// # Errors
    /// When a phase is not reached in time.
    pub async fn run_job(&self, name: &str, gpus: u32, args: &[&str]) -> Result<Phases> {
        let pods = self.watch_origin(&["pods", "-n", NAMESPACE, "-l", &format!("job-name={name}")])?;
        let nodes = self.watch_origin(&["nodes"])?;
        self.submit_job(name, gpus, args).await?;
        let created = pods.first("the Job's pod", PATIENCE, |_| true).await?.at_ms;
        let has_node = |seen: &Seen| seen.object["spec"]["nodeName"].is_string();
        let bound = match pods.first("the pod to be bound", PATIENCE, has_node).await {
            Ok(bound) => bound,
            Err(error) => return Err(error.context(self.described(name).await)),
        };
        let node = bound.object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned();
        let ready = nodes
            .first("the virtual node to be ready", PATIENCE, |seen| {
                seen.object["metadata"]["name"] == node.as_str() && is_true(&seen.object, "Ready")
            })
            .await?
            .at_ms;
        // Polling the log meanwhile would disturb the measurement.
        let runs = |seen: &Seen| matches!(seen.object["status"]["phase"].as_str(), Some("Running" | "Succeeded"));
        pods.first("the pod to run", PATIENCE, runs).await?;
        let started = self.started_ms(name).await?;
        let lease = self.lease_on(&node).await?;
        let request =
            self.federation().comity(&["request", "show", lease["request"].as_str().unwrap_or_default()]).await?;
        let seen_running = now_ms();
        let after = |ms: u64| ms.saturating_sub(created);
        let of = |value: &Value| value.as_u64().unwrap_or_default();
        Ok(Phases(vec![
            ("request submitted", after(of(&request["submittedAtMs"]))),
            ("lease placed", after(of(&lease["placedAtMs"]))),
            ("virtual node ready", after(ready)),
            ("lease active", after(of(&lease["activeAtMs"]))),
            ("pod bound to the virtual node", after(bound.at_ms)),
            (Phases::STARTED, after(started)),
            ("log read on the origin", after(seen_running)),
        ]))
    }

    /// Start time of a Job's container in milliseconds since 1970, from its own log.
    async fn started_ms(&self, job: &str) -> Result<u64> {
        until("the container to say when it started", PATIENCE, async || Ok(Some(started(&self.log(job).await?)?)))
            .await
    }

    /// The log of a Job, read on the origin.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn log(&self, job: &str) -> Result<String> {
        Ok(self.clusters.origin.kubectl(&["-n", NAMESPACE, "logs", &format!("job/{job}")]).await?)
    }

    /// The lease behind a virtual node.
    ///
    /// # Errors
    /// When the node carries no lease's label.
    pub async fn lease_on(&self, node: &str) -> Result<Value> {
        let object: Value =
            serde_json::from_str(&self.clusters.origin.kubectl(&["get", "node", node, "-o", "json"]).await?)?;
        let lease =
            object["metadata"]["labels"]["comity.dev/lease"].as_str().context("the node has no lease's label")?;
        self.federation().comity(&["lease", "show", lease]).await
    }

    /// Id and restart count of a Job's container on the donor.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn container(&self, job: &str) -> Result<String> {
        let path = "jsonpath={.items[0].status.containerStatuses[0].containerID} \
                    {.items[0].status.containerStatuses[0].restartCount}";
        let selector = format!("app={job}");
        Ok(self.clusters.donor.kubectl(&["get", "pods", "-A", "-l", &selector, "-o", path]).await?)
    }

    /// Creates a Service for each of these Jobs on the origin, and a client pod without GPUs.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn serve(&self, jobs: &[&str]) -> Result<()> {
        let mut items = vec![serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client", "namespace": NAMESPACE},
            "spec": {"containers": [{"name": "work", "image": PROBE_IMAGE, "imagePullPolicy": "IfNotPresent"}]},
        })];
        items.extend(jobs.iter().map(|job| {
            serde_json::json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": job, "namespace": NAMESPACE},
                "spec": {"selector": {"app": job}, "ports": [{"port": 80, "targetPort": 8080}]},
            })
        }));
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
        self.clusters.origin.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
        Ok(())
    }

    /// The response of a Service of the origin to the client pod.
    ///
    /// # Errors
    /// When the client fails, with its output.
    pub async fn ask(&self, service: &str) -> Result<String> {
        self.get(service, "").await
    }

    /// Makes the container behind a Service exit successfully.
    ///
    /// # Errors
    /// When the client fails, with its output.
    pub async fn end(&self, service: &str) -> Result<()> {
        self.get(service, "end").await.map(drop)
    }

    async fn get(&self, service: &str, path: &str) -> Result<String> {
        let url = format!("http://{service}.{NAMESPACE}.svc.cluster.local/{path}");
        Ok(self.clusters.origin.kubectl(&["-n", NAMESPACE, "exec", "client", "--", "/probe", "get", &url]).await?)
    }

    /// Waits until a Job is complete on the origin.
    ///
    /// # Errors
    /// When it does not happen in time.
    pub async fn complete(&self, job: &str) -> Result<()> {
        until("the Job to be complete", PATIENCE, async || {
            let text = self.clusters.origin.kubectl(&["-n", NAMESPACE, "get", "job", job, "-o", "json"]).await?;
            let object: Value = serde_json::from_str(&text)?;
            ensure!(!is_true(&object, "Failed"), "the Job failed: {}", object["status"]);
            if is_true(&object, "Complete") {
                return Ok(Some(()));
            }
            let pods = ["-n", NAMESPACE, "get", "pods", "-l", &format!("job-name={job}"), "-o", "wide"];
            let pods = self.clusters.origin.kubectl(&pods).await?;
            let leases = self.federation().comity(&["lease", "list"]).await?;
            let leases = leases["items"].as_array().into_iter().flatten();
            let leases: Vec<String> = leases.map(|lease| format!("{} {}", lease["id"], lease["state"])).collect();
            bail!("Job {job}: {}; pods: {pods}; leases: {}", object["status"], leases.join(", "))
        })
        .await
    }

    /// Stops everything.
    ///
    /// # Errors
    /// When something cannot be stopped.
    pub async fn stop(self) -> Result<()> {
        drop(self.federation);
        if let Some(clusters) = Arc::into_inner(self.clusters) {
            clusters.stop().await?;
        }
        Ok(())
    }
}

/// Start time in the log of the test workload, in milliseconds since 1970.
fn started(log: &str) -> Result<u64> {
    let line = log.lines().find_map(|line| line.strip_prefix("started=")).context("nothing in the log yet")?;
    Ok(line.trim().parse()?)
}

/// Whether a condition of an object is true.
fn is_true(object: &Value, condition: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == condition && c["status"] == "True")
}

/// Copies the example policy with another idle time of peerings.
///
/// # Errors
/// When a file cannot be read or written.
pub fn copy_policy(from: &Path, to: &Path, peering_idle: &str) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&target)?;
            copy_policy(&entry.path(), &target, peering_idle)?;
        } else {
            let text = std::fs::read_to_string(entry.path())?;
            std::fs::write(&target, text.replace("peeringIdle: 15m", &format!("peeringIdle: {peering_idle}")))?;
        }
    }
    Ok(())
}

/// Settings of the section `liqo` by which each cluster lets the others use their own addresses.
pub(crate) fn peer_addresses(clusters: &RealClusters) -> String {
    let donors = [(DONOR, Some(&clusters.donor)), (SECOND_DONOR, clusters.second_donor.as_ref())];
    let donors: Vec<_> = donors.into_iter().filter_map(|(name, real)| Some((name, real?))).collect();
    let pods = donors.iter().map(|(_, real)| real.pod_cidr()).chain([clusters.origin.pod_cidr()]);
    let apis = donors.iter().map(|(name, real)| format!("{name}: [{}/32]", real.node_ip()));
    let (pods, apis) = (pods.collect::<Vec<_>>().join(", "), apis.collect::<Vec<_>>().join(", "));
    format!("  peerNetworks: [{pods}]\n  peerApiServers: {{{apis}}}\n")
}

/// The section `burst` of the origin's agent configuration.
const BURST_SECTION: &str = "burst:\n  enabled: true\n  cooldownSeconds: 3\n  defaultClass: midrange\n";

/// The section `webhook` of an agent's configuration.
fn webhook_section(node_ip: &str) -> String {
    format!("webhook:\n  listen: {node_ip}:9443\n  url: https://{node_ip}:9443\n")
}
