//! Quotas over the wire: who sees which, and what is in use.

use comity_proto::v1;
use comity_proto::v1::agent_message::Body;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::tls::BrokerChannel;
use tonic::Code;

use crate::fake_agent::FakeAgent;
use crate::federation::{Federation, assert_refused, within};

/// All pages of a list, one quota each: name of the document, limit, use and rest.
async fn list(channel: BrokerChannel, tenant: &str) -> Vec<(String, u64, u64, u64)> {
    let mut requests = RequestServiceClient::new(channel);
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let page = Some(v1::PageRequest { size: 1, token });
        let query = v1::ListQuotasRequest { page, tenant: tenant.to_owned() };
        let reply = requests.list_quotas(query).await.unwrap().into_inner();
        found.extend(reply.quotas.into_iter().map(|quota| {
            assert_eq!(quota.needs_milli, 0);
            let name = quota.by.split(' ').nth(1).unwrap().to_owned();
            (name, quota.limit_milli, quota.used_milli, quota.left_milli)
        }));
        token = reply.page.unwrap().next_token;
        if token.is_empty() {
            return found;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_caller_sees_the_quotas_of_its_tenants_and_what_they_use() {
    let federation = Federation::start().await;
    let (_origin, donor) = (federation.join("polytech-campus").await, federation.join("ncc-main").await);
    let mut at_donor = FakeAgent::connect(&federation, &donor).await.unwrap();
    let mut offer = at_donor.offer(1, 1);
    for device in &mut offer.nodes[0].devices {
        (device.architecture, device.memory_mib) = ("Hopper".to_owned(), 81_559);
    }
    assert_eq!(at_donor.report(Body::Offer(offer)).await.unwrap(), None);
    federation.until_connected("ncc-main").await;
    let of = |name: &str, limit, used| (name.to_owned(), limit, used, limit - used);
    let before = list(federation.user("alice"), "").await;
    assert_eq!(before, [of("poly-ml", 16_000, 0), of("poly-ml-frontier", 8_000, 0), of("polytechnic", 20_000, 0)]);

    let mut requests = RequestServiceClient::new(federation.user("alice"));
    let spec = v1::RequestSpec {
        tenant: "poly-ml".to_owned(),
        origin: "polytech-campus".to_owned(),
        template: "fine-tuning".to_owned(),
        ..v1::RequestSpec::default()
    };
    let submit = v1::SubmitRequestRequest { spec: Some(spec), idempotency_key: "one".to_owned(), ..Default::default() };
    requests.submit_request(submit).await.unwrap();
    let used = [of("poly-ml", 16_000, 4_000), of("poly-ml-frontier", 8_000, 4_000), of("polytechnic", 20_000, 4_000)];
    within("the placement", async {
        while list(federation.user("alice"), "").await != used {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await;

    // Of the same institution, but another tenant; then somebody without a role.
    let courses = list(federation.user("ivan"), "").await;
    assert_eq!(courses, [of("poly-courses", 2_000, 0), of("polytechnic", 20_000, 4_000)]);
    let query = v1::ListQuotasRequest { page: None, tenant: "poly-ml".to_owned() };
    let refused = RequestServiceClient::new(federation.user("ivan")).list_quotas(query.clone()).await;
    assert_refused(refused, Code::NotFound, "tenant", "poly-ml");
    let refused = RequestServiceClient::new(federation.user("mallory")).list_quotas(query).await;
    assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(list(federation.user("ingrid"), "poly-courses").await, courses);
}
