//! The policies and bindings as this version of the agent ships them, and what differs from them in a cluster. Pure.

use comity_agent_kubernetes::hami::HamiShare;
use comity_agent_kubernetes::object_content::{add_policy_defaults, content, first_difference};
use comity_agent_model::guest_labels::{ALWAYS_PULL_LABEL, GuestLabels, RUNTIME_CLASS_LABEL, VOID_DEVICES_LABEL};
use kube::api::{DynamicObject, ObjectMeta};
use serde_json::Value;

/// Kind of the policies.
pub(super) const POLICY: &str = "ValidatingAdmissionPolicy";
/// Kind of what puts them into force.
pub(super) const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// A variable of a policy whose value is the operator's.
struct OwnersVariable {
    name: &'static str,
    /// Whether an expression is a value, and nothing that could admit more.
    is_value: fn(&str) -> bool,
    form: &'static str,
}

const STORAGE_CLASSES: OwnersVariable = OwnersVariable {
    name: "storageClasses",
    is_value: is_list_of_names,
    form: "a list of names, as in ['fast', 'standard']",
};
const DEFAULT_TENANT: OwnersVariable =
    OwnersVariable { name: "defaultTenant", is_value: is_name, form: "a name, as in 'vision'" };

/// A file that operators apply; shared with the code, so that they cannot drift apart.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Manifest {
    path: &'static str,
    text: &'static str,
}

macro_rules! manifest {
    ($path:literal) => {
        Manifest { path: $path, text: include_str!(concat!("../../../../", $path)) }
    };
}

const ADMISSION: Manifest = manifest!("deploy/agent/admission.yaml");
const HAMI_FILE: Manifest = manifest!("deploy/agent/hami.yaml");
const LIQO_ORIGIN: Manifest = manifest!("deploy/agent/liqo-origin.yaml");

/// An admission policy that leases need, with a binding of the same name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct GuestPolicy {
    pub(super) name: &'static str,
    file: Manifest,
    effect: &'static str,
}

/// What guests may use in a lease's namespace.
const TENANT: GuestPolicy = GuestPolicy {
    name: "comity-tenant",
    file: ADMISSION,
    effect: "holds pods to the devices, nodes and priority of their lease",
};

/// The RuntimeClass of guests' pods.
const RUNTIME_CLASS: GuestPolicy = GuestPolicy {
    name: "comity-runtime-class",
    file: ADMISSION,
    effect: "holds pods to the RuntimeClass sharing.runtimeClass",
};

/// Images of guests are pulled with their own credentials.
const ALWAYS_PULL: GuestPolicy = GuestPolicy {
    name: "comity-always-pull",
    file: ADMISSION,
    effect: "keeps pods from images that nodes hold for the donor's own (sharing.alwaysPullImages)",
};

/// Containers that request no GPU get none.
const VOID_DEVICES: GuestPolicy = GuestPolicy {
    name: "comity-void-devices",
    file: ADMISSION,
    effect: "keeps GPUs from containers that request none (sharing.voidDevices)",
};

/// Parts of a GPU that HAMi shares.
pub(crate) const HAMI: GuestPolicy =
    GuestPolicy { name: "comity-hami", file: HAMI_FILE, effect: "holds pods to their part of a GPU" };

/// Pods on virtual nodes of an origin.
const VIRTUAL_NODES: GuestPolicy = GuestPolicy {
    name: "comity-virtual-nodes",
    file: LIQO_ORIGIN,
    effect: "keeps pods of other namespaces off virtual nodes",
};

/// What the policy of virtual nodes reads.
const VIRTUAL_NODES_MAP: GuestPolicy = GuestPolicy {
    name: "comity-virtual-nodes-map",
    file: LIQO_ORIGIN,
    effect: "keeps others from the ConfigMap that says who may use virtual nodes",
};

/// Namespaces of an origin that run on virtual nodes.
const OFFLOADING: GuestPolicy = GuestPolicy {
    name: "comity-offloading",
    file: LIQO_ORIGIN,
    effect: "keeps namespaces here that did not opt in, or are another tenant's",
};

impl GuestPolicy {
    /// The policies that a cluster needs to borrow virtual nodes.
    pub(super) const OF_ORIGINS: [Self; 3] = [VIRTUAL_NODES, VIRTUAL_NODES_MAP, OFFLOADING];
    #[cfg(test)]
    pub(super) const ALL: [Self; 8] =
        [TENANT, RUNTIME_CLASS, ALWAYS_PULL, VOID_DEVICES, HAMI, VIRTUAL_NODES, VIRTUAL_NODES_MAP, OFFLOADING];

    /// The policies that namespaces of leases with these labels need.
    pub(super) fn required(guests: &GuestLabels) -> impl Iterator<Item = Self> {
        std::iter::once(TENANT).chain(Self::of_labels(guests))
    }

