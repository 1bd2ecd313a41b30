//! Datasets: where data may go, for what, and under which agreements.

use comity_policy::{
    BorrowFacts, Bundle, DataRead, Decision, DenyCode, HeldLease, InUse, Kind, Problem, ProblemCode, RemovedDocuments,
    SourceFile, load, render_problems,
};
use comity_types::{DataNeed, Delivery, LeaseTreatment};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn document(kind: &str, name: &str, spec: &str) -> String {
    format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n---\n")
}

/// Owner `own` with tenant `team`, and lender `far` with the clusters `near` and `away`. `data` is of the Federation.
fn base(data: &str) -> String {
    [
        document(
            "Federation",
            "f",
            &format!("trustDomain: t.example, maintainers: ['spiffe://t.example/user/a'], data: {{{data}}}"),
        ),
        document("Institution", "own", "displayName: Own, contact: data@own.example, clusters: [hub, home]"),
        document("Institution", "far", "displayName: Far, contact: f@far.example, clusters: [near, away, guest]"),
        document("GpuClass", "any", "selector: device.memoryMiB >= 0, rank: 0"),
        document(
            "Tenant",
            "team",
            "institution: own, clusters: [hub, guest], classes: [any], members: [{id: 'spiffe://t.example/user/a', role: submitter}]",
        ),
        document("Cluster", "home", "institution: own, lends: [{classes: [any]}]"),
        document("Cluster", "near", "institution: far, lends: [{classes: [any]}]"),
        document("Cluster", "away", "institution: far, lends: [{classes: [any]}]"),
    ]
    .concat()
}

const PURPOSES: &str = "purposes: [research, teaching]";
const PLAIN: &str = "borrowers: [own], lenders: [far], classes: [any]";

fn try_bundle(text: String) -> Result<Bundle, Vec<Problem>> {
    load(vec![SourceFile { path: "all.yaml".to_owned(), text }])
}

fn bundle(documents: &[String]) -> Bundle {
    bundle_in(PURPOSES, documents)
}

fn bundle_in(data: &str, documents: &[String]) -> Bundle {
    let text = base(data) + &documents.concat();
    try_bundle(text).unwrap_or_else(|problems| panic!("{}", render_problems(&problems)))
}

fn reads(names: &[&str]) -> Vec<DataNeed> {
    names.iter().map(|name| DataNeed { dataset: (*name).to_owned(), mib: 1 }).collect()
}

fn facts<'f>(donor: &'f str, data: &'f [DataNeed], purpose: &'f str) -> BorrowFacts<'f> {
    BorrowFacts {
        tenant: "team",
        user: "",
        origin_cluster: "hub",
        donor_cluster: donor,
        class: "any",
        gpus_milli: 1_000,
        beside_milli: 0,
        delivery: Delivery::Namespace,
        duration_ms: 3_600_000,
        notice_ms: None,
        now_ms: 1_800_000_000_000,
        data,
        purpose,
        in_use: InUse::default(),
    }
}

fn code(bundle: &Bundle, donor: &str, data: &[DataNeed], purpose: &str) -> Option<DenyCode> {
    bundle.may_borrow(&facts(donor, data, purpose)).denial().map(|denial| denial.code)
}

#[test]
fn data_stays_with_its_owner_unless_its_document_names_others() {
    let scans = reads(&["scans"]);
    let places = |spec: &str| {
        let bundle = bundle(&[document("Dataset", "scans", spec), document("Agreement", "a", PLAIN)]);
        ["home", "near", "away"].map(|donor| code(&bundle, donor, &scans, "").is_none())
    };
    assert_eq!(places("institution: own"), [true, false, false]);
    assert_eq!(places("institution: own, mayGoTo: {institutions: [own, far]}"), [true, true, true]);
    assert_eq!(places("institution: own, mayGoTo: {clusters: [near]}"), [false, true, false]);
    assert_eq!(places("institution: own, mayGoTo: {institutions: [own], clusters: [away]}"), [true, false, true]);
    assert_eq!(places("institution: own, mayGoTo: {institutions: []}"), [false, false, false]);
    assert_eq!(places("institution: far"), [false, true, true]);
}

