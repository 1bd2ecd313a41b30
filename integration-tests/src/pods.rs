//! Runs brokers and agents as pods of two clusters with real kubelets, from the manifests in `deploy/` and locally
//! built images. Overlays set only the values that the manifests leave to the user.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use comity_testkit::image::{self, FolderImage, Image};
use comity_testkit::{Binaries, LiqoConfig, LiqoVersion, Needs, RealCluster, RealClusters, RealClustersConfig, Where};
use serde_json::Value;
use tokio::process::Command;

use crate::burst::{Burst, DONOR, NAMESPACE, ORIGIN, copy_policy, install_webhooks, peer_addresses, place};
use crate::federation::{Federation, FederationConfig};
use crate::programs::{deploy, program};
use crate::wait::{PATIENCE, until};

/// Namespace of the brokers, on the donor's cluster.
pub const BROKER_NAMESPACE: &str = "comity-brokers";
/// Namespace of each agent.
pub const AGENT_NAMESPACE: &str = "comity-system";
/// Image with kubectl, for a tenant's pod.
pub const KUBECTL_IMAGE: &str = "comity.local/kubectl:1";
/// Namespace of the offloaded pods, on the donor.
const REMOTE_NAMESPACE: &str = "team-a-origin";
/// Namespace of the virtual-kubelets, on the origin, and their label.
const LIQO_TENANT_NAMESPACE: &str = "liqo-tenant-donor";
const VIRTUAL_KUBELETS: &str = "offloading.liqo.io/component=virtual-kubelet";
/// Node port of the brokers.
const CLIENT_PORT: u16 = 30743;
/// Node port of the donor's fabric, from the manifest.
const FABRIC_PORT: u16 = 31871;
/// Idle time after which a peering closes.
const PEERING_IDLE: &str = "5s";
/// Port of the fabric in the gateway's network.
const GATEWAY_PORT: u16 = 51871;
/// Folder of the agents' local volumes.
const VOLUMES: &str = "/var/lib/comity-volumes";
/// kubectl itself is given two minutes.
const ROLLOUT_TIMEOUT: Duration = Duration::from_secs(110);
/// User of the images.
const USER: &str = "65532:65532";

/// Two clusters with all of Comity in pods.
pub struct Pods {
    /// The clusters, the `comity` command in the network between them, and their Jobs.
    pub burst: Burst,
}

