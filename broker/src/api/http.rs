//! The API as JSON over HTTP/1.1 and HTTP/2: Connect's unary protocol, and server-sent events for streams.
//!
//! ```text
//!   HTTP request ─▶ call ─▶ request_body ─▶ gRPC request ─▶ the layers and services of gRPC
//!   HTTP response ◀─ json_message | event_stream | connect_error ◀─ grpc_frames ◀─┘
//! ```
//!
//! Each call becomes a gRPC call inside the process, so identity, authorization, limits and traces are those of gRPC.

pub mod body_deadline;
pub mod body_size;
pub mod call;
pub mod connect_error;
pub mod connection_calls;
pub mod event_stream;
pub mod grpc_frames;
pub mod held_body;
pub mod json_message;
pub mod openapi;
pub mod other_site;
pub mod procedures;
pub mod query_string;
pub mod request_body;
pub mod transcode;