    /// The policies that read these labels, by either delivery.
    pub(crate) fn of_labels(guests: &GuestLabels) -> impl Iterator<Item = Self> {
        let class = guests.runtime_class.is_some().then_some(RUNTIME_CLASS);
        let pull = guests.always_pull.then_some(ALWAYS_PULL);
        class.into_iter().chain(guests.void_devices.then_some(VOID_DEVICES)).chain(pull)
    }

    /// The policies that the namespace of a lease needs besides [`TENANT`]: what it states, the policies enforce.
    pub(super) fn of_namespace(metadata: &ObjectMeta) -> impl Iterator<Item = Self> {
        let has = |label: &str| metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label));
        let is_in_parts = metadata.annotations.as_ref().is_some_and(HamiShare::is_stated);
        let stated = [
            (RUNTIME_CLASS, has(RUNTIME_CLASS_LABEL)),
            (VOID_DEVICES, has(VOID_DEVICES_LABEL)),
            (ALWAYS_PULL, has(ALWAYS_PULL_LABEL)),
            (HAMI, is_in_parts),
        ];
        stated.into_iter().filter_map(|(policy, is_needed)| is_needed.then_some(policy))
    }

    /// Says that the policy is not in force, why, and what to do.
    pub(super) fn complaint(self, problem: &str) -> String {
        format!("the admission policy {} {}: {problem}; apply {}", self.name, self.effect, self.file.path)
    }

    /// Why the objects in the cluster do not protect as the shipped ones do, if so.
    pub(super) fn problem(self, policy: Option<&DynamicObject>, binding: Option<&DynamicObject>) -> Option<String> {
        let Some(policy) = policy else { return Some("it is absent".to_owned()) };
        let mut found = content(policy);
        let wanted = self.shipped(POLICY);
        if let Some(variable) = self.owners_variable()
            && let Err(problem) = variable.reset(&mut found, &wanted)
        {
            return Some(problem);
        }
        if let Some(field) = first_difference(&found, &wanted) {
            return Some(format!("its spec.{field} is not as in this agent's version of it"));
        }
        let Some(binding) = binding else { return Some("its binding is absent".to_owned()) };
        let field = first_difference(&content(binding), &self.shipped(BINDING))?;
        Some(format!("the spec.{field} of its binding is not as in this agent's version of it"))
    }

    fn owners_variable(self) -> Option<OwnersVariable> {
        match self {
            TENANT => Some(STORAGE_CLASSES),
            OFFLOADING => Some(DEFAULT_TENANT),
            _ => None,
        }
    }

    /// The spec of the shipped object of a kind, as the API server completes it.
    pub(super) fn shipped(self, kind: &str) -> Value {
        let manifest = self.file.text;
        let mut object = object_in(manifest, kind, self.name);
        let mut spec = object.get_mut("spec").map(Value::take).unwrap_or_default();
        if kind == POLICY {
            add_policy_defaults(&mut spec);
        }
        spec
    }
}

/// The object of a manifest.
fn object_in(manifest: &str, kind: &str, name: &str) -> Value {
    let (kind, name) = (format!("kind: {kind}\n"), format!("  name: {name}\n"));
    let is_it = |document: &&str| document.contains(&kind) && document.contains(&name);
    let document = manifest.split("\n---\n").find(is_it).unwrap_or_default();
    serde_saphyr::from_str(document).expect("a test reads this constant text")
}

impl OwnersVariable {
    /// Writes the shipped value over the operator's.
    ///
    /// # Errors
    /// If that is no literal value: an expression could admit anything.
    fn reset(&self, found: &mut Value, shipped: &Value) -> Result<(), String> {
        let expression_in = |spec: &Value| {
            let variables = spec.get("variables")?.as_array()?;
            let index = variables.iter().position(|variable| variable["name"] == self.name)?;
            Some((index, variables[index].get("expression")?.as_str()?.to_owned()))
        };
        let (Some((index, value)), Some((_, wanted))) = (expression_in(found), expression_in(shipped)) else {
            return Ok(());
        };
        if !(self.is_value)(&value) {
            return Err(format!("its variable {} is {value:?}, which is not {}", self.name, self.form));
        }
        found["variables"][index]["expression"] = wanted.into();
        Ok(())
    }
}

/// Whether a CEL expression is a literal name of an object, or empty.
fn is_name(expression: &str) -> bool {
    let quoted = |quote: char| expression.trim().strip_prefix(quote)?.strip_suffix(quote);
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    ['\'', '"'].into_iter().find_map(quoted).is_some_and(|name| name.bytes().all(is_allowed))
}

