//! cert-manager makes the brokers' intermediates and the certificate of an agent's webhooks, from the Certificates that
//! docs/authority.md and docs/install.md show.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use comity_proto::v1;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use comity_runtime::{BrokerEndpoints, ClientTls, IdentityDir, IdentitySource, TlsIdentity, TrustedRoots, connect};
use comity_scenarios::{AgentSpec, Federation, FederationConfig, InventorySource, PATIENCE, free_port, program, until};
use comity_testkit::{Binaries, CertManager, ControlPlane, ControlPlaneConfig, SimulatedNode};
use serde_json::{Value, json};
use tokio::process::Command;
use tonic::Streaming;

use crate::OrLogs as _;
use crate::control_planes::pod;
use crate::inventories::inventory;

const AUTHORITY_PAGE: &str = include_str!("../../../../docs/authority.md");
const INSTALL_PAGE: &str = include_str!("../../../../docs/install.md");
/// The ClusterIssuer of both pages.
const ISSUER: &str = "example-root";
/// Namespaces of the Certificates of the issuer, the brokers and the agent.
const NAMESPACES: [&str; 3] = ["cert-manager", "comity-brokers", "comity-system"];
/// Name of the brokers' Certificate and its Secret.
const AUTHORITY: &str = "comity-authority";
/// Name of the webhooks' Certificate and its Secret.
const WEBHOOK: &str = "comity-agent-webhook";
/// The clusters, in the order in which they join.
const CLUSTERS: [&str; 2] = ["ncc-main", "polytech-campus"];
/// What an agent logs once a broker has welcomed it.
const CONNECTED: &str = "connected to the broker group";
const NOT_TAKEN_UP: &str = "the authority's files are not taken up";
/// A namespace of a lease, whose pods the webhook completes, and what it adds to them.
const LEASE_NAMESPACE: &str = r#"{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "comity-lease-80",
  "labels": {"comity.dev/lease": "lease-80", "comity.dev/lease-nodes": "several"},
  "annotations": {"comity.dev/gpu-resource": "nvidia.com/gpu", "comity.dev/devices": "nvidia.com/gpu"}}}"#;
const ADDED: &str = "gpus.lease.comity.dev/lease-80";

/// A control plane with cert-manager and a ClusterIssuer of a root that cert-manager made.
struct Site {
    manager: CertManager,
    plane: ControlPlane,
    dir: tempfile::TempDir,
    began: Instant,
}

/// The files of a Secret.
type Files = BTreeMap<String, Vec<u8>>;