impl Pods {
    /// Starts both clusters: the donor has three brokers, four GPUs and an agent, the origin an agent. Neither has
    /// Liqo, and the agents have no privileges.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn start() -> Result<Self> {
        let pods = Self::with_brokers(LiqoVersion::default(), None).await?;
        let RealClusters { origin, donor, .. } = pods.clusters();
        for (cluster, real) in [(ORIGIN, origin), (DONOR, donor)] {
            pods.agent(cluster, real).await?;
        }
        pods.all_connected().await?;
        Ok(pods)
    }

    /// As [`Pods::start`], with Liqo: the agents are gateways, the origin bursts, and both clusters have a
    /// metrics-server.
    ///
    /// # Errors
    /// When a component does not start.
    pub async fn start_beside_liqo() -> Result<Self> {
        let version = LiqoVersion::from_environment()?;
        let liqo = LiqoConfig { version, ..LiqoConfig::default() };
        let pods = Self::with_brokers(version, Some(liqo)).await?;
        let RealClusters { origin, donor, .. } = pods.clusters();
        for (cluster, real) in [(ORIGIN, origin), (DONOR, donor)] {
            pods.agent_beside_liqo(cluster, real).await?;
        }
        for real in [origin, donor] {
            real.add_metrics_server(&pods.burst.binaries).await?;
        }
        pods.all_connected().await?;
        pods.burst.open().await?;
        Ok(pods)
    }

    /// Both clusters and the brokers.
    async fn with_brokers(version: LiqoVersion, liqo: Option<LiqoConfig>) -> Result<Self> {
        let binaries = Binaries::with_liqo(Needs::Liqo, version).await?;
        let config = RealClustersConfig { donor_gpus: 4, dns: true, liqo, ..RealClustersConfig::default() };
        let clusters = Arc::new(RealClusters::start(&binaries, config).await?);
        let members: Vec<String> = (1..=3)
            .map(|id| {
                let client = clusters.donor.node_ip();
                format!("{id}=comity-broker-{id}.comity-broker.{BROKER_NAMESPACE}.svc:7444/{client}:{CLIENT_PORT}")
            })
            .collect();
        let router = place(&clusters, Where::Router, clusters.donor.node_ip());
        let federation = Federation::found_elsewhere(router, CLIENT_PORT, &members.join(",")).await?;
        let pods = Self { burst: Burst::over(binaries, clusters, federation) };
        pods.images().await?;
        pods.brokers().await?;
        Ok(pods)
    }

    /// The two clusters.
    #[must_use]
    pub fn clusters(&self) -> &RealClusters {
        &self.burst.clusters
    }

    /// The federation, whose command runs in the network between the clusters.
    #[must_use]
    pub fn federation(&self) -> &Federation {
        self.burst.federation()
    }

    /// Builds the images and imports them on the nodes.
    async fn images(&self) -> Result<()> {
        let dir = self.federation().dir();
        let RealClusters { origin, donor, .. } = self.clusters();
        for (name, nodes) in [("broker", &[donor][..]), ("agent", &[origin, donor])] {
            let archive = image_of(name, dir).await?;
            for node in nodes {
                node.import_image(&archive).await?;
            }
        }
        let (archive, kubectl) = (dir.join("kubectl.tar"), self.burst.binaries.program("kubectl"));
        let image = Image { name: KUBECTL_IMAGE, program: &kubectl, path: "/kubectl", user: USER, tmp: true };
        image::write(&image, &archive)?;
        Ok(origin.import_image(&archive).await?)
    }

    async fn brokers(&self) -> Result<()> {
        let donor = &self.clusters().donor;
        volumes(donor, &["broker-1", "broker-2", "broker-3", "agent"]).await?;
        let founding = self.federation().broker_dir(1);
        let files = ["broker.json", "founding", "invitation-key", "ca/tls.crt", "ca/tls.key", "ca/ca.crt"]
            .map(|file| founding.join(file));
        self.apply(donor, &["broker"], "broker", |text| {
            text.push_str(&secret("comity-broker-founding", BROKER_NAMESPACE, &files));
            text.push_str(&format!(
                "patches:\n- target: {{kind: Service, name: comity-broker-client}}\n  patch: |\n    \
                 - {{op: add, path: /spec/type, value: NodePort}}\n    \
                 - {{op: add, path: /spec/ports/0/nodePort, value: {CLIENT_PORT}}}\n"
            ));
            files.to_vec()
        })
        .await?;
        let policy = self.federation().dir().join("policy");
        std::fs::create_dir(&policy)?;
        copy_policy(&FederationConfig::with_example_policy().policy, &policy, PEERING_IDLE)?;
        let policy = policy.to_str().context("paths of tests are text")?.to_owned();
        until("the policy to be applied", PATIENCE, async || {
            self.federation().comity_as("admin", &["policy", "apply", &policy]).await.map(Some)
        })
        .await?;
        self.brokers_ready().await
    }

    /// Installs an agent: RBAC first, then the agent with its token.
    async fn agent(&self, cluster: &str, real: &RealCluster) -> Result<()> {
        if cluster == ORIGIN {
            volumes(real, &["agent"]).await?;
        }
        let files = ["rbac.yaml", "tenant-role.yaml", "admission.yaml", "webhook.yaml"];
        let rights = files.map(|file| deploy().join("agent").join(file));
        let mut apply = vec!["apply"];
        for file in &rights {
            apply.extend(["-f", file.to_str().context("paths of tests are text")?]);
        }
        real.kubectl(&apply).await?;
        let level = "pod-security.kubernetes.io/enforce=restricted";
        real.kubectl(&["label", "namespace", AGENT_NAMESPACE, level]).await?;

        let token = self.invite(cluster).await?;
        self.agent_of(real, "agent/netstack", FABRIC_PORT, Some(token)).await?;
        self.webhooks(cluster, real).await
    }

    /// Installs an agent beside Liqo with the three commands of docs/install.md.
    async fn agent_beside_liqo(&self, cluster: &str, real: &RealCluster) -> Result<()> {
        if cluster == ORIGIN {
            volumes(real, &["agent"]).await?;
        }
        let token = self.invite(cluster).await?;
        real.kubectl(&["label", "node", &real.node_name(), "comity.dev/gateway=true"]).await?;
        self.agent_of(real, "liqo", GATEWAY_PORT, Some(token)).await?;
        self.webhooks(cluster, real).await?;
        agent_rolled_out(real).await
    }

    /// Installs the webhooks with the configuration that the last agent got.
    async fn webhooks(&self, cluster: &str, real: &RealCluster) -> Result<()> {
        let at = if cluster == ORIGIN { Where::Origin } else { Where::Donor };
        install_webhooks(self.clusters(), at, real, &self.federation().dir().join("agent.yaml")).await
    }

    /// Invites a cluster; returns the file with its join token.
    async fn invite(&self, cluster: &str) -> Result<PathBuf> {
        let invitation = self.federation().comity_as("admin", &["cluster", "invite", cluster]).await?;
        let dir = self.federation().dir().join(cluster);
        std::fs::create_dir(&dir)?;
        let token = dir.join("join.token");
        std::fs::write(&token, invitation["token"].as_str().context("an invitation has a token")?)?;
        Ok(token)
    }

    /// Installs the agent from a folder of manifests, and sets the user's values in its `agent.yaml`.
    async fn agent_of(&self, real: &RealCluster, base: &str, fabric_port: u16, token: Option<PathBuf>) -> Result<()> {
        let folder = deploy().join(base);
        let shipped = real.kubectl(&["kustomize", folder.to_str().context("paths of tests are text")?]).await?;
        let mut config = agent_config(&shipped)?;
        // Nodes of tests have their images from the host, and no registry.
        config.push_str("sharing: {alwaysPullImages: false}\n");
        if real.name() == self.clusters().donor.name() {
            let chosen = format!("endpoints: ['{}:{fabric_port}']", real.node_ip());
            replace(&mut config, "endpoints: []", &chosen)?;
        }
        if base == "liqo" {
            // These nodes carry no spec.podCIDR: the container network here is a plain bridge.
            let peers = peer_addresses(self.clusters());
            let networks = format!("liqo:\n  enabled: true\n  podCidrs: [{}]\n{peers}", real.pod_cidr());
            replace(&mut config, "liqo:\n  enabled: true\n", &networks)?;
            let burst = "burst:\n  enabled: true\n  cooldownSeconds: 3\n  defaultClass: midrange\n";
            if real.name() == self.clusters().donor.name() {
                replace(&mut config, "liqo:\n", "liqo:\n  podMetrics: {}\n")?;
            }
            replace(&mut config, "burst:\n  enabled: true\n", burst)?;
        }
        let file = self.federation().dir().join("agent.yaml");
        std::fs::write(&file, config)?;
        let tells_metrics = base == "liqo" && real.name() == self.clusters().donor.name();
        let bases = if tells_metrics { &[base, "liqo/pod-metrics"][..] } else { &[base] };
        self.apply(real, bases, "agent", |text| {
            text.push_str(&format!(
                "configMapGenerator:\n- name: comity-agent\n  namespace: {AGENT_NAMESPACE}\n  \
                 behavior: replace\n  files: [agent.yaml]\n"
            ));
            if let Some(token) = &token {
                text.push_str(&secret("comity-agent-join", AGENT_NAMESPACE, std::slice::from_ref(token)));
            }
            std::iter::once(file).chain(token).collect()
        })
        .await
    }

    /// Switches an agent from mode netstack to mode tun with the manifests of the latter.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn into_tun(&self, real: &RealCluster) -> Result<()> {
        real.kubectl(&["-n", AGENT_NAMESPACE, "delete", "deployment", "comity-agent", "--cascade=foreground"]).await?;
        real.kubectl(&["-n", AGENT_NAMESPACE, "delete", "service/comity-agent-fabric", "networkpolicy/comity-agent"])
            .await?;
        real.exec_in_node(&["chown", "-R", "0:0", VOLUMES]).await?;
        real.kubectl(&["label", "node", &real.node_name(), "comity.dev/gateway=true"]).await?;
        let level = "pod-security.kubernetes.io/enforce=privileged";
        real.kubectl(&["label", "--overwrite", "namespace", AGENT_NAMESPACE, level]).await?;
        self.agent_of(real, "agent/tun", GATEWAY_PORT, None).await?;
        agent_rolled_out(real).await
    }

    /// Runs `kubectl apply -k` on an overlay of folders of `deploy/`, as a user would write it; `more` adds text and
    /// the files that it uses.
    async fn apply(
        &self,
        real: &RealCluster,
        bases: &[&str],
        image: &str,
        more: impl FnOnce(&mut String) -> Vec<PathBuf>,
    ) -> Result<()> {
        let dir =
            self.federation().dir().join(format!("overlay-{}-{}", real.name(), bases.join("-").replace('/', "-")));
        std::fs::create_dir(&dir)?;
        let resources: Vec<String> = bases
            .iter()
            .map(|base| Ok(relative(&dir, &deploy().join(base))?.display().to_string()))
            .collect::<Result<_>>()?;
        let name = image_name(image);
        let (chosen, tag) = name.rsplit_once(':').context("the name has a tag")?;
        let mut text = format!(
            "resources: [{}]\nimages: [{{name: registry.example/comity-{image}, newName: {chosen}, newTag: {tag}}}]\n",
            resources.join(", ")
        );
        for file in more(&mut text) {
            std::fs::copy(&file, dir.join(file.file_name().context("it is a file")?))?;
        }
        std::fs::write(dir.join("kustomization.yaml"), text)?;
        real.kubectl(&["apply", "--server-side", "-k", dir.to_str().context("paths of tests are text")?]).await?;
        Ok(())
    }

    /// Waits until all three brokers are ready.
    ///
    /// # Errors
    /// When it takes too long.
    pub async fn brokers_ready(&self) -> Result<()> {
        let timeout = format!("--timeout={}s", ROLLOUT_TIMEOUT.as_secs());
        let wait = ["-n", BROKER_NAMESPACE, "rollout", "status", "statefulset/comity-broker", &timeout];
        self.clusters().donor.kubectl(&wait).await?;
        Ok(())
    }

    /// Waits until both agents are connected and have offers.
    ///
    /// # Errors
    /// When it takes too long.
    pub async fn all_connected(&self) -> Result<()> {
        until("both agents to be connected", PATIENCE, async || {
            let clusters = self.federation().comity_as("admin", &["cluster", "list"]).await?;
            let items = clusters["items"].as_array().into_iter().flatten();
            let connected = items.filter(|c| c["connected"] == true && c["offerGeneration"] != 0).count();
            ensure!(connected == 2, "{clusters}");
            Ok(Some(()))
        })
        .await
    }

    /// Kills pods without grace period.
    ///
    /// # Errors
    /// When kubectl fails, with its output.
    pub async fn kill(&self, real: &RealCluster, namespace: &str, selector: &str) -> Result<()> {
        let kill = ["-n", namespace, "delete", "pod", "--selector", selector, "--grace-period=0", "--force"];
        real.kubectl(&kill).await?;
        Ok(())
    }

    /// Number of the leader, according to the broker that answers.
    ///
    /// # Errors
    /// When none is known in time.
    pub async fn leader(&self) -> Result<u64> {
        until("a leader", PATIENCE, async || {
            let status = self.federation().comity_as("admin", &["raft", "status"]).await?;
            Ok(Some(status["brokers"][0]["leader"].as_u64().with_context(|| status.to_string())?))
        })
        .await
    }

    /// States, events and log ends of all of Comity's pods, for error messages.
    pub async fn logs(&self) -> String {
        let mut logs = String::new();
        for real in [&self.clusters().donor, &self.clusters().origin] {
            for namespace in
                [BROKER_NAMESPACE, AGENT_NAMESPACE, "comity-leases", NAMESPACE, REMOTE_NAMESPACE, LIQO_TENANT_NAMESPACE]
            {
                let whose =
                    if namespace == LIQO_TENANT_NAMESPACE { VIRTUAL_KUBELETS } else { "app.kubernetes.io/name" };
                for args in [
                    &["get", "pods,pvc,endpointslices", "-o", "wide"][..],
                    &["get", "events", "--sort-by=.lastTimestamp"],
                    &["logs", "--prefix", "--tail=60", "--timestamps", "--all-containers", "--selector", whose],
                ] {
                    let said = real.kubectl(&[&["-n", namespace][..], args].concat()).await;
                    let said = said.unwrap_or_else(|error| error.to_string());
                    logs.push_str(&format!("\n--- {} {namespace} {}\n{said}", real.name(), args.join(" ")));
                }
            }
        }
        logs
    }

    /// Stops everything.
    ///
    /// # Errors
    /// When something cannot be stopped.
    pub async fn stop(self) -> Result<()> {
        self.burst.stop().await
    }
}

