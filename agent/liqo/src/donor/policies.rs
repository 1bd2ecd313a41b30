//! The admission policies that limit consumers to their leases, and their parameters. Pure.
//!
//! The policies depend on the settings only; the grants are in a ConfigMap that they take as parameter, because an API
//! server needs a second to compile a changed policy, but sees a changed ConfigMap at once. Without the ConfigMap all
//! requests are refused.
//!
//! Writers are distinguished by user name: this agent, Liqo's controllers and the control plane may write; all others
//! count as consumers.

mod cel;
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

/// Names of the policies, and of their bindings.
pub const POLICY_NAMES: [&str; 6] = [
    "comity-liqo-slice-status",
    "comity-liqo-slice-spec",
    "comity-liqo-namespacemap",
    "comity-liqo-shadowpod",
    "comity-liqo-objects",
    "comity-liqo-pod",
];

/// Name of the ConfigMap with the leases in force.
#[must_use]
pub const fn params_name() -> &'static str {
    "comity-liqo-grants"
}

/// Settings of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// User name of this agent: see [`own_user_name`](crate::own_user_name).
    pub agent_user: String,
    /// Namespace of the ConfigMap: the agent's own.
    pub agent_namespace: String,
    /// Namespace that Liqo is installed in.
    pub liqo_namespace: String,
    /// This cluster's own Liqo id.
    pub liqo_id: String,
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
    /// The strict defaults.
    #[must_use]
    pub fn new(agent_user: &str, agent_namespace: &str, liqo_id: &str) -> Self {
        Self {
            agent_user: agent_user.to_owned(),
            agent_namespace: agent_namespace.to_owned(),
            liqo_namespace: "liqo".to_owned(),
            liqo_id: liqo_id.to_owned(),
            trusted_users: Vec::new(),
            same_names: false,
            refuse_privilege_escalation: false,
            exposed_services: false,
            priority_classes: Vec::new(),
            schedulers: Vec::new(),
        }
    }
}

/// The ConfigMap, then each policy and its binding. Every field that an API server would fill in is there, so that what
/// is read back can be compared.
#[must_use]
pub fn policy_objects(settings: &PolicySettings, grants: &Grants) -> Vec<Value> {
    let mut objects = vec![json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": params_name(), "namespace": settings.agent_namespace, "labels": labels() },
        "data": terms::terms(grants),
    })];
    for policy in expressions::all(settings).into_iter().chain([pods::pod()]) {
        objects.push(policy.object());
        objects.push(policy.binding(settings));
    }
    objects
}

fn labels() -> Value {
    json!({ MANAGED_BY.0: MANAGED_BY.1, PART_LABEL.0: PART_LABEL.1 })
}

/// One policy, before it is an object.
struct Policy {
    name: &'static str,
    /// API group and the resources in it.
    resources: Vec<(&'static str, Vec<&'static str>)>,
    operations: &'static [&'static str],
    /// Whether it looks only into namespaces of consumers.
    consumer_namespaces_only: bool,
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
                json!({
                    "apiGroups": [group], "apiVersions": ["*"], "operations": self.operations,
                    "resources": resources, "scope": "Namespaced",
                })
            })
            .collect();
        let namespaces = if self.consumer_namespaces_only {
            json!({ "matchExpressions": [{ "key": CONSUMER_NAMESPACE_LABEL, "operator": "Exists" }] })
        } else {
            json!({})
        };
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
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": { "name": self.name, "labels": labels() },
            "spec": {
                "failurePolicy": "Fail",
                "paramKind": { "apiVersion": "v1", "kind": "ConfigMap" },
                "matchConstraints": {
                    "matchPolicy": "Equivalent",
                    "namespaceSelector": namespaces,
                    "objectSelector": {},
                    "resourceRules": rules,
                },
                "matchConditions": [{ "name": self.condition.name, "expression": self.condition.expression }],
                "variables": variables,
                "validations": validations,
            },
        })
    }

    fn binding(&self, settings: &PolicySettings) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": self.name, "labels": labels() },
            "spec": {
                "policyName": self.name,
                "paramRef": {
                    "name": params_name(),
                    "namespace": settings.agent_namespace,
                    "parameterNotFoundAction": "Deny",
                },
                "validationActions": ["Deny"],
            },
        })
    }
}

#[cfg(test)]
mod tests;
