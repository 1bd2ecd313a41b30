//! The audit log over the wire: who reads which records, proofs, restarts, and brokers that lack records.

use comity_audit::{AuditRecord, Entry, Hash, TreeHead, Verifier, verify_consistency};
use comity_broker::Broker;
use comity_proto::v1;
use comity_proto::v1::audit_service_client::AuditServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::tls::BrokerChannel;
use tonic::{Code, Status};

use crate::federation::{Federation, assert_refused, detail, spec, within};

fn all() -> v1::ListAuditRecordsRequest {
    v1::ListAuditRecordsRequest { include_withheld: true, ..v1::ListAuditRecordsRequest::default() }
}

/// All pages of a list, three records each.
async fn list(channel: &BrokerChannel, query: v1::ListAuditRecordsRequest) -> Result<Vec<Entry>, Status> {
    let (mut entries, mut token) = (Vec::new(), String::new());
    loop {
        let page = Some(v1::PageRequest { size: 3, token });
        let request = v1::ListAuditRecordsRequest { page, ..query.clone() };
        let reply = AuditServiceClient::new(channel.clone()).list_audit_records(request).await?.into_inner();
        assert!(reply.entries.len() <= 3);
        for entry in reply.entries {
            let hash = Hash::parse(&entry.hash).unwrap();
            let parsed = match entry.record.as_str() {
                "" => Entry::Withheld { index: entry.index, hash },
                line => Entry::parse(line).unwrap(),
            };
            assert_eq!((parsed.index(), parsed.hash()), (entry.index, hash));
            entries.push(parsed);
        }
        token = reply.page.unwrap().next_token;
        if token.is_empty() {
            return Ok(entries);
        }
    }
}

async fn records(channel: &BrokerChannel, query: v1::ListAuditRecordsRequest) -> Vec<AuditRecord> {
    let entries = list(channel, query).await.unwrap();
    entries
        .into_iter()
        .map(|entry| match entry {
            Entry::Record(record, _) => *record,
            Entry::Withheld { index, .. } => panic!("record {index} is withheld"),
        })
        .collect()
}

fn acts(records: &[AuditRecord]) -> Vec<&str> {
    records.iter().map(|record| record.act.as_str()).collect()
}

async fn head(channel: &BrokerChannel) -> TreeHead {
    let reply = AuditServiceClient::new(channel.clone()).get_audit_head(v1::GetAuditHeadRequest::default()).await;
    let head = reply.unwrap().into_inner().head.unwrap();
    TreeHead { size: head.size, root: Hash::parse(&head.root).unwrap() }
}

fn verify(entries: &[Entry]) -> Verifier {
    let mut verifier = Verifier::default();
    entries.iter().for_each(|entry| verifier.push(entry).unwrap());
    verifier
}

