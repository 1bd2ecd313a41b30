//! The gRPC services, one file each. Steps of a call: authenticate → authorization table → parse → policy on the object
//! → propose or read → convert.

pub mod agent_service;
pub mod audit_service;
pub mod explain_failure;
pub mod federation_service;
pub mod lease_service;
pub mod message_limit;
pub mod name_brokers;
pub mod offer_service;
pub mod peer_limit;
pub mod peering_service;
pub mod policy_service;
pub mod raft_service;
pub mod request_service;
pub mod watch_service;

/// Maximum bytes of a message from users: the largest policy bundle, with room to spare.
pub const MAX_USER_MESSAGE_BYTES: usize = 4 << 20;
/// Maximum bytes of a message from an agent: an offer of 10,000 nodes.
pub const MAX_AGENT_MESSAGE_BYTES: usize = 20 << 20;

/// Implements a service trait by inherent functions of the same names that return plain results; wraps each reply,
/// counts each error and converts it to a status.
macro_rules! serve {
    ($service:ident for $type:ty { $($name:ident: $input:ident -> $output:ident;)+ }) => {
        #[tonic::async_trait]
        impl $service for $type {
            $(
                async fn $name(
                    &self,
                    request: tonic::Request<v1::$input>,
                ) -> Result<tonic::Response<v1::$output>, tonic::Status> {
                    match <$type>::$name(self, request).await {
                        Ok(reply) => Ok(tonic::Response::new(reply)),
                        Err(error) => Err(self.context.fail(error)),
                    }
                }
            )+
        }
    };
}
pub(crate) use serve;
