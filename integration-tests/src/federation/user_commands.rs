//! Requests and leases of a federation, through the `comity` command.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::Federation;
use crate::comity::Comity;
use crate::programs::utf8;
use crate::wait::{PATIENCE, until};

impl Federation {
    /// The command, for tasks that outlive restarts of brokers and agents.
    #[must_use]
    pub fn command(&self) -> Comity {
        self.command_at(&self.broker_addresses())
    }

    /// The command with these addresses of brokers, in this order.
    pub(crate) fn command_at(&self, brokers: &[String]) -> Comity {
        Comity::new(self.place.clone(), brokers, self.dir.path())
    }

    /// Runs `comity -o json ARGS` as `user`; returns exit code, standard output and standard error.
    pub async fn run_comity(&self, user: &str, args: &[&str]) -> Result<(i32, String, String)> {
        self.command().run(user, args).await
    }

    /// Runs `comity -o json ARGS` as `user`; returns its output.
    pub async fn comity_as(&self, user: &str, args: &[&str]) -> Result<Value> {
        self.command().json(user, args).await
    }

    /// Runs `comity -o json ARGS` as alice of poly-ml; returns its output.
    pub async fn comity(&self, args: &[&str]) -> Result<Value> {
        self.comity_as("alice", args).await
    }

    /// Submits a request for `gpus` whole GPUs of `class` for poly-ml, even if nobody can serve it; returns its id.
    pub async fn submit(&self, gpus: u32, class: &str) -> Result<String> {
        self.submit_with(gpus, class, &[]).await
    }

    /// [`submit`](Self::submit) with more flags.
    ///
    /// # Errors
    /// When it is refused.
    pub async fn submit_with(&self, gpus: u32, class: &str, more: &[&str]) -> Result<String> {
        let gpus = gpus.to_string();
        let args = [
            "request",
            "submit",
            "--queue-anyway",
            "--tenant",
            "poly-ml",
            "--origin",
            "polytech-campus",
            "--class",
            class,
            "--gpus",
            &gpus,
        ];
        let request = self
            .comity(&[&args[..], &["--cpu-per-gpu", "1", "--memory-per-gpu", "1Gi", "--duration", "1h"], more].concat())
            .await?;
        Ok(request["id"].as_str().context("a request has an id")?.to_owned())
    }

    /// Waits for the lease of a request; returns its id.
    pub async fn lease_of(&self, request: &str) -> Result<String> {
        until("a lease", PATIENCE, async || {
            let seen = self.comity(&["request", "show", request]).await?;
            if let Some(lease) = seen["lease"].as_str().filter(|lease| !lease.is_empty()) {
                return Ok(Some(lease.to_owned()));
            }
            bail!("not placed: {}", self.comity(&["request", "explain", request]).await?)
        })
        .await
    }

    /// Waits until no peering is open.
    ///
    /// # Errors
    /// Lists the open ones.
    pub async fn no_peering(&self, limit: Duration) -> Result<()> {
        until("the peerings to be closed", limit, async || {
            let peerings = self.comity_as("admin", &["peering", "list"]).await?;
            ensure!(peerings["items"].as_array().is_none_or(Vec::is_empty), "still there: {peerings}");
            Ok(Some(()))
        })
        .await
    }

    /// Waits until a lease is in `state`.
    pub async fn lease_in(&self, lease: &str, state: &str, limit: Duration) -> Result<Value> {
        until(&format!("{lease} to be {state}"), limit, async || {
            let seen = self.comity(&["lease", "show", lease]).await?;
            if seen["state"] == state {
                return Ok(Some(seen));
            }
            bail!("it is {}: {}", seen["state"], seen["message"])
        })
        .await
    }

    /// Fetches the kubeconfig of a lease from the origin's agent; returns its path.
    pub async fn kubeconfig(&self, lease: &str, origin: &str) -> Result<PathBuf> {
        let socket = self.agent_dir(origin).join("agent.sock");
        let file = self.dir.path().join(format!("{lease}.kubeconfig"));
        // A restarted agent must open its side of the tunnel first.
        until("the kubeconfig", PATIENCE, async || {
            let args = ["lease", "kubeconfig", lease, "--agent", utf8(&socket)?, "--output-file", utf8(&file)?];
            self.comity(&args).await.map(Some)
        })
        .await?;
        Ok(file)
    }
}
