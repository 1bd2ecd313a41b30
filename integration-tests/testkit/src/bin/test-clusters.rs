//! Starts test clusters until Ctrl-C and prints how to reach them; impairs the network between them. For manual tests,
//! and for tests that kill it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Parser, Subcommand};
use comity_testkit::{
    Binaries, Cni, ControlPlane, ControlPlaneConfig, Line, LiqoConfig, Needs, RealClusters, RealClustersConfig,
    SimulatedNode,
};
use tokio::signal::unix::{SignalKind, signal};

/// Runs real Kubernetes clusters on this machine until Ctrl-C.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    /// Get the programs (find, download or build them) and exit.
    Fetch {
        /// Also get the programs of real nodes.
        #[arg(long)]
        kubelets: bool,
        /// Also get CoreDNS, Liqo and an S3 server.
        #[arg(long)]
        liqo: bool,
        /// Also get the programs that benchmarks compare with.
        #[arg(long)]
        bench: bool,
    },
    /// Run a control plane with two simulated nodes. Needs no root.
    Simulated {
        /// Folder of its state, with no other files.
        #[arg(long)]
        dir: PathBuf,
        /// GPUs of each node.
        #[arg(long, default_value_t = 8)]
        gpus: u32,
    },
    /// Run two clusters with real kubelets and containers, or three. Needs root.
    Real {
        /// GPUs of the donor's node.
        #[arg(long, default_value_t = 4)]
        gpus: u32,
        /// GPUs of the second donor's node; 0: there is no second donor.
        #[arg(long, default_value_t = 0)]
        second_donor_gpus: u32,
        /// GPUs of the origin's node.
        #[arg(long, default_value_t = 0)]
        origin_gpus: u32,
        /// Nodes of the origin, 1 to 3.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
        origin_nodes: u32,
        /// Nodes of the donor, 1 to 3.
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
        donor_nodes: u32,
        /// Run CoreDNS in all clusters.
        #[arg(long)]
        dns: bool,
        /// Run CoreDNS and Liqo in all clusters.
        #[arg(long)]
        liqo: bool,
        /// Connect the donor's pods by Calico, which enforces NetworkPolicies.
        #[arg(long, conflicts_with_all = ["dns", "liqo"])]
        calico: bool,
        /// Seconds of silence after which a node of the origin is not ready.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3_600))]
        node_grace: u64,
    },
    /// Cut, impair or restore the network between origin and donor. Needs root.
    Line {
        /// Folder that `real` printed before `ready`.
        dir: PathBuf,
        #[command(flatten)]
        line: LineArgs,
    },
}

/// Without options, restores the network.
#[derive(clap::Args)]
struct LineArgs {
    /// Drop all packets.
    #[arg(long, conflicts_with_all = ["delay_ms", "jitter_ms", "loss"])]
    cut: bool,
    /// Delay in milliseconds, each way.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000))]
    delay_ms: u64,
    /// Jitter in milliseconds.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=10_000))]
    jitter_ms: u64,
    /// Packet loss in percent, each way.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
}

impl LineArgs {
    fn line(&self) -> Line {
        let (delay, jitter) = (Duration::from_millis(self.delay_ms), Duration::from_millis(self.jitter_ms));
        match self {
            Self { cut: true, .. } => Line::Cut,
            Self { loss: 0.0, .. } if delay.is_zero() && jitter.is_zero() => Line::Whole,
            Self { loss, .. } => Line::Impaired { delay, jitter, loss_percent: *loss },
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    match Args::parse().kind {
        Kind::Fetch { kubelets, liqo, bench } => {
            let needs = match (bench, liqo, kubelets) {
                (true, ..) => Needs::Benchmark,
                (_, true, _) => Needs::Liqo,
                (.., true) => Needs::RealNodes,
                _ => Needs::ControlPlane,
            };
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
        Kind::Real {
            gpus,
            second_donor_gpus,
            origin_gpus,
            origin_nodes,
            donor_nodes,
            dns,
            liqo,
            calico,
            node_grace,
        } => {
            let binaries = match (calico, dns || liqo) {
                (true, _) => Binaries::with_calico().await?,
                (false, true) => Binaries::ensure(Needs::Liqo).await?,
                (false, false) => Binaries::ensure(Needs::RealNodes).await?,
            };
            let config = RealClustersConfig {
                donor_gpus: gpus,
                second_donor_gpus,
                origin_gpus,
                origin_nodes,
                donor_nodes,
                donor_cni: if calico { Cni::Calico } else { Cni::Bridge },
                dns: dns || liqo,
                liqo: liqo.then(LiqoConfig::default),
                origin_node_grace: Duration::from_secs(node_grace),
                ..RealClustersConfig::default()
            };
            let clusters = RealClusters::start(&binaries, config).await?;
            let kubectl = binaries.program("kubectl");
            for cluster in [&clusters.origin, &clusters.donor].into_iter().chain(&clusters.second_donor) {
                println!(
                    "# {}: node {}, pods {}, Services {}",
                    cluster.name(),
                    cluster.node_ip(),
                    cluster.pod_cidr(),
                    cluster.service_cidr()
                );
                println!("# from the host:");
                println!("{} --kubeconfig={} get nodes", kubectl.display(), cluster.host_kubeconfig_path().display());
                println!("# in its own network, as {}:", cluster.server_url());
                println!(
                    "nsenter -t {} -n {} --kubeconfig={} get nodes",
                    cluster.init_pid(),
                    kubectl.display(),
                    cluster.admin_kubeconfig_path().display()
                );
            }
            println!("{}", clusters.dir().display());
            println!("ready");
            interrupted().await?;
            clusters.stop().await?;
        }
        Kind::Line { dir, line } => line.line().set(&dir).await?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_have_one_to_three_nodes() {
        let read = |nodes: &str| Args::try_parse_from(["test-clusters", "real", "--donor-nodes", nodes]).is_ok();
        assert!(read("1") && read("3"));
        assert!(!read("0") && !read("4"));
    }

    #[test]
    fn a_line_is_cut_impaired_or_whole() {
        let read = |options: &str| {
            let words = ["test-clusters", "line", "/dir"].into_iter().chain(options.split_whitespace());
            match Args::try_parse_from(words).map(|args| args.kind) {
                Ok(Kind::Line { line, .. }) => Some(line.line()),
                _ => None,
            }
        };
        assert_eq!(read(""), Some(Line::Whole));
        assert_eq!(read("--cut"), Some(Line::Cut));
        let (delay, jitter) = (Duration::from_millis(20), Duration::ZERO);
        assert_eq!(read("--delay-ms 20 --loss 1.5"), Some(Line::Impaired { delay, jitter, loss_percent: 1.5 }));
        assert_eq!(read("--cut --delay-ms 20"), None);
        assert_eq!(read("--delay-ms 10001"), None);
    }
}
