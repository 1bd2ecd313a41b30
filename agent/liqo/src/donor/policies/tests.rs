#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use super::*;
use crate::donor::grants::Grant;

const GOLDEN: &str = include_str!("golden.json");

fn settings() -> PolicySettings {
    PolicySettings::new("system:serviceaccount:comity-system:comity-agent", "comity-system", "donor")
}

fn grants() -> Grants {
    let grant = Grant {
        origin_liqo_id: "origin".into(),
        resources: [("cpu", "8"), ("memory", "32Gi"), ("nvidia.com/gpu", "3")]
            .map(|(name, amount)| (name.to_owned(), amount.to_owned()))
            .into(),
        node_selector: [("nvidia.com/gpu.product".to_owned(), "SIM-H100".to_owned())].into(),
        node_labels: BTreeMap::new(),
    };
    Grants([("lease-7".to_owned(), grant)].into())
}

#[test]
fn the_objects_are_as_reviewed() {
    let text = serde_json::to_string_pretty(&policy_objects(&settings(), &grants())).unwrap() + "\n";
    if std::env::var_os("COMITY_UPDATE_GOLDEN").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/donor/policies/golden.json");
        std::fs::write(path, &text).unwrap();
        return;
    }
    assert!(
        text == GOLDEN,
        "the policies differ from golden.json: read the difference, then COMITY_UPDATE_GOLDEN=1 writes it"
    );
}

#[test]
fn leases_change_the_config_map_only() {
    let (none, some) = (policy_objects(&settings(), &Grants::default()), policy_objects(&settings(), &grants()));
    assert_eq!(none[1..], some[1..]);
    assert_eq!(none[0]["data"], json!({ "version": "3" }));
    let data = &some[0]["data"];
    assert_eq!(data["user.lease-7-181fdd46fc4a"], "origin");
    assert_eq!(data["selector.lease-7-181fdd46fc4a"], "nvidia.com/gpu.product=SIM-H100");
    assert_eq!(data["resources.lease-7-181fdd46fc4a"], "nvidia.com/gpu");
}

#[test]
fn a_lease_on_several_nodes_is_counted_on_each() {
    let mut grants = grants();
    let grant = grants.0.get_mut("lease-7").unwrap();
    grant.node_selector = [("lease.comity.dev/lease-12".to_owned(), "true".to_owned())].into();
    grant.resources.insert("mellanox.com/vf".to_owned(), "3".to_owned());
    // The slice is that of an earlier lease.
    assert_eq!(terms::terms(&grants)["counted.lease-12"], "nvidia.com/gpu");
    grants.0.get_mut("lease-7").unwrap().node_selector.clear();
    assert!(!terms::terms(&grants).keys().any(|key| key.starts_with("counted.")));
}

#[test]
fn the_terms_of_as_many_leases_as_may_be_fit_a_config_map() {
    let mut grants = grants();
    let grant = grants.0["lease-7"].clone();
    for at in 0..MAX {
        let grant = Grant { origin_liqo_id: format!("{:0>51}", at), ..grant.clone() };
        grants.0.insert(format!("lease-{}", u64::MAX - u64::try_from(at).unwrap()), grant);
    }
    let data = terms::terms(&grants);
    let bytes: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(bytes < 1_000_000, "{bytes}");
    assert!(data.keys().filter(|key| key.starts_with("user.")).count() <= MAX);
}

const MAX: usize = crate::donor::grants::MAX_GRANTS;

#[test]
fn settings_loosen_what_they_name_and_nothing_else() {
    let text = |settings: &PolicySettings| serde_json::to_string(&policy_objects(settings, &grants())).unwrap();
    let strict = text(&settings());
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
        ..settings()
    };
    let loose = text(&loose);
    assert!(
        !loose.contains("must end in -") && loose.contains("allowPrivilegeEscalation") && loose.contains("['lent']")
    );
    assert!(loose.contains("it\\\\U00000027s"));
}
