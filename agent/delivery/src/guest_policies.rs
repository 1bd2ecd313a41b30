//! The admission policies that hold guests to their leases, and this agent to its task. Without them only quotas, Pod
//! Security and RBAC would, so the donor makes no namespace of a lease. And those that hold an origin's pods and
//! namespaces to its leases.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::call::call_opt;
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::guest_labels::GuestLabels;
use comity_runtime::clock::Clock;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::agent_restriction;

/// Annotation of a policy: its version, a number.
const VERSION_ANNOTATION: &str = "comity.dev/version";
/// Key of the check of the agent itself; no policy of guests has this name.
const AGENT: &str = "comity-agent";
/// How long a policy that was found counts as found.
const FOUND_AGE: Duration = Duration::from_secs(30);

/// An admission policy that leases need, with a binding of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GuestPolicy {
    name: &'static str,
    manifest: &'static str,
    effect: &'static str,
    /// The oldest that protects as this agent expects. A newer one is taken: manifests are applied before the agent.
    version: u64,
}

/// What guests may use in a lease's namespace.
const TENANT: GuestPolicy = GuestPolicy {
    name: "comity-tenant",
    manifest: "deploy/agent/admission.yaml",
    effect: "holds pods to the devices, nodes and priority of their lease",
    version: 1,
};

/// The RuntimeClass of guests' pods.
const RUNTIME_CLASS: GuestPolicy = GuestPolicy {
    name: "comity-runtime-class",
    manifest: "deploy/agent/admission.yaml",
    effect: "holds pods to the RuntimeClass sharing.runtimeClass",
    version: 1,
};

/// Images of guests are pulled with their own credentials.
const ALWAYS_PULL: GuestPolicy = GuestPolicy {
    name: "comity-always-pull",
    manifest: "deploy/agent/admission.yaml",
    effect: "keeps pods from images that nodes hold for the donor's own (sharing.alwaysPullImages)",
    version: 1,
};

/// Containers that request no GPU get none.
const VOID_DEVICES: GuestPolicy = GuestPolicy {
    name: "comity-void-devices",
    manifest: "deploy/agent/webhook.yaml",
    effect: "keeps GPUs from containers that request none (sharing.voidDevices)",
    version: 1,
};

/// Parts of a GPU that HAMi shares.
pub(crate) const HAMI: GuestPolicy = GuestPolicy {
    name: "comity-hami",
    manifest: "deploy/agent/hami.yaml",
    effect: "holds pods to their part of a GPU",
    version: 1,
};

/// Pods on virtual nodes of an origin.
const VIRTUAL_NODES: GuestPolicy = GuestPolicy {
    name: "comity-virtual-nodes",
    manifest: "deploy/agent/liqo-origin.yaml",
    effect: "keeps pods of other namespaces off virtual nodes",
    version: 1,
};

/// What the policy of virtual nodes reads.
const VIRTUAL_NODES_MAP: GuestPolicy = GuestPolicy {
    name: "comity-virtual-nodes-map",
    manifest: "deploy/agent/liqo-origin.yaml",
    effect: "keeps others from the ConfigMap that says who may use virtual nodes",
    version: 1,
};

/// Namespaces of an origin that run on virtual nodes.
const OFFLOADING: GuestPolicy = GuestPolicy {
    name: "comity-offloading",
    manifest: "deploy/agent/liqo-origin.yaml",
    effect: "keeps namespaces here that did not opt in, or are another tenant's",
    version: 1,
};

impl GuestPolicy {
    /// The policies that a cluster needs to borrow virtual nodes.
    const OF_ORIGINS: [Self; 3] = [VIRTUAL_NODES, VIRTUAL_NODES_MAP, OFFLOADING];

    /// The policies that namespaces of leases with these labels need.
    fn required(guests: &GuestLabels) -> impl Iterator<Item = Self> {
        std::iter::once(TENANT).chain(Self::of_labels(guests))
    }

    /// The policies that read these labels, by either delivery.
    pub(crate) fn of_labels(guests: &GuestLabels) -> impl Iterator<Item = Self> {
        let class = guests.runtime_class.is_some().then_some(RUNTIME_CLASS);
        let pull = guests.always_pull.then_some(ALWAYS_PULL);
        class.into_iter().chain(guests.void_devices.then_some(VOID_DEVICES)).chain(pull)
    }

