//! The gRPC API of Comity.
//!
//! [`v1`] is public and stable: what platform teams and agents call. [`raft::v1`] is spoken between the brokers of one
//! group and may change with every release. The `.proto` files beside this crate carry the documentation; they are
//! compiled by protox at build time, so neither protoc nor any system library is needed.
//!
//! Only the enums that `comity-types` has too are converted here. Messages are parsed at the edge of each service;
//! [`RequiredFields`] tells before that which fields are missing, and [`DecodedSizeLimit`] whether a message may be
//! decoded.

mod convert;
mod decoded_size;
mod error_status;
mod required_fields;

pub use convert::Unspecified;
pub use decoded_size::{BoundedCodec, BoundedDecoder, DecodedSizeLimit, TooManyParts};
pub use error_status::{ERROR_DOMAIN, error_detail, error_status};
pub use required_fields::{MissingField, RequiredFields};
/// The files of the standard error details, package `google.rpc`, as an encoded `FileDescriptorSet`.
pub use tonic_types::pb::FILE_DESCRIPTOR_SET as ERROR_DETAILS_DESCRIPTOR_SET;
pub use tonic_types::{ErrorDetails, StatusExt};

/// The public API, package `comity.v1`.
#[allow(missing_docs, reason = "generated: tonic adds items of its own without documentation")]
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
pub mod v1 {
    tonic::include_proto!("comity.v1");
}

/// Between brokers.
pub mod raft {
    /// Package `comity.raft.v1`.
    #[allow(missing_docs, reason = "generated: tonic adds items of its own without documentation")]
    #[allow(
        clippy::all,
        clippy::allow_attributes_without_reason,
        unreachable_pub,
        unused_qualifications,
        reason = "generated code"
    )]
    pub mod v1 {
        tonic::include_proto!("comity.raft.v1");
    }
}

/// The files of the public API as an encoded `FileDescriptorSet`, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/comity.bin"));

/// First bytes of the datagram that a broker sends for `CheckJoin`; the request's nonce follows.
pub const UDP_PROBE_MAGIC: &[u8] = b"comity-udp-probe";
/// Bytes of the nonce of `CheckJoin`.
pub const UDP_PROBE_NONCE_BYTES: usize = 16;
/// End of the reason why a broker sent no datagram to an endpoint at another address than the caller's.
pub const UDP_PROBE_OTHER_ADDRESS: &str = "brokers send only to the address that they are called from";
/// Endpoints of one `CheckJoin`, at most.
pub const MAX_UDP_PROBES: usize = 4;
