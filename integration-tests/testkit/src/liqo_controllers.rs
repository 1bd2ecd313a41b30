//! Liqo's controllers beside a [`ControlPlane`]: its controller manager and its IPAM, real programs with the chart's
//! own objects and arguments, with its networking module on. They run on this machine and not in pods.
//!
//! Their decisions are real: they remap ranges and give gateways Deployments, Services and keys. But no gateway runs,
//! because simulated nodes run nothing, and Liqo's webhooks and node programs are missing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::binaries::{Binaries, LiqoVersion};
use crate::control_plane::{ControlPlane, SERVICE_NETWORK};
use crate::daemon::{Daemon, DaemonSpec};
use crate::kubectl::KubectlError;
use crate::port;
use crate::real_clusters::LIQO_NAMESPACE;

/// Timeout until the controllers own every range of addresses; 3 s is usual.
const RANGES_TIMEOUT: Duration = Duration::from_secs(90);
const RANGES_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of the checks that the programs run.
const RESTART_PAUSE: Duration = Duration::from_secs(1);
/// Kinds of the chart's objects to install. The webhooks do not run, so the objects that need them are left out.
const KINDS: [&str; 13] = [
    "ConfigMap",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "Deployment",
    "Network",
    "VkOptionsTemplate",
    "WgGatewayServerTemplate",
    "WgGatewayClientTemplate",
    "RuntimeClass",
];
const CONTROLLER_MANAGER: &str = "liqo-controller-manager";

/// Liqo in one cluster.
#[derive(Debug, Clone)]
pub struct LiqoControllersConfig {
    /// Its version, whose programs must be installed.
    pub version: LiqoVersion,
    /// The id under which its peers know it.
    pub cluster_id: String,
    /// The pod network in its configuration.
    pub pod_cidr: String,
}

/// Why Liqo's controllers do not run.
#[derive(Debug, thiserror::Error)]
pub enum LiqoControllersError {
    /// A file cannot be used, or a program not be started.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file or program.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The chart cannot be rendered.
    #[error("Liqo's chart for cluster {cluster} cannot be rendered: {said}")]
    Chart {
        /// The cluster.
        cluster: String,
        /// The renderer's error.
        said: String,
    },
    /// The API server refused an object.
    #[error(transparent)]
    Kubectl(#[from] KubectlError),
    /// They did not become ready.
    #[error("Liqo of cluster {cluster} has not begun to work after {after:?}; the log of {program} says:\n{log}")]
    NotReady {
        /// The cluster.
        cluster: String,
        /// The timeout.
        after: Duration,
        /// The program whose log most likely has the reason.
        program: &'static str,
        /// The last lines of its log.
        log: String,
    },
}

/// Running controllers. Dropping them kills them; their objects stay in the cluster.
///
/// One that ends is started again, as its Deployment would: Liqo 1.2.0's controller manager ends itself when it missed
/// the deletion of a gateway ("interface {} is cache.DeletedFinalStateUnknown"), which a slow machine sees now and
/// then.
#[derive(Debug)]
pub struct LiqoControllers {
    supervisor: JoinHandle<()>,
}

impl Drop for LiqoControllers {
    fn drop(&mut self) {
        // It owns the programs.
        self.supervisor.abort();
    }
}

async fn keep_running(daemons: [Daemon; 2]) {
    loop {
        tokio::time::sleep(RESTART_PAUSE).await;
        for daemon in &daemons {
            let Some(status) = daemon.ended() else { continue };
            tracing::warn!(daemon = daemon.name(), %status, "it ended and is started again; its log says why");
            if let Err(error) = daemon.restart() {
                tracing::warn!(daemon = daemon.name(), %error, "it cannot be started again");
            }
        }
    }
}

impl LiqoControllers {
    /// Installs Liqo's objects and starts its controllers; returns once they know every range of addresses.
    ///
    /// # Errors
    /// [`LiqoControllersError`].
    pub async fn start(
        binaries: &Binaries,
        plane: &ControlPlane,
        config: &LiqoControllersConfig,
    ) -> Result<Self, LiqoControllersError> {
        let chart = binaries.program(&config.version.file("chart"));
        let definitions = chart.join("charts/liqo-crds/crds").display().to_string();
        plane.kubectl(&["apply", "--server-side", "-f", &definitions]).await?;
        let items = render(binaries, plane, config)?;
        let arguments = arguments(&items).ok_or_else(|| LiqoControllersError::Chart {
            cluster: config.cluster_id.clone(),
            said: format!("it has no Deployment {CONTROLLER_MANAGER} with arguments"),
        })?;
        plane.kubectl(&["create", "namespace", LIQO_NAMESPACE]).await?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        plane.kubectl_with_input(&["apply", "--server-side", "-n", LIQO_NAMESPACE, "-f", "-"], &list).await?;

        let [ipam_port, webhook_port] = port::free().map_err(|source| io_error(&plane.log_dir(), source))?;
        let start = |name: &'static str, program: &str, args: Vec<String>| {
            let program = binaries.program(&config.version.file(program));
            let spec = DaemonSpec {
                name,
                program: program.clone(),
                args,
                env: vec![("KUBECONFIG", plane.admin_kubeconfig_path())],
                log: plane.log_dir().join(format!("{name}.log")),
                pid_file: plane.run_dir().join(format!("{name}.pid")),
            };
            Daemon::start(spec).map_err(|source| io_error(&program, source))
        };
        let ipam = start("liqo-ipam", "ipam", vec!["--pod-name=ipam".into(), format!("--port={ipam_port}")])?;
        let mut args: Vec<String> = arguments
            .iter()
            .map(|argument| {
                argument.replace("$(CLUSTER_ID)", &config.cluster_id).replace("$(POD_NAMESPACE)", LIQO_NAMESPACE)
            })
            .filter(|argument| !argument.starts_with("--ipam-server=") && !argument.starts_with("--webhook-port="))
            .collect();
        args.push(format!("--ipam-server=127.0.0.1:{ipam_port}"));
        args.push(format!("--webhook-port={webhook_port}"));
        args.extend(["--metrics-address=0", "--health-probe-address=0"].map(str::to_owned));
        let manager = start(CONTROLLER_MANAGER, "controller-manager", args)?;
        wait_for_ranges(plane, config, &manager).await?;
        // The manager is a client of the IPAM, so it ends first.
        Ok(Self { supervisor: tokio::spawn(keep_running([manager, ipam])) })
    }
}

