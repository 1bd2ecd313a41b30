//! A lease that its donor needs back: reclaimed with notice, given up when its work is saved, and served again.

use std::time::Duration;

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::tls::BrokerChannel;
use tonic::Code;

use crate::fake_agent::{FakeAgent, message};
use crate::federation::{Federation, examples, spec, within};

async fn lease(channel: &BrokerChannel, id: &str, state: v1::LeaseState) -> v1::Lease {
    let mut leases = LeaseServiceClient::new(channel.clone());
    let wanted = async {
        loop {
            let get = v1::GetLeaseRequest { lease: id.to_owned(), consistency: 0 };
            if let Ok(found) = leases.get_lease(get).await
                && let Some(found) = found.into_inner().lease.filter(|found| found.state() == state)
            {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(&format!("{id} is {state:?}"), wanted).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_its_donor_needs_is_reclaimed_and_its_request_served_again() {
    let federation = Federation::start().await;
    let (origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offers = |local: usize, generation: u64| {
        let mut offer = at_donor.offer(generation, 2);
        let devices = offer.nodes.iter_mut().flat_map(|node| &mut node.devices).rev();
        devices.take(local).for_each(|device| device.local_use_milli = 1_000);
        Body::Offer(offer)
    };
    let (free, used, free_again) = (offers(0, 1), offers(12, 2), offers(0, 3));
    assert_eq!(at_donor.report(free).await.unwrap(), None);
    let says = at_donor.voice();
    let _agents = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));
    let alice = federation.user("alice");
    let mut requests = RequestServiceClient::new(alice.clone());
    let asked = v1::RequestSpec {
        preemptible: Some(v1::Preemptible { grace_ms: 60_000, checkpoint: true, ..v1::Preemptible::default() }),
        ..spec()
    };
    let submit = v1::SubmitRequestRequest {
        spec: Some(asked),
        idempotency_key: "one".to_owned(),
        queue_anyway: false,
        dry_run: false,
    };
    let submitted = requests.submit_request(submit).await.unwrap().into_inner().request.unwrap();
    assert_eq!(
        submitted.spec.and_then(|spec| spec.preemptible).map(|it| (it.grace_ms, it.checkpoint)),
        Some((60_000, true))
    );
    lease(&alice, "lease-1", v1::LeaseState::Active).await;

    // Sixteen, twelve of them in local use: one is free beside the lease, and two are reserved.
    says.send(message(1_000, used)).await.unwrap();
    let reclaimed = lease(&alice, "lease-1", v1::LeaseState::Reclaiming).await;
    let reclaim = reclaimed.reclaim.unwrap();
    assert_eq!(reclaim.reason(), v1::ReclaimReason::LocalNeed);
    assert_eq!(reclaim.deadline_ms - reclaim.since_ms, 30 * 60_000, "the donor's notice");
    assert!(reclaimed.message.starts_with("reclaimed: "), "{}", reclaimed.message);

    let saved = v1::CheckpointLeaseRequest { lease: "lease-1".to_owned(), idempotency_key: "saved".to_owned() };
    let denied = LeaseServiceClient::new(federation.user("hana")).checkpoint_lease(saved.clone()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let ending =
        LeaseServiceClient::new(alice.clone()).checkpoint_lease(saved).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(ending.end_reason(), v1::EndReason::Reclaimed);
    assert!(ending.checkpointed_at_ms > 0);
    lease(&alice, "lease-1", v1::LeaseState::Ended).await;
    let get = v1::GetRequestRequest { request: "req-1".to_owned(), consistency: 0 };
    let waiting = requests.get_request(get).await.unwrap().into_inner().request.unwrap();
    assert_eq!(waiting.state(), v1::RequestState::Queued, "{}", waiting.message);

    says.send(message(1_001, free_again)).await.unwrap();
    let again = lease(&alice, "lease-2", v1::LeaseState::Active).await;
    assert_eq!((again.request.as_str(), again.moved_from.as_str()), ("req-1", ""));
}

/// A policy takes the class of a lease from its donor's terms: as they say, the lease ends now, or after its notice.
#[tokio::test(flavor = "multi_thread")]
async fn a_withdrawn_permission_drains_or_stops_a_lease_as_the_plan_says() {
    let federation = Federation::start().await;
    let (origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 2);
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    let _agents = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));
    let alice = federation.user("alice");
    let submit = v1::SubmitRequestRequest {
        spec: Some(spec()),
        idempotency_key: "one".to_owned(),
        queue_anyway: false,
        dry_run: false,
    };
    RequestServiceClient::new(alice.clone()).submit_request(submit).await.unwrap();
    lease(&alice, "lease-1", v1::LeaseState::Active).await;

    let mut policy = PolicyServiceClient::new(federation.user("admin"));
    let without_class = |treatment: &str| {
        let mut bundle = examples();
        let terms = bundle.files.iter_mut().find(|file| file.path.ends_with("ncc-main.yaml")).unwrap();
        let lends = "classes: [frontier, midrange]\n";
        assert!(terms.text.contains(lends));
        terms.text = terms.text.replace(lends, "classes: [frontier]\n");
        terms.text.push_str(&format!("  onWithdrawal: {treatment}\n"));
        bundle
    };
    for (treatment, word) in [("drain", v1::LeaseTreatment::Drain), ("stop", v1::LeaseTreatment::Stop)] {
        let bundle = Some(without_class(treatment));
        if word == v1::LeaseTreatment::Drain {
            let plan = v1::PlanPolicyRequest { bundle: bundle.clone(), ..v1::PlanPolicyRequest::default() };
            let plan = policy.plan_policy(plan).await.unwrap().into_inner().plan.unwrap();
            let effect = plan.leases.first().unwrap();
            assert_eq!((effect.lease.as_str(), effect.treatment()), ("lease-1", word), "{plan:?}");
        }
        let apply = v1::ApplyPolicyRequest {
            bundle,
            idempotency_key: treatment.to_owned(),
            ..v1::ApplyPolicyRequest::default()
        };
        assert!(policy.apply_policy(apply).await.unwrap().into_inner().changed);
        if word == v1::LeaseTreatment::Drain {
            let reclaim = lease(&alice, "lease-1", v1::LeaseState::Reclaiming).await.reclaim.unwrap();
            assert_eq!(reclaim.reason(), v1::ReclaimReason::PolicyChanged);
            assert_eq!(reclaim.policy_code, "class-not-lent");
            assert_eq!(reclaim.deadline_ms - reclaim.since_ms, 30 * 60_000, "the donor's notice");
        }
    }
    // The notice runs for half an hour; the tighter word does not wait for it.
    let ended = lease(&alice, "lease-1", v1::LeaseState::Ended).await;
    assert_eq!(ended.end_reason(), v1::EndReason::Reclaimed);
    let reclaim = ended.reclaim.unwrap();
    assert_eq!(reclaim.since_ms, reclaim.deadline_ms, "no notice");
}
