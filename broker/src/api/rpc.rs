//! The gRPC services, one file each. A call goes: who calls → what the table says → parse → what policy says of this
//! object → propose or read → convert.

pub mod agent_service;
pub mod explain_failure;
pub mod federation_service;
pub mod lease_service;
pub mod offer_service;
pub mod peer_limit;
pub mod peering_service;
pub mod policy_service;
pub mod raft_service;
pub mod request_service;
pub mod watch_service;

/// Bytes of one message, but for agents: the largest policy bundle with room to spare.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Bytes of one message of an agent: an offer of ten thousand nodes.
pub const MAX_AGENT_MESSAGE_BYTES: usize = 20 << 20;

/// Implements a service's trait by functions of the same names that return what they mean: each reply is wrapped, each
/// error counted and given its code and details.
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