/// Whether a CEL expression is a list of such names; an empty one names no object.
fn is_list_of_names(expression: &str) -> bool {
    let inner = expression.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_item = |item: &str| is_name(item) && item.trim().len() > 2;
    inner.is_some_and(|inner| inner.trim().is_empty() || inner.split(',').all(is_item))
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A shipped object as the API server has it.
    pub(in crate::guest_policies) fn in_cluster(policy: GuestPolicy, kind: &str) -> DynamicObject {
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": policy.name }, "spec": policy.shipped(kind),
        });
        serde_json::from_value(object).expect("an object")
    }

    /// The problem after one field of the policy or its binding was set to a value; `null` removes it.
    fn problem_with(policy: GuestPolicy, kind: &str, pointer: &str, value: Value) -> String {
        let [mut object, mut binding] = [POLICY, BINDING].map(|kind| in_cluster(policy, kind));
        let changed = if kind == POLICY { &mut object } else { &mut binding };
        let (parent, field) = pointer.rsplit_once('/').expect("a pointer");
        match changed.data.pointer_mut(parent).expect(parent) {
            Value::Object(fields) => drop(fields.insert(field.to_owned(), value)),
            Value::Array(items) => drop(items.remove(field.parse().expect("an index"))),
            other => panic!("{parent}: {other}"),
        }
        policy.problem(Some(&object), Some(&binding)).unwrap_or_default()
    }

    #[test]
    fn shipped_policies_protect_and_absent_ones_do_not() {
        for policy in GuestPolicy::ALL {
            let [object, binding] = [POLICY, BINDING].map(|kind| in_cluster(policy, kind));
            assert_eq!(policy.problem(Some(&object), Some(&binding)), None, "{}", policy.name);
            assert!(object.data["spec"]["validations"].as_array().is_some_and(|rules| !rules.is_empty()));
            assert_eq!(binding.data["spec"]["policyName"], policy.name);
            assert_eq!(policy.problem(None, Some(&binding)).as_deref(), Some("it is absent"));
            assert_eq!(policy.problem(Some(&object), None).as_deref(), Some("its binding is absent"));
        }
    }

    #[test]
    fn a_policy_that_does_not_protect_is_told_by_its_reason() {
        let conditions = json!([{ "name": "never", "expression": "false" }]);
        for policy in GuestPolicy::ALL {
            for (kind, pointer, value, told) in [
                (POLICY, "/spec/failurePolicy", json!("Ignore"), "its spec.failurePolicy "),
                (POLICY, "/spec/validations/0", Value::Null, "its spec.validations"),
                (POLICY, "/spec/validations/0/expression", json!("true"), "its spec.validations[0].expression "),
                (POLICY, "/spec/matchConditions", conditions.clone(), "its spec.matchConditions"),
                (
                    POLICY,
                    "/spec/matchConstraints/objectSelector",
                    json!({ "matchLabels": { "a": "b" } }),
                    "its spec.match",
                ),
                (BINDING, "/spec/validationActions", json!(["Warn", "Audit"]), "the spec.validationActions[0] of its "),
                (BINDING, "/spec/policyName", json!("another"), "the spec.policyName of its binding "),
                (BINDING, "/spec/matchResources", json!({ "matchPolicy": "Exact" }), "the spec.matchResources"),
            ] {
                let problem = problem_with(policy, kind, pointer, value);
                assert!(problem.starts_with(told), "{}: {pointer}: {problem}", policy.name);
            }
        }
    }

    #[test]
    fn operators_write_names_and_no_expressions() {
        let with = |policy: GuestPolicy, variable: &OwnersVariable, expression: &str| {
            let spec = policy.shipped(POLICY);
            let variables = spec["variables"].as_array().expect("variables");
            let index = variables.iter().position(|it| it["name"] == variable.name).expect("it is there");
            problem_with(policy, POLICY, &format!("/spec/variables/{index}/expression"), json!(expression))
        };
        for allowed in ["[]", "[ ]", "['fast']", "['fast', \"standard.example\"]"] {
            assert_eq!(with(TENANT, &STORAGE_CLASSES, allowed), "", "{allowed}");
        }
        for refused in ["['']", "[variables.any]", "['fast'] + [object.x]", "['a', ]", "true", "['a' + 'b']", ""] {
            assert!(with(TENANT, &STORAGE_CLASSES, refused).contains("is not a list of names"), "{refused}");
        }
        for allowed in ["''", "'vision'", "\"vision\""] {
            assert_eq!(with(OFFLOADING, &DEFAULT_TENANT, allowed), "", "{allowed}");
        }
        for refused in ["object.metadata.labels['comity.dev/tenant']", "'a' + 'b'", "['a']", "'", "vision"] {
            assert!(with(OFFLOADING, &DEFAULT_TENANT, refused).contains("is not a name"), "{refused}");
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
