//! Starts test clusters, says how to reach them, and ends them at Ctrl-C. For looking around, and for tests that kill it.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use comity_testkit::{
    Binaries, ControlPlane, ControlPlaneConfig, Needs, RealClusters, RealClustersConfig, SimulatedNode,
};
use tokio::signal::unix::{SignalKind, signal};

/// Real Kubernetes clusters on this machine, until Ctrl-C.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Get the programs and end: found, downloaded or built.
    Fetch {
        /// Also what real nodes need.
        #[arg(long)]
        kubelets: bool,
    },
    /// A control plane with two simulated nodes. Needs no root.
    Simulated {
        /// A folder for its state, which must not hold anything else.
        #[arg(long)]
        dir: PathBuf,
        /// GPUs of each node.
        #[arg(long, default_value_t = 8)]
        gpus: u32,
    },
    /// Two clusters with real kubelets and containers. Needs root.
    Real {
        /// GPUs of the donor's node.
        #[arg(long, default_value_t = 4)]
        gpus: u32,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Args::parse().kind {
        Kind::Fetch { kubelets } => {
            let needs = if kubelets { Needs::RealNodes } else { Needs::ControlPlane };
            println!("{}", Binaries::ensure(needs).await?.folder().display());
        }
        Kind::Simulated { dir, gpus } => {
            let binaries = Binaries::ensure(Needs::ControlPlane).await?;
            let mut config = ControlPlaneConfig::new("simulated", dir);
            config.nodes = vec![SimulatedNode::h100("node-1", gpus), SimulatedNode::h100("node-2", gpus)];
            let cluster = ControlPlane::start(&binaries, config).await?;
            println!("export KUBECONFIG={}", cluster.admin_kubeconfig_path().display());
            println!("ready");
            interrupted().await?;
            cluster.stop().await?;
        }
        Kind::Real { gpus } => {
            let binaries = Binaries::ensure(Needs::RealNodes).await?;
            let config = RealClustersConfig { donor_gpus: gpus, ..RealClustersConfig::default() };
            let clusters = RealClusters::start(&binaries, config).await?;
            for cluster in [&clusters.origin, &clusters.donor] {
                let kubeconfig = cluster.admin_kubeconfig_path();
                println!(
                    "nsenter -t {} -n {} --kubeconfig={} get nodes",
                    cluster.init_pid(),
                    binaries.program("kubectl").display(),
                    kubeconfig.display()
                );
            }
            println!("{}", clusters.dir().display());
            println!("ready");
            interrupted().await?;
            clusters.stop().await?;
        }
    }
    Ok(())
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        interrupt = tokio::signal::ctrl_c() => interrupt.context("cannot listen for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}
