//! What an active lease gives the origin, looked at in the donor's and the origin's API servers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::authentication::v1::{
    BoundObjectReference, TokenRequest, TokenRequestSpec, TokenReview, TokenReviewSpec,
};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret, ServiceAccount};
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::GIVE_UP;
use super::effect::Effect;
use super::tunnel_probe::TunnelProbe;
use super::two_clusters::TwoClusters;
use crate::wait::{PATIENCE, until};

/// The ServiceAccount of the lease's tokens.
const TENANT_ACCOUNT: &str = "comity-tenant";
/// The Secret that they are bound to.
const TOKEN_SECRET: &str = "comity-token";
/// Lifetime of a token, the shortest that Kubernetes issues.
const TOKEN_LIFE_S: i64 = 600;
/// Tokens to show to the API server: enough for 20 s, twice the limit.
const TOKENS: usize = 80;
/// Interval of questions about the token.
const TOKEN_INTERVAL: Duration = Duration::from_millis(250);
/// Interval of the other questions.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The pod that runs in the lease's namespace.
const WORK: &str = "work";

/// An active lease with a running pod.
pub(super) struct LeaseAccess {
    tunnel: TunnelProbe,
    /// With the lease's token, at the donor's API server itself.
    tenant: Client,
    /// Administrator of the donor.
    donor: Client,
    /// Administrator of the origin.
    origin: Client,
    /// The lease's namespace on the donor.
    namespace: String,
    /// Namespace and name of the Secret with the kubeconfig on the origin.
    kubeconfig: (String, String),
    /// Further tokens as the lease's. Each is shown once, as an API server remembers for ten seconds whose a token is.
    tokens: Vec<String>,
}

