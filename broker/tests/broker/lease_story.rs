//! A whole lease, from submission to its end, and through a restart of the broker.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::offer_service_client::OfferServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::v1::watch_event::Object;
use comity_proto::v1::watch_service_client::WatchServiceClient;
use tonic::{Code, Streaming};

use crate::fake_agent::FakeAgent;
use crate::federation::{Federation, detail, spec, within};

async fn until_lease(events: &mut Streaming<v1::WatchEvent>, state: v1::LeaseState) -> v1::Lease {
    let wanted = async {
        loop {
            let event = events.message().await.unwrap().unwrap();
            if let Some(Object::Lease(lease)) = event.object
                && lease.state() == state
            {
                return lease;
            }
        }
    };
    within(&format!("a lease that is {state:?}"), wanted).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_becomes_active_survives_a_restart_and_ends() {
    let mut federation = Federation::start().await;
    let (origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 2);
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    let (origin_task, donor_task) = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));

    let alice = federation.user("alice");
    let mut requests = RequestServiceClient::new(alice.clone());
    let submit = v1::SubmitRequestRequest {
        spec: Some(spec()),
        idempotency_key: "one".to_owned(),
        queue_anyway: false,
        dry_run: false,
    };
    let dry = v1::SubmitRequestRequest { dry_run: true, idempotency_key: "dry".to_owned(), ..submit.clone() };
    let dry = requests.submit_request(dry).await.unwrap().into_inner().request.unwrap();
    assert_eq!(dry.id, "");
    let submitted = requests.submit_request(submit.clone()).await.unwrap().into_inner().request.unwrap();
    assert_eq!(submitted.id, "req-1");
    assert_eq!(submitted.submitted_by, "spiffe://comity.example/user/alice");
    // The same call again is the same request.
    let again = requests.submit_request(submit).await.unwrap().into_inner().request.unwrap();
    assert_eq!(again.id, "req-1");

    let watch = v1::WatchRequest { from_revision: 0, request: "req-1".to_owned() };
    let mut events = WatchServiceClient::new(alice.clone()).watch(watch).await.unwrap().into_inner();
    let lease = until_lease(&mut events, v1::LeaseState::Active).await;
    assert_eq!(lease.request, "req-1");
    assert_eq!((lease.donor_namespace.as_str(), lease.secret_name.as_str()), ("comity-lease-1", "comity-lease-1"));
    let placement = lease.placement.clone().unwrap();
    assert_eq!(
        (placement.donor.as_str(), placement.resource_name.as_str(), placement.resource_count),
        ("ncc-main", "nvidia.com/gpu", 3)
    );
    let offers = OfferServiceClient::new(alice.clone()).list_offers(v1::ListOffersRequest::default()).await.unwrap();
    let summary = offers.into_inner().offers.into_iter().find(|offer| offer.cluster == "ncc-main").unwrap();
    assert_eq!(
        (summary.classes[0].class.as_str(), summary.classes[0].lent_milli, summary.classes[0].devices),
        ("midrange", 3_000, 16)
    );

    // The stream of an agent ends with a word when its broker stops; the state is on disk.
    let revision = federation.revision().await;
    federation.restart().await;
    for task in [origin_task, donor_task] {
        let ended = within("the agents' streams end", task).await.unwrap();
        assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
    }
    assert!(federation.revision().await >= revision);
    let alice = federation.user("alice");
    let mut leases = LeaseServiceClient::new(alice.clone());
    let get = v1::GetLeaseRequest { lease: lease.id.clone(), consistency: 0 };
    let kept = leases.get_lease(get.clone()).await.unwrap().into_inner().lease.unwrap();
    assert_eq!((kept.state(), kept.fencing_token), (v1::LeaseState::Active, lease.fencing_token));

    let at_origin = FakeAgent::connect(&federation, &origin).await.unwrap();
    let at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    assert_eq!(at_donor.welcome.offer_generation, 1);
    let _agents = (tokio::spawn(at_origin.obey()), tokio::spawn(at_donor.obey()));

    // A viewer may look and not touch; what a stranger may not see does not exist.
    let release = v1::ReleaseLeaseRequest { lease: lease.id.clone(), idempotency_key: "release".to_owned() };
    let denied = LeaseServiceClient::new(federation.user("hana")).release_lease(release.clone()).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    let unseen = LeaseServiceClient::new(federation.user("ivan")).release_lease(release.clone()).await.unwrap_err();
    assert_eq!((unseen.code(), detail(&unseen).value.as_str()), (Code::NotFound, "lease-1"));

    let renew = v1::RenewLeaseRequest {
        lease: lease.id.clone(),
        duration_ms: 7_200_000,
        idempotency_key: "renew".to_owned(),
        may_shorten: false,
    };
    let renewed = leases.renew_lease(renew).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(renewed.term_ms, 7_200_000);
    let released = leases.release_lease(release).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(released.end_reason(), v1::EndReason::Released);
    let ended = async {
        loop {
            let lease = leases.get_lease(get.clone()).await.unwrap().into_inner().lease.unwrap();
            if lease.state() == v1::LeaseState::Ended {
                return lease;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let ended = within("the lease ends", ended).await;
    assert!(ended.ended_at_ms > 0);
    let get = v1::GetRequestRequest { request: "req-1".to_owned(), consistency: 0 };
    let request = RequestServiceClient::new(alice).get_request(get).await.unwrap().into_inner().request.unwrap();
    assert_eq!(request.state(), v1::RequestState::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn submit_dry_run_and_quote_show_the_warnings_of_rules() {
    let federation = Federation::start().await;
    let (_origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 1);
    at_donor.report(Body::Offer(offer)).await.unwrap();
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    for (hours, expected) in [(25, 1), (1, 0)] {
        let mut long = v1::RequestSpec { duration_ms: hours * 3_600_000, ..spec() };
        long.gpus.as_mut().unwrap().class = "frontier".to_owned();
        let quote = v1::QuoteRequestRequest { spec: Some(long.clone()), queue_anyway: true };
        let quoted = requests.quote_request(quote).await.unwrap().into_inner();
        let verdict = quoted.donors.into_iter().find(|verdict| verdict.donor == "ncc-main").unwrap();
        assert_eq!(verdict.warnings.len(), expected, "{verdict:?}");
        for dry_run in [true, false] {
            let idempotency_key = format!("{hours}-{dry_run}");
            let submit =
                v1::SubmitRequestRequest { spec: Some(long.clone()), idempotency_key, queue_anyway: true, dry_run };
            let reply = requests.submit_request(submit).await.unwrap().into_inner();
            assert_eq!(reply.warnings, verdict.warnings);
            assert!(reply.warnings.iter().all(|it| it.contains("Save checkpoints")), "{reply:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_names_each_donor_and_what_would_unblock_it() {
    let federation = Federation::start().await;
    let (_origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let offer = at_donor.offer(1, 1);
    at_donor.report(Body::Offer(offer)).await.unwrap();
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    // The donor's devices are exclusive: nobody can ever serve a part of one.
    let mut half = spec();
    half.gpus.as_mut().unwrap().share = Some(v1::Share { kind: Some(v1::share::Kind::Milli(500)) });
    let spec = Some(half);
    let key = "one".to_owned();
    let submit = v1::SubmitRequestRequest { spec, idempotency_key: key, queue_anyway: false, dry_run: false };
    let dry_run = v1::SubmitRequestRequest { dry_run: true, ..submit.clone() };
    let quote = v1::QuoteRequestRequest { spec: submit.spec.clone(), queue_anyway: false };
    for status in [
        requests.submit_request(submit.clone()).await.unwrap_err(),
        requests.submit_request(dry_run.clone()).await.unwrap_err(),
        requests.quote_request(quote.clone()).await.unwrap_err(),
    ] {
        assert_eq!((status.code(), detail(&status).code.as_str()), (Code::FailedPrecondition, "unservable"));
        assert!(status.message().contains("ncc-main") && status.message().contains("queue_anyway"), "{status}");
    }
    let dry_run = v1::SubmitRequestRequest { queue_anyway: true, ..dry_run };
    let dry_run = requests.submit_request(dry_run).await.unwrap().into_inner().request.unwrap();
    assert!(dry_run.message.contains("no donor could ever serve"), "{}", dry_run.message);
    let submit = v1::SubmitRequestRequest { queue_anyway: true, ..submit };
    requests.submit_request(submit.clone()).await.unwrap();
    // The key stands for the request, and a repeated call gets it.
    let repeated = v1::SubmitRequestRequest { queue_anyway: false, ..submit };
    assert_eq!(requests.submit_request(repeated).await.unwrap().into_inner().request.unwrap().id, "req-1");
    let explain = v1::ExplainRequestRequest { request: "req-1".to_owned(), seek_alternatives: false };
    let reply = requests.explain_request(explain).await.unwrap().into_inner();
    let verdict = reply.donors.iter().find(|verdict| verdict.donor == "ncc-main").unwrap();
    assert!(
        !verdict.fits && !verdict.code.is_empty() && !verdict.reason.is_empty() && !verdict.unblock.is_empty(),
        "{verdict:?}"
    );
    assert!(reply.summary.starts_with("not placed"), "{}", reply.summary);
    let quote = v1::QuoteRequestRequest { queue_anyway: true, ..quote };
    let quote = requests.quote_request(quote).await.unwrap().into_inner();
    assert_eq!(quote.placement, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_stream_of_a_cluster_wins() {
    let federation = Federation::start().await;
    let donor = federation.join("ncc-main").await;
    let mut older = FakeAgent::connect(&federation, &donor).await.unwrap();
    let mut newer = FakeAgent::connect(&federation, &donor).await.unwrap();
    let ended = async {
        loop {
            if let Err(status) = older.next().await {
                return status;
            }
        }
    };
    let status = within("the older stream ends", ended).await;
    assert_eq!((status.code(), detail(&status).code.as_str()), (Code::Aborted, "superseded"));
    let offer = newer.offer(1, 1);
    assert_eq!(newer.report(Body::Offer(offer)).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_stream_of_the_same_process_leaves_the_older_one_to_its_agent() {
    let federation = Federation::start().await;
    let donor = federation.join("ncc-main").await;
    let mut older = FakeAgent::connect_as(&federation, &donor, "one").await.unwrap();
    let mut newer = FakeAgent::connect_as(&federation, &donor, "one").await.unwrap();
    let offers = [newer.offer(1, 1), newer.offer(2, 1)].map(Body::Offer);
    let [first, second] = offers;
    assert_eq!(newer.report(first).await.unwrap(), None);
    assert_eq!(older.report(second).await.unwrap(), None);
}
