//! The admission policies that limit consumers to their leases, and their parameters. Pure.
//!
//! The cluster's owner applies the policies, so that whoever controls the agent cannot weaken them. They depend on the
//! settings only; the grants are in a ConfigMap that they take as parameter and that only the agent writes. An API
//! server needs a second to compile a changed policy, but sees a changed ConfigMap at once. Without the ConfigMap all
//! requests are refused.
//!
//! Writers are distinguished by user name: this agent, Liqo's controllers and the control plane may write; all others
//! count as consumers.

mod cel;
mod consumer_objects;
mod container_resources;
mod expressions;
mod pods;
mod terms;
mod visible_devices;

use comity_agent_kubernetes::call::MANAGED_BY;
use serde_json::{Value, json};

use super::grants::Grants;

pub(crate) use terms::CONSUMER_NAMESPACE_LABEL;

/// Label of the policies, their bindings and their ConfigMap.
pub(crate) const PART_LABEL: (&str, &str) = ("app.kubernetes.io/component", "liqo-donor");

/// The file with the policies of the default settings.
pub const POLICIES_MANIFEST: &str = "deploy/agent/liqo-policies.yaml";
const MANIFEST_HEAD: &str = "\
# The policies that hold clusters which borrow through Liqo to their leases. The cluster's owner applies them; the agent
# only reads them, and lends no virtual nodes while one is missing or differs. Printed by `comity-agent liqo-policies`:
# print them again with --config if liqo.namespace, liqo.agentNamespace or liqo.sameNamespaceNames is not the default.
";
/// ServiceAccount of the agent, in its namespace.
const AGENT_ACCOUNT: &str = "comity-agent";

/// Names of the policies, and of their bindings.
pub const POLICY_NAMES: [&str; 7] = [
    "comity-liqo-slice-status",
    "comity-liqo-slice-spec",
    "comity-liqo-namespacemap",
    "comity-liqo-shadowpod",
    "comity-liqo-objects",
    "comity-liqo-pod",
    "comity-liqo-grants",
];

/// Name of the ConfigMap with the leases in force.
#[must_use]
pub(crate) const fn params_name() -> &'static str {
    "comity-liqo-grants"
}

/// Settings of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// Namespace of the ConfigMap and of the agent's ServiceAccount.
    pub agent_namespace: String,
    /// Namespace that Liqo is installed in.
    pub liqo_namespace: String,
    /// Further user names that may write what consumers may not: a backup tool, say.
    pub trusted_users: Vec<String>,
    /// Whether remote namespaces may have the name that they have on the origin. Otherwise they end in "-" and its Liqo
    /// id.
    pub same_names: bool,
    /// Whether containers must say `allowPrivilegeEscalation: false`.
    pub refuse_privilege_escalation: bool,
    /// Whether Services of types NodePort and LoadBalancer may be made, which open ports on this cluster.
    pub exposed_services: bool,
    /// Priority classes that offloaded pods may name.
    pub priority_classes: Vec<String>,
    /// Schedulers besides `default-scheduler` that they may name.
    pub schedulers: Vec<String>,
}

impl PolicySettings {
    /// User name of the agent: the one ServiceAccount that `deploy/agent/admission.yaml` restricts.
    fn agent_user(&self) -> String {
        format!("system:serviceaccount:{}:{AGENT_ACCOUNT}", self.agent_namespace)
    }
}

/// The strict defaults.
impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            agent_namespace: "comity-system".to_owned(),
            liqo_namespace: "liqo".to_owned(),
            trusted_users: Vec::new(),
            same_names: false,
            refuse_privilege_escalation: false,
            exposed_services: false,
            priority_classes: Vec::new(),
            schedulers: Vec::new(),
        }
    }
}

/// Each policy and its binding. Every field that an API server would fill in is there, so that what is read back can be
/// compared.
#[must_use]
pub(crate) fn policy_objects(settings: &PolicySettings) -> Vec<Value> {
    let others = [consumer_objects::objects(settings), pods::pod(settings), consumer_objects::grants(settings)];
    let all = expressions::all(settings).into_iter().chain(others);
    all.flat_map(|policy| [policy.object(), policy.binding(settings)]).collect()
}