/// Waits until the agent's pod is ready.
///
/// # Errors
/// When it takes too long.
pub async fn agent_rolled_out(real: &RealCluster) -> Result<()> {
    let timeout = format!("--timeout={}s", ROLLOUT_TIMEOUT.as_secs());
    real.kubectl(&["-n", AGENT_NAMESPACE, "rollout", "status", "deployment/comity-agent", &timeout]).await?;
    Ok(())
}

/// Replaces text in a manifest, which must contain it.
fn replace(text: &mut String, from: &str, to: &str) -> Result<()> {
    ensure!(text.contains(from), "{from:?} is not in the manifest's agent.yaml: {text}");
    *text = text.replace(from, to);
    Ok(())
}

/// Builds the image of `broker` or `agent` as an archive in a folder.
///
/// # Errors
/// When a program is not built, or the image cannot be written.
pub async fn image_of(name: &str, dir: &Path) -> Result<PathBuf> {
    let folder = dir.join(format!("image-{name}"));
    let built = program("comity")?;
    let built = built.parent().context("programs are in a folder")?;
    let made = Command::new(deploy().join("images/tree")).arg(name).arg(built).arg(&folder).output().await?;
    ensure!(made.status.success(), "images/tree {name}: {}", String::from_utf8_lossy(&made.stderr));
    let (image, path) = (image_name(name), format!("/usr/bin/comity-{name}"));
    let archive = dir.join(format!("{name}.tar"));
    let image = FolderImage { name: &image, folder: &folder, path: &path, user: USER, env: &[] };
    image::write_folder(&image, &archive)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(archive)
}

