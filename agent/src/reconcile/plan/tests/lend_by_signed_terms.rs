//! Leases that the policy permits which the owners signed, and others, whatever the broker says.

use comity_policy::{Bundle, BundleSource, SourceFile};
use comity_provenance::ObjectId;
use comity_types::DataNeed;

use super::*;
use crate::signed_policy::policy_anchor::PolicyAnchor;

const ONE_HOUR_MS: u64 = 3_600_000;

/// The policy of `donor`, which lends to `origin` as `lends` says.
fn bundle(lends: &str) -> Bundle {
    let document = |kind: &str, name: &str, spec: &str| {
        format!("apiVersion: policy.comity.dev/v1\nkind: {kind}\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
    };
    let maintainer = "spiffe://t.example/user/ingrid";
    let member =
        |name: &str| document("Institution", name, &format!("displayName: X, contact: a@x, clusters: [{name}]"));
    let texts = [
        document(
            "Federation",
            "f",
            &format!(
                "trustDomain: t.example, data: {{purposes: [research]}}, maintainers: [{maintainer}], signatures: {{required: true, maintainersNeeded: 1}}, commitKeys: \
             [{{maintainer: {maintainer}, key: {COMMIT_KEY}}}]"
            ),
        ),
        member("donor"),
        member("origin"),
        document("GpuClass", "large", "selector: device.memoryMiB > 40000, rank: 2"),
        document("GpuClass", "small", "selector: device.memoryMiB > 1000, rank: 1"),
        document("Cluster", "donor", &format!("institution: donor, maxLeaseDuration: 2h, lends: {lends}")),
        document(
            "Tenant",
            "ml",
            "institution: origin, members: [{id: spiffe://t.example/user/a, role: submitter}], classes: [large, small], clusters: [origin]",
        ),
        document(
            "Tenant",
            "physics",
            "institution: origin, members: [{id: spiffe://t.example/user/a, role: submitter}], classes: [large, small], clusters: [origin]",
        ),
        document(
            "Agreement",
            "both",
            "parties: [origin, donor], classes: [large, small], data: {purposes: [research]}",
        ),
        document("Dataset", "home", "institution: origin"),
        document("Dataset", "shared", "institution: origin, mayGoTo: {clusters: [donor]}, purposes: [research]"),
        document("Dataset", "personal", "institution: origin, mayGoTo: {clusters: [donor]}, personalData: true"),
    ];
    let files = vec![SourceFile { path: "policy.yaml".to_owned(), text: texts.join("---\n") }];
    Bundle::compile(&BundleSource::of_files(files)).unwrap_or_else(|problems| panic!("{problems:#?}"))
}

const COMMIT_KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGcv3QlWmX1dhmFHQbzgJ1yQVvwzaHzvdBKhXZoPyqFl";
const COMMIT: &str = "3f2a9c51b0de4d8f6a7c2e19d05b84f7a1c6e3d2";

fn signed(lends: &str) -> SignedPolicy {
    let commit: ObjectId = COMMIT.parse().unwrap();
    let anchor = PolicyAnchor { commit, folder: Default::default(), taken_names: BTreeSet::new(), pinned: None };
    SignedPolicy::of(anchor, bundle(lends))
}

/// A donor with a verified policy, and a new lease of tenant `ml`.
fn asked(lends: &str) -> Sim {
    let mut sim = connected_donor();
    sim.signed_policy = signed(lends);
    sim.desired.policy_commit = COMMIT.to_owned();
    let honest = lease("lease-1", 7, LeaseState::Connecting);
    sim.desired.leases = vec![Lease { tenant: "ml".to_owned(), class: "large".to_owned(), ..honest }];
    sim
}

/// A lease in force, and when its term ends.
fn in_force() -> (Sim, u64) {
    let mut sim = asked(LENDS);
    sim.settle();
    sim.records.outbox.clear();
    sim.desired.leases[0].donor_ready = true;
    sim.desired.leases[0].state = Some(LeaseState::Active);
    let end = sim.records.donors[&LEASE].sealed.as_ref().unwrap().lease_end_ms;
    (sim, end)
}

const LENDS: &str = "[{classes: [large]}]";

/// The refusal that is planned, as code and message.
fn refusal(sim: &Sim) -> (&'static str, String) {
    let steps = sim.plan();
    let found = steps.iter().find_map(|step| match step {
        Step::Lease(crate::reconcile::steps::lease::LeaseStep::RefuseLease(refuse)) => {
            Some((refuse.code, refuse.message.clone()))
        }
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing is refused: {:?}", sim.names()))
}

#[test]
fn a_lease_under_the_signed_terms_is_granted_and_others_are_not() {
    let mut sim = asked(LENDS);
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);
    let mut sim = asked("[]");
    let (code, message) = refusal(&sim);
    assert!(code == "signed-policy" && message.contains("Cluster donor (policy.yaml:"), "{message}");
    sim.settle();
    assert!(sim.records.donors.is_empty(), "nothing was granted");
    let mut sim = asked(LENDS);
    sim.desired.leases[0].tenant = "thief".to_owned();
    assert_eq!(refusal(&sim).0, "signed-policy");
}

#[test]
fn broker_lends_a_large_gpu_as_a_small_one() {
    let mut sim = asked("[{classes: [large, small]}]");
    sim.desired.leases[0].class = "small".to_owned();
    let (code, message) = refusal(&sim);
    let said = "device 0 of node n is of class `large`, and the lease is of `small`";
    assert!(code == "signed-policy" && message.contains(said), "{message}");
    let small = |device: &mut v1::Device| device.memory_mib = 16_384;
    sim.nodes.as_mut().unwrap()[0].devices.iter_mut().for_each(small);
    assert_eq!(sim.settle(), ["admit-lease", "prepare-lease", "seal-credential"]);

    let mut sim = asked("[{classes: [large, small]}]");
    let unknown = |device: &mut v1::Device| device.memory_mib = 1;
    sim.nodes.as_mut().unwrap()[0].devices.iter_mut().for_each(unknown);
    let (_, message) = refusal(&sim);
    assert!(message.contains("is of no class, and the lease is of `large`"), "{message}");
}

#[test]
fn a_lease_waits_for_the_verdict_and_no_longer_than_it_takes() {
    let mut sim = asked(LENDS);
    sim.desired.policy_commit = "0".repeat(40);
    assert_eq!(sim.names(), [""; 0], "the broker's commit is being judged");
    sim.signed_policy.unshown = Some(("0".repeat(40), "nobody has it".to_owned()));
    let (code, message) = refusal(&sim);
    assert!(code == "policy-unverified" && message.ends_with("nobody has it"), "{message}");
    // A commit that its owners did not sign leaves their last word in force.
    sim.signed_policy.unshown = None;
    sim.signed_policy.judged = Some("0".repeat(40));
    assert_eq!(sim.names(), ["admit-lease"]);
}

#[test]
fn broker_says_that_no_signatures_are_required() {
    let mut sim = asked(LENDS);
    sim.desired.policy_commit.clear();
    let (code, message) = refusal(&sim);
    assert!(code == "policy-unverified" && message.contains("only a signed commit may say so"), "{message}");
}

#[test]
fn a_lease_in_force_goes_on_without_the_history_and_is_not_prolonged_without_permission() {
    let (mut sim, end) = in_force();
    // Silence is not absence.
    sim.desired.policy_commit.clear();
    assert_eq!(sim.settle(), [""; 0]);
    sim.desired.leases[0].expires_at_ms = end + ONE_HOUR_MS;
    sim.now_ms = end - 1;
    assert_eq!(sim.settle(), ["renew-credential"], "its owner lends it still");
    sim.records.outbox.clear();
    let end = sim.records.donors[&LEASE].sealed.as_ref().unwrap().lease_end_ms;
    sim.signed_policy = signed("[]");
    sim.desired.leases[0].expires_at_ms = end + ONE_HOUR_MS;
    sim.now_ms = end - 1;
    sim.settle();
    let sealed = sim.records.donors[&LEASE].sealed.clone().unwrap();
    assert_eq!((sealed.lease_end_ms, sealed.expires_at_ms <= end), (end, true), "its owner no longer lends it");
    sim.now_ms = end;
    let (code, message) = refusal(&sim);
    assert!(code == "signed-policy" && message.contains("policy.yaml:"), "{message}");
}

#[test]
fn broker_prolongs_a_lease_for_years() {
    let mut sim = asked(LENDS);
    sim.settle();
    sim.records.outbox.clear();
    sim.desired.leases[0].state = Some(LeaseState::Active);
    sim.desired.leases[0].expires_at_ms = NOW + 100_000 * ONE_HOUR_MS;
    sim.now_ms = sim.records.donors[&LEASE].sealed.as_ref().unwrap().lease_end_ms;
    sim.settle();
    let sealed = sim.records.donors[&LEASE].sealed.clone().unwrap();
    assert!(sealed.lease_end_ms <= sim.now_ms + 2 * ONE_HOUR_MS + ONE_HOUR_MS / 4, "{}", sealed.lease_end_ms);
}

#[test]
fn broker_hides_the_documents_after_a_failover() {
    let (mut sim, end) = in_force();
    sim.signed_policy.bundle = None;
    sim.desired.policy_commit = "0".repeat(40);
    sim.desired.leases[0].expires_at_ms = end + ONE_HOUR_MS;
    sim.now_ms = end - 1;
    sim.settle();
    let sealed = sim.records.donors[&LEASE].sealed.clone().unwrap();
    assert_eq!((sealed.lease_end_ms, sealed.expires_at_ms <= end), (end, true), "nothing is prolonged");

    // A lease that was admitted, and has no credential yet, waits for the documents.
    let mut sim = asked(LENDS);
    let steps = sim.plan();
    steps.iter().for_each(|step| sim.carry_out(step));
    assert!(sim.records.donors[&LEASE].sealed.is_none());
    sim.signed_policy.bundle = None;
    assert_eq!(sim.settle(), [""; 0]);
    sim.signed_policy = signed(LENDS);
    assert_eq!(sim.settle(), ["prepare-lease", "seal-credential"]);
}

#[test]
fn broker_relabels_a_withdrawn_lease() {
    let (mut sim, end) = in_force();
    // The donor lends to another tenant, and no longer to this one.
    sim.signed_policy = signed("[{classes: [large], to: {tenants: [physics]}}]");
    sim.desired.leases[0].tenant = "physics".to_owned();
    sim.desired.leases[0].expires_at_ms = end + ONE_HOUR_MS;
    sim.now_ms = end - 1;
    sim.settle();
    assert_eq!(sim.records.donors[&LEASE].sealed.as_ref().unwrap().lease_end_ms, end);
    sim.now_ms = end;
    assert_eq!(refusal(&sim).0, "signed-policy");
}

#[test]
fn broker_omits_a_lease_to_have_another_one_granted() {
    let limited = "[{classes: [large], maxGpus: 1}]";
    let mut sim = asked(limited);
    sim.settle();
    sim.records.outbox.clear();
    let mut other = Lease { fencing_token: 8, id: LeaseId(2), ..sim.desired.leases[0].clone() };
    other.placement.as_mut().unwrap().nodes[0].devices[0].device = 1;
    sim.desired.leases = vec![other];
    let (code, message) = refusal(&sim);
    assert!(code == "signed-policy" && message.contains("1 are in use"), "{message}");
}

/// Makes the broker say that a lease reads a dataset for a purpose.
fn read_by(sim: &mut Sim, dataset: &str, purpose: &str) {
    let lease = &mut sim.desired.leases[0];
    lease.data = vec![DataNeed { dataset: dataset.to_owned(), mib: 1 }];
    purpose.clone_into(&mut lease.purpose);
}

/// An origin with a verified policy, and a new lease of tenant `ml`.
fn borrowed() -> Sim {
    let mut sim = connected_origin();
    let donor = asked(LENDS);
    sim.signed_policy = donor.signed_policy;
    sim.desired.policy_commit = COMMIT.to_owned();
    sim.desired.leases = donor.desired.leases;
    sim.desired.envelopes = vec![envelope("credential", "lease-1")];
    sim
}

#[test]
fn broker_sends_data_where_its_owner_does_not_let_it_go() {
    type Side = (fn() -> Sim, &'static str);
    let sides: [Side; 2] = [(|| asked(LENDS), "admit-lease"), (borrowed, "open-credential")];
    for (side, begin) in sides {
        for (dataset, purpose, code) in [
            ("home", "", "dataset-not-allowed"),
            ("shared", "", "purpose-not-allowed"),
            ("shared", "teaching", "purpose-not-allowed"),
            ("personal", "", "agreement-excludes-data"),
        ] {
            let mut sim = side();
            read_by(&mut sim, dataset, purpose);
            let (refused, message) = refusal(&sim);
            assert!(refused == "signed-policy" && message.contains(code), "{dataset}: {message}");
            assert!(message.contains("(policy.yaml:"), "{message}");
            assert!(!sim.names().contains(&begin), "{begin}");
        }
        for (dataset, purpose) in [("shared", "research"), ("undeclared", "")] {
            let mut sim = side();
            read_by(&mut sim, dataset, purpose);
            assert!(sim.names().contains(&begin), "{dataset}: {:?}", sim.names());
        }
    }
}

#[test]
fn an_origin_waits_for_the_verdict_about_the_policy_only_where_data_is_read() {
    let mut sim = borrowed();
    sim.desired.policy_commit = "0".repeat(40);
    assert_eq!(sim.names(), ["open-credential"], "what the donor decides");
    read_by(&mut sim, "shared", "research");
    assert_eq!(sim.names(), [""; 0], "the broker's commit is being judged");
    sim.desired.policy_commit.clear();
    assert_eq!(refusal(&sim).0, "policy-unverified");
}

#[test]
fn broker_conceals_the_data_of_a_lease_after_it_was_admitted() {
    let mut sim = asked(LENDS);
    read_by(&mut sim, "shared", "research");
    sim.settle();
    sim.records.outbox.clear();
    sim.desired.leases[0].state = Some(LeaseState::Active);
    let end = sim.records.donors[&LEASE].sealed.as_ref().unwrap().lease_end_ms;
    // The owner takes the permission back, and the broker says that the lease reads nothing.
    let text = bundle(LENDS).source().files[0].text.replace("clusters: [donor]}, purposes", "clusters: []}, purposes");
    let files = vec![SourceFile { path: "policy.yaml".to_owned(), text }];
    sim.signed_policy.bundle = Some(Arc::new(Bundle::compile(&BundleSource::of_files(files)).unwrap()));
    (sim.desired.leases[0].data, sim.desired.leases[0].purpose) = Default::default();
    sim.desired.leases[0].expires_at_ms = end + ONE_HOUR_MS;
    sim.now_ms = end;
    let (code, message) = refusal(&sim);
    assert!(code == "signed-policy" && message.contains("dataset `shared` may not go to `donor`"), "{message}");
}
