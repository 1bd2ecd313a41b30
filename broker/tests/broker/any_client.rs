//! Clients that know neither Comity's messages nor its errors find both.

use comity_proto::StatusExt as _;
use comity_proto::v1;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_runtime::identity::IdentityDir;
use futures::stream;
use tonic::Code;

use crate::federation::{Federation, assert_refused};

#[tokio::test(flavor = "multi_thread")]
async fn one_answer_names_all_missing_fields() {
    let federation = Federation::start().await;
    let mut requests = RequestServiceClient::new(federation.user("alice"));
    let status = requests.submit_request(v1::SubmitRequestRequest::default()).await.unwrap_err();
    let fields = status.get_details_bad_request().unwrap().field_violations.into_iter().map(|it| it.field);
    let spec = ["tenant", "origin", "gpus.class", "gpus.share", "gpus.count", "delivery"];
    let spec = spec.map(|field| format!("spec.{field}")).into_iter();
    assert!(fields.eq(spec.chain(["idempotency_key".to_owned()])), "{status:?}");
    let info = status.get_details_error_info().unwrap();
    assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_FIELD", "comity.dev"));
    assert!(!info.metadata["remedy"].is_empty());

    // Whoever may not call learns nothing else.
    let mut requests = RequestServiceClient::new(federation.anonymous());
    let reply = requests.submit_request(v1::SubmitRequestRequest::default()).await;
    assert_refused(reply, Code::Unauthenticated, "", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_names_the_addresses_of_the_broker() {
    let federation = Federation::bare().await;
    let (_, identity) = IdentityDir::new(federation.data().join("identity")).load().unwrap();
    for host in ["localhost", "127.0.0.1", "::1"] {
        assert!(identity.hosts().contains(&host.parse().unwrap()), "{host}: {:?}", identity.hosts());
    }
}

macro_rules! services {
    ($version:ident, $federation:expr) => {{
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
        use tonic_reflection::pb::$version::{ServerReflectionRequest, ServerReflectionResponse};

        let list = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut client = ServerReflectionClient::new($federation.anonymous());
        let mut answers = client.server_reflection_info(stream::iter([list])).await.unwrap().into_inner();
        let answer: Option<ServerReflectionResponse> = answers.message().await.unwrap();
        match answer.unwrap().message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                list.service.into_iter().map(|service| service.name).collect::<Vec<String>>()
            }
            other => panic!("no list: {other:?}"),
        }
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_reflection_show_the_public_api_only() {
    let federation = Federation::bare().await;
    let (new, old) = (services!(v1, federation), services!(v1alpha, federation));
    assert_eq!(new.len(), old.len());
    for services in [new, old] {
        assert!(services.iter().any(|name| name == "comity.v1.RequestService"), "{services:?}");
        assert!(!services.iter().any(|name| name.starts_with("comity.raft.")), "{services:?}");
    }
}