impl Site {
    async fn start(nodes: Vec<SimulatedNode>) -> Self {
        let binaries = Binaries::with_cert_manager().await.unwrap();
        let (dir, began) = (tempfile::tempdir().unwrap(), Instant::now());
        let config = ControlPlaneConfig { nodes, ..ControlPlaneConfig::new("site", dir.path().join("site")) };
        let plane = ControlPlane::start(&binaries, config).await.unwrap();
        let manager = CertManager::start(&binaries, &plane).await.unwrap();
        let site = Self { manager, plane, dir, began };
        let namespaces = NAMESPACES[1..]
            .iter()
            .map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
        for namespace in namespaces {
            site.apply(&namespace).await;
        }
        let issuer = |name: &str, spec: Value| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "cert-manager.io/v1", "kind": "ClusterIssuer", "metadata": metadata, "spec": spec})
        };
        site.apply(&issuer("self-signed", json!({"selfSigned": {}}))).await;
        site.apply(&issuer(ISSUER, json!({"ca": {"secretName": ISSUER}}))).await;
        site.apply(&root()).await;
        site.ready(NAMESPACES[0], "certificate", ISSUER).await;
        site.ready(NAMESPACES[0], "clusterissuer", ISSUER).await;
        site.said("cert-manager has a root, and a ClusterIssuer signs with it");
        site
    }

    fn said(&self, what: &str) {
        println!("{:>7} ms  {what}", self.began.elapsed().as_millis());
    }

    /// Panics with the logs of cert-manager.
    fn done<T>(&self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("{error:#}\n{}", self.manager.logs()))
    }

    async fn apply(&self, object: &Value) {
        let applied = self.plane.kubectl_with_input(&["apply", "-f", "-"], &object.to_string()).await;
        self.done(applied.map_err(Into::into));
    }

    /// Waits until an object of cert-manager is ready.
    async fn ready(&self, namespace: &str, kind: &str, name: &str) {
        let wait = ["-n", namespace, "wait", "--for=condition=Ready", "--timeout=100s", kind, name];
        self.done(self.plane.kubectl(&wait).await.map_err(Into::into));
    }

    async fn get(&self, namespace: &str, kind: &str, name: &str) -> Result<Value> {
        let text = self.plane.kubectl(&["-n", namespace, "get", kind, name, "-o", "json"]).await?;
        Ok(serde_json::from_str(&text)?)
    }

    async fn files(&self, namespace: &str, secret: &str) -> Result<Files> {
        let found = self.get(namespace, "secret", secret).await?;
        let data = found["data"].as_object().context("a Secret has data")?;
        data.iter()
            .map(|(name, text)| Ok((name.clone(), STANDARD.decode(text.as_str().unwrap_or_default())?)))
            .collect()
    }

    /// Tells cert-manager to renew a Certificate, as `cmctl renew` does; returns the new files.
    async fn renew(&self, namespace: &str, name: &str) -> Files {
        let before = self.done(self.files(namespace, name).await);
        let issuing = json!({"type": "Issuing", "status": "True", "reason": "ManuallyTriggered", "message": "by a test",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let patch = json!([{"op": "add", "path": "/status/conditions/-", "value": issuing}]).to_string();
        let patch =
            ["-n", namespace, "patch", "certificate", name, "--subresource=status", "--type=json", "-p", &patch];
        self.done(self.plane.kubectl(&patch).await.map_err(Into::into));
        let renewed = until("cert-manager to renew", PATIENCE, async || {
            let files = self.files(namespace, name).await?;
            Ok((files["tls.crt"] != before["tls.crt"]).then_some(files))
        });
        self.done(renewed.await)
    }
}

/// The Certificate that a page shows.
fn certificate_of(page: &str) -> Value {
    let examples = page.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut found = examples.filter(|text| text.contains("kind: Certificate\n"));
    serde_saphyr::from_str(found.next().unwrap()).unwrap()
}

/// The Certificate of the issuer's own root.
fn root() -> Value {
    json!({"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
        "metadata": {"name": ISSUER, "namespace": NAMESPACES[0]}, "spec": {
            "secretName": ISSUER, "issuerRef": {"kind": "ClusterIssuer", "name": "self-signed"}, "isCA": true,
            "commonName": "Example root", "duration": "87600h",
            "privateKey": {"algorithm": "ECDSA", "rotationPolicy": "Always"}}})
}

/// A directory into which the kubelet mounted a Secret: one link changes, and with it all files.
struct Mounted {
    dir: PathBuf,
    versions: u32,
}

impl Mounted {
    fn new(dir: PathBuf, files: &Files) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let mut mounted = Self { dir, versions: 0 };
        mounted.update(files)?;
        for name in files.keys() {
            symlink(Path::new("..data").join(name), mounted.dir.join(name))?;
        }
        Ok(mounted)
    }

    fn update(&mut self, files: &Files) -> Result<()> {
        let earlier = self.dir.join(format!("..version-{}", self.versions));
        self.versions += 1;
        let version = format!("..version-{}", self.versions);
        std::fs::create_dir(self.dir.join(&version))?;
        for (name, content) in files {
            let path = self.dir.join(&version).join(name);
            std::fs::write(&path, content)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400))?;
        }
        symlink(&version, self.dir.join("..data_tmp"))?;
        std::fs::rename(self.dir.join("..data_tmp"), self.dir.join("..data"))?;
        if self.versions > 1 {
            std::fs::remove_dir_all(earlier)?;
        }
        Ok(())
    }
}

