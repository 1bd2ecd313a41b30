//! A tenant's attempts to get more than its lease, with its own kubeconfig.
//!
//! The scenario `real_kubelets` makes them on real nodes, through the tunnel, and expects each refusal by name. The
//! agent's tests make them on a real API server, remove the [`Protection`] of each, and expect it to pass.

mod table;

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kubectl::KubectlError;

/// The pod that no scheduler places.
const PARKED: &str = "parked";
/// Longest wait for a scheduler or a controller.
const TOLD_WITHIN: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The lease whose tenant makes the attempts.
#[derive(Debug, Clone)]
pub struct AttackedLease {
    /// Its id, as in `lease-2`; its namespace is `comity-lease-2`.
    pub lease: String,
    /// The resource that it has.
    pub resource: String,
    /// A running pod of the lease, which uses all of that resource.
    pub holder: String,
    /// The donor's other card, as a resource.
    pub other_resource: String,
    /// The node with the other card.
    pub other_node: String,
    /// Another lease of the donor.
    pub other_lease: String,
    /// The image of all pods; nothing needs to run in it.
    pub image: String,
}

/// What refuses an attempt. Removed, the attempt passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protection {
    /// The ResourceQuota of the namespace.
    Quota,
    /// The LimitRange of the namespace.
    Limits,
    /// The resource `lease.comity.dev/LEASE`, which only nodes of the lease have.
    NodeResource,
    /// The namespace's label for Pod Security `restricted`.
    PodSecurity,
    /// The admission policy `comity-tenant`.
    Policy,
    /// Both that policy and the ResourceQuota.
    QuotaAndPolicy,
    /// The narrow role of the tenant.
    Role,
}

/// How an attempt is refused, with a part of the text that says why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The API server refuses the call.
    Answer(String),
    /// The pod is made and stays pending; the scheduler says why.
    Pending(String),
    /// The controller makes no pod; an event says why.
    NoPod(String),
}

/// One attempt: a command of kubectl.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The aim. Also the name of the object that it makes.
    pub name: &'static str,
    /// What refuses it.
    pub protection: Protection,
    /// How.
    pub refusal: Refusal,
    args: Vec<String>,
    input: String,
    /// Whether kubectl takes `--dry-run=server` for it.
    may_run_dry: bool,
}

impl AttackedLease {
    /// Its namespace at the donor.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("comity-{}", self.lease)
    }

    /// The resource that only nodes of the lease have.
    #[must_use]
    pub fn node_resource(&self) -> String {
        format!("lease.comity.dev/{}", self.lease)
    }

    /// A pod that no scheduler places. The tenant makes it before the attempts, and tries to bind it itself.
    #[must_use]
    pub fn parked_pod(&self) -> String {
        let mut parked = self.pod(PARKED, &json!({}));
        parked["spec"]["schedulerName"] = json!("nobody");
        parked.to_string()
    }

    /// A pod that Pod Security `restricted` admits, with these limits besides CPU and memory.
    #[must_use]
    pub fn pod(&self, name: &str, limits: &Value) -> Value {
        let mut amounts = json!({ "cpu": "50m", "memory": "32Mi" });
        for (resource, amount) in limits.as_object().into_iter().flatten() {
            amounts[resource] = amount.clone();
        }
        // As the donor demands it of containers without GPUs.
        let mut devices = amounts.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("nvidia.com/"));
        let has_gpus = devices.any(|(_, amount)| amount != "0");
        let env = if has_gpus { json!([]) } else { json!([{ "name": "NVIDIA_VISIBLE_DEVICES", "value": "void" }]) };
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "automountServiceAccountToken": false, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "work", "image": self.image, "imagePullPolicy": "Never",
                    "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
                    "resources": { "limits": amounts }, "env": env,
                }],
            },
        })
    }
}

