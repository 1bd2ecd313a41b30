use comity_runtime::spiffe::TrustDomain;
use comity_runtime::spiffe::{ClusterName, SpiffeId, UserName};

use super::*;

/// The example policy, with oscar, who is only a broker operator.
fn bundle() -> Bundle {
    let policy = concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/examples");
    let mut files = comity_policy::read_directory(std::path::Path::new(policy)).expect("readable");
    let oscar = "brokerOperators:\n    - spiffe://comity.example/user/oscar\n";
    for file in &mut files {
        file.text = file.text.replace("brokerOperators:\n", oscar);
    }
    assert!(files.iter().any(|file| file.text.contains("user/oscar")), "the example names broker operators");
    Bundle::compile(&comity_policy::BundleSource::of_files(files)).expect("valid")
}

fn user(name: &str) -> Caller {
    let domain = TrustDomain::new("comity.example").expect("a domain");
    Caller::User(SpiffeId::user(domain, UserName::new(name).expect("a name")), 0)
}

#[test]
fn a_cluster_decides_about_its_own_requests_only() {
    let bundle = bundle();
    let domain = TrustDomain::new("comity.example").expect("a domain");
    let tenant: TenantId = "poly-ml".parse().expect("a tenant");
    let campus: ClusterId = "polytech-campus".parse().expect("a cluster");
    let id = SpiffeId::cluster(domain, ClusterName::new("polytech-campus").expect("a name"));
    let cluster = Caller::Cluster(id, campus.clone(), 0);
    for (owner, may) in [(cluster.name(), true), (user("alice").name(), false)] {
        assert!(may_change(&cluster, Some(&bundle), &tenant, &campus, &owner).is_ok());
        assert_eq!(may_decide(&cluster, Some(&bundle), &tenant, &campus, &owner).is_ok(), may, "{owner}");
    }
    assert!(may_decide(&user("alice"), Some(&bundle), &tenant, &campus, &user("alice").name()).is_ok());
}

#[test]
fn a_denial_names_the_entry_that_would_permit_the_call() {
    let bundle = bundle();
    for (rpc, name, reason, entry) in [
        (
            Rpc::GetRaftStatus,
            "alice",
            "may not read the broker group's status",
            "one of the `operators` of the Institution",
        ),
        (Rpc::ApplyPolicy, "alice", "may not apply policy", "one of the `maintainers` of the Federation"),
        (Rpc::ApplyPolicy, "oscar", "may not apply policy", "one of the `maintainers` of the Federation"),
        (Rpc::InviteBroker, "ingrid", "may not invite brokers", "one of the `brokerOperators` of the Federation"),
        (Rpc::SubmitRequest, "hana", "may not submit requests", "role: submitter"),
        (Rpc::ListLeases, "mallory", "may not see leases", "role: viewer"),
    ] {
        let RpcError::Refused(refusal) =
            authorize(rpc, &user(name), Some(&bundle), &BTreeSet::new()).expect_err("denied")
        else {
            panic!("{rpc:?}")
        };
        assert!(refusal.reason.ends_with(reason), "{refusal}");
        assert!(refusal.remedy.contains(entry), "{refusal}");
        // Others do what only an office may, so nobody is told to take the office.
        let names_caller = refusal.remedy.contains(&format!("spiffe://comity.example/user/{name}"));
        assert_eq!(names_caller, entry.starts_with("role: "), "{refusal}");
    }
}

#[test]
fn a_misspelt_tenant_is_no_missing_role() {
    let bundle = bundle();
    let tenant = |name: &str| TenantId::parse(name, "tenant").expect("an id");
    let code = |caller: &str, name: &str| {
        may_view_tenant(&user(caller), Some(&bundle), &tenant(name)).expect_err("refused").code
    };
    assert_eq!(code("alice", "poly-lm"), Code::NotFound);
    assert_eq!(code("alice", "startup-robots"), Code::PermissionDenied);
    assert_eq!(code("mallory", "poly-lm"), Code::PermissionDenied);
}