    /// Why the objects in the cluster do not protect, if so.
    fn problem(
        self,
        policy: Option<&ValidatingAdmissionPolicy>,
        binding: Option<&ValidatingAdmissionPolicyBinding>,
    ) -> Option<String> {
        let Some(policy) = policy else { return Some("it is absent".to_owned()) };
        let annotations = policy.metadata.annotations.as_ref();
        let version = annotations.and_then(|annotations| annotations.get(VERSION_ANNOTATION));
        if version.and_then(|version| version.parse::<u64>().ok()).is_none_or(|version| version < self.version) {
            let found = version.map_or("none", String::as_str);
            return Some(format!("its annotation {VERSION_ANNOTATION} is {found:?}, not {} or more", self.version));
        }
        let spec = policy.spec.clone().unwrap_or_default();
        if spec.failure_policy.as_deref() == Some("Ignore") {
            return Some("its failurePolicy is Ignore, not Fail".to_owned());
        }
        let Some(binding) = binding.and_then(|binding| binding.spec.as_ref()) else {
            return Some("its binding is absent".to_owned());
        };
        let denies = binding.validation_actions.iter().flatten().any(|action| action == "Deny");
        if binding.policy_name.as_deref() != Some(self.name) || !denies {
            return Some(format!("its binding does not deny by the policy {}", self.name));
        }
        if binding.match_resources.is_some() {
            return Some("its binding has matchResources, which exempts objects".to_owned());
        }
        None
    }
}

/// Checks policies of one cluster.
pub struct GuestPolicies {
    client: Client,
    clock: Arc<dyn Clock>,
    /// Whether the agent itself must be restricted, too.
    restricts_agent: bool,
    /// When each was found.
    found: Mutex<BTreeMap<&'static str, Duration>>,
}

impl fmt::Debug for GuestPolicies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestPolicies").finish_non_exhaustive()
    }
}

