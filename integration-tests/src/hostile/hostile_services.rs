//! The calls that an agent makes, answered by the hostile broker. Services are matched by path, so that a new call of
//! the API needs nothing here until agents make it.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use comity_proto::v1;
use futures::future::BoxFuture;
use prost::Message as _;
use prost::bytes::BufMut as _;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use super::broker_core::BrokerCore;

/// Largest message of an agent.
const MAX_AGENT_MESSAGE_BYTES: usize = 64 << 20;

type Answer = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

/// The stream of an agent.
#[derive(Clone)]
pub(super) struct AgentDoor(pub(super) Arc<BrokerCore>);

impl NamedService for AgentDoor {
    const NAME: &'static str = "comity.v1.AgentService";
}

impl Service<http::Request<Body>> for AgentDoor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let core = Arc::clone(&self.0);
        if request.uri().path() == "/comity.v1.AgentService/GetPolicyHistory" {
            return Box::pin(async move {
                let show = tower::service_fn(move |request: Request<v1::GetPolicyHistoryRequest>| {
                    let answer = core.policy_history(request.get_ref());
                    async move { answer }
                });
                let codec = ProstCodec::<v1::PolicyHistoryPart, v1::GetPolicyHistoryRequest>::default();
                Ok(Grpc::new(codec).server_streaming(show, request).await)
            });
        }
        Box::pin(async move {
            let connect = tower::service_fn(move |request: Request<Streaming<v1::AgentMessage>>| {
                let core = Arc::clone(&core);
                async move { core.connect(request) }
            });
            let mut grpc = Grpc::new(RawCodec).max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES);
            Ok(grpc.streaming(connect, request).await)
        })
    }
}

/// Joining, and the renewal of certificates.
#[derive(Clone)]
pub(super) struct EnrolmentDoor(pub(super) Arc<BrokerCore>);

impl NamedService for EnrolmentDoor {
    const NAME: &'static str = "comity.v1.FederationService";
}

impl Service<http::Request<Body>> for EnrolmentDoor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let core = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/comity.v1.FederationService/Join" => {
                    let join = tower::service_fn(move |request: Request<v1::JoinRequest>| {
                        let answer = core.join(request.get_ref());
                        async move { answer }
                    });
                    Grpc::new(ProstCodec::<v1::JoinResponse, v1::JoinRequest>::default()).unary(join, request).await
                }
                "/comity.v1.FederationService/RenewCertificate" => {
                    let renew = tower::service_fn(move |request: Request<v1::RenewCertificateRequest>| {
                        let answer = core.renew(&request);
                        async move { answer }
                    });
                    let codec = ProstCodec::<v1::RenewCertificateResponse, v1::RenewCertificateRequest>::default();
                    Grpc::new(codec).unary(renew, request).await
                }
                path => Status::unimplemented(format!("{path} is not a call of an agent")).into_http(),
            })
        })
    }
}

/// Decodes an agent's messages, and sends bytes as they are, so that a broker can also say what no message encodes to.
#[derive(Clone, Copy, Debug, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = v1::AgentMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = v1::AgentMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<v1::AgentMessage>, Status> {
        v1::AgentMessage::decode(buffer).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}