#[test]
fn a_denial_names_dataset_donor_owner_and_line() {
    let bundle =
        bundle(&[document("Dataset", "clinical/mri:2026", "institution: own"), document("Agreement", "a", PLAIN)]);
    let decision = bundle.may_borrow(&facts("near", &reads(&["clinical/mri:2026"]), ""));
    let denial = decision.denial().unwrap();
    assert_eq!(denial.message, "dataset `clinical/mri:2026` may not go to `near` of `far`");
    assert!(denial.unblock.starts_with("ask data@own.example to add it to `mayGoTo` of Dataset"), "{}", denial.unblock);
    assert_eq!((denial.by[0].kind, denial.by[0].name.as_str()), (Kind::Dataset, "clinical/mri:2026"));
    assert!(!denial.code.may_pass(), "only a change of policy helps");
}

#[test]
fn an_agreement_must_allow_personal_data_and_the_purpose() {
    let dataset = |spec: &str| {
        document("Dataset", "scans", &format!("institution: own, mayGoTo: {{institutions: [own, far]}}, {spec}"))
    };
    let personal = dataset("personalData: true, purposes: [research]");
    let scans = reads(&["scans"]);
    let under = |data: &str| {
        let bundle = bundle(&[personal.clone(), document("Agreement", "a", &format!("{PLAIN}{data}"))]);
        // Within one institution no agreement is needed.
        assert_eq!(code(&bundle, "home", &scans, "research"), None);
        code(&bundle, "near", &scans, "research")
    };
    let excluded = Some(DenyCode::AgreementExcludesData);
    assert_eq!(under(""), excluded);
    assert_eq!(under(", data: {personal: true}"), excluded);
    assert_eq!(under(", data: {purposes: [research]}"), excluded);
    assert_eq!(under(", data: {personal: true, purposes: [teaching]}"), excluded);
    assert_eq!(under(", data: {personal: true, purposes: [teaching, research]}"), None);
    // Another agreement that allows it counts, whatever its name.
    let wide = document("Agreement", "z", &format!("{PLAIN}, data: {{personal: true, purposes: [research]}}"));
    let both = bundle(&[personal, document("Agreement", "a", PLAIN), wide]);
    let Decision::Allow(allowance) = both.may_borrow(&facts("near", &scans, "research")) else { panic!("allowed") };
    assert_eq!(allowance.agreement.as_deref(), Some("z"));
    let cited: Vec<_> = allowance.because.iter().map(|it| (it.kind, it.name.as_str())).collect();
    assert!(cited.contains(&(Kind::Dataset, "scans")) && cited.contains(&(Kind::Agreement, "z")), "{cited:?}");
    // Neither demands an agreement that says something about data.
    let open = bundle(&[dataset(""), document("Agreement", "a", PLAIN)]);
    assert_eq!(code(&open, "near", &scans, ""), None);
}

#[test]
fn a_purpose_is_stated_known_and_allowed() {
    let scans = reads(&["scans"]);
    let bundle = bundle(&[document("Dataset", "scans", "institution: own, purposes: [research]")]);
    let answer =
        |purpose: &str, data: &[DataNeed]| bundle.check_purpose(purpose, data).map_err(|denial| denial.to_string());
    assert_eq!(answer("research", &scans), Ok(()));
    assert_eq!(answer("teaching", &[]), Ok(()));
    let refused = |purpose: &str| answer(purpose, &scans).unwrap_err();
    let none = "may be read for research only, and the request states no purpose";
    assert!(refused("").contains(none) && refused("").ends_with("state the purpose of the request: research"));
    assert!(refused("teaching").contains("may be read for research only, not for teaching"));
    assert!(refused("reserch").contains("`reserch` is not a purpose of this federation"));
    assert!(refused("reserch").ends_with("did you mean `research`?"));
    assert_eq!(code(&bundle, "home", &scans, ""), Some(DenyCode::PurposeNotAllowed));
    assert_eq!(code(&bundle, "home", &scans, "teaching"), Some(DenyCode::PurposeNotAllowed));
    let without = bundle_in("", &[]);
    let refusal = without.check_purpose("research", &[]).unwrap_err();
    assert!(refusal.unblock.starts_with("leave it out; a maintainer can add purposes to Federation f"), "{refusal}");
}

