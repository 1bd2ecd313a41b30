//! The tonic service for agents, written by hand: generated code would encode each message, but desired states are
//! encoded already.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf as _, BufMut as _, Bytes};
use comity_proto::v1;
use comity_proto::v1::agent_service_server::SERVICE_NAME;
use comity_proto::v1::broker_message::Body as Reply;
use prost::Message as _;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::api::http::request_body::SMALL_BODY_BYTES;
use crate::api::rpc::MAX_AGENT_MESSAGE_BYTES;
use crate::api::rpc::agent_service::decoded_size::check_decoded_size;
use crate::api::rpc::agent_service::policy_history::HistoryParts;
use crate::api::rpc::agent_service::{AgentHandlers, Messages};

const CONNECT_PATH: &str = "/comity.v1.AgentService/Connect";
const HISTORY_PATH: &str = "/comity.v1.AgentService/GetPolicyHistory";

/// One [`v1::BrokerMessage`].
#[derive(Debug)]
pub(super) enum ToAgent {
    /// Welcome, ack or list of brokers.
    Message(v1::BrokerMessage),
    /// A desired state, encoded.
    Desired(Bytes),
}

/// Serves [`AgentHandlers`].
#[derive(Debug, Clone)]
pub struct AgentServer {
    agents: Arc<AgentHandlers>,
}

impl AgentServer {
    /// Required by tonic's router.
    #[must_use]
    pub fn new(agents: AgentHandlers) -> Self {
        Self { agents: Arc::new(agents) }
    }
}

impl NamedService for AgentServer {
    const NAME: &'static str = SERVICE_NAME;
}

impl<B> Service<http::Request<B>> for AgentServer
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let agents = Arc::clone(&self.agents);
        match request.uri().path() {
            CONNECT_PATH => Box::pin(async move {
                let mut grpc = Grpc::new(AgentCodec).max_decoding_message_size(MAX_AGENT_MESSAGE_BYTES);
                Ok(grpc.streaming(Connect(agents), request).await)
            }),
            HISTORY_PATH => Box::pin(async move {
                let codec = ProstCodec::<v1::PolicyHistoryPart, v1::GetPolicyHistoryRequest>::default();
                let mut grpc = Grpc::new(codec).max_decoding_message_size(SMALL_BODY_BYTES);
                Ok(grpc.server_streaming(History(agents), request).await)
            }),
            _ => Box::pin(async { Ok(Status::unimplemented("").into_http()) }),
        }
    }
}

struct Connect(Arc<AgentHandlers>);

impl StreamingService<v1::AgentMessage> for Connect {
    type Response = ToAgent;
    type ResponseStream = Messages;
    type Future = BoxFuture<Response<Messages>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::AgentMessage>>) -> Self::Future {
        let agents = Arc::clone(&self.0);
        Box::pin(async move { agents.connect(request).await })
    }
}

struct History(Arc<AgentHandlers>);

impl ServerStreamingService<v1::GetPolicyHistoryRequest> for History {
    type Response = v1::PolicyHistoryPart;
    type ResponseStream = HistoryParts;
    type Future = BoxFuture<Response<HistoryParts>, Status>;

    fn call(&mut self, request: Request<v1::GetPolicyHistoryRequest>) -> Self::Future {
        let agents = Arc::clone(&self.0);
        Box::pin(async move { agents.policy_history(request).await })
    }
}

struct AgentCodec;

impl Codec for AgentCodec {
    type Encode = ToAgent;
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

impl Decoder for AgentCodec {
    type Item = v1::AgentMessage;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let message = buffer.copy_to_bytes(buffer.remaining());
        check_decoded_size(&message)?;
        // As tonic reports it.
        v1::AgentMessage::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }
}

impl Encoder for AgentCodec {
    type Item = ToAgent;
    type Error = Status;

    fn encode(&mut self, item: ToAgent, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        let encoded = match item {
            ToAgent::Message(message) => message.encode(buffer),
            ToAgent::Desired(desired) => {
                let head = head(desired.len());
                buffer.reserve(head.len() + desired.len());
                buffer.put_slice(&head);
                buffer.put(desired);
                Ok(())
            }
        };
        encoded.map_err(|error| Status::internal(format!("a message to an agent has no room: {error}")))
    }
}

/// Field tag and length prefix of a desired state of `len` bytes in a [`v1::BrokerMessage`].
fn head(bytes: usize) -> Vec<u8> {
    let empty = v1::BrokerMessage { body: Some(Reply::Desired(v1::DesiredState::default())) };
    let mut head = empty.encode_to_vec();
    // The length of nothing.
    head.pop();
    prost::encoding::encode_varint(bytes as u64, &mut head);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_state_behind_its_head_is_the_message() {
        for leases in [0, 1, 40, 3_000] {
            let lease = v1::Lease { id: "lease-1".to_owned(), fencing_token: 7, ..v1::Lease::default() };
            let desired = v1::DesiredState { revision: 9, leases: vec![lease; leases], ..v1::DesiredState::default() };
            let whole = v1::BrokerMessage { body: Some(Reply::Desired(desired.clone())) };
            let body = desired.encode_to_vec();
            assert_eq!([head(body.len()), body].concat(), whole.encode_to_vec());
        }
    }
}
