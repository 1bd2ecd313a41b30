//! Leases of two classes of card at one donor, and their tenants' attempts to get more than they leased.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use comity_scenarios::{Federation, PATIENCE, until};
use comity_testkit::real_clusters::PROBE_IMAGE;
use comity_testkit::{AttackedLease, Attempt, KubectlError, RealClusters};

use crate::OrLogs as _;
use crate::control_planes::pod;

/// An active lease, as its tenant has it.
pub(crate) struct TenantLease {
    clusters: Arc<RealClusters>,
    kubeconfig: PathBuf,
    pub(crate) id: String,
    pub(crate) namespace: String,
    /// The resource that was leased.
    pub(crate) resource: String,
    pub(crate) gpus: u32,
    /// The id of its node in offers.
    pub(crate) node: String,
}

impl TenantLease {
    /// Requests GPUs and waits for the lease.
    pub(crate) async fn of(
        federation: &Federation,
        clusters: &Arc<RealClusters>,
        gpus: u32,
        class: &str,
        more: &[&str],
    ) -> Self {
        let began = Instant::now();
        let request = federation.submit_with(gpus, class, more).await.or_logs(federation);
        let id = federation.lease_of(&request).await.or_logs(federation);
        let active = federation.lease_in(&id, "active", PATIENCE).await.or_logs(federation);
        println!("{id} of {gpus} {class} {more:?} is active after {:.1} s", began.elapsed().as_secs_f32());
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        Self {
            clusters: Arc::clone(clusters),
            kubeconfig: federation.kubeconfig(&id, "polytech-campus").await.or_logs(federation),
            id,
            namespace: text(&active["donorNamespace"]),
            resource: text(&active["placement"]["resourceName"]),
            gpus,
            node: text(&active["placement"]["nodes"][0]["node"]),
        }
    }

    /// As the tenant, through the tunnel.
    pub(crate) async fn kubectl(&self, args: &[&str], input: &str) -> Result<String, KubectlError> {
        self.clusters.origin.kubectl_as(&self.kubeconfig, args, input).await
    }

    /// Starts a pod with all GPUs of the lease. Returns its log, which says what it sees, and its device nodes.
    pub(crate) async fn run(&self, federation: &Federation, name: &str) -> (String, Vec<String>) {
        let pod = pod(name, self.gpus, PROBE_IMAGE).replace("nvidia.com/gpu", &self.resource);
        self.kubectl(&["apply", "-f", "-"], &pod).await.or_logs(federation);
        until("the container to run", PATIENCE, async || {
            let phase = self.kubectl(&["get", "pod", name, "-o", "jsonpath={.status.phase}"], "").await?;
            Ok((phase == "Running").then_some(()))
        })
        .await
        .or_logs(federation);
        let devices = self.kubectl(&["exec", name, "--", "/probe", "ls", "/dev"], "").await.or_logs(federation);
        let devices = devices.split_whitespace().filter(|device| device.starts_with("nvidia")).map(str::to_owned);
        (self.kubectl(&["logs", name], "").await.or_logs(federation), devices.collect())
    }

    /// When the container of a pod started; another time means that it was restarted.
    pub(crate) async fn started(&self, pod: &str) -> Result<String, KubectlError> {
        let field = "jsonpath={.status.containerStatuses[0].state.running.startedAt}";
        self.kubectl(&["get", "pod", pod, "-o", field], "").await
    }

    /// Its tenant tries to get more than the lease: each attempt is refused by name.
    pub(crate) async fn gives_no_more(&self, holder: &str, neighbour: &Self, other_node: &str) {
        let began = Instant::now();
        let attacked = AttackedLease {
            lease: self.id.clone(),
            resource: self.resource.clone(),
            holder: holder.to_owned(),
            other_resource: neighbour.resource.clone(),
            other_node: other_node.to_owned(),
            other_lease: neighbour.id.clone(),
            image: PROBE_IMAGE.to_owned(),
        };
        let tenant = async |args: &[&str], input: &str| self.kubectl(args, input).await;
        tenant(&["create", "-f", "-"], &attacked.parked_pod()).await.unwrap();
        let attempts = Attempt::all(&attacked);
        let mut other = Vec::new();
        for attempt in &attempts {
            if let Err(instead) = attempt.is_refused(&tenant).await {
                other.push(format!("{}: {instead}", attempt.name));
            }
        }
        assert!(other.is_empty(), "attempts of the tenant of {}: {other:#?}", self.id);
        tenant(&["delete", "--force", "--grace-period=0", "-f", "-"], &attacked.parked_pod()).await.unwrap();
        println!(
            "{} attempts of the tenant of {}, each refused by name: {:.1} s",
            attempts.len(),
            self.id,
            began.elapsed().as_secs_f32()
        );
    }

    /// The term does not grow beyond what policy allows.
    pub(crate) async fn lasts_no_longer(&self, federation: &Federation) {
        let refused = federation.comity(&["lease", "renew", &self.id, "--duration", "60h"]).await;
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains("quota `poly-ml` allows leases of at most 2d"), "{refused}");
    }

    /// Releases it: the credential is refused, and nothing of it is left at the donor.
    pub(crate) async fn ends(&self, federation: &Federation) {
        federation.comity(&["lease", "release", "--yes", &self.id]).await.or_logs(federation);
        federation.lease_in(&self.id, "ended", PATIENCE).await.or_logs(federation);
        assert!(self.kubectl(&["get", "pods", "--request-timeout=5s"], "").await.is_err());
        let namespaces = self.clusters.donor.kubectl(&["get", "namespaces", "-o", "name"]).await.unwrap();
        assert!(!namespaces.contains(&self.namespace), "{namespaces}");
    }
}