impl Attempt {
    /// Makes the attempt with the tenant's kubectl, and removes what it left.
    ///
    /// # Errors
    ///
    /// What happened instead of the refusal.
    pub async fn is_refused(
        &self,
        tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>,
    ) -> Result<(), String> {
        let made = self.make(tenant, false).await;
        let told = match &self.refusal {
            Refusal::Answer(part) => match made {
                Err(refused) if refused.contains(part) => return Ok(()),
                Err(refused) => Err(format!("refused, but not by {part:?}: {refused}")),
                Ok(answer) => Err(format!("it passed: {answer}")),
            },
            Refusal::Pending(part) => {
                made?;
                let pod = ["get", "pod", self.name, "-o", "json"];
                until_told(tenant, &pod, |pod| is_pending_because(pod, part)).await
            }
            Refusal::NoPod(part) => {
                made?;
                let events = ["get", "events", "--field-selector=reason=FailedCreate", "-o", "json"];
                until_told(tenant, &events, |events| is_told(events, self.name, part)).await
            }
        };
        self.undo(tenant).await;
        told
    }

    /// Makes the attempt while its protection is removed. What can run dry leaves nothing.
    ///
    /// # Errors
    ///
    /// Why it does not pass.
    pub async fn passes(
        &self,
        tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>,
    ) -> Result<(), String> {
        let dry = self.may_run_dry && matches!(self.refusal, Refusal::Answer(_));
        self.make(tenant, dry).await?;
        let selector = format!("attempt={}", self.name);
        let passed = match &self.refusal {
            Refusal::Answer(_) => return Ok(()),
            Refusal::Pending(_) => {
                let pod = ["get", "pod", self.name, "-o", "json"];
                until_told(tenant, &pod, |pod| pod["spec"]["nodeName"].is_string()).await
            }
            Refusal::NoPod(_) => {
                let pods = ["get", "pods", "-l", &selector, "-o", "json"];
                until_told(tenant, &pods, |pods| pods["items"].as_array().is_some_and(|pods| !pods.is_empty())).await
            }
        };
        self.undo(tenant).await;
        passed
    }

    async fn make(
        &self,
        tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>,
        dry: bool,
    ) -> Result<String, String> {
        let mut args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        args.extend(dry.then_some("--dry-run=server"));
        tenant(&args, &self.input).await.map_err(|refused| refused.to_string())
    }

    /// Removes the object that the attempt made, if it made one that waits.
    async fn undo(&self, tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>) {
        let now = ["--ignore-not-found", "--grace-period=0", "--force", "-f", "-"];
        if !self.input.is_empty() && !matches!(self.refusal, Refusal::Answer(_)) {
            drop(tenant(&[&["delete"][..], &now[..]].concat(), &self.input).await);
        }
    }
}

/// Reads objects with kubectl until they satisfy a condition; an error has the last ones.
async fn until_told(
    tenant: &impl AsyncFn(&[&str], &str) -> Result<String, KubectlError>,
    args: &[&str],
    holds: impl Fn(&Value) -> bool,
) -> Result<(), String> {
    let began = Instant::now();
    loop {
        let text = tenant(args, "").await.map_err(|error| error.to_string())?;
        let seen: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if holds(&seen) {
            return Ok(());
        }
        if began.elapsed() > TOLD_WITHIN {
            return Err(format!("not so after {} s: {text}", TOLD_WITHIN.as_secs()));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the scheduler gives this reason for not placing a pod.
fn is_pending_because(pod: &Value, part: &str) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let said = |condition: &Value| {
        condition["type"] == "PodScheduled"
            && condition["status"] == "False"
            && condition["message"].as_str().is_some_and(|message| message.contains(part))
    };
    pod["spec"]["nodeName"].is_null() && conditions.is_some_and(|conditions| conditions.iter().any(said))
}

/// Whether an event of the controller of `name`, or of its ReplicaSet, has this text.
fn is_told(events: &Value, name: &str, part: &str) -> bool {
    let of_attempt = |event: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        text(&event["involvedObject"]["name"]).starts_with(name) && text(&event["message"]).contains(part)
    };
    events["items"].as_array().is_some_and(|events| events.iter().any(of_attempt))
}
