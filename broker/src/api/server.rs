//! The two listeners: one for agents and users, one for the other brokers.

use std::sync::Arc;
use std::time::Duration;

use comity_proto::v1::audit_service_server::AuditServiceServer;
use comity_proto::v1::federation_service_server::FederationServiceServer;
use comity_proto::v1::lease_service_server::LeaseServiceServer;
use comity_proto::v1::offer_service_server::OfferServiceServer;
use comity_proto::v1::peering_service_server::PeeringServiceServer;
use comity_proto::v1::policy_service_server::PolicyServiceServer;
use comity_proto::v1::raft_service_server::RaftServiceServer;
use comity_proto::v1::request_service_server::RequestServiceServer;
use comity_proto::v1::watch_service_server::WatchServiceServer;
use comity_proto::{ERROR_DETAILS_DESCRIPTOR_SET, FILE_DESCRIPTOR_SET};
use comity_runtime::telemetry::TraceLayer;
use comity_runtime::tls::{IdleConnections, IdleLimits, Incoming, IncomingLimits, ServerTls, incoming};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::api::http::connection_calls::ConnectionCallsLayer;
use crate::api::http::request_body::SMALL_BODY_BYTES;
use crate::api::http::transcode::TranscodeLayer;
use crate::api::rpc::explain_failure::ExplainFailureLayer;
use crate::api::rpc::message_limit::MessageLimitLayer;
use crate::api::rpc::name_brokers::NameBrokersLayer;
use crate::api::rpc::peer_limit::PeerLimitLayer;
use crate::api::rpc::{
    MAX_USER_MESSAGE_BYTES, agent_service, audit_service, federation_service, lease_service, offer_service,
    peering_service, policy_service, raft_service, request_service, watch_service,
};
use crate::api::shares::call_pace::kernel_thread_time;
use crate::context::Context;
use crate::group::Group;
use crate::group::raft_port;

/// Maximum connections of agents and users: more than a broker's share of 10,000 agents.
const MAX_CONNECTIONS: usize = 16_384;
/// Maximum concurrent calls and streams per connection.
const MAX_STREAMS: u32 = 256;
/// HTTP/2 ping interval and timeout.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// When connections of agents and users close that nobody uses.
const IDLE_CONNECTIONS: IdleConnections = IdleConnections {
    certified: IdleLimits {
        first_call: Duration::from_secs(30),
        between_calls: Duration::from_secs(300),
        unread: Duration::from_secs(30),
        age: None,
    },
    // To join takes a few calls.
    anonymous: IdleLimits {
        first_call: Duration::from_secs(10),
        between_calls: Duration::from_secs(30),
        unread: Duration::from_secs(10),
        age: Some(Duration::from_secs(300)),
    },
};
/// Timeout of unary calls over HTTP that set none.
const HTTP_TIMEOUT: Duration = Duration::from_secs(145);

/// Serves agents and users until `stop`.
///
/// # Errors
/// Where the listener fails.
pub async fn serve_clients(
    context: Context,
    listener: TcpListener,
    tls: ServerTls,
    connection_age: Duration,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
    let mut caught_up = context.group.caught_up();
    let stopping = {
        let stop = stop.clone();
        async move {
            let caught_up = stop.run_until_cancelled(caught_up.wait_for(|caught_up| *caught_up)).await;
            if caught_up.is_some_and(|caught_up| caught_up.is_ok()) {
                health.set_service_status("", tonic_health::ServingStatus::Serving).await;
            }
            stop.cancelled().await;
            health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        }
    };
    let reflected = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            // grpcurl learns the types of error details by reflection, too.
            .register_encoded_file_descriptor_set(ERROR_DETAILS_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
            .include_reflection_service(false)
    };
    let limits =
        IncomingLimits { connections: MAX_CONNECTIONS, idle: Some(IDLE_CONNECTIONS), ..IncomingLimits::default() };
    let peer_limit = PeerLimitLayer::new(Arc::clone(&context.clock), kernel_thread_time);
    base()
        .accept_http1(true)
        .max_connection_age(connection_age)
        .layer(ConnectionCallsLayer)
        .layer(TranscodeLayer { timeout: HTTP_TIMEOUT, shares: peer_limit.shares() })
        .layer(TraceLayer)
        .layer(NameBrokersLayer { addresses: context.group.client_addresses() })
        .layer(peer_limit)
        .layer(ExplainFailureLayer)
        .layer(MessageLimitLayer::default())
        // Messages of health checks and reflection are names. `MessageLimitLayer` knows neither.
        .add_service(health_service.max_decoding_message_size(SMALL_BODY_BYTES))
        // The descriptors are this crate's own, so they are valid; without them only reflection is missing.
        .add_optional_service(reflected().build_v1().ok().map(|it| it.max_decoding_message_size(SMALL_BODY_BYTES)))
        // Clients from before 2023 know only this version.
        .add_optional_service(reflected().build_v1alpha().ok().map(|it| it.max_decoding_message_size(SMALL_BODY_BYTES)))
        .add_service(
            FederationServiceServer::new(federation_service::FederationHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            OfferServiceServer::new(offer_service::OfferHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            RequestServiceServer::new(request_service::RequestHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            LeaseServiceServer::new(lease_service::LeaseHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            PeeringServiceServer::new(peering_service::PeeringHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            PolicyServiceServer::new(policy_service::PolicyHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            AuditServiceServer::new(audit_service::AuditHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            WatchServiceServer::new(watch_service::WatchHandlers::new(context.clone()))
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(
            RaftServiceServer::new(raft_service::RaftHandlers { context: context.clone() })
                .max_decoding_message_size(MAX_USER_MESSAGE_BYTES),
        )
        .add_service(agent_service::AgentServer::new(agent_service::AgentHandlers::new(context)))
        .serve_with_incoming_shutdown(incoming(listener, tls, limits), stopping)
        .await
}

/// Serves the other brokers until `stop`.
///
/// # Errors
/// Where the listener fails.
pub async fn serve_brokers(
    group: Group,
    listener: TcpListener,
    tls: ServerTls,
    connection_age: Duration,
    stop: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let connections: Incoming = incoming(listener, tls, IncomingLimits::default());
    base()
        .max_connection_age(connection_age)
        .add_service(raft_port::service(&group))
        .serve_with_incoming_shutdown(connections, stop.cancelled_owned())
        .await
}

fn base() -> Server {
    Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}
