//! Installs agents in clusters, as their owners do.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use comity_testkit::{Binaries, RealCluster, RealClusters, Where};

use crate::programs::{deploy, program, utf8};

/// Applies the agent's manifests from `deploy/`; returns a kubeconfig with exactly the agent's rights.
pub(super) async fn install_agent(real: &RealCluster) -> Result<PathBuf> {
    for folder in ["crds", "agent"] {
        let folder = deploy().join(folder);
        real.kubectl(&["apply", "--server-side", "-k", folder.to_str().context("paths of tests are text")?]).await?;
    }
    let token = real.kubectl(&["-n", "comity-system", "create", "token", "comity-agent", "--duration=24h"]).await?;
    let admin = real.admin_kubeconfig_path();
    let path = admin.with_file_name("agent.kubeconfig");
    std::fs::copy(&admin, &path)?;
    let token = format!("--token={}", token.trim());
    for args in [
        &["config", "set-credentials", "comity-agent", &token][..],
        &["config", "set-context", "--current", "--user=comity-agent"],
    ] {
        real.kubectl_as(&path, args, "").await?;
    }
    Ok(path)
}

/// Installs Kueue, and the agent's rights for it.
pub(super) async fn add_kueue(binaries: &Binaries, real: &RealCluster) -> Result<()> {
    binaries.add_kueue().await?;
    real.install_kueue(binaries).await?;
    let rights = deploy().join("agent/kueue.yaml");
    real.kubectl(&["apply", "--server-side", "-f", utf8(&rights)?]).await?;
    Ok(())
}

/// Installs the webhooks of an agent's configuration, as the cluster's owner does.
///
/// # Errors
/// When the command fails, with its output.
pub(crate) async fn install_webhooks(
    clusters: &RealClusters,
    at: Where,
    real: &RealCluster,
    config: &Path,
) -> Result<()> {
    let admin = real.admin_kubeconfig_path();
    let args = ["webhook", "install", "--config", utf8(config)?, "--kubeconfig", utf8(&admin)?];
    let output = clusters.command_in(at, &program("comity-agent")?, &args).output().await?;
    ensure!(output.status.success(), "webhook install: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
