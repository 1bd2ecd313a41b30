//! Starts real Kubernetes clusters on one machine in seconds, and leaves nothing behind.
//!
//! The scenario tests and `comity dev --kubernetes` run against these. Nothing here imitates
//! Kubernetes: the API servers, controller managers, schedulers, kubelets and containers are the
//! real programs. Simulated parts are named so.
//!
//! Two kinds of cluster:
//!
//! | | [`ControlPlane`] | [`RealClusters`] |
//! |---|---|---|
//! | runs | etcd, kube-apiserver, kube-controller-manager, kube-scheduler | the same, and kubelet, containerd, kube-proxy, NVIDIA's device plugin and GPU Feature Discovery; on demand CoreDNS, Liqo and Calico |
//! | nodes | simulated by kwok: pods are scheduled, accounted and "run", no container exists | real: containers run |
//! | GPUs | any number, with the labels of GPU Feature Discovery | boards, time slices and MIG instances of a stand-in for NVIDIA's driver, to be changed while the node runs; containers see their devices, and nothing computes; on demand NVIDIA's container runtime |
//! | network | loopback | two nodes in namespaces of their own, or three, a router between them |
//! | needs | nothing but the programs | Linux, root, Debian's containerd (`scripts/system-packages`) |
//! | ready in | 4 to 10 s | 6 to 15 s, both clusters; 20 to 30 s with Liqo |
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use comity_testkit::{Binaries, ControlPlane, ControlPlaneConfig, SimulatedNode};
//!
//! let binaries = Binaries::ensure(comity_testkit::Needs::ControlPlane).await?;
//! let mut config = ControlPlaneConfig::new("donor", "/tmp/donor");
//! config.nodes = vec![SimulatedNode::h100("donor-1", 8), SimulatedNode::h100("donor-2", 8)];
//! let donor = ControlPlane::start(&binaries, config).await?;
//! println!("{}", donor.kubectl(&["get", "nodes"]).await?);
//! donor.stop().await?;
//! # Ok(())
//! # }
//! ```
//!
//! On either kind, [`Attempt::all`] are a tenant's attempts to get more than its lease, each with what must refuse it.
//!
//! # Where the programs come from
//!
//! [`Binaries::ensure`] runs `scripts/kubernetes-binaries`, which this crate carries with it together with the go.mod
//! and go.sum files that pin every version: `KUBEBUILDER_ASSETS`, else a cache, else the official download, else built
//! from the Go modules. The first build takes some ten minutes on two cores, two of them for NVIDIA's programs, which also
//! need a C compiler, some seven more for CoreDNS, Liqo and an S3 server, two for Calico and five for cert-manager; after
//! that it is a look into the cache. Liqo's manifests are not in this crate: its Helm chart comes from the same module as its programs and
//! is rendered at each start.
//!
//! # How nothing is left behind
//!
//! - `stop` and `Drop` kill every daemon and remove every file.
//! - If the owning process is killed, each daemon of a [`ControlPlane`] gets SIGKILL from the
//!   kernel (`setpriv --pdeathsig`); the supervisor of [`RealClusters`] sees its standard input close and
//!   takes both clusters down.
//! - If even that fails, the next start in the same place sweeps: it kills what the pid files name,
//!   after checking start time and program, and removes the rest. A process of anybody else is never touched.
//!
//! # Environment
//!
//! | variable | meaning |
//! |---|---|
//! | `KUBEBUILDER_ASSETS` | folder with kube-apiserver, etcd and kubectl to use |
//! | `COMITY_CACHE` | where programs are kept; `$XDG_CACHE_HOME/comity`, else `~/.cache/comity` |
//! | `COMITY_KUBERNETES_FROM=modules` | do not download, build |
//! | `COMITY_TEST_LIQO` | the version of Liqo that bursts run with: `1.0.3`, `1.1.2` or `1.2.0`, which is the default |
//! | `COMITY_TESTKIT_KEEP=1` | leave logs and files after `stop` |
//! | `CI=true` | a test that cannot run here fails instead of saying so (see [`requirements`]) |

pub mod binaries;
pub mod container_gpus;
pub mod control_plane;
mod daemon;
pub mod etcd_group;
pub mod image;
mod kubeconfig;
mod kubectl;
pub mod liqo_controllers;
mod mig_manager;
mod pki;
mod port;
mod process;
pub mod real_clusters;
pub mod requirements;
mod simulated_node;
mod sources;
mod tenant_attempts;
pub mod timing;

pub use binaries::{Binaries, BinariesError, LiqoVersion, Needs};
pub use container_gpus::{ContainerGpus, missing_for_containers};
pub use control_plane::{
    CertManager, CertManagerError, Component, ControlPlane, ControlPlaneConfig, ControlPlaneError,
};
pub use etcd_group::{ClientPem, EtcdGroup, EtcdGroupError};
pub use image::canary_image::{CANARY_IMAGE, missing_for_canary_image, write_canary_image};
pub use image::python_image::{PYTHON_IMAGE, missing_for_python_image, write_python_image};
pub use image::shell_image::{SHELL_IMAGE, write_shell_image};
pub use kubectl::KubectlError;
pub use liqo_controllers::{LiqoControllers, LiqoControllersConfig, LiqoControllersError};
pub use mig_manager::MigLayouts;
pub use pki::PkiError;
pub use process::{SweepError, sweep_stale};
pub use real_clusters::{
    Board, Cni, GpuBox, LimitsEnforcement, Line, LiqoCluster, LiqoConfig, MigStrategy, RealCluster, RealClusters,
    RealClustersConfig, RealClustersError, SharedName, VisibleDevices, Where,
};
pub use simulated_node::SimulatedNode;
pub use sources::oci_registry::OciRegistry;
pub use sources::signed_git::SignedGit;
pub use tenant_attempts::{AttackedLease, Attempt, Protection, Refusal};

/// Whether `COMITY_TESTKIT_KEEP` is set, which keeps files and logs of stopped clusters.
fn keep_files() -> bool {
    std::env::var_os("COMITY_TESTKIT_KEEP").is_some_and(|value| !value.is_empty() && value != "0")
}
