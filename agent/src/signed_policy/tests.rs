//! Real Git histories, shown by brokers that may lie.
#![expect(clippy::unwrap_used, reason = "tests")]

mod signed_repository;

use comity_agent_model::lease::Lease;
use comity_agent_state::record::{AdmittedCapacity, AdmittedPart, AdmittedShare, DonorRecord};
use comity_policy::UsageTable;
use comity_provenance::{ObjectId, PolicyFolder};
use comity_types::{Delivery, LeaseId, PeeringId, RequestId};

use self::signed_repository::{DONOR, NOW_MS, ORIGIN, SignedRepository};
use super::lease_permit::{LentFacts, latest_end_ms, lent_by, objection, withdrawn};
use super::policy_anchor::{anchor, documents, forget, keep, keep_documents};
use super::verify::{KnownPolicy, PolicyFinding, ShownHistory, verify};
use super::*;

const HOUR_MS: u64 = 3_600_000;

/// What an agent knows that trusts the repository's head as it is now.
fn trusting(repository: &SignedRepository) -> KnownPolicy {
    let anchor = PolicyAnchor {
        commit: repository.head(),
        folder: "policy".parse().unwrap(),
        taken_names: Default::default(),
        pinned: Some(repository.head()),
    };
    KnownPolicy { anchor: Some(Arc::new(anchor)), bundle: None }
}

fn judged(repository: &SignedRepository, known: &KnownPolicy, head: ObjectId) -> (KnownPolicy, PolicyFinding) {
    let from = known.anchor.as_ref().map(|anchor| anchor.commit);
    verify(known.clone(), &repository.shown(from, head), NOW_MS)
}

fn commit_of(known: &KnownPolicy) -> ObjectId {
    known.anchor.as_ref().unwrap().commit
}

#[test]
fn a_pinned_commit_leads_to_what_owners_signed_and_to_nothing_else() {
    let repository = SignedRepository::new();
    let known = trusting(&repository);
    let first = repository.head();
    repository.edit("cluster.yaml", "maxLentGpus: 4", "maxLentGpus: 3");
    let second = repository.commit(Some("centre"), "lend less");
    let (known, finding) = judged(&repository, &known, second);
    assert_eq!((finding, commit_of(&known)), (PolicyFinding::Verified, second));
    assert_eq!(known.bundle.as_ref().unwrap().clusters[DONOR].spec.max_lent_gpus_milli, Some(3_000));

    // The verified policy stays, whatever a broker shows next.
    repository.edit("cluster.yaml", "maxLentGpus: 3", "maxLentGpus: 400");
    for signer in [None, Some("poly")] {
        let forged = repository.commit(signer, "lend everything");
        let (after, finding) = judged(&repository, &known, forged);
        let PolicyFinding::Refused(reason) = finding else { panic!("{finding:?}") };
        assert!(reason.contains("Cluster `centre-main` without the signature of institution `centre`"), "{reason}");
        assert_eq!((commit_of(&after), after.bundle), (second, known.bundle.clone()));
    }
    let (after, finding) = judged(&repository, &known, first);
    assert!(matches!(&finding, PolicyFinding::Refused(reason) if reason.contains("is older than")), "{finding:?}");
    assert_eq!(commit_of(&after), second);
    // The owner signs afterwards.
    let approved = repository.commit(Some("centre"), &format!("Approve\n\nApproves: {}", repository.head()));
    let (_, finding) = judged(&repository, &known, approved);
    assert!(
        matches!(finding, PolicyFinding::Refused(_)),
        "the approval is of the second try, which changed nothing: {finding:?}"
    );
}

#[test]
fn only_the_verified_policy_says_that_signatures_are_no_longer_required() {
    let repository = SignedRepository::new();
    let known = trusting(&repository);
    repository.edit("federation.yaml", "signatures: {required: true", "signatures: {required: false");
    let claimed = repository.commit(Some("poly"), "no more signatures");
    let (after, finding) = judged(&repository, &known, claimed);
    assert!(matches!(finding, PolicyFinding::Refused(_)) && after.bundle.is_some());
    let approve = |who| repository.commit(Some(who), &format!("Approve\n\nApproves: {claimed}"));
    let by_maintainers = approve("ingrid");
    let (_, finding) = judged(&repository, &known, by_maintainers);
    assert!(matches!(finding, PolicyFinding::Refused(reason) if reason.contains("institution `centre`")));
    let decided = approve("centre");
    let (after, finding) = judged(&repository, &known, decided);
    assert_eq!(finding, PolicyFinding::Verified);
    let signed = SignedPolicy { anchor: after.anchor, bundle: after.bundle, ..SignedPolicy::default() };
    assert!(matches!(signed.standing(""), Standing::Free));
}

