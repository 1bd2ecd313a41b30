//! Edits by commands keep what people wrote, and give a bundle that says what was asked for.

use std::path::Path;

use comity_policy::{
    BorrowFacts, Bundle, BundleSource, Decision, DeviceFacts, EditError, Enrolment, InUse, SourceFile, TenantRole,
    add_member, enrol_cluster, minimal_bundle, read_directory,
};
use comity_types::Delivery;

const INGRID: &str = "spiffe://dev.test/user/ingrid";

fn enrol(source: &BundleSource, cluster: &str, institution: &str) -> Result<BundleSource, EditError> {
    enrol_cluster(source, &Enrolment { cluster, institution, user: INGRID })
}

fn minimal() -> BundleSource {
    minimal_bundle("dev.test", "home", INGRID)
}

fn compiled(source: &BundleSource) -> Bundle {
    Bundle::compile(source).unwrap()
}

fn examples() -> BundleSource {
    let files = read_directory(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap();
    BundleSource { files, commit: Some("abc".to_owned()), ..BundleSource::default() }
}

fn text<'s>(source: &'s BundleSource, path: &str) -> &'s str {
    &source.files.iter().find(|file| file.path == path).unwrap().text
}

#[test]
fn the_minimal_bundle_makes_its_maintainer_a_submitter() {
    let bundle = compiled(&minimal());
    let roles = bundle.roles_of(INGRID);
    assert!(roles.broker_operator, "an explicit line");
    assert!(roles.federation_admin && roles.institutions_operated.contains("home") && roles.may_submit("home"));
    assert_eq!(bundle.class_of(&DeviceFacts::default()), Some("any"));
    assert_eq!(bundle.enrollable_clusters().count(), 0);
}

#[test]
fn an_enrolled_cluster_borrows_from_others_of_its_institution_and_of_other_ones() {
    let source = enrol(&minimal(), "a", "home").unwrap();
    let source = enrol(&source, "b", "home").unwrap();
    let source = enrol(&source, "c", "away").unwrap();
    let bundle = compiled(&source);
    assert_eq!(bundle.institution_of_cluster("c"), Some("away"));
    assert!(bundle.roles_of(INGRID).may_submit("away"));
    for (tenant, origin_cluster, donor_cluster) in
        [("home", "a", "b"), ("home", "b", "a"), ("home", "a", "c"), ("away", "c", "b")]
    {
        let facts = BorrowFacts {
            tenant,
            user: "",
            origin_cluster,
            donor_cluster,
            class: "any",
            gpus_milli: 1_000,
            beside_milli: 0,
            delivery: Delivery::Namespace,
            duration_ms: 3_600_000,
            notice_ms: None,
            now_ms: 1_800_000_000_000,
            data: &[],
            purpose: "",
            in_use: InUse::default(),
        };
        let decision = bundle.may_borrow(&facts);
        assert!(matches!(decision, Decision::Allow(_)), "{tenant} {origin_cluster} {donor_cluster}: {decision:?}");
    }
    assert!(bundle.warnings().is_empty(), "{:?}", bundle.warnings());
}

#[test]
fn enrolling_twice_changes_nothing() {
    let once = enrol(&minimal(), "a", "home").unwrap();
    assert_eq!(enrol(&once, "a", "home").unwrap(), once);
    let moved = enrol(&once, "a", "away").unwrap_err();
    assert!(moved.to_string().contains("belongs to institution `home`"), "{moved}");
}

#[test]
fn a_hand_written_bundle_keeps_its_text_and_its_agreements() {
    let before = examples();
    let after = enrol_cluster(
        &before,
        &Enrolment { cluster: "poly-2", institution: "polytechnic", user: "spiffe://comity.example/user/ingrid" },
    )
    .unwrap();
    assert_eq!(after.commit, None);
    let institution = text(&after, "institutions/polytechnic.yaml");
    assert!(institution.contains("clusters: [polytech-campus, poly-2]") && institution.contains("# The public half"));
    assert!(text(&after, "clusters/poly-2.yaml").contains("classes: [frontier, midrange, teaching]"));
    for file in before.files.iter().filter(|file| file.path != "institutions/polytechnic.yaml") {
        assert_eq!(text(&after, &file.path), file.text);
    }
}

#[test]
fn lists_of_every_usual_form_are_extended() {
    for (list, edited) in [
        ("  clusters: []\n", "  clusters: [new]\n"),
        ("  clusters: [a, b] # two\n", "  clusters: [a, b, new] # two\n"),
        ("  clusters: [\n    a,\n    b,\n  ]\n", "  clusters: [\n    a,\n    b, new\n  ]\n"),
        ("  clusters: # ours\n    - a # first\n    - b\n", "  clusters: # ours\n    - new\n    - a # first\n    - b\n"),
        ("  clusters:\n  - a\n", "  clusters:\n  - new\n  - a\n"),
        ("  clusters:\n", "  clusters: [new]\n"),
        ("", "  clusters: [new]\n"),
    ] {
        let head = "apiVersion: policy.comity.dev/v1\nkind: Institution\nmetadata: {name: other}\nspec:\n";
        let rest = "  contact: ops@other.example\n  displayName: Other\n";
        let mut source = minimal();
        source.files.push(SourceFile { path: "other.yaml".to_owned(), text: format!("{head}{list}{rest}") });
        let after = enrol(&source, "new", "other").unwrap();
        assert_eq!(text(&after, "other.yaml"), format!("{head}{edited}{rest}"));
    }
}

#[test]
fn a_form_that_only_a_person_can_edit_is_named() {
    let mut source = minimal();
    let text = "apiVersion: policy.comity.dev/v1\nkind: Institution\nmetadata: {name: other}\n\
                spec: {contact: a, displayName: Other}\n";
    source.files.push(SourceFile { path: "other.yaml".to_owned(), text: text.to_owned() });
    let error = enrol(&source, "new", "other").unwrap_err();
    assert!(matches!(error, EditError::ByHand { .. }), "{error}");
    assert!(error.to_string().contains("other.yaml:3") && error.to_string().contains("`new`"), "{error}");
}

#[test]
fn members_are_added_once_and_keep_their_role() {
    let alice = "spiffe://dev.test/user/alice";
    let source = add_member(&minimal(), "home", alice, TenantRole::Submitter).unwrap();
    assert!(compiled(&source).roles_of(alice).may_submit("home"));
    assert_eq!(add_member(&source, "home", alice, TenantRole::Submitter).unwrap(), source);
    let error = add_member(&source, "home", alice, TenantRole::Admin).unwrap_err();
    assert!(matches!(error, EditError::OtherRole { role: "submitter", .. }), "{error}");
    for (tenant, meant) in [("none", None), ("hoem", Some("home"))] {
        let error = add_member(&source, tenant, alice, TenantRole::Admin).unwrap_err();
        let nearest = meant.map(str::to_owned);
        assert_eq!(error, EditError::UnknownTenant { tenant: tenant.to_owned(), nearest });
    }
}

#[test]
fn bad_names_never_reach_the_text() {
    for (cluster, institution, user) in [("A", "home", INGRID), ("a", "x\ny: z", INGRID), ("a", "home", "ingrid")] {
        let error = enrol_cluster(&minimal(), &Enrolment { cluster, institution, user }).unwrap_err();
        assert!(matches!(error, EditError::Name { .. }), "{error}");
    }
}