/// The same as a manifest for kubectl.
///
/// # Errors
/// If a string cannot be written as YAML.
pub fn policy_manifest(settings: &PolicySettings) -> Result<String, serde_saphyr::ser::Error> {
    let objects = policy_objects(settings).iter().map(serde_saphyr::to_string).collect::<Result<Vec<_>, _>>()?;
    Ok(format!("{MANIFEST_HEAD}{}", objects.join("---\n")))
}

/// The ConfigMap with the leases in force; `liqo_id` is this cluster's own.
#[must_use]
pub(crate) fn grants_object(settings: &PolicySettings, liqo_id: &str, grants: &Grants) -> Value {
    let labels = json!({ MANAGED_BY.0: MANAGED_BY.1, PART_LABEL.0: PART_LABEL.1 });
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": params_name(), "namespace": settings.agent_namespace, "labels": labels },
        "data": terms::terms(liqo_id, grants),
    })
}

/// Labels of the policies and bindings, which are the owner's.
fn labels() -> Value {
    json!({ PART_LABEL.0: PART_LABEL.1 })
}

/// Which namespaces a policy looks into.
enum Namespaces {
    All,
    OfConsumers,
    Named(String),
}

impl Namespaces {
    fn selector(&self) -> Value {
        match self {
            Self::All => json!({}),
            Self::OfConsumers => {
                json!({ "matchExpressions": [{ "key": CONSUMER_NAMESPACE_LABEL, "operator": "Exists" }] })
            }
            Self::Named(name) => json!({ "matchLabels": { "kubernetes.io/metadata.name": name } }),
        }
    }
}

/// One policy, before it is an object.
struct Policy {
    name: &'static str,
    /// API group and the resources in it.
    resources: Vec<(&'static str, Vec<&'static str>)>,
    operations: &'static [&'static str],
    namespaces: Namespaces,
    /// The only object that it judges; `None`: all.
    object_name: Option<&'static str>,
    /// Whether it reads the grants. The API server refuses what it judges while they are missing.
    reads_grants: bool,
    /// Which requests it judges.
    condition: MatchCondition,
    variables: Vec<(&'static str, String)>,
    validations: Vec<Validation>,
}

struct MatchCondition {
    name: &'static str,
    expression: String,
}

/// A condition, and the refusal if it does not hold.
struct Validation {
    holds: String,
    /// A CEL expression.
    message: String,
    /// "Forbidden" makes Liqo's replicator give up for good; "Invalid" is tried again.
    reason: &'static str,
}

impl Policy {
    fn object(&self) -> Value {
        let rules: Vec<Value> = self
            .resources
            .iter()
            .map(|(group, resources)| {
                let mut rule = json!({
                    "apiGroups": [group], "apiVersions": ["*"], "operations": self.operations,
                    "resources": resources, "scope": "Namespaced",
                });
                if let Some(name) = self.object_name {
                    rule["resourceNames"] = json!([name]);
                }
                rule
            })
            .collect();
        let variables: Vec<Value> =
            self.variables.iter().map(|(name, expression)| json!({ "name": name, "expression": expression })).collect();
        let validations: Vec<Value> = self
            .validations
            .iter()
            .map(|validation| {
                json!({
                    "expression": validation.holds, "messageExpression": validation.message, "reason": validation.reason,
                })
            })
            .collect();
        let mut object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": self.name, "labels": labels() },
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {
                    "matchPolicy": "Equivalent",
                    "namespaceSelector": self.namespaces.selector(),
                    "objectSelector": {},
                    "resourceRules": rules,
                },
                "matchConditions": [{ "name": self.condition.name, "expression": self.condition.expression }],
                "variables": variables,
                "validations": validations,
            },
        });
        if self.reads_grants {
            object["spec"]["paramKind"] = json!({ "apiVersion": "v1", "kind": "ConfigMap" });
        }
        object
    }

    fn binding(&self, settings: &PolicySettings) -> Value {
        let mut binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": self.name, "labels": labels() },
            "spec": { "policyName": self.name, "validationActions": ["Deny"] },
        });
        if self.reads_grants {
            binding["spec"]["paramRef"] = json!({
                "name": params_name(),
                "namespace": settings.agent_namespace,
                "parameterNotFoundAction": "Deny",
            });
        }
        binding
    }
}

#[cfg(test)]
mod tests;
