#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use super::*;
use crate::donor::grants::Grant;

const SHIPPED: &str = include_str!("../../../../../deploy/agent/liqo-policies.yaml");

fn grants() -> Grants {
    let grant = Grant {
        origin_liqo_id: "origin".into(),
        namespace: "team-a".into(),
        resources: [("cpu", "8"), ("memory", "32Gi"), ("nvidia.com/gpu", "3")]
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
            .into(),
        node_selector: [("nvidia.com/gpu.product".to_owned(), "SIM-H100".to_owned())].into(),
        node_labels: BTreeMap::new(),
    };
    Grants([("lease-7".to_owned(), grant)].into())
}

fn terms_of(grants: &Grants) -> BTreeMap<String, String> {
    terms::terms("donor", grants)
}

#[test]
fn the_manifest_is_what_the_agent_looks_for() {
    let text = policy_manifest(&PolicySettings::default()).unwrap();
    if std::env::var_os("COMITY_WRITE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/agent/liqo-policies.yaml");
        std::fs::write(path, &text).unwrap();
        return;
    }
    let wanted = policy_objects(&PolicySettings::default());
    assert_eq!(serde_saphyr::from_multiple::<Value>(&text).unwrap(), wanted);
    let shipped = serde_saphyr::from_multiple::<Value>(SHIPPED).unwrap();
    for (shipped, wanted) in shipped.iter().zip(&wanted) {
        assert_eq!(shipped, wanted, "{POLICIES_MANIFEST} differs: read that, then COMITY_WRITE_GOLDEN=1 writes it");
    }
    assert_eq!(shipped.len(), wanted.len());
}

#[test]
fn each_policy_has_a_binding_that_denies() {
    let objects = policy_objects(&PolicySettings::default());
    let names: Vec<&str> = objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, POLICY_NAMES.iter().flat_map(|name| [*name; 2]).collect::<Vec<_>>());
    for pair in objects.chunks(2) {
        assert_eq!(pair[0]["spec"]["failurePolicy"], "Fail");
        assert_eq!(pair[1]["spec"]["validationActions"], json!(["Deny"]));
        // Otherwise nobody could make the ConfigMap.
        let is_of_grants = pair[0]["metadata"]["name"] == "comity-liqo-grants";
        assert_eq!(pair[0]["spec"].get("paramKind").is_none(), is_of_grants);
        assert_eq!(pair[1]["spec"].get("paramRef").is_none(), is_of_grants);
    }
}

#[test]
fn default_priority_class_of_the_donor_pushes_its_own_pods_away() {
    let judged = |settings: &PolicySettings| {
        let policy = pods::pod(settings).object();
        let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap().to_owned();
        let last = policy["spec"]["validations"].as_array().unwrap().last().unwrap()["expression"].clone();
        (condition, last.as_str().unwrap().to_owned())
    };
    let (condition, holds) = judged(&PolicySettings::default());
    assert!(condition.ends_with(" || object.spec.?priority.orValue(0) > 0"), "{condition}");
    assert!(holds.contains(" || object.spec.?priority.orValue(0) <= 0 || ") && holds.ends_with(" in []"), "{holds}");
    let offers = PolicySettings { priority_classes: vec!["lent".into()], ..PolicySettings::default() };
    assert!(judged(&offers).1.ends_with(" in ['lent']"));
}

/// The ConfigMap `comity-liqo-grants` decides what consumers may do.
#[test]
fn only_the_agent_writes_the_grants() {
    let settings = PolicySettings { agent_namespace: "ours".into(), ..PolicySettings::default() };
    let policy = consumer_objects::grants(&settings).object();
    let condition = policy["spec"]["matchConditions"][0]["expression"].as_str().unwrap();
    assert!(condition.starts_with("!(request.userInfo.username == 'system:serviceaccount:ours:comity-agent' ||"));
    assert_eq!(policy["spec"]["validations"][0]["expression"], "false");
    let constraints = &policy["spec"]["matchConstraints"];
    assert_eq!(constraints["namespaceSelector"], json!({ "matchLabels": { "kubernetes.io/metadata.name": "ours" } }));
    let rule = &constraints["resourceRules"][0];
    assert_eq!((&rule["resources"], &rule["resourceNames"]), (&json!(["configmaps"]), &json!(["comity-liqo-grants"])));
    let grants = grants_object(&settings, "donor", &grants());
    assert_eq!(grants["metadata"]["namespace"], "ours");
}

#[test]
fn the_terms_say_what_is_lent_to_whom() {
    let none = BTreeMap::from([("version", "5"), ("liqo-id", "donor")].map(|(key, value)| (key.into(), value.into())));
    assert_eq!(terms_of(&Grants::default()), none);
    let data = terms_of(&grants());
    assert_eq!(data["user.lease-7-181fdd46fc4a"], "origin");
    assert_eq!(data["selector.lease-7-181fdd46fc4a"], "nvidia.com/gpu.product=SIM-H100");
    assert_eq!(data["resources.lease-7-181fdd46fc4a"], "nvidia.com/gpu");
    assert_eq!(data["namespace.lease-7-181fdd46fc4a"], "team-a");
}

#[test]
fn a_lease_on_several_nodes_is_counted_on_each() {
    let mut grants = grants();
    let grant = grants.0.get_mut("lease-7").unwrap();
    grant.node_selector = [("lease.comity.dev/lease-12".to_owned(), "true".to_owned())].into();
    grant.resources.insert("mellanox.com/vf".to_owned(), "3".to_owned());
    // The slice is that of an earlier lease.
    assert_eq!(terms_of(&grants)["counted.lease-12"], "nvidia.com/gpu");
    grants.0.get_mut("lease-7").unwrap().node_selector.clear();
    assert!(!terms_of(&grants).keys().any(|key| key.starts_with("counted.")));
}

#[test]
fn the_terms_of_as_many_leases_as_may_be_fit_a_config_map() {
    let mut grants = grants();
    let grant = grants.0["lease-7"].clone();
    for at in 0..MAX {
        let (origin_liqo_id, namespace) = (format!("{:0>51}", at), "n".repeat(63));
        let grant = Grant { origin_liqo_id, namespace, ..grant.clone() };
        grants.0.insert(format!("lease-{}", u64::MAX - u64::try_from(at).unwrap()), grant);
    }
    let data = terms_of(&grants);
    let bytes: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(bytes < 1_000_000, "{bytes}");
    assert!(data.keys().filter(|key| key.starts_with("user.")).count() <= MAX);
}

const MAX: usize = crate::donor::grants::MAX_GRANTS;

#[test]
fn settings_loosen_what_they_name_and_nothing_else() {
    let text = |settings: &PolicySettings| serde_json::to_string(&policy_objects(settings)).unwrap();
    let strict = text(&PolicySettings::default());
    assert!(
        strict.contains("must end in -")
            && !strict.contains("RESERVED")
            && !strict.contains("allowPrivilegeEscalation")
    );
    let loose = PolicySettings {
        same_names: true,
        exposed_services: true,
        refuse_privilege_escalation: true,
        priority_classes: vec!["lent".into()],
        trusted_users: vec!["it's".into()],
        ..PolicySettings::default()
    };
    let loose = text(&loose);
    assert!(
        !loose.contains("must end in -") && loose.contains("allowPrivilegeEscalation") && loose.contains("['lent']")
    );
    assert!(loose.contains("it\\\\U00000027s"));
}