/// The changes of the federation, for its admin.
async fn watch(federation: &Federation) -> Result<Streaming<v1::WatchEvent>> {
    let (pem, _) = IdentityDir::new(federation.dir().join("user-admin")).load()?;
    let source = IdentitySource::new(TlsIdentity::from_pem(&pem)?);
    let brokers = BrokerEndpoints::new([federation.broker_address(1)?])?;
    let channel = connect(&brokers, &ClientTls::new(TrustedRoots::of(&source), source.subscribe()));
    Ok(WatchServiceClient::new(channel).watch(v1::WatchRequest::default()).await?.into_inner())
}

/// Reads a watch until it names a cluster.
async fn hears_of(events: &mut Streaming<v1::WatchEvent>, cluster: &str) -> Result<()> {
    let named = async {
        while let Some(event) = events.message().await? {
            if format!("{event:?}").contains(cluster) {
                return Ok(());
            }
        }
        anyhow::bail!("the watch has ended")
    };
    tokio::time::timeout(PATIENCE, named).await.context("no event names it")?
}

/// Waits until the certificate of an agent is one of this intermediate.
async fn is_issued_by(federation: &Federation, cluster: &str, intermediate: &Files) -> Result<()> {
    let file = federation.agent_dir(cluster).join("identity/cert.pem");
    let intermediate = String::from_utf8(intermediate["tls.crt"].clone())?;
    until("a certificate of the intermediate", PATIENCE, async || {
        Ok(std::fs::read_to_string(&file)?.contains(intermediate.trim()).then_some(()))
    })
    .await
}

async fn broker_logs(federation: &Federation, what: &str, times: usize) -> Result<()> {
    until(what, PATIENCE, async || Ok((federation.log_of("broker-1")?.matches(what).count() >= times).then_some(())))
        .await
}

/// How often an agent has connected.
fn connections(federation: &Federation, cluster: &str) -> usize {
    federation.log_of(cluster).unwrap().matches(CONNECTED).count()
}

/// Runs a program to its end, and returns its output or its error.
async fn run(name: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program(name)?).args(args).output().await?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name} {}: {told}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds cert-manager, which takes minutes: ./test long runs it"]
async fn cert_manager_keeps_the_brokers_authority() {
    let site = Site::start(Vec::new()).await;
    let [_, namespace, _] = NAMESPACES;
    let shown = certificate_of(AUTHORITY_PAGE);
    site.apply(&shown).await;
    let mut nameless = shown.clone();
    nameless["metadata"]["name"] = json!("nameless");
    nameless["spec"]["secretName"] = json!("nameless");
    nameless["spec"].as_object_mut().unwrap().remove("uris").unwrap();
    site.apply(&nameless).await;
    for name in [AUTHORITY, "nameless"] {
        site.ready(namespace, "certificate", name).await;
    }
    an_intermediate_without_the_trust_domain_is_refused(&site).await;
    site.said("an intermediate without the URI is refused");

    let first = site.done(site.files(namespace, AUTHORITY).await);
    let mut mounted = Mounted::new(site.dir.path().join("comity-ca"), &first).unwrap();
    let config = FederationConfig {
        brokers: 1,
        cluster_certificates_s: 60,
        ca: Some(mounted.dir.clone()),
        ..FederationConfig::with_example_policy()
    };
    let mut federation = Federation::start(config).await.unwrap();
    join(&mut federation, "ncc-main").await;
    is_issued_by(&federation, "ncc-main", &first).await.or_logs(&federation);
    let mut events = watch(&federation).await.or_logs(&federation);
    hears_of(&mut events, "ncc-main").await.or_logs(&federation);
    site.said("a federation began with cert-manager's intermediate, and a cluster joined");

    let second = site.renew(namespace, AUTHORITY).await;
    assert_eq!(second["ca.crt"], first["ca.crt"]);
    assert_ne!(second["tls.key"], first["tls.key"], "the page wants another key each time");
    mounted.update(&second).unwrap();
    broker_logs(&federation, "the next intermediate is in force", 1).await.or_logs(&federation);
    site.said("cert-manager made the next one, and the broker issues with it");
    join(&mut federation, "polytech-campus").await;
    is_issued_by(&federation, "polytech-campus", &second).await.or_logs(&federation);
    hears_of(&mut events, "polytech-campus").await.or_logs(&federation);
    assert_eq!(connections(&federation, "ncc-main"), 1, "its stream stays\n{}", federation.logs());
    site.said("another cluster joined, and the stream of the first one and a user's watch are still open");
    is_issued_by(&federation, "ncc-main", &second).await.or_logs(&federation);
    site.said("the first one renewed its certificate, with the next intermediate");

    a_root_that_nobody_knows_is_not_taken_up(&site, &mut mounted, &mut federation).await;
    site.said("a replaced root was reported and not taken up, at a restart neither");
    site.plane.stop().await.unwrap();
}