impl LeaseAccess {
    /// Takes the lease, as `comity lease show` prints it, with its kubeconfig, and starts a pod.
    ///
    /// # Errors
    /// When something of it does not work.
    pub(super) async fn open(clusters: &TwoClusters, lease: &Value, kubeconfig: &Path) -> Result<Self> {
        let text = |name: &str| {
            let found = lease[name].as_str().filter(|text| !text.is_empty());
            found.map(str::to_owned).with_context(|| format!("a lease without {name}: {lease}"))
        };
        let parsed = Kubeconfig::from_yaml(&std::fs::read_to_string(kubeconfig)?)?;
        let through_tunnel = kube::Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default()).await?;
        let mut direct = through_tunnel.clone();
        direct.cluster_url = clusters.donor.server_url().parse()?;
        let mut access = Self {
            tunnel: TunnelProbe::start(through_tunnel).await?,
            tenant: Client::try_from(direct)?,
            donor: clusters.donor.client(),
            origin: clusters.origin.client(),
            namespace: text("donorNamespace")?,
            kubeconfig: (text("targetNamespace")?, text("secretName")?),
            tokens: Vec::new(),
        };
        access.start_pod().await?;
        access.issue_tokens().await?;
        let token = access.tokens.pop().context("tokens were issued")?;
        ensure!(access.is_accepted(token).await?, "the donor's API server refuses a token of the lease");
        ensure!(!access.has_lost_kubeconfig().await, "the origin has no Secret with the kubeconfig");
        Ok(access)
    }

    async fn start_pod(&self) -> Result<()> {
        let pods = Api::<Pod>::namespaced(self.tenant.clone(), &self.namespace);
        pods.create(&PostParams::default(), &pod()?).await.context("start a pod with the token of the lease")?;
        until("the pod to run", PATIENCE, async || {
            let phase = pods.get(WORK).await?.status.and_then(|status| status.phase);
            Ok((phase.as_deref() == Some("Running")).then_some(()))
        })
        .await
    }

    async fn issue_tokens(&mut self) -> Result<()> {
        let secret = Api::<Secret>::namespaced(self.donor.clone(), &self.namespace).get(TOKEN_SECRET).await?;
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: Vec::new(),
                expiration_seconds: Some(TOKEN_LIFE_S),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Secret".to_owned()),
                    name: Some(TOKEN_SECRET.to_owned()),
                    uid: secret.metadata.uid,
                }),
            },
            ..TokenRequest::default()
        };
        let accounts = Api::<ServiceAccount>::namespaced(self.donor.clone(), &self.namespace);
        for _ in 0..=TOKENS {
            let issued = accounts.create_token_request(TENANT_ACCOUNT, &PostParams::default(), &request).await?;
            self.tokens.push(issued.status.context("a token request has a status")?.token);
        }
        Ok(())
    }

    /// Whether the donor's API server knows whose the token is.
    async fn is_accepted(&self, token: String) -> Result<bool> {
        let spec = TokenReviewSpec { audiences: None, token: Some(token) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let answer = Api::<TokenReview>::all(self.donor.clone()).create(&PostParams::default(), &review).await?;
        Ok(answer.status.and_then(|status| status.authenticated) == Some(true))
    }

    async fn has_lost_rights(&self) -> bool {
        let pods = Api::<Pod>::namespaced(self.tenant.clone(), &self.namespace);
        let listed = pods.list(&ListParams::default().limit(1)).await;
        matches!(listed, Err(kube::Error::Api(status)) if matches!(status.code, 401 | 403 | 404))
    }

    async fn has_lost_namespace(&self) -> bool {
        matches!(Api::<Namespace>::all(self.donor.clone()).get_opt(&self.namespace).await, Ok(None))
    }

    async fn has_lost_kubeconfig(&self) -> bool {
        let (namespace, name) = &self.kubeconfig;
        matches!(Api::<Secret>::namespaced(self.origin.clone(), namespace).get_opt(name).await, Ok(None))
    }

    async fn token_refused(&self, mut tokens: Vec<String>, since: Instant) -> Duration {
        time_until(since, TOKEN_INTERVAL, async || {
            let Some(token) = tokens.pop() else { return false };
            matches!(self.is_accepted(token).await, Ok(false))
        })
        .await
    }

    /// Waits until the donor has taken everything back; returns the times from `since`.
    pub(super) async fn lost_at_donor(mut self, since: Instant) -> Vec<(Effect, Duration)> {
        let tokens = std::mem::take(&mut self.tokens);
        let (rights, token, namespace) = tokio::join!(
            time_until(since, LOOK_INTERVAL, async || self.has_lost_rights().await),
            self.token_refused(tokens, since),
            time_until(since, LOOK_INTERVAL, async || self.has_lost_namespace().await),
        );
        let tunnel = self.tunnel.silent(since, Instant::now()).await;
        vec![(Effect::Tunnel, tunnel), (Effect::Rights, rights), (Effect::Token, token), (Effect::Namespace, namespace)]
    }

    /// Waits until the origin has dropped its side; returns the times from `since`.
    pub(super) async fn lost_at_origin(self, since: Instant) -> Vec<(Effect, Duration)> {
        let kubeconfig = time_until(since, LOOK_INTERVAL, async || self.has_lost_kubeconfig().await).await;
        let tunnel = self.tunnel.silent(since, Instant::now()).await;
        vec![(Effect::Tunnel, tunnel), (Effect::Kubeconfig, kubeconfig)]
    }
}

/// The time from `since` until `is_lost` says so.
async fn time_until(since: Instant, interval: Duration, mut is_lost: impl AsyncFnMut() -> bool) -> Duration {
    while since.elapsed() < GIVE_UP {
        if is_lost().await {
            return since.elapsed();
        }
        tokio::time::sleep(interval).await;
    }
    GIVE_UP
}

/// A pod with one GPU that Pod Security `restricted` admits.
fn pod() -> Result<Pod> {
    let resources = json!({
        "requests": { "cpu": "100m", "memory": "64Mi" },
        "limits": { "cpu": "500m", "memory": "128Mi", "nvidia.com/gpu": "1" },
    });
    Ok(serde_json::from_value(json!({
        "metadata": { "name": WORK },
        "spec": {
            "automountServiceAccountToken": false,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65_532, "seccompProfile": { "type": "RuntimeDefault" },
            },
            "containers": [{
                "name": WORK, "image": "registry.example/work:1", "imagePullPolicy": "Never", "resources": resources,
                "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
            }],
        },
    }))?)
}
