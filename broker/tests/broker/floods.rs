//! Floods: what one caller sends keeps nobody else from being served.

use std::time::{Duration, Instant};

use comity_broker::Broker;
use comity_broker::api::agent_streams::MAX_STREAMS_PER_CLUSTER;
use comity_broker::api::shares::long_calls::LONG_CALLS;
use comity_proto::StatusExt as _;
use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::agent_service_client::AgentServiceClient;
use comity_proto::v1::policy_service_client::PolicyServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::tls::{ClientStream, ClientTls, dial};
use comity_testkit::timing::in_time;
use futures::future::join_all;
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::fake_agent::{FakeAgent, message};
use crate::federation::{Federation, Member, detail, examples, spec, within};

/// Connections without a certificate that one address may have.
const ANONYMOUS_PER_ADDRESS: usize = 64;
/// Calls that one caller may have under way.
const CALLS: usize = 64;

/// Connects, and returns the connection if the broker greets rather than closes it.
async fn greeted(address: &str, tls: &ClientTls) -> Option<ClientStream> {
    let mut connection = dial(address, tls, Duration::from_secs(5)).await.ok()?;
    let greeting = within("a greeting or the end", connection.read(&mut [0; 1])).await;
    greeting.is_ok_and(|bytes| bytes > 0).then_some(connection)
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_idle_connections_lock_out_agents() {
    let federation = Federation::start().await;
    let member = federation.join("ncc-main").await;
    let anonymous = ClientTls::anonymous(federation.ca().roots().clone());
    let address = federation.broker().client_addr().to_string();
    let mut idle = Vec::new();
    while let Some(connection) = greeted(&address, &anonymous).await {
        idle.push(connection);
        assert!(idle.len() <= ANONYMOUS_PER_ADDRESS, "one address has {} connections", idle.len());
    }
    // The join's own connection may still count.
    assert!(idle.len() >= ANONYMOUS_PER_ADDRESS - 4, "only {} connections were let in", idle.len());

    let mut agent = FakeAgent::connect(&federation, &member).await.unwrap();
    assert_eq!(agent.report(Body::Offer(agent.offer(1, 2))).await.unwrap(), None);
    let list = v1::ListRequestsRequest::default();
    RequestServiceClient::new(federation.user("alice")).list_requests(list).await.unwrap();
    drop(idle);
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_a_certificate_send_no_large_messages() {
    let federation = Federation::bare().await;
    let file = v1::PolicyFile { path: "all.yaml".to_owned(), text: "#".repeat(66 << 10) };
    let bundle = v1::PolicyBundle { files: vec![file], commit: String::new() };
    let check = v1::CheckPolicyRequest { bundle: Some(bundle) };
    let refused = PolicyServiceClient::new(federation.anonymous()).check_policy(check.clone()).await.unwrap_err();
    let code = detail(&refused).code;
    assert_eq!((refused.code(), code.as_str()), (Code::ResourceExhausted, "message-too-large"), "{refused:?}");
    let known = PolicyServiceClient::new(federation.user("admin")).check_policy(check).await.unwrap();
    assert!(!known.into_inner().problems.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn health_checks_send_no_large_messages() {
    let federation = Federation::bare().await;
    let check = HealthCheckRequest { service: "a".repeat(66 << 10) };
    let refused = HealthClient::new(federation.user("admin")).check(check).await.unwrap_err();
    let code = detail(&refused).code;
    assert_eq!((refused.code(), code.as_str()), (Code::ResourceExhausted, "message-too-large"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn user_sends_empty_files_without_end() {
    let federation = Federation::bare().await;
    let bundle = v1::PolicyBundle { files: vec![v1::PolicyFile::default(); 1 << 20], commit: String::new() };
    let check = v1::CheckPolicyRequest { bundle: Some(bundle) };
    let refused = PolicyServiceClient::new(federation.user("admin")).check_policy(check).await.unwrap_err();
    assert_eq!((refused.code(), detail(&refused).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
    assert!(refused.message().contains("more parts than fit into 1 MiB"), "{refused:?}");
    let check = v1::CheckPolicyRequest { bundle: Some(examples()) };
    let checked = PolicyServiceClient::new(federation.user("admin")).check_policy(check).await.unwrap();
    assert!(checked.into_inner().problems.is_empty());
}

/// Asks for many quotes at once; returns the numbers of answers and of refusals because of a limit.
async fn quotes(client: &RequestServiceClient<comity_runtime::tls::BrokerChannel>, count: usize) -> (usize, usize) {
    let quotes = (0..count).map(|_| {
        let mut client = client.clone();
        async move { client.quote_request(v1::QuoteRequestRequest { spec: Some(spec()), queue_anyway: true }).await }
    });
    let (mut answered, mut refused) = (0, 0);
    for reply in join_all(quotes).await {
        match reply {
            Ok(_) => answered += 1,
            Err(status) => {
                assert_eq!((status.code(), detail(&status).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
                assert!(status.get_details_retry_info().is_some(), "{status:?}");
                refused += 1;
            }
        }
    }
    (answered, refused)
}

/// The leader that each broker knows, and its term.
async fn leaders(federation: &Federation) -> Vec<(Option<u64>, u64)> {
    let status = async |broker: &Broker| broker.group().status().await;
    let all = join_all(federation.brokers().map(status)).await;
    all.iter().map(|status| (status.leader, status.term)).collect()
}

#[test]
fn quote_storm_costs_leadership() {
    in_time(|| tokio::runtime::Runtime::new().unwrap().block_on(quote_storm()));
}

async fn quote_storm() {
    /// Several times as long as it takes to lose the leadership.
    const LASTS: Duration = Duration::from_secs(5);
    /// Each quote looks at all of them.
    const NODES: usize = 5_000;
    let federation = Federation::of_three().await;
    federation.join("polytech-campus").await;
    let mut agent = FakeAgent::connect(&federation, &federation.join("ncc-main").await).await.unwrap();
    assert_eq!(agent.report(Body::Offer(agent.offer(1, NODES))).await.unwrap(), None);
    let leader = federation.brokers().find(|broker| broker.group().leadership().borrow().is_leader()).unwrap();
    let channel = |user: &str| federation.channel_to(leader, &federation.user_pem(user));
    let alice = RequestServiceClient::new(channel("alice"));
    let before = leaders(&federation).await;

    let storm = async {
        let (began, mut answered, mut refused) = (Instant::now(), 0, 0);
        while began.elapsed() < LASTS {
            let (more_answered, more_refused) = quotes(&alice, CALLS).await;
            (answered, refused) = (answered + more_answered, refused + more_refused);
        }
        (answered, refused)
    };
    // Another caller gets its bundle checked and submits meanwhile.
    let other = async {
        let mut client = RequestServiceClient::new(channel("admin"));
        for number in 0..2 {
            let policy = v1::GetPolicyRequest::default();
            PolicyServiceClient::new(channel("admin")).get_policy(policy).await.unwrap();
            let check = v1::CheckPolicyRequest { bundle: Some(examples()) };
            let checked = PolicyServiceClient::new(channel("admin")).check_policy(check).await.unwrap();
            assert!(checked.into_inner().problems.is_empty());
            let list = v1::ListRequestsRequest::default();
            client.list_requests(list).await.unwrap();
            federation.invite("startup-pc", &format!("during-{number}")).await.unwrap();
        }
    };
    let ((answered, refused), ()) = within("the storm", async { tokio::join!(storm, other) }).await;
    assert!(answered >= LONG_CALLS.per_caller && refused >= CALLS, "{answered} answered, {refused} refused");
    assert_eq!(leaders(&federation).await, before, "the leader, or the term, changed");
    // After the storm everything is as before.
    assert_eq!(quotes(&alice, LONG_CALLS.per_caller).await, (LONG_CALLS.per_caller, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_beyond_a_full_queue_cost_no_log_entries() {
    const REFUSED: u64 = 30;
    let federation = Federation::bare().await;
    let mut bundle = examples();
    for file in &mut bundle.files {
        file.text = file.text.replace("maxQueuedRequestsPerTenant: 200", "maxQueuedRequestsPerTenant: 2");
    }
    let apply = v1::ApplyPolicyRequest {
        bundle: Some(bundle),
        idempotency_key: "small-queue".to_owned(),
        ..v1::ApplyPolicyRequest::default()
    };
    let applied = PolicyServiceClient::new(federation.user("admin")).apply_policy(apply).await.unwrap();
    assert!(applied.into_inner().changed);
    federation.join("polytech-campus").await;
    let mut client = RequestServiceClient::new(federation.user("alice"));
    let mut submit = async |key: String| {
        let submit = v1::SubmitRequestRequest {
            spec: Some(spec()),
            idempotency_key: key,
            queue_anyway: true,
            ..v1::SubmitRequestRequest::default()
        };
        client.submit_request(submit).await
    };
    let first = submit("0".to_owned()).await.unwrap().into_inner().request.unwrap().id;
    submit("1".to_owned()).await.unwrap();
    let before = federation.broker().group().log_syncs();
    for number in 0..REFUSED {
        let refused = submit(format!("more-{number}")).await.unwrap_err();
        assert_eq!((refused.code(), detail(&refused).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
        assert!(refused.message().starts_with("2 requests of tenant poly-ml wait already"), "{refused:?}");
    }
    let syncs = federation.broker().group().log_syncs() - before;
    assert!(syncs < REFUSED / 2, "{REFUSED} refusals cost {syncs} fsyncs of the log");
    // A repeated call still gets its request.
    assert_eq!(submit("0".to_owned()).await.unwrap().into_inner().request.unwrap().id, first);
}

type Stream = (mpsc::Sender<v1::AgentMessage>, Streaming<v1::BrokerMessage>);

/// Opens an agent's stream and says nothing.
async fn silent_stream(federation: &Federation, member: &Member) -> Result<Stream, Status> {
    let (reports, receiver) = mpsc::channel(1);
    let mut client = AgentServiceClient::new(federation.channel(&member.pem));
    let replies = client.connect(ReceiverStream::new(receiver)).await?.into_inner();
    Ok((reports, replies))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_clusters_open_streams_are_bounded() {
    let federation = Federation::start().await;
    let (member, other) = (federation.join("ncc-main").await, federation.join("polytech-campus").await);
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS_PER_CLUSTER {
        open.push(silent_stream(&federation, &member).await.unwrap());
    }
    let refused = silent_stream(&federation, &member).await.unwrap_err();
    assert_eq!((refused.code(), detail(&refused).code.as_str()), (Code::ResourceExhausted, "limit-reached"));
    FakeAgent::connect(&federation, &other).await.unwrap();
    drop(open);
    within("an open stream", async {
        while FakeAgent::connect(&federation, &member).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_reports_is_read_at_the_clusters_pace() {
    /// More than a quiet cluster has saved up.
    const REPORTS: u64 = 8_800;
    let federation = Federation::start().await;
    let member = federation.join("ncc-main").await;
    let (reports, receiver) = mpsc::channel(64);
    reports.send(message(0, Body::Hello(v1::Hello::default()))).await.unwrap();
    let mut client = AgentServiceClient::new(federation.channel(&member.pem));
    let mut replies = client.connect(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let flood = async {
        for _ in 0..REPORTS {
            reports.send(message(0, Body::Heartbeat(v1::Heartbeat {}))).await.unwrap();
        }
        // Acknowledged once everything before it was read.
        reports.send(message(1, Body::EnvelopeAck(v1::EnvelopeAck::default()))).await.unwrap();
    };
    let began = Instant::now();
    let acknowledged = async {
        loop {
            let reply = replies.message().await.unwrap().and_then(|reply| reply.body);
            if let Some(v1::broker_message::Body::Ack(ack)) = reply {
                return ack.message_id;
            }
        }
    };
    let ((), acknowledged) = within("the flood", async { tokio::join!(flood, acknowledged) }).await;
    assert_eq!(acknowledged, 1);
    assert!(began.elapsed() > Duration::from_millis(1_800), "800 reports beyond those saved up take 2 s");
}
