//! Opens the stream to a broker. The generated client would decode whatever comes: two bytes from a stolen broker are a
//! lease of a thousand bytes, and an agent that is killed for its memory takes the tunnels of running work with it.

use comity_proto::v1;
use comity_proto::v1::agent_service_server::SERVICE_NAME;
use comity_proto::{BoundedCodec, DecodedSizeLimit};
use futures::Stream;
use http::uri::PathAndQuery;
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::{Body as HttpBody, Bytes, StdError};
use tonic::{GrpcMethod, Request, Status, Streaming};

use super::MAX_MESSAGE_BYTES;

const METHOD: &str = "Connect";
const PATH: &str = "/comity.v1.AgentService/Connect";
/// Depth of what a desired state lists, and its number of envelopes, whose content other agents wrote.
const ENVELOPES: (usize, u64) = (1, 5);
/// Bytes of a lease, a peering or an envelope.
const OBJECT_BYTES: usize = 1_280;
/// A message of a broker: 50,000 leases of 16 GPUs each take less than two thirds of it. By depth: the state, a
/// lease or peering, its texts, a node of its placement, a device there, what is in these.
pub(super) const BROKER_MESSAGE_LIMIT: DecodedSizeLimit = DecodedSizeLimit {
    max_bytes: 384 << 20,
    bytes_by_depth: &[512, OBJECT_BYTES, 96, 256, 128, 96, 96],
    opaque: &[ENVELOPES],
};

/// Calls `Connect`, and sends it `outgoing`.
pub(super) async fn open<T>(
    channel: T,
    limit: &'static DecodedSizeLimit,
    outgoing: impl Stream<Item = v1::AgentMessage> + Send + 'static,
) -> Result<Streaming<v1::BrokerMessage>, Status>
where
    T: GrpcService<Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
    <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
{
    let mut grpc =
        Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES).max_encoding_message_size(MAX_MESSAGE_BYTES);
    let not_ready = |error: T::Error| match error.into().downcast::<Status>() {
        // Its text would quote all its fields.
        Ok(status) => *status,
        Err(error) => Status::unavailable(format!("the connection cannot be used: {error}")),
    };
    grpc.ready().await.map_err(not_ready)?;
    let mut request = Request::new(outgoing);
    request.extensions_mut().insert(GrpcMethod::new(SERVICE_NAME, METHOD));
    let codec = BoundedCodec::<v1::AgentMessage, v1::BrokerMessage>::new(limit);
    Ok(grpc.streaming(request, PathAndQuery::from_static(PATH), codec).await?.into_inner())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
    use comity_proto::v1::broker_message::Body as Sent;
    use futures::stream::BoxStream;
    use futures::{StreamExt as _, stream};
    use prost::Message as _;
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::Response;
    use tonic::transport::{Endpoint, Server};

    use super::*;

    fn message(state: v1::DesiredState) -> v1::BrokerMessage {
        v1::BrokerMessage { body: Some(Sent::Desired(state)) }
    }

    fn leases(count: usize) -> v1::BrokerMessage {
        message(v1::DesiredState { leases: vec![v1::Lease::default(); count], ..v1::DesiredState::default() })
    }

    /// A broker that sends ten leases, and then a thousand.
    struct Flooding;

    #[tonic::async_trait]
    impl AgentService for Flooding {
        type ConnectStream = BoxStream<'static, Result<v1::BrokerMessage, Status>>;
        type GetPolicyHistoryStream = BoxStream<'static, Result<v1::PolicyHistoryPart, Status>>;

        async fn connect(
            &self,
            _: Request<Streaming<v1::AgentMessage>>,
        ) -> Result<Response<Self::ConnectStream>, Status> {
            Ok(Response::new(stream::iter([Ok(leases(10)), Ok(leases(1_000))]).boxed()))
        }

        async fn get_policy_history(
            &self,
            _: Request<v1::GetPolicyHistoryRequest>,
        ) -> Result<Response<Self::GetPolicyHistoryStream>, Status> {
            Ok(Response::new(stream::empty().boxed()))
        }
    }

    #[tokio::test]
    async fn broker_sends_more_leases_than_the_agent_has_memory_for() {
        const SMALL: DecodedSizeLimit = DecodedSizeLimit { max_bytes: 100 * OBJECT_BYTES, ..BROKER_MESSAGE_LIMIT };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let service = AgentServiceServer::new(Flooding);
        let server = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(server);
        let channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let mut incoming = open(channel, &SMALL, stream::pending()).await.unwrap();
        let Some(Sent::Desired(state)) = incoming.message().await.unwrap().unwrap().body else { panic!("no state") };
        assert_eq!(state.leases.len(), 10);
        let refused = incoming.message().await.unwrap_err();
        assert!(refused.message().contains("more parts than fit into"), "{refused}");
        server.abort();
    }

    #[test]
    fn the_largest_honest_state_passes_and_empty_leases_do_not() {
        let share = v1::DeviceShare { device: 1, ..v1::DeviceShare::default() };
        let node = v1::NodePlacement { node: "0123456789abcdef".into(), devices: vec![share; 8], ..Default::default() };
        let lease = v1::Lease {
            id: "lease-123456".into(),
            request: "req-123456".into(),
            tenant: "poly-ml".into(),
            origin: "polytech-campus".into(),
            placement: Some(v1::Placement { donor: "ncc-main".into(), nodes: vec![node; 2], ..Default::default() }),
            message: "waiting for the donor".into(),
            gpus: Some(v1::GpuDemand { class: "frontier".into(), ..Default::default() }),
            ..v1::Lease::default()
        };
        // What another agent sealed reads like empty fields.
        let envelope = v1::Envelope { ciphertext: [0x0a, 0x00].repeat(32 << 10), ..v1::Envelope::default() };
        let (leases, envelopes) = (vec![lease; 10_000], vec![envelope; 64]);
        let honest = message(v1::DesiredState { leases, envelopes, ..v1::DesiredState::default() }).encode_to_vec();
        BROKER_MESSAGE_LIMIT.check(&honest).unwrap();
        // An empty lease, as it is in a desired state: field 3, without content.
        let flood = [0x1a, 0x00].repeat(1 << 20);
        let mut flooding = vec![0x1a];
        prost::encoding::encode_varint(flood.len() as u64, &mut flooding);
        flooding.extend(flood);
        assert!(BROKER_MESSAGE_LIMIT.check(&flooding).is_err());
    }

    #[test]
    fn an_object_counts_at_least_what_it_takes() {
        let sizes = [size_of::<v1::Lease>(), size_of::<v1::PeeringDirective>(), size_of::<v1::Envelope>()];
        assert!(sizes.iter().all(|size| *size <= OBJECT_BYTES), "{sizes:?}");
        assert!(size_of::<v1::NodePlacement>() <= 256 && size_of::<v1::DeviceShare>() <= 128);
    }
}