#[test]
fn the_federation_may_demand_a_document_for_each_dataset() {
    let other = reads(&["other"]);
    let agreement = [document("Agreement", "a", PLAIN)];
    assert_eq!(code(&bundle_in("", &agreement), "near", &other, ""), None);
    assert_eq!(code(&bundle_in("datasets: any", &agreement), "near", &other, ""), None);
    let strict = bundle_in("datasets: declared-only", &agreement);
    assert_eq!(code(&strict, "near", &other, ""), Some(DenyCode::DatasetUndeclared));
    assert_eq!(code(&strict, "near", &[], ""), None);
    assert_eq!(strict.check_purpose("", &other).unwrap_err().code, DenyCode::DatasetUndeclared);
    // A typing error finds out nothing about others' datasets.
    let named = bundle_in("datasets: declared-only", &[document("Dataset", "othar", "institution: own")]);
    assert!(!named.check_purpose("", &other).unwrap_err().to_string().contains("othar"));
}

#[test]
fn mistakes_are_found_when_the_policy_is_checked() {
    let refused = |documents: &str| try_bundle(base(PURPOSES) + documents).unwrap_err();
    let cases: [(&str, String, ProblemCode, &str); 11] = [
        ("owner", document("Dataset", "d", "institution: owm"), ProblemCode::UnknownReference, "did you mean `own`?"),
        ("no owner", document("Dataset", "d", "personalData: true"), ProblemCode::MissingField, "institution"),
        (
            "institution",
            document("Dataset", "d", "institution: own, mayGoTo: {institutions: [fra]}"),
            ProblemCode::UnknownReference,
            "did you mean `far`?",
        ),
        (
            "cluster",
            document("Dataset", "d", "institution: own, mayGoTo: {clusters: [naer]}"),
            ProblemCode::UnknownReference,
            "did you mean `near`?",
        ),
        (
            "purpose",
            document("Dataset", "d", "institution: own, purposes: [reserch]"),
            ProblemCode::UnknownReference,
            "did you mean `research`?",
        ),
        (
            "no purpose",
            document("Dataset", "d", "institution: own, purposes: []"),
            ProblemCode::MissingField,
            "remove `purposes` to allow any",
        ),
        (
            "agreement",
            document("Agreement", "a", &format!("{PLAIN}, data: {{purposes: [resarch]}}")),
            ProblemCode::UnknownReference,
            "did you mean `research`?",
        ),
        (
            "template",
            document("RequestTemplate", "t", "title: T, request: {gpus: {class: any}, purpose: teeching}"),
            ProblemCode::UnknownReference,
            "did you mean `teaching`?",
        ),
        (
            "rule",
            document("Rule", "r", "deny: 'request.purpose == \"teching\"', message: No"),
            ProblemCode::UnknownReference,
            "did you mean `teaching`?",
        ),
        ("name", document("Dataset", "'a b'", "institution: own"), ProblemCode::InvalidName, "as in imagenet-1k"),
        ("field", document("Dataset", "d", "institution: own, mayGo: {}"), ProblemCode::UnknownField, "mayGoTo"),
    ];
    for (what, documents, code, text) in cases {
        let problems = refused(&documents);
        let shown = render_problems(&problems);
        assert!(problems.iter().any(|it| it.code == code) && shown.contains(text), "{what}: {shown}");
    }
    let many: Vec<String> = (0..65).map(|number| format!("p{number}")).collect();
    let problems = try_bundle(base(&format!("purposes: [{}]", many.join(", ")))).unwrap_err();
    assert!(problems.iter().any(|it| it.code == ProblemCode::TooLarge), "{}", render_problems(&problems));
    let twice = document("Dataset", "d", "institution: own").repeat(2);
    assert_eq!(refused(&twice)[0].code, ProblemCode::DuplicateName);
}

#[test]
fn rules_read_the_data_and_the_purpose_of_a_request() {
    let rule = |condition: &str| {
        let spec = format!("deny: {condition:?}, message: No");
        bundle(&[document("Rule", "r", &spec)])
    };
    let scans = reads(&["scans", "weights"]);
    for (condition, with, without) in [
        ("'scans' in request.data", true, false),
        ("!('scans' in request.data)", false, true),
        ("size(request.data) > 1", true, false),
        ("request.data == ['scans', 'weights']", true, false),
        ("request.data != request.data", false, false),
        ("request.purpose == 'teaching'", true, false),
        ("request.purpose in ['teaching', 'research']", true, false),
        ("request.purpose == '' && size(request.data) == 0", false, true),
        ("'scans' in request.data && donor.name == 'home' && request.purpose != 'research'", true, false),
    ] {
        let bundle = rule(condition);
        let denied = |data: &[DataNeed], purpose: &str| code(&bundle, "home", data, purpose) == Some(DenyCode::Rule);
        assert_eq!((denied(&scans, "teaching"), denied(&[], "")), (with, without), "{condition}");
    }
}