/// Name of the image of `broker` or `agent`.
#[must_use]
pub fn image_name(name: &str) -> String {
    format!("comity.local/comity-{name}:test")
}

/// A kustomization section that creates a Secret from files.
fn secret(name: &str, namespace: &str, files: &[PathBuf]) -> String {
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    format!(
        "secretGenerator:\n- name: {name}\n  namespace: {namespace}\n  files: [{}]\n  \
         options: {{disableNameSuffixHash: true}}\n",
        names.join(", ")
    )
}

/// Creates local volumes under the cluster's default storage class, in place of a provisioner; claims take them in
/// order.
async fn volumes(real: &RealCluster, names: &[&str]) -> Result<()> {
    let mut items = vec![serde_json::json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "provisioner": "kubernetes.io/no-provisioner",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "volumeBindingMode": "WaitForFirstConsumer",
    })];
    for name in names {
        let path = format!("{}/{name}", if name.starts_with("broker") { "/var/lib/comity-brokers" } else { VOLUMES });
        real.exec_in_node(&["mkdir", "-p", &path]).await?;
        items.push(serde_json::json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "10Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "local": {"path": path},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": "kubernetes.io/hostname", "operator": "In", "values": [real.node_name()]}]}]}},
            },
        }));
    }
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
    real.kubectl_with_input(&["apply", "-f", "-"], &list.to_string()).await?;
    Ok(())
}

/// Extracts `agent.yaml` from the text of the manifests.
fn agent_config(manifests: &str) -> Result<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifests).context("the manifests are YAML")?;
    let config = documents.iter().find_map(|document| document["data"]["agent.yaml"].as_str());
    Ok(config.context("the manifests have an agent.yaml")?.to_owned())
}

/// Relative path between two folders: a kustomization takes no absolute paths.
fn relative(from: &Path, to: &Path) -> Result<PathBuf> {
    let (from, to) = (from.canonicalize()?, to.canonicalize()?);
    let common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(common).map(|_| "..");
    Ok(up.map(PathBuf::from).chain(to.components().skip(common).map(|part| PathBuf::from(part.as_os_str()))).collect())
}
