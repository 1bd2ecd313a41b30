//! Bad input names field, value and remedy, and changes nothing.

use std::collections::BTreeSet;

use comity_core::command::{AdvertiseOffer, ApplyPolicy, SubmitRequest};
use comity_core::demand::{RequestSpec, Share};
use comity_core::inventory::Sharing;
use comity_core::log::LOG_FORMAT;
use comity_core::refusal::Code;
use comity_core::reply::Idempotency;
use comity_core::{Actor, Command, LogEnvelope, Millis, Timestamp};
use comity_policy::{BundleSource, SourceFile};

use super::federation::{Federation, cluster, device, offer, spec};

fn submit(spec: RequestSpec) -> Command {
    Command::SubmitRequest(SubmitRequest { spec, submitted_by: "spiffe://test.example/user/alice".into() })
}

#[test]
fn each_field_of_a_request_is_checked() {
    let mut federation = Federation::ready();
    let change = |change: &dyn Fn(&mut RequestSpec)| {
        let mut spec = spec(1, Share::Whole, "big");
        change(&mut spec);
        spec
    };
    let cases = [
        (change(&|s| s.gpus.count = 0), "spec.gpus.count"),
        (change(&|s| s.gpus.count = u32::MAX), "spec.gpus.count"),
        (change(&|s| s.gpus.count = 65), "spec.gpus.count"),
        (change(&|s| s.gpus.share = Share::Milli(49)), "spec.gpus.share.milli"),
        (change(&|s| s.gpus.share = Share::Milli(1001)), "spec.gpus.share.milli"),
        (change(&|s| s.gpus.share = Share::MemoryMib(0)), "spec.gpus.share.memory_mib"),
        (change(&|s| s.gpus.share = Share::MigProfile(String::new())), "spec.gpus.share.mig_profile"),
        (change(&|s| s.gpus.cpu_milli_per_gpu = u64::MAX), "spec.gpus.cpu_milli_per_gpu"),
        (change(&|s| s.gpus.memory_mib_per_gpu = u64::MAX), "spec.gpus.memory_mib_per_gpu"),
        (change(&|s| s.duration = Millis(1)), "spec.duration_ms"),
        (change(&|s| s.duration = Millis::from_hours(24 * 8)), "spec.duration_ms"),
        (change(&|s| s.target_namespace = "No!".into()), "spec.target_namespace"),
        (change(&|s| s.target_namespace = "kube-system".into()), "spec.target_namespace"),
        (change(&|s| s.note = "x".repeat(257)), "spec.note"),
        (change(&|s| s.note = "\u{1b}[2J".into()), "spec.note"),
        (change(&|s| s.purpose = "for science".into()), "spec.purpose"),
        (change(&|s| s.origin = cluster("nowhere")), "spec.origin"),
        (change(&|s| s.origin = cluster("north")), "spec.origin"),
        (change(&|s| s.allow_donors = vec![cluster("nowhere")]), "spec.allow_donors"),
        (
            change(&|s| s.gpus.devices = comity_core::demand::DeviceChoice::Class("none".parse().unwrap())),
            "spec.gpus.class",
        ),
    ];
    for (spec, field) in cases {
        let refusal = federation.refused(submit(spec));
        assert_eq!(refusal.field, field, "{refusal}");
        assert!(!refusal.remedy.is_empty() && !refusal.reason.is_empty());
    }
}

#[test]
fn an_idempotency_key_stands_for_one_body() {
    let mut federation = Federation::ready();
    let mut entry = |key: &str, body: &str, count| {
        let entry = LogEnvelope {
            format: LOG_FORMAT,
            actor: Actor::User("spiffe://test.example/user/alice".into()),
            generation: 0,
            time: Timestamp(5_000_000),
            traceparent: String::new(),
            idempotency: Some(Idempotency {
                caller: "spiffe://test.example/user/alice".into(),
                key: key.into(),
                body_sha256: body.into(),
            }),
            command: submit(spec(count, Share::Whole, "big")),
        };
        federation.state.apply(&entry).unwrap()
    };
    let first = entry("k", "aa", 1);
    let again = entry("k", "aa", 1);
    assert_eq!(first.reply, again.reply);
    assert!(again.changes.is_empty());
    assert_eq!(entry("k", "bb", 2).reply.unwrap_err().code, Code::IdempotencyConflict);
    // A refusal does not use up the key: the caller may correct the call, or the cause may pass.
    assert!(entry("bad", "cc", 0).reply.is_err());
    assert!(entry("bad", "dd", 1).reply.is_ok());
    assert_eq!(federation.state.queued_len(), 2);
}

#[test]
fn an_offer_with_an_old_generation_or_impossible_amounts_is_refused() {
    let mut federation = Federation::ready();
    let big = device(81_559, Sharing::Exclusive);
    let advertise = |offer| Command::AdvertiseOffer(AdvertiseOffer { cluster: cluster("north"), offer });
    let refusal = federation.refused(advertise(offer(1, &[("n1", 1, big.clone())])));
    assert_eq!((refusal.code, refusal.field.as_str()), (Code::StaleGeneration, "offer.generation"));
    assert_eq!(federation.refused(advertise(offer(0, &[]))).field, "offer.generation");
    let over = comity_core::inventory::Device { local_use_milli: 1_001, ..big.clone() };
    assert!(federation.refused(advertise(offer(2, &[("n1", 1, over)]))).field.ends_with("local_use_milli"));
    let odd = comity_core::inventory::Device { sharing: Sharing::TimeSlicing { replicas: 1 }, ..big.clone() };
    assert!(federation.refused(advertise(offer(2, &[("n1", 1, odd)]))).field.ends_with("replicas"));
    assert!(federation.refused(advertise(offer(2, &[("n1", 129, big.clone())]))).field.ends_with("devices"));
    let native = comity_core::inventory::Device { resource_name: "pods".into(), ..big.clone() };
    assert!(federation.refused(advertise(offer(2, &[("n1", 1, native)]))).field.ends_with("resource_name"));
    let none = comity_core::inventory::Offer { deliveries: BTreeSet::new(), ..offer(2, &[("n1", 1, big)]) };
    assert_eq!(federation.refused(advertise(none)).field, "offer.deliveries");
}

#[test]
fn a_bundle_that_does_not_compile_changes_nothing() {
    let mut federation = Federation::ready();
    let files = vec![SourceFile { path: "a.yaml".into(), text: "kind: Nonsense".into() }];
    let refusal = federation.refused(Command::ApplyPolicy(ApplyPolicy {
        source: BundleSource::of_files(files),
        force: false,
        expected_hash: None,
    }));
    assert!(refusal.reason.contains("problems") && refusal.remedy.contains("comity policy check"), "{refusal}");
}