fn io_error(path: &Path, source: io::Error) -> LiqoControllersError {
    LiqoControllersError::Io { path: path.to_owned(), source }
}

fn values(plane: &ControlPlane, config: &LiqoControllersConfig) -> Value {
    json!({
        "tag": config.version.tag(),
        "networking": {"enabled": true},
        "ipam": {"podCIDR": config.pod_cidr, "serviceCIDR": SERVICE_NETWORK},
        "telemetry": {"enabled": false},
        "metricAgent": {"enabled": false},
        "storage": {"enabled": false},
        "requirements": {"kernel": {"enabled": false}},
        "controllerManager": {"config": {"enableResourceEnforcement": true, "defaultLimitsEnforcement": "None"}},
        "discovery": {"config": {"clusterID": config.cluster_id}},
        "apiServer": {"address": plane.server_url()},
        "virtualKubelet": {"extra": {"args": ["--enable-apiserver-support=false"]}},
    })
}

fn render(
    binaries: &Binaries,
    plane: &ControlPlane,
    config: &LiqoControllersConfig,
) -> Result<Vec<Value>, LiqoControllersError> {
    let file = plane.log_dir().join("liqo-values.json");
    fs::write(&file, values(plane, config).to_string()).map_err(|source| io_error(&file, source))?;
    let renderer = binaries.program("render-chart");
    let output = Command::new(&renderer)
        .arg(binaries.program(&config.version.file("chart")))
        .arg(LIQO_NAMESPACE)
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| io_error(&renderer, source))?;
    let chart = |said: String| LiqoControllersError::Chart { cluster: config.cluster_id.clone(), said };
    if !output.status.success() {
        return Err(chart(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    let list: Value = serde_json::from_slice(&output.stdout).map_err(|error| chart(error.to_string()))?;
    Ok(kept(list["items"].as_array().cloned().unwrap_or_default()))
}

/// The objects to install. Deployments tell how Liqo is installed, and get no pods.
fn kept(mut items: Vec<Value>) -> Vec<Value> {
    items.retain(|item| item["kind"].as_str().is_some_and(|kind| KINDS.contains(&kind)));
    for item in &mut items {
        if item["kind"] == "Deployment" {
            item["spec"]["replicas"] = json!(0);
        }
    }
    items
}

/// The controller manager's arguments, as the chart has them.
fn arguments(items: &[Value]) -> Option<Vec<String>> {
    let is_manager = |item: &&Value| item["kind"] == "Deployment" && item["metadata"]["name"] == CONTROLLER_MANAGER;
    let arguments = &items.iter().find(is_manager)?["spec"]["template"]["spec"]["containers"][0]["args"];
    Some(arguments.as_array()?.iter().filter_map(|argument| argument.as_str().map(str::to_owned)).collect())
}

async fn wait_for_ranges(
    plane: &ControlPlane,
    config: &LiqoControllersConfig,
    manager: &Daemon,
) -> Result<(), LiqoControllersError> {
    let began = Instant::now();
    let status = "jsonpath={range .items[*]}{.metadata.name}={.status.cidr}{\"\\n\"}{end}";
    let get = ["get", "networks.ipam.liqo.io", "-n", LIQO_NAMESPACE, "-o", status];
    loop {
        let told = plane.kubectl(&get).await?;
        let ranges: Vec<&str> = told.lines().filter(|line| !line.is_empty()).collect();
        if !ranges.is_empty() && ranges.iter().all(|range| !range.ends_with('=')) {
            return Ok(());
        }
        if manager.ended().is_some() || began.elapsed() > RANGES_TIMEOUT {
            return Err(LiqoControllersError::NotReady {
                cluster: config.cluster_id.clone(),
                after: began.elapsed(),
                program: manager.name(),
                log: manager.log_tail(),
            });
        }
        tokio::time::sleep(RANGES_POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_missing_parts_are_left_out() {
        let item = |kind: &str, name: &str| json!({"kind": kind, "metadata": {"name": name}, "spec": {"replicas": 1}});
        let items = kept(vec![
            item("ValidatingWebhookConfiguration", "liqo"),
            item("DaemonSet", "liqo-fabric"),
            item("Network", "pod-cidr"),
            item("Deployment", CONTROLLER_MANAGER),
        ]);
        assert_eq!(items.len(), 2);
        assert_eq!(items[1]["spec"]["replicas"], 0);
        assert_eq!(arguments(&items), None);
    }
}