/// A lease of `team` at a donor, which reads `scans` for research.
fn withdrawn(bundle: &Bundle, donor: &'static str, purpose: &str) -> Option<(LeaseTreatment, DenyCode)> {
    let scans = reads(&["scans"]);
    let held = HeldLease { facts: facts(donor, &scans, purpose), institution: "own", agreement: Some("a") };
    let found = bundle.withdrawal(&held, &RemovedDocuments::default())?;
    Some((found.treatment, found.denial.code))
}

#[test]
fn leases_end_as_the_dataset_says_where_it_may_no_longer_be() {
    let agreement = format!("{PLAIN}, data: {{personal: true, purposes: [research]}}");
    let with = |dataset: &str, agreement: &str| {
        bundle(&[document("Dataset", "scans", dataset), document("Agreement", "a", agreement)])
    };
    let wide = "institution: own, mayGoTo: {institutions: [own, far]}, personalData: true, purposes: [research]";
    assert_eq!(withdrawn(&with(wide, &agreement), "near", "research"), None);
    for (word, treatment) in [
        ("", LeaseTreatment::Drain),
        (", onWithdrawal: stop", LeaseTreatment::Stop),
        (", onWithdrawal: finish", LeaseTreatment::Finish),
    ] {
        let narrow = with(&format!("institution: own{word}"), &agreement);
        assert_eq!(withdrawn(&narrow, "near", ""), Some((treatment, DenyCode::DatasetNotAllowed)));
        let bound = with(&format!("institution: own, purposes: [teaching]{word}"), &agreement);
        assert_eq!(withdrawn(&bound, "home", "research"), Some((treatment, DenyCode::PurposeNotAllowed)));
    }
    // The tighter of dataset and agreement, if the agreement does not allow its data.
    let excludes = |dataset: &str, word: &str| {
        let bundle = with(&format!("{wide}{dataset}"), &format!("{PLAIN}{word}"));
        withdrawn(&bundle, "near", "research")
    };
    let excluded = |treatment| Some((treatment, DenyCode::AgreementExcludesData));
    assert_eq!(excludes("", ""), excluded(LeaseTreatment::Drain));
    assert_eq!(excludes(", onWithdrawal: stop", ", onWithdrawal: finish"), excluded(LeaseTreatment::Stop));
    assert_eq!(excludes(", onWithdrawal: finish", ", onWithdrawal: stop"), excluded(LeaseTreatment::Stop));
    // So does an agreement that does not allow them and has not begun, and none at all.
    assert_eq!(excludes(", onWithdrawal: stop", ", from: 2999-01-01"), excluded(LeaseTreatment::Stop));
    let alone = bundle(&[document("Dataset", "scans", &format!("{wide}, onWithdrawal: stop"))]);
    assert_eq!(withdrawn(&alone, "near", "research"), Some((LeaseTreatment::Stop, DenyCode::NoAgreement)));
}

#[test]
fn a_removed_dataset_keeps_its_word() {
    let with = |documents: &[String]| bundle_in("datasets: declared-only", documents);
    let agreement = document("Agreement", "a", PLAIN);
    let scans = document("Dataset", "scans", "institution: own, mayGoTo: {institutions: [far]}, onWithdrawal: stop");
    let (before, after) = (with(&[agreement.clone(), scans]), with(&[agreement]));
    let removed = RemovedDocuments::default().after_change(&before, &after, [(Kind::Dataset, "scans")]);
    let data = reads(&["scans"]);
    let held = HeldLease { facts: facts("near", &data, ""), institution: "own", agreement: Some("a") };
    let withdrawn = |removed: &RemovedDocuments| {
        let found = after.withdrawal(&held, removed).unwrap();
        (found.treatment, found.denial.code)
    };
    assert_eq!(withdrawn(&removed), (LeaseTreatment::Stop, DenyCode::DatasetUndeclared));
    // Agents know no removed documents.
    assert_eq!(withdrawn(&RemovedDocuments::default()), (LeaseTreatment::Drain, DenyCode::DatasetUndeclared));
}