impl GuestPolicies {
    /// Checks those of the cluster behind `client`.
    #[must_use]
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, restricts_agent: true, found: Mutex::default() }
    }

    /// Whether an agent that no policy restricts may lend (`kubernetes.unrestricted`).
    #[must_use]
    pub fn with_unrestricted_agent(self, is_accepted: bool) -> Self {
        Self { restricts_agent: !is_accepted, ..self }
    }

    /// Checks that a policy restricts this agent, unless the owner accepted that none does.
    ///
    /// # Errors
    /// A permanent error with the remedy, or a temporary one if the API server does not answer.
    pub async fn check_agent(&self) -> Result<(), DeliveryError> {
        let mut found = self.found.lock().await;
        let now = self.clock.elapsed();
        let is_recent = found.get(AGENT).is_some_and(|at| now.saturating_sub(*at) < FOUND_AGE);
        if self.restricts_agent && !is_recent {
            found.remove(AGENT);
            agent_restriction::check(self.client.clone()).await?;
            found.insert(AGENT, now);
        }
        Ok(())
    }

    /// Checks all that a namespace of a lease needs; returns the policies of guests.
    ///
    /// # Errors
    /// A permanent error that names the file to apply, or a temporary one if the API server does not answer.
    pub async fn check_all(&self, guests: &GuestLabels) -> Result<Vec<&'static str>, DeliveryError> {
        self.check_agent().await?;
        let mut names = Vec::new();
        for policy in GuestPolicy::required(guests) {
            self.check(policy).await?;
            names.push(policy.name);
        }
        Ok(names)
    }

    /// Checks all that a cluster needs to borrow virtual nodes; returns their names.
    ///
    /// # Errors
    /// As [`check_all`](Self::check_all).
    pub async fn check_origin(&self) -> Result<Vec<&'static str>, DeliveryError> {
        for policy in GuestPolicy::OF_ORIGINS {
            self.check(policy).await?;
        }
        Ok(GuestPolicy::OF_ORIGINS.map(|policy| policy.name).to_vec())
    }

    /// Checks that a policy is there and denies.
    ///
    /// # Errors
    /// A permanent error that names the file to apply, or a temporary one if the API server does not answer.
    pub(crate) async fn check(&self, policy: GuestPolicy) -> Result<(), DeliveryError> {
        let mut found = self.found.lock().await;
        let now = self.clock.elapsed();
        if found.get(policy.name).is_some_and(|at| now.saturating_sub(*at) < FOUND_AGE) {
            return Ok(());
        }
        found.remove(policy.name);
        let problem = match self.problem(policy).await {
            Ok(None) => {
                found.insert(policy.name, now);
                return Ok(());
            }
            Ok(Some(problem)) => problem,
            Err(DeliveryError::Permanent { message, .. }) => message,
            Err(temporary) => return Err(temporary),
        };
        Err(DeliveryError::permanent(
            "admission-policy",
            format!("the admission policy {} {}: {problem}; apply {}", policy.name, policy.effect, policy.manifest),
        ))
    }

    async fn problem(&self, of: GuestPolicy) -> Result<Option<String>, DeliveryError> {
        let policies = Api::<ValidatingAdmissionPolicy>::all(self.client.clone());
        let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(self.client.clone());
        let policy = call_opt(&format!("read policy {}", of.name), policies.get(of.name)).await?;
        let binding = call_opt(&format!("read the binding of policy {}", of.name), bindings.get(of.name)).await?;
        Ok(of.problem(policy.as_ref(), binding.as_ref()))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_runtime::SystemClock;
    use http::{Request, Response};
    use k8s_openapi::api::admissionregistration::v1::MatchResources;
    use kube::client::Body;
    use sha2::{Digest as _, Sha256};

    use super::*;

    /// Each policy with its file and the digest of its version.
    const SHIPPED: [(GuestPolicy, &str, &str); 8] = [
        (TENANT, include_str!("../../../deploy/agent/admission.yaml"), "a9ed2e224e90"),
        (RUNTIME_CLASS, include_str!("../../../deploy/agent/admission.yaml"), "3cfef5005487"),
        (ALWAYS_PULL, include_str!("../../../deploy/agent/admission.yaml"), "12fc15033eb3"),
        (VOID_DEVICES, include_str!("../../../deploy/agent/webhook.yaml"), "ef71b2187799"),
        (HAMI, include_str!("../../../deploy/agent/hami.yaml"), "800ee3412036"),
        (VIRTUAL_NODES, include_str!("../../../deploy/agent/liqo-origin.yaml"), "db1848e087ea"),
        (VIRTUAL_NODES_MAP, include_str!("../../../deploy/agent/liqo-origin.yaml"), "f0e01c6be00d"),
        (OFFLOADING, include_str!("../../../deploy/agent/liqo-origin.yaml"), "a4334225f438"),
    ];

    fn document<'a>(manifest: &'a str, kind: &str, name: &str) -> &'a str {
        let (kind, name) = (format!("kind: {kind}\n"), format!("  name: {name}\n"));
        let is_it = |document: &&str| document.contains(&kind) && document.contains(&name);
        manifest.split("\n---\n").find(is_it).unwrap()
    }

    fn shipped(policy: GuestPolicy, manifest: &str) -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
        let [policy, binding] = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
            .map(|kind| document(manifest, kind, policy.name));
        (serde_saphyr::from_str(policy).unwrap(), serde_saphyr::from_str(binding).unwrap())
    }

    /// Of the text without comments.
    fn digest_of(document: &str) -> String {
        let lines: Vec<&str> = document.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        hex::encode(Sha256::digest(lines.join("\n")))[..12].to_owned()
    }

    #[test]
    fn a_changed_policy_has_another_version() {
        for (policy, manifest, digest) in SHIPPED {
            let (shipped, binding) = shipped(policy, manifest);
            assert_eq!(policy.problem(Some(&shipped), Some(&binding)), None);
            let version = &shipped.metadata.annotations.as_ref().unwrap()[VERSION_ANNOTATION];
            assert_eq!(*version, policy.version.to_string(), "{}", policy.name);
            assert_eq!(
                digest_of(document(manifest, "ValidatingAdmissionPolicy", policy.name)),
                digest,
                "{} has changed: write the new digest here; if the old one was released, raise its version here and in \
                 {} too",
                policy.name,
                policy.manifest
            );
        }
    }

    #[test]
    fn a_policy_that_does_not_protect_is_told_by_its_reason() {
        let (policy, binding) = shipped(TENANT, SHIPPED[0].1);
        let problem = |policy: &ValidatingAdmissionPolicy, binding: &ValidatingAdmissionPolicyBinding| {
            TENANT.problem(Some(policy), Some(binding)).unwrap_or_default()
        };
        assert_eq!(TENANT.problem(None, Some(&binding)).as_deref(), Some("it is absent"));
        assert_eq!(TENANT.problem(Some(&policy), None).as_deref(), Some("its binding is absent"));
        for (version, is_refused) in [(None, true), (Some("0"), true), (Some("x"), true), (Some("2"), false)] {
            let mut policy = policy.clone();
            let versions = version.map(|version| (VERSION_ANNOTATION.to_owned(), version.to_owned()));
            policy.metadata.annotations = Some(versions.into_iter().collect());
            assert_eq!(problem(&policy, &binding).contains("not 1 or more"), is_refused, "{version:?}");
        }
        let mut lenient = policy.clone();
        lenient.spec.as_mut().unwrap().failure_policy = Some("Ignore".to_owned());
        assert!(problem(&lenient, &binding).contains("Ignore"));
        let mut mute = binding.clone();
        mute.spec.as_mut().unwrap().validation_actions = Some(vec!["Warn".to_owned(), "Audit".to_owned()]);
        let mut narrowed = binding.clone();
        narrowed.spec.as_mut().unwrap().match_resources = Some(MatchResources::default());
        assert!(problem(&policy, &narrowed).contains("matchResources"));
        let mut of_another = binding;
        of_another.spec.as_mut().unwrap().policy_name = Some("another".to_owned());
        for binding in [mute, of_another] {
            assert!(problem(&policy, &binding).contains("does not deny"));
        }
    }

    /// The check of an API server that has these objects, each with its policy's name.
    fn policies_of(objects: Vec<(GuestPolicy, Vec<u8>, Vec<u8>)>) -> GuestPolicies {
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let name = path.rsplit('/').next().unwrap_or_default();
            let found = objects.iter().find(|(policy, ..)| policy.name == name).map(|(_, policy, binding)| {
                if path.contains("policybindings") { binding.clone() } else { policy.clone() }
            });
            let missing = br#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#.to_vec();
            let status = if found.is_some() { 200 } else { 404 };
            let answer = Response::builder().status(status).body(Body::from(found.unwrap_or(missing)));
            async move { answer.map_err(std::io::Error::other) }
        });
        GuestPolicies::new(Client::new(service, "default"), Arc::new(SystemClock::new()))
    }

    #[tokio::test]
    async fn origin_offloads_without_its_policies() {
        let of_origins = |kept: &dyn Fn(GuestPolicy) -> bool| {
            let shipped_ones = SHIPPED.iter().filter(|(policy, ..)| GuestPolicy::OF_ORIGINS.contains(policy));
            let kept = shipped_ones.filter(|(policy, ..)| kept(*policy)).map(|(policy, manifest, _)| {
                let (object, binding) = shipped(*policy, manifest);
                (*policy, serde_json::to_vec(&object).unwrap(), serde_json::to_vec(&binding).unwrap())
            });
            policies_of(kept.collect())
        };
        of_origins(&|_| true).check_origin().await.unwrap();
        for missing in GuestPolicy::OF_ORIGINS {
            let error = of_origins(&|policy| policy != missing).check_origin().await.unwrap_err();
            let DeliveryError::Permanent { code, message } = error else { panic!("{error}") };
            assert_eq!(code, "admission-policy");
            assert!(
                message.contains(missing.name) && message.contains("apply deploy/agent/liqo-origin.yaml"),
                "{message}"
            );
        }
    }

    #[test]
    fn settings_need_the_policies_that_enforce_them() {
        let names = |guests: &GuestLabels| GuestPolicy::required(guests).map(|policy| policy.name).collect::<Vec<_>>();
        assert_eq!(names(&GuestLabels::default()), ["comity-tenant"]);
        let all = GuestLabels { runtime_class: Some("gvisor".to_owned()), void_devices: true, always_pull: true };
        let wanted = ["comity-tenant", "comity-runtime-class", "comity-void-devices", "comity-always-pull"];
        assert_eq!(names(&all), wanted);
    }
}