#[test]
fn the_first_signed_policy_is_trusted_and_an_unsigned_one_is_not() {
    let repository = SignedRepository::new();
    let (known, finding) = judged(&repository, &KnownPolicy::default(), repository.head());
    assert_eq!((finding, commit_of(&known)), (PolicyFinding::Verified, repository.head()));
    repository.edit("federation.yaml", "signatures: {required: true", "signatures: {required: false");
    let unsigned = repository.commit(None, "unsigned");
    let (none, finding) = judged(&repository, &KnownPolicy::default(), unsigned);
    assert!(none.anchor.is_none() && finding == PolicyFinding::NotSigned);
    let (pinned, finding) = judged(&repository, &trusting(&repository), unsigned);
    assert!(pinned.bundle.is_none(), "nothing could be verified from there on");
    assert!(matches!(finding, PolicyFinding::Unshown(reason) if reason.contains("requires no signatures")));
}

#[test]
fn a_broker_that_leaves_something_out_gets_no_verdict() {
    let repository = SignedRepository::new();
    let known = trusting(&repository);
    let first = repository.head();
    repository.edit("cluster.yaml", "maxLentGpus: 4", "maxLentGpus: 3");
    let second = repository.commit(Some("centre"), "lend less");
    for left_out in [format!("{second}:policy/cluster.yaml"), format!("{second}^{{tree}}"), second.to_string()] {
        let left_out = repository.git(&["rev-parse", &left_out]).parse::<ObjectId>().unwrap();
        let shown = repository.shown_without(Some(first), second, left_out);
        let (after, finding) = verify(known.clone(), &shown, NOW_MS);
        let expected = "the broker does not show the";
        assert!(matches!(&finding, PolicyFinding::Unshown(reason) if reason.contains(expected)), "{finding:?}");
        assert_eq!(commit_of(&after), first);
    }
    let shown = ShownHistory { folder: PolicyFolder::default(), ..repository.shown(Some(first), second) };
    let (_, finding) = verify(known, &shown, NOW_MS);
    assert!(
        matches!(&finding, PolicyFinding::Unshown(reason) if reason.contains("signedPolicy.folder")),
        "{finding:?}"
    );
}

#[tokio::test]
async fn what_is_verified_outlives_a_restart() {
    let repository = SignedRepository::new();
    let (known, _) = judged(&repository, &trusting(&repository), repository.head());
    let home = tempfile::tempdir().unwrap();
    let (kept, bundle) = (known.anchor.unwrap(), known.bundle.unwrap());
    {
        let store = comity_agent_state::store::Store::open(home.path()).unwrap();
        assert_eq!(anchor(&store).unwrap(), None);
        keep_documents(home.path(), kept.commit, bundle.source()).unwrap();
        keep(&store, &kept).await.unwrap();
    }
    let store = comity_agent_state::store::Store::open(home.path()).unwrap();
    assert_eq!(anchor(&store).unwrap().as_ref(), Some(&*kept));
    assert_eq!(documents(home.path(), kept.commit).unwrap().hash, bundle.hash);
    let other = ObjectId::from_bytes(&[7; 20]).unwrap();
    assert!(documents(home.path(), other).is_none(), "documents of another commit do not count");
    forget(&store).await.unwrap();
    assert_eq!(anchor(&store).unwrap(), None);
}

#[test]
fn new_leases_wait_for_the_verdict_about_the_brokers_commit() {
    let repository = SignedRepository::new();
    let (known, _) = judged(&repository, &trusting(&repository), repository.head());
    let head = repository.head().to_string();
    let mut signed = SignedPolicy { anchor: known.anchor, bundle: known.bundle, ..SignedPolicy::default() };
    assert!(matches!(SignedPolicy::default().standing("x"), Standing::Free));
    assert!(matches!(signed.standing(&head), Standing::Verified { .. }));
    assert!(matches!(signed.standing(""), Standing::Unshown(reason) if reason == NO_COMMIT));
    assert!(matches!(signed.standing("next"), Standing::Waits));
    signed.unshown = Some(("next".to_owned(), "gone".to_owned()));
    assert!(matches!(signed.standing("next"), Standing::Unshown("gone")));
    // A refused commit leaves the last verified policy in charge.
    (signed.unshown, signed.judged) = (None, Some("next".to_owned()));
    assert!(matches!(signed.standing("next"), Standing::Verified { .. }));
    signed.bundle = None;
    assert!(matches!(signed.standing("next"), Standing::Unshown(reason) if reason == NO_DOCUMENTS));
}

