//! Warnings name line, field, value and remedy, and a bundle without mistakes has none.

use std::path::Path;

use comity_policy::{Problem, ProblemCode, SourceFile, load, read_directory, render_problems};

/// Two institutions: cluster `north` lends to tenant `team` at cluster `west`.
const GOOD: &str = r#"
apiVersion: policy.comity.dev/v1
kind: Federation
metadata: {name: test}
spec:
  trustDomain: test.example
  maintainers: ["spiffe://test.example/user/admin"]
  defaults: {leaseTerm: 4h, reclaimGrace: 5m}
  limits: {maxLeaseDuration: 7d}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: western}
spec: {displayName: Western, contact: "ops@west.example", clusters: [west]}
---
apiVersion: policy.comity.dev/v1
kind: Institution
metadata: {name: lenders}
spec: {displayName: Lenders, contact: "ops@lend.example", clusters: [north]}
---
apiVersion: policy.comity.dev/v1
kind: Cluster
metadata: {name: north}
spec:
  institution: lenders
  reclaimGrace: 10m
  maxLeaseDuration: 2d
  lends: [{classes: [big]}]
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: big}
spec: {selector: 'device.memoryMiB >= 80000', rank: 10}
---
apiVersion: policy.comity.dev/v1
kind: GpuClass
metadata: {name: small}
spec: {selector: 'device.memoryMiB < 80000', rank: 1}
---
apiVersion: policy.comity.dev/v1
kind: Tenant
metadata: {name: team}
spec:
  institution: western
  members: [{id: "spiffe://test.example/user/alice", role: submitter}]
  classes: [big, small]
  clusters: [west]
---
apiVersion: policy.comity.dev/v1
kind: Agreement
metadata: {name: loan}
spec: {borrowers: [western], lenders: [lenders], classes: [big], from: 2026-01-01, until: 2026-12-31}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: normal}
spec: {value: 10, default: true}
---
apiVersion: policy.comity.dev/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 20}
---
apiVersion: policy.comity.dev/v1
kind: Quota
metadata: {name: team-quota}
spec: {tenant: team, maxConcurrentGpus: 8, maxGpusPerRequest: 8}
"#;

fn warnings_of(text: &str) -> Vec<Problem> {
    let files = vec![SourceFile { path: "all.yaml".into(), text: text.into() }];
    load(files).unwrap_or_else(|problems| panic!("{}", render_problems(&problems))).warnings()
}

/// The only warning of `GOOD` after replacing `from` by `to`.
fn warning(from: &str, to: &str) -> Problem {
    assert_eq!(GOOD.matches(from).count(), 1, "{from}");
    let mut found = warnings_of(&GOOD.replace(from, to));
    assert_eq!(found.len(), 1, "{from} -> {to}: {}", render_problems(&found));
    let found = found.remove(0);
    assert!(found.code.is_warning() && found.line > 0 && !found.remedy.is_empty(), "{found:?}");
    assert!(found.to_string().starts_with(&format!("warning[{}]: ", found.code)), "{found}");
    found
}

#[test]
fn a_good_bundle_has_no_warnings() {
    assert_eq!(warnings_of(GOOD), []);
    let examples = read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    let bundle = load(examples).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)));
    assert_eq!(bundle.warnings(), [], "{}", render_problems(&bundle.warnings()));
}

#[test]
fn warns_of_useless_reclaim_notices() {
    let none = warning("reclaimGrace: 10m", "reclaimGrace: 0s");
    assert_eq!(none.code, ProblemCode::NoNotice);
    assert!(none.message.contains("`reclaimGrace: 0s` of Cluster `north`"), "{none}");
    assert!(none.remedy.contains("5m"), "{none}");
    assert!(none.snippet.contains("reclaimGrace: 0s"), "{none}");
    let long = warning("reclaimGrace: 10m", "reclaimGrace: 3d");
    assert_eq!(long.code, ProblemCode::NoticeTooLong);
    assert!(long.message.contains("`reclaimGrace: 3d`") && long.message.contains("(2d)"), "{long}");
    // A notice as long as the longest lease is still useful.
    assert_eq!(warnings_of(&GOOD.replace("reclaimGrace: 10m", "reclaimGrace: 2d")), []);
    let default = warning("reclaimGrace: 5m", "reclaimGrace: 8d");
    assert_eq!(default.code, ProblemCode::NoticeTooLong);
    assert!(default.message.contains("`defaults.reclaimGrace: 8d`"), "{default}");
}

