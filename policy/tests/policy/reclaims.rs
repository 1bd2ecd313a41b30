//! Limits on reclaims: where documents set them, and which leases each counts.

use std::path::Path;

use comity_policy::{
    ProblemCode, ReclaimLimit, ReclaimRule, ReclaimScope, ReclaimedLease, SourceFile, load, read_directory,
    render_problems,
};

const HOUR: u64 = 3_600_000;
const LEASE: ReclaimedLease<'static> = ReclaimedLease { donor: "ncc-main", tenant: "poly-ml", class: "frontier" };

fn quota(name: &str, spec: &str) -> SourceFile {
    let text = format!("apiVersion: policy.comity.dev/v1\nkind: Quota\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n");
    SourceFile { path: format!("{name}.yaml"), text }
}

/// The example, with a line added after another, and with further files.
fn examples(added: &[(&str, &str)], more: Vec<SourceFile>) -> Vec<SourceFile> {
    let mut files = read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    for (line, added) in added {
        let file = files.iter_mut().find(|file| file.text.contains(line)).unwrap();
        file.text = file.text.replacen(line, &format!("{line}{added}"), 1);
    }
    files.extend(more);
    files
}

fn rule(scope: ReclaimScope<'static>, leases: u32, hours: u64) -> ReclaimRule<'static> {
    ReclaimRule { scope, limit: ReclaimLimit { leases, per_ms: hours * HOUR } }
}

#[test]
fn donor_tenant_and_quotas_limit_reclaims() {
    let files = examples(
        &[
            ("  defaults:\n", "    maxReclaims: {leases: 20, per: 24h}\n"),
            ("  limits:\n", "    maxReclaimsPerTenant: {leases: 4, per: 1d}\n"),
        ],
        vec![
            quota("ours", "tenant: poly-ml, maxReclaims: {leases: 2, per: 1h}"),
            quota("all-of-poly", "institution: polytechnic, classes: [frontier], maxReclaims: {leases: 3, per: 2h}"),
            quota("midrange", "tenant: poly-ml, classes: [midrange], maxReclaims: {leases: 0, per: 7d}"),
        ],
    );
    let bundle = load(files).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    let mut rules = bundle.reclaim_rules(&LEASE);
    rules.sort_by_key(|rule| rule.scope);
    assert_eq!(
        rules,
        [
            rule(ReclaimScope::Donor("ncc-main"), 20, 24),
            rule(ReclaimScope::Tenant("poly-ml"), 4, 24),
            rule(ReclaimScope::Quota("all-of-poly"), 3, 2),
            rule(ReclaimScope::Quota("ours"), 2, 1),
        ]
    );
    let courses = ReclaimedLease { tenant: "poly-courses", ..LEASE };
    assert!(bundle.counts_reclaim(ReclaimScope::Quota("all-of-poly"), &courses));
    assert!(!bundle.counts_reclaim(ReclaimScope::Quota("ours"), &courses));
    assert!(!bundle.counts_reclaim(ReclaimScope::Quota("midrange"), &LEASE));
    assert!(bundle.counts_reclaim(ReclaimScope::Donor("ncc-main"), &courses));
    assert!(!bundle.counts_reclaim(ReclaimScope::Tenant("poly-ml"), &courses));
}

#[test]
fn a_donors_own_limit_replaces_the_default() {
    let files = examples(
        &[
            ("  defaults:\n", "    maxReclaims: {leases: 20, per: 24h}\n"),
            ("  reclaimGrace: 30m\n", "  maxReclaims: {leases: 1, per: 1m}\n"),
        ],
        Vec::new(),
    );
    let bundle = load(files).unwrap();
    let limit = ReclaimLimit { leases: 1, per_ms: 60_000 };
    assert_eq!(bundle.reclaim_rules(&LEASE), [ReclaimRule { scope: ReclaimScope::Donor("ncc-main"), limit }]);
    let other = ReclaimedLease { donor: "physics-farm", ..LEASE };
    assert_eq!(bundle.reclaim_rules(&other), [rule(ReclaimScope::Donor("physics-farm"), 20, 24)]);
    assert_eq!(load(examples(&[], Vec::new())).unwrap().reclaim_rules(&LEASE), []);
}

#[test]
fn a_bad_limit_is_refused_with_its_field() {
    for (limit, code, said) in [
        ("{leases: 4}", ProblemCode::MissingField, "`maxReclaims.per`"),
        ("{per: 1h}", ProblemCode::MissingField, "`maxReclaims.leases`"),
        ("{leases: 1001, per: 1h}", ProblemCode::InvalidQuantity, "from 0 to 1000"),
        ("{leases: 4, per: 8d}", ProblemCode::InvalidDuration, "from 1m to 7d"),
        ("{leases: 4, per: 10s}", ProblemCode::InvalidDuration, "from 1m to 7d"),
        ("{leases: 4, every: 1h, per: 1h}", ProblemCode::UnknownField, "`every`"),
        ("4", ProblemCode::WrongType, "a mapping"),
    ] {
        let spec = format!("tenant: poly-ml, maxReclaims: {limit}");
        let problems = load(examples(&[], vec![quota("ours", &spec)])).unwrap_err();
        let told = render_problems(&problems);
        assert!(problems[0].code == code && problems[0].message.contains(said), "{limit}: {told}");
    }
}