fn lease() -> Lease {
    Lease {
        tenant: "ml".to_owned(),
        class: "large".to_owned(),
        term_ms: HOUR_MS,
        delivery: Delivery::Namespace,
        ..Lease::new(LeaseId(1), RequestId(1), ORIGIN.parse().unwrap(), PeeringId(1))
    }
}

/// A lease in force, as it was admitted.
fn held(milli: u32) -> DonorRecord {
    let share = |milli| AdmittedShare { milli, ..AdmittedShare::default() };
    let devices = (0..milli / 1_000).map(|index| (index, share(1_000))).collect();
    let nodes = [("a".to_owned(), AdmittedPart { devices, ..AdmittedPart::default() })].into();
    let capacity = AdmittedCapacity { nodes, ..AdmittedCapacity::default() };
    let (tenant, class) = ("ml".to_owned(), "large".to_owned());
    DonorRecord { capacity, tenant, class, ..DonorRecord::new(LeaseId(7), 1, Delivery::Namespace) }
}

fn facts(lease: &Lease, milli: u64) -> LentFacts<'_> {
    let (tenant, class) = (lease.tenant.as_str(), lease.class.as_str());
    LentFacts {
        lease,
        tenant,
        class,
        data: &lease.data,
        purpose: &lease.purpose,
        delivery: lease.delivery,
        donor: DONOR,
        institution: "poly",
        milli,
        now_ms: NOW_MS,
    }
}

#[test]
fn a_lease_is_permitted_by_the_documents_or_they_are_cited() {
    let repository = SignedRepository::new();
    let (known, _) = judged(&repository, &trusting(&repository), repository.head());
    let (bundle, commit) = (known.bundle.unwrap(), repository.head());
    let none = UsageTable::default();
    let asked = |facts: LentFacts<'_>, lent: &UsageTable| objection(&bundle, commit, &facts, lent);
    let honest = lease();
    assert_eq!(asked(facts(&honest, 1_000), &none), None);
    let refused = [
        (Lease { tenant: "thief".to_owned(), ..lease() }, 1_000, "unknown-tenant"),
        (Lease { class: "small".to_owned(), ..lease() }, 1_000, "unknown-class"),
        (Lease { term_ms: 9 * HOUR_MS, ..lease() }, 1_000, "lease-too-long; Cluster centre-main (cluster.yaml:"),
        (lease(), 5_000, "request-too-large; Cluster centre-main (cluster.yaml:"),
        (
            Lease { delivery: Delivery::VirtualNode, ..lease() },
            1_000,
            "no-delivery; Cluster centre-main (cluster.yaml:",
        ),
        (Lease { origin: "elsewhere".parse().unwrap(), ..lease() }, 1_000, "unknown-origin"),
    ];
    for (lease, milli, code) in &refused {
        let message = asked(facts(lease, *milli), &none).unwrap_or_else(|| panic!("{code}"));
        assert!(message.contains(code) && message.contains(&commit.to_string()[..12]), "{message}");
    }
    let of_another = LentFacts { institution: "centre", ..facts(&honest, 1_000) };
    assert!(asked(of_another, &none).unwrap().contains("is of institution poly by the signed policy"));
    let held = held(3_000);
    let lent = lent_by(DONOR, std::iter::once(&held));
    assert_eq!(asked(facts(&honest, 1_000), &lent), None);
    let message = asked(facts(&honest, 2_000), &lent).unwrap();
    assert!(message.contains("donor-exhausted") && message.contains("3 are in use"), "{message}");
    assert_eq!(latest_end_ms(&bundle, DONOR, NOW_MS), NOW_MS + 8 * HOUR_MS + HOUR_MS / 4);
}

#[test]
fn a_withdrawn_permission_is_found_in_the_documents() {
    let repository = SignedRepository::new();
    let (known, _) = judged(&repository, &trusting(&repository), repository.head());
    let before = known.bundle.clone().unwrap();
    let honest = lease();
    assert_eq!(withdrawn(&before, repository.head(), &facts(&honest, 1_000)), None);
    repository.edit("cluster.yaml", "lends: [{classes: [large]}]", "lends: []");
    let head = repository.commit(Some("centre"), "lend nothing");
    let (known, finding) = judged(&repository, &known, head);
    assert_eq!(finding, PolicyFinding::Verified);
    let reason = withdrawn(&known.bundle.unwrap(), head, &facts(&honest, 1_000)).unwrap();
    assert!(reason.contains("class-not-lent") && reason.contains("cluster.yaml:"), "{reason}");
}