#[test]
fn warns_of_ineffective_ranks_limits_and_dates() {
    let equal = warning("{value: 20}", "{value: 10}");
    assert_eq!(equal.code, ProblemCode::EqualPriorities);
    assert!(equal.message.contains("`value: 10` of PriorityClass `urgent` is that of `normal`"), "{equal}");
    let quota = warning("maxGpusPerRequest: 8", "maxGpusPerRequest: 9");
    assert_eq!(quota.code, ProblemCode::LimitOfNoUse);
    assert!(quota.message.contains("`maxGpusPerRequest: 9` of Quota `team-quota`"), "{quota}");
    let short = warning("from: 2026-01-01, until: 2026-12-31", "from: 2026-12-31T21:00:00Z, until: 2026-12-31");
    assert_eq!(short.code, ProblemCode::AgreementTooShort);
    assert!(short.message.contains("Agreement `loan`") && short.message.contains("4h"), "{short}");
}

#[test]
fn warns_of_a_shadowed_class_where_it_is_lent() {
    let twin = "apiVersion: policy.comity.dev/v1\nkind: GpuClass\nmetadata: {name: huge}\n\
                spec: {selector: 'device.memoryMiB >= 80000', rank: 9}\n---\n";
    let with_twin =
        |lends: &str| warnings_of(&format!("{twin}{}", GOOD.trim_start()).replace("[{classes: [big]}]", lends));
    // Nobody lends the shadowed class: no warning.
    assert_eq!(with_twin("[{classes: [big]}]"), []);
    let found = with_twin("[{classes: [big]}, {classes: [huge]}]");
    assert_eq!(found.iter().map(|found| found.code).collect::<Vec<_>>(), [ProblemCode::ClassWithoutDevices]);
    assert!(found[0].message.contains("`lends[1].classes` of Cluster `north` names `huge`"), "{}", found[0]);
    assert!(found[0].remedy.contains("name `big`"), "{}", found[0]);
}

#[test]
fn warns_of_a_tenant_that_can_borrow_nothing() {
    for (from, to, field) in [
        ("classes: [big, small]", "classes: []", "`classes: []` of Tenant `team`"),
        ("clusters: [west]\n---", "clusters: []\n---", "`clusters: []` of Tenant `team`"),
        ("classes: [big, small]", "classes: [small]", "no other cluster lends any of them"),
        ("clusters: [west]\n---", "clusters: [north]\n---", "no other cluster lends any of them"),
        (
            "[{classes: [big]}]",
            "[{classes: [big], to: {institutions: [lenders]}}]",
            "no other cluster lends any of them",
        ),
        ("[{classes: [big]}]", "[{classes: [big], maxGpus: 0}]", "no other cluster lends any of them"),
        ("lenders: [lenders], classes: [big]", "lenders: [lenders], classes: [small]", "no Agreement lets it borrow"),
    ] {
        let found = warning(from, to);
        assert_eq!(found.code, ProblemCode::BorrowsNothing, "{to}: {found}");
        assert!(found.message.contains(field), "{to}: {found}");
    }
    let none = GOOD.replace("maxConcurrentGpus: 8, maxGpusPerRequest: 8", "maxConcurrentGpus: 0");
    let found = warnings_of(&none);
    assert!(found.len() == 1 && found[0].message.contains("with a quota of 0"), "{found:?}");
    // Within one institution no agreement is needed; what is closed for now may open again.
    let own = GOOD.replace("institution: western\n", "institution: lenders\n");
    let own = own.replace("borrowers: [western]", "borrowers: [lenders]");
    assert_eq!(warnings_of(&own), []);
    assert_eq!(warnings_of(&GOOD.replace("reclaimGrace: 10m", "accepting: false")), []);
}
