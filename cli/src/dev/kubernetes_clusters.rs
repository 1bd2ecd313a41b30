//! Real Kubernetes clusters for `--kubernetes`: two control planes that are started here, or clusters that exist.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, Needs, SimulatedNode};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::config::Kubeconfig;

use super::home::Home;
use super::member::{DONOR, NAMES};
use super::timeline::Timeline;
use crate::commands::lease::kube_client;
use crate::failure::Failure;

/// The donor's nodes are simulated: pods are scheduled and accounted there, and no container exists.
const DONOR_NODES: [&str; 2] = ["gpu-1", "gpu-2"];
const GPUS_A_NODE: u32 = 8;
/// Until the namespace controller has removed everything in it.
const GONE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// Clusters, the origin first.
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
        .remedy("see 'Kubernetes programs' in the README, or name clusters that exist with --kubeconfig")
}

impl KubernetesClusters {
    /// Uses the clusters of `kubeconfigs`; starts two where none are given.
    pub(super) async fn start(home: &Home, kubeconfigs: &[PathBuf], timeline: &Timeline) -> Result<Self, Failure> {
        if !kubeconfigs.is_empty() {
            return Ok(Self { kubeconfigs: kubeconfigs.to_vec(), started: Vec::new() });
        }
        timeline.note("starting two Kubernetes control planes (the first time their programs are fetched or built)");
        let binaries = Binaries::ensure(Needs::ControlPlane).await.map_err(|error| failed(&error))?;
        let config = |name: &str, nodes| ControlPlaneConfig {
            nodes,
            keep_state: home.path_to_remove().is_none(),
            ..ControlPlaneConfig::new(name, home.dir("kubernetes").join(name))
        };
        let donor_nodes = DONOR_NODES.map(|name| SimulatedNode::h100(name, GPUS_A_NODE)).to_vec();
        let began = Instant::now();
        let (origin, donor) = tokio::try_join!(
            ControlPlane::start(&binaries, config(NAMES[0], Vec::new())),
            ControlPlane::start(&binaries, config(DONOR, donor_nodes)),
        )
        .map_err(|error| failed(&error))?;
        timeline.note(&format!("control planes are ready after {} ms", began.elapsed().as_millis()));
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

    fn donor(&self) -> Result<Kubeconfig, Failure> {
        let path = self.kubeconfig(DONOR).ok_or_else(|| Failure::usage("there is no donor"))?;
        Kubeconfig::read_from(path)
            .map_err(|error| Failure::configuration(error.to_string()).field("--kubeconfig", path.display()))
    }

    /// Waits until a namespace is gone from the donor.
    pub(super) async fn namespace_is_gone(&self, namespace: &str) -> Result<(), Failure> {
        let namespaces: Api<Namespace> = Api::all(kube_client(self.donor()?).await?);
        let began = Instant::now();
        loop {
            let found = namespaces.get_opt(namespace).await.map_err(|error| failed(&error))?;
            if found.is_none() {
                return Ok(());
            }
            if began.elapsed() > GONE_LIMIT {
                return Err(Failure::refused("left-behind", format!("{DONOR} still has the namespace {namespace}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Stops what was started here.
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