async fn join(federation: &mut Federation, cluster: &str) {
    let file = inventory(federation.dir(), cluster, 2, "frontier");
    federation.join(AgentSpec::new(cluster, InventorySource::File(file))).await.or_logs(federation);
    federation.all_connected().await.or_logs(federation);
}

async fn an_intermediate_without_the_trust_domain_is_refused(site: &Site) {
    let files = site.done(site.files(NAMESPACES[1], "nameless").await);
    let mounted = Mounted::new(site.dir.path().join("nameless"), &files).unwrap();
    let [data, admin] = ["data", "admin"].map(|name| site.dir.path().join(name).display().to_string());
    let ca = mounted.dir.display().to_string();
    let init = ["init", "--ca", &ca, "--data", &data, "--trust-domain", "comity.example", "--admin-out", &admin];
    let refused = run("comity-broker", &init).await.unwrap_err().to_string();
    assert!(refused.contains("want the URI spiffe://"), "{refused}");
}

/// cert-manager names only the newest root, so a new one is not introduced by the old one.
async fn a_root_that_nobody_knows_is_not_taken_up(site: &Site, mounted: &mut Mounted, federation: &mut Federation) {
    let known = site.done(site.files(NAMESPACES[1], AUTHORITY).await);
    site.renew(NAMESPACES[0], ISSUER).await;
    let strange = site.renew(NAMESPACES[1], AUTHORITY).await;
    assert_ne!(strange["ca.crt"], known["ca.crt"]);
    mounted.update(&strange).unwrap();
    broker_logs(federation, NOT_TAKEN_UP, 1).await.or_logs(federation);
    federation.all_connected().await.or_logs(federation);
    federation.kill_broker(1).await.unwrap();
    let before = CLUSTERS.map(|cluster| connections(federation, cluster));
    federation.start_broker(1).unwrap();
    broker_logs(federation, NOT_TAKEN_UP, 2).await.or_logs(federation);
    until("the agents to be back", PATIENCE, async || {
        let now = CLUSTERS.map(|cluster| connections(federation, cluster));
        Ok(now.iter().zip(&before).all(|(now, before)| now > before).then_some(()))
    })
    .await
    .or_logs(federation);
    federation.comity_as("admin", &["cluster", "list"]).await.or_logs(federation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "builds cert-manager, which takes minutes: ./test long runs it"]
async fn cert_manager_keeps_the_webhooks_certificate() {
    let site = Site::start(vec![SimulatedNode::h100("ncc-1", 8)]).await;
    let [_, _, namespace] = NAMESPACES;
    let mut certificate = certificate_of(INSTALL_PAGE);
    site.apply(&certificate).await;
    site.ready(namespace, "certificate", WEBHOOK).await;
    let config = site.dir.path().join("agent.yaml");
    let service = format!("webhook:\n  service: {{namespace: {namespace}, name: {WEBHOOK}}}\n");
    std::fs::write(&config, format!("stateDir: {}\n{service}", site.dir.path().join("state").display())).unwrap();
    let before = site.done(site.get(namespace, "secret", WEBHOOK).await);
    let told = install_webhooks(&site, &config).await;
    assert_eq!(told.trim(), "MutatingWebhookConfiguration comity-lease-pods: created");
    let after = site.done(site.get(namespace, "secret", WEBHOOK).await);
    assert_eq!(before["metadata"]["resourceVersion"], after["metadata"]["resourceVersion"], "the Secret is left alone");
    let ca = before["data"]["ca.crt"].as_str().unwrap();
    let injected = site.done(is_trusted(&site, ca).await);
    let from = &injected["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
    assert_eq!(from, &format!("{namespace}/{WEBHOOK}"));
    assert!(install_webhooks(&site, &config).await.contains("unchanged"), "what cainjector wrote stays");
    site.said("the webhook is registered, and the cainjector wrote the CA of cert-manager's certificate");

    // No Service reaches an agent that is no pod.
    certificate["spec"]["ipAddresses"] = json!(["127.0.0.1"]);
    let key = before["data"]["tls.key"].clone();
    site.apply(&certificate).await;
    let reissued = until("the certificate with the address", PATIENCE, async || {
        let found = site.get(namespace, "secret", WEBHOOK).await?;
        Ok((found["data"]["tls.crt"] != before["data"]["tls.crt"]).then_some(found))
    });
    assert_eq!(site.done(reissued.await)["data"]["tls.key"], key, "the paths follow from the key");
    let port = free_port().unwrap();
    let section = format!("webhook: {{listen: '127.0.0.1:{port}', url: 'https://127.0.0.1:{port}'}}\n");
    std::fs::write(&config, format!("stateDir: {}\n{section}", site.dir.path().join("state").display())).unwrap();
    assert!(install_webhooks(&site, &config).await.contains("changed"));
    site.done(is_trusted(&site, ca).await);

    let config = FederationConfig { brokers: 1, ..FederationConfig::with_example_policy() };
    let mut federation = Federation::start(config).await.unwrap();
    let inventory = InventorySource::Kubernetes(site.plane.admin_kubeconfig_path());
    let spec = AgentSpec { more: section, ..AgentSpec::new("ncc-main", inventory) };
    federation.join(spec).await.or_logs(&federation);
    site.plane.kubectl_with_input(&["apply", "-f", "-"], LEASE_NAMESPACE).await.unwrap();
    pods_are_completed(&site, "before").await.or_logs(&federation);
    site.said("the API server calls the agent, which answers with cert-manager's certificate");

    let renewed = site.renew(namespace, WEBHOOK).await;
    assert_eq!(STANDARD.encode(&renewed["tls.key"]), key.as_str().unwrap());
    pods_are_completed(&site, "after").await.or_logs(&federation);
    let log = federation.log_of("ncc-main").unwrap();
    assert!(log.contains("the admission webhooks are registered"), "{}", federation.logs());
    assert!(!log.contains("certificate ends within"), "cert-manager renews it in time\n{}", federation.logs());
    site.said("it was renewed with the same key, and the agent goes on");
    site.plane.stop().await.unwrap();
}

/// As the cluster's owner.
async fn install_webhooks(site: &Site, config: &Path) -> String {
    let kubeconfig = site.plane.admin_kubeconfig_path();
    let [config, kubeconfig] = [config, &kubeconfig].map(|path| path.display().to_string());
    let install = ["webhook", "install", "--config", &config, "--kubeconfig", &kubeconfig];
    site.done(run("comity-agent", &install).await)
}

/// Waits until the registration trusts a CA, in base64; returns the registration.
async fn is_trusted(site: &Site, ca: &str) -> Result<Value> {
    until("the cainjector", PATIENCE, async || {
        let found = site.get("default", "mutatingwebhookconfiguration", "comity-lease-pods").await?;
        Ok((found["webhooks"][0]["clientConfig"]["caBundle"] == ca).then_some(found))
    })
    .await
}

/// Creates pods until the agent completes one.
async fn pods_are_completed(site: &Site, prefix: &str) -> Result<()> {
    let mut count = 0;
    until("the webhook to complete a pod", PATIENCE, async || {
        count += 1;
        let pod = pod(&format!("{prefix}-{count}"), 1, "any");
        let create = ["-n", "comity-lease-80", "create", "-o", "json", "-f", "-"];
        let made: Value = serde_json::from_str(&site.plane.kubectl_with_input(&create, &pod).await?)?;
        let limits = &made["spec"]["containers"][0]["resources"]["limits"];
        ensure!(limits[ADDED] == "1", "not yet: {limits}");
        Ok(Some(()))
    })
    .await
}
