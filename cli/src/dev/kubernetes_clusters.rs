//! Kubernetes clusters for `--kubernetes`: two control planes started here, or existing clusters.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::config::Kubeconfig;

use super::KUBERNETES_POLL_INTERVAL;
use super::home::Home;
use super::inventories::{DONOR, NAMES};
use super::timeline::Timeline;
use crate::commands::lease::kube_client;
use crate::failure::Failure;

/// Simulated nodes of the donor: Kubernetes schedules and counts pods there, but runs no containers.
const DONOR_NODES: [&str; 2] = ["gpu-1", "gpu-2"];
const GPUS_PER_NODE: u32 = 8;
/// Policies without which a donor lends nothing.
const ADMISSION: &str = include_str!("../../../deploy/agent/admission.yaml");
/// Limit until the namespace controller has removed a namespace.
const REMOVAL_LIMIT: Duration = Duration::from_secs(60);

/// The clusters, the origin first.
#[derive(Debug)]
pub(super) struct KubernetesClusters {
    kubeconfigs: Vec<PathBuf>,
    started: Vec<ControlPlane>,
}

fn failed(error: &dyn std::error::Error) -> Failure {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    Failure::unavailable(format!("no Kubernetes control plane: {text}"))
        .remedy("see 'Kubernetes programs' in the README, or use existing clusters with --kubeconfig")
}

impl KubernetesClusters {
    /// Uses the clusters of `kubeconfigs`, or starts two if none are given.
    pub(super) async fn start(home: &Home, kubeconfigs: &[PathBuf], timeline: &Timeline) -> Result<Self, Failure> {
        if !kubeconfigs.is_empty() {
            return Ok(Self { kubeconfigs: kubeconfigs.to_vec(), started: Vec::new() });
        }
        timeline.note("starting two Kubernetes control planes (the first run downloads or builds their programs)");
        let binaries = Binaries::ensure(Needs::ControlPlane).await.map_err(|error| failed(&error))?;
        let config = |name: &str, nodes| ControlPlaneConfig {
            nodes,
            keep_state: home.temporary_path().is_none(),
            ..ControlPlaneConfig::new(name, home.dir("kubernetes").join(name))
        };
        let donor_nodes = DONOR_NODES.map(|name| SimulatedNode::h100(name, GPUS_PER_NODE)).to_vec();
        let began = Instant::now();
        let (origin, donor) = tokio::try_join!(
            ControlPlane::start(&binaries, config(NAMES[0], Vec::new())),
            ControlPlane::start(&binaries, config(DONOR, donor_nodes)),
        )
        .map_err(|error| failed(&error))?;
        donor.kubectl_with_input(&["apply", "-f", "-"], ADMISSION).await.map_err(|error| failed(&error))?;
        timeline.note(&format!("control planes ready after {} ms", began.elapsed().as_millis()));
        let started = vec![origin, donor];
        Ok(Self { kubeconfigs: started.iter().map(ControlPlane::admin_kubeconfig_path).collect(), started })
    }

    /// Their names in the federation.
    pub(super) fn names(&self) -> &'static [&'static str] {
        &NAMES[..self.kubeconfigs.len().min(NAMES.len())]
    }

    /// The kubeconfig of a cluster's administrator.
    pub(super) fn kubeconfig(&self, cluster: &str) -> Option<&Path> {
        let index = self.names().iter().position(|name| *name == cluster)?;
        self.kubeconfigs.get(index).map(PathBuf::as_path)
    }

    fn donor_kubeconfig(&self) -> Result<Kubeconfig, Failure> {
        let path = self.kubeconfig(DONOR).ok_or_else(|| Failure::usage("no donor kubeconfig is given"))?;
        Kubeconfig::read_from(path)
            .map_err(|error| Failure::configuration(error.to_string()).field("--kubeconfig", path.display()))
    }

    /// Waits until the donor has removed a namespace.
    pub(super) async fn wait_for_namespace_removal(&self, namespace: &str) -> Result<(), Failure> {
        let namespaces: Api<Namespace> = Api::all(kube_client(self.donor_kubeconfig()?).await?);
        let began = Instant::now();
        loop {
            let found = namespaces.get_opt(namespace).await.map_err(|error| failed(&error))?;
            if found.is_none() {
                return Ok(());
            }
            if began.elapsed() > REMOVAL_LIMIT {
                return Err(Failure::refused("left-behind", format!("{DONOR} still has the namespace {namespace}")));
            }
            tokio::time::sleep(KUBERNETES_POLL_INTERVAL).await;
        }
    }

    /// Stops the control planes that this process started.
    pub(super) async fn stop(self) -> Result<(), Failure> {
        let mut problem = None;
        for cluster in self.started {
            if let Err(error) = cluster.stop().await {
                problem = Some(failed(&error));
            }
        }
        problem.map_or(Ok(()), Err)
    }
}