#[test]
fn a_dataset_that_no_agreement_serves_is_warned_of() {
    let warned = |dataset: &str, agreement: &str| -> Vec<String> {
        let bundle = bundle(&[document("Dataset", "scans", dataset), document("Agreement", "a", agreement)]);
        let found = bundle.warnings().into_iter().filter(|it| it.code == ProblemCode::DatasetWithoutAgreement);
        found.map(|it| it.message).collect()
    };
    let personal = "institution: own, mayGoTo: {clusters: [home, near]}, personalData: true, purposes: [research]";
    let message = "Dataset `scans` may go to `far`, but no Agreement lets `own` read its data there";
    assert_eq!(warned(personal, PLAIN), [message]);
    assert_eq!(warned(personal, &format!("{PLAIN}, data: {{personal: true, purposes: [teaching]}}")), [message]);
    assert_eq!(warned(personal, &format!("{PLAIN}, data: {{personal: true, purposes: [research]}}")), [""; 0]);
    assert_eq!(warned("institution: own, mayGoTo: {institutions: [far]}", PLAIN), [""; 0]);
}

/// A Dataset document of any content.
fn any_dataset(name: &'static str) -> impl Strategy<Value = String> {
    let destinations = (subsequence(vec!["own", "far"], 0..=2), subsequence(vec!["home", "near", "away"], 0..=3));
    let purposes = subsequence(vec!["research", "teaching"], 0..=2);
    let owner = select(vec!["own", "far"]);
    (owner, proptest::option::of(destinations), any::<bool>(), purposes).prop_map(
        move |(owner, destinations, personal, purposes)| {
            let places = destinations.map_or_else(String::new, |(institutions, clusters)| {
                let [institutions, clusters] = [institutions, clusters].map(|names| names.join(", "));
                format!(", mayGoTo: {{institutions: [{institutions}], clusters: [{clusters}]}}")
            });
            let purposes =
                if purposes.is_empty() { String::new() } else { format!(", purposes: [{}]", purposes.join(", ")) };
            document("Dataset", name, &format!("institution: {owner}{places}, personalData: {personal}{purposes}"))
        },
    )
}

fn any_agreement() -> impl Strategy<Value = String> {
    (any::<bool>(), subsequence(vec!["research", "teaching"], 0..=2)).prop_map(|(personal, purposes)| {
        let purposes = purposes.join(", ");
        document("Agreement", "a", &format!("{PLAIN}, data: {{personal: {personal}, purposes: [{purposes}]}}"))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn one_more_dataset_never_grants(
        known in proptest::option::of(any_dataset("weights")), more in any_dataset("scans"), agreement in any_agreement(),
        names in subsequence(vec!["scans", "weights", "other"], 0..=3),
        donor in select(vec!["home", "near", "away"]), origin in select(vec!["hub", "guest"]), purpose in select(vec!["", "research", "teaching"]),
    ) {
        let mut documents: Vec<String> = known.into_iter().chain([agreement]).collect();
        let before = bundle(&documents);
        documents.push(more);
        let after = bundle(&documents);
        let data = reads(&names);
        // `guest` is of another institution than the tenant.
        let facts = BorrowFacts { origin_cluster: origin, ..facts(donor, &data, purpose) };
        let (was, is) = (before.may_borrow(&facts), after.may_borrow(&facts));
        prop_assert!(was.denial().is_none() || is.denial().is_some(), "{is:?}");
        prop_assert!(names.contains(&"scans") || was.denial().map(|it| it.code) == is.denial().map(|it| it.code));
        prop_assert!(before.check_purpose(purpose, &data).is_ok() || after.check_purpose(purpose, &data).is_err());
        // What is granted follows from the document alone.
        if is.denial().is_none() && names.contains(&"scans") {
            let dataset = &after.datasets["scans"].spec;
            let owner = after.institution_of_cluster(donor).unwrap();
            prop_assert!(dataset.may_go_to(donor, owner));
            prop_assert!(dataset.purposes.is_empty() || dataset.purposes.contains(purpose));
        }
        // The origin's agent refuses nothing that policy permits, and no data that it denies.
        let read = DataRead {
            tenant: "team",
            origin_cluster: origin,
            donor_cluster: donor,
            class: "any",
            data: &data,
            purpose,
            now_ms: facts.now_ms,
        };
        prop_assert_eq!(after.may_read(&read).is_ok(), is.denial().is_none());
    }
}