async fn submit(federation: &Federation, key: &str) {
    let call = v1::SubmitRequestRequest {
        spec: Some(spec()),
        idempotency_key: key.to_owned(),
        queue_anyway: true,
        dry_run: false,
    };
    RequestServiceClient::new(federation.user("alice")).submit_request(call).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_reads_what_concerns_it_and_everybody_can_verify_the_log() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    federation.join("ncc-main").await;
    submit(&federation, "one").await;
    let maintainer = federation.user("ingrid");
    let whole = list(&maintainer, all()).await.unwrap();
    let verifier = verify(&whole);
    assert_eq!((verifier.head_at(verifier.size()), verifier.withheld()), (Some(head(&maintainer).await), 0));
    let everything = records(&maintainer, v1::ListAuditRecordsRequest::default()).await;
    for act in ["policy-applied", "cluster-invited", "cluster-joined", "request-submitted"] {
        assert!(acts(&everything).contains(&act), "{act}: {:?}", acts(&everything));
    }
    let submitted = everything.iter().find(|record| record.act == "request-submitted").unwrap();
    assert_eq!(submitted.actor, "spiffe://comity.example/user/alice");
    assert_eq!((submitted.request.as_str(), submitted.tenant.as_str()), ("req-1", "poly-ml"));
    let cited = submitted.reasons.first().unwrap();
    assert_eq!((cited.kind.as_str(), cited.name.as_str()), ("Tenant", "poly-ml"));
    let file = crate::federation::examples().files.into_iter().find(|file| file.path == cited.file).unwrap();
    let line = file.text.lines().nth(cited.line as usize - 1).unwrap();
    assert!(line.contains("members"), "{line}");

    // A viewer of the tenant, somebody of another one, and the operator of the other institution.
    let viewer = records(&federation.user("hana"), v1::ListAuditRecordsRequest::default()).await;
    assert_eq!(acts(&viewer), ["policy-applied", "request-submitted"]);
    let stranger = federation.user("ivan");
    assert_eq!(acts(&records(&stranger, v1::ListAuditRecordsRequest::default()).await), ["policy-applied"]);
    let withheld = verify(&list(&stranger, all()).await.unwrap());
    assert_eq!(withheld.head_at(withheld.size()), verifier.head_at(verifier.size()));
    assert_eq!(withheld.withheld(), verifier.size() - 1);
    let operator = records(&federation.user("chen"), v1::ListAuditRecordsRequest::default()).await;
    let subjects: Vec<&str> = operator.iter().map(|record| record.subject.id.as_str()).collect();
    assert!(subjects.contains(&"ncc-main") && !subjects.contains(&"polytech-campus"), "{subjects:?}");
    let nobody = list(&federation.user("mallory"), all()).await.unwrap_err();
    assert_eq!(detail(&nobody).code, "permission-denied");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_are_filtered_and_wrong_filters_are_refused() {
    let federation = Federation::start().await;
    federation.join("polytech-campus").await;
    submit(&federation, "one").await;
    submit(&federation, "two").await;
    let maintainer = federation.user("ingrid");
    let of = |query: v1::ListAuditRecordsRequest| records(&maintainer, query);
    let default = v1::ListAuditRecordsRequest::default;
    let act = v1::ListAuditRecordsRequest { act: "request-submitted".to_owned(), ..default() };
    let submitted = of(act).await;
    assert_eq!(acts(&submitted), ["request-submitted", "request-submitted"]);
    let second = of(v1::ListAuditRecordsRequest { request: "req-2".to_owned(), ..default() }).await;
    assert_eq!(second, submitted[1..]);
    let subject = of(v1::ListAuditRecordsRequest { subject: "polytech-campus".to_owned(), ..default() }).await;
    assert_eq!(acts(&subject), ["cluster-invited", "cluster-joined"]);
    let actor = "spiffe://comity.example/user/alice".to_owned();
    assert_eq!(of(v1::ListAuditRecordsRequest { actor, ..default() }).await, submitted);
    let since_ms = submitted[1].time_ms;
    let newer = of(v1::ListAuditRecordsRequest { since_ms, act: "request-submitted".to_owned(), ..default() }).await;
    assert!(newer.contains(&second[0]));
    let older = of(v1::ListAuditRecordsRequest { until_ms: since_ms, ..default() }).await;
    assert!(!older.contains(&second[0]) && !older.is_empty());
    let from_index = second[0].index;
    assert_eq!(of(v1::ListAuditRecordsRequest { from_index, ..default() }).await.first(), second.first());

    let mut client = AuditServiceClient::new(maintainer.clone());
    let both = v1::ListAuditRecordsRequest { act: "lease-placed".to_owned(), ..all() };
    let code = Code::InvalidArgument;
    assert_refused(client.list_audit_records(both).await, code, "include_withheld", "true");
    let unknown = v1::ListAuditRecordsRequest { act: "lease-place".to_owned(), ..default() };
    assert_refused(client.list_audit_records(unknown).await, code, "act", "lease-place");
    let never = v1::ListAuditRecordsRequest { since_ms: 7, until_ms: 7, ..default() };
    assert_refused(client.list_audit_records(never).await, code, "until_ms", "7");
    let beyond = v1::GetAuditConsistencyRequest { from_size: 9_999, consistency: 0 };
    assert_refused(client.get_audit_consistency(beyond).await, code, "from_size", "9999");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_broker_has_the_same_records_and_proves_that_it_goes_on() {
    let mut federation = Federation::start().await;
    federation.join("polytech-campus").await;
    let before = list(&federation.user("ingrid"), all()).await.unwrap();
    let head_before = head(&federation.user("ingrid")).await;
    federation.restart().await;
    let maintainer = federation.user("ingrid");
    submit(&federation, "one").await;
    let after = list(&maintainer, all()).await.unwrap();
    assert_eq!(after[..before.len()], before);
    assert!(after.len() > before.len());
    let request = v1::GetAuditConsistencyRequest { from_size: head_before.size, consistency: 0 };
    let proof = AuditServiceClient::new(maintainer).get_audit_consistency(request).await.unwrap().into_inner();
    let proof = proof.proof.unwrap();
    let now = proof.head.unwrap();
    let now = TreeHead { size: now.size, root: Hash::parse(&now.root).unwrap() };
    let hashes: Vec<Hash> = proof.hashes.iter().map(|hash| Hash::parse(hash).unwrap()).collect();
    assert_eq!(verify_consistency(&head_before, &now, &hashes), Ok(()));
    assert_eq!(verify(&after).head_at(now.size), Some(now));
}

fn is_snapshot(file: std::fs::DirEntry) -> bool {
    file.path().extension().is_some_and(|extension| extension == "snapshot")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_lacks_records_gets_them_from_the_others() {
    let mut federation = Federation::of_three().await;
    federation.join("polytech-campus").await;
    let pem = federation.pem_of("ingrid");
    // Enough entries for a snapshot.
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    for number in 1..=40 {
        submit(&federation, &number.to_string()).await;
        let cancel =
            v1::CancelRequestRequest { request: format!("req-{number}"), idempotency_key: format!("cancel-{number}") };
        requests.cancel_request(cancel).await.unwrap();
    }
    let group = federation.data().with_file_name("broker-3").join("group");
    within("a snapshot", async {
        while !std::fs::read_dir(group.join("snapshots")).unwrap().flatten().any(is_snapshot) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    let config = federation.stop(3).await;
    assert_eq!(config.data.join("group"), group);
    submit(&federation, "last").await;
    // A broker with a snapshot makes no records from before it.
    std::fs::remove_file(group.join("audit.redb")).unwrap();
    let whole = list(&federation.channel(&pem), all()).await.unwrap();
    let third = Broker::start(config).await.unwrap();
    let channel = federation.channel_to(&third, &pem);
    let stale = || v1::ListAuditRecordsRequest { consistency: v1::Consistency::Stale.into(), ..all() };
    within("all records", async {
        while list(&channel, stale()).await.ok().is_none_or(|found| found != whole) {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await;
    third.shutdown().await;
}
