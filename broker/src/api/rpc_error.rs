//! Errors of calls: a gRPC code, one sentence, and an encoded `ErrorDetail`.

use comity_core::Refusal;
use comity_core::refusal::Code as RefusalCode;
use comity_proto::{ERROR_DETAIL_METADATA, v1};
use comity_runtime::tls::ELSEWHERE_METADATA;
use comity_types::InvalidId;
use prost::Message as _;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::group::Unavailable;

/// Why a call was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// Refused by parsing, policy or apply.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// The broker group cannot answer now.
    #[error("the broker group cannot answer now: {0}")]
    Unavailable(#[from] Unavailable),
    /// The caller showed no certificate, or one that has ended.
    #[error("{reason}")]
    Unauthenticated {
        /// The error.
        reason: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// The broker no longer has the events after a revision.
    #[error("the events after revision {from} are gone; the oldest kept is {oldest}")]
    ResyncRequired {
        /// Revision to resume from.
        from: u64,
        /// Oldest revision kept.
        oldest: u64,
    },
    /// A watcher did not keep up.
    #[error("the watcher did not keep up and was cut off after revision {last}")]
    WatcherTooSlow {
        /// Last revision sent completely.
        last: u64,
    },
    /// A peer has too much under way.
    #[error("{what}, which is the limit of one peer")]
    TooMany {
        /// The exceeded limit, with its number.
        what: String,
    },
    /// A newer stream of the same cluster took over.
    #[error("a newer stream of cluster {cluster} took over")]
    Superseded {
        /// The cluster.
        cluster: String,
    },
    /// The broker stops.
    #[error("this broker is stopping")]
    Stopping,
    /// Something in this broker failed; the log has the details.
    #[error("{what} failed in this broker")]
    Internal {
        /// The failed operation.
        what: &'static str,
    },
}

impl From<InvalidId> for RpcError {
    fn from(invalid: InvalidId) -> Self {
        Refusal::from(invalid).into()
    }
}

impl RpcError {
    /// Stable code, reason and remedy.
    #[must_use]
    pub fn detail(&self) -> v1::ErrorDetail {
        let detail = |code: &str, remedy: &str| v1::ErrorDetail {
            code: code.to_owned(),
            reason: self.to_string(),
            field: String::new(),
            value: String::new(),
            remedy: remedy.to_owned(),
        };
        match self {
            Self::Refused(refusal) => refusal_detail(refusal),
            Self::Unavailable(_) => {
                detail("unavailable", "try again; if it lasts, ask each broker with `comity raft status`")
            }
            Self::Unauthenticated { remedy, .. } => detail("unauthenticated", remedy),
            Self::ResyncRequired { from, .. } => v1::ErrorDetail {
                field: "from_revision".to_owned(),
                value: from.to_string(),
                ..detail("resync-required", "watch from revision 0")
            },
            Self::WatcherTooSlow { last } => v1::ErrorDetail {
                value: last.to_string(),
                ..detail("watcher-too-slow", "watch again from the last revision you have, and read faster")
            },
            Self::TooMany { .. } => detail("limit-reached", "wait until some of them are done"),
            Self::Superseded { .. } => detail("superseded", "run one agent per cluster; the newest stream wins"),
            Self::Stopping => detail("unavailable", "connect to another broker"),
            Self::Internal { .. } => detail("internal", "look at this broker's log, and try another broker"),
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => grpc_code(refusal.code),
            Self::Unavailable(_) | Self::Stopping => Code::Unavailable,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::ResyncRequired { .. } => Code::FailedPrecondition,
            Self::WatcherTooSlow { .. } | Self::Superseded { .. } => Code::Aborted,
            Self::TooMany { .. } => Code::ResourceExhausted,
            Self::Internal { .. } => Code::Internal,
        }
    }
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        let mut status = status(error.code(), &error.detail());
        if matches!(&error, RpcError::Unavailable(reason) if reason.may_be_repeated()) {
            status.metadata_mut().insert(ELSEWHERE_METADATA, MetadataValue::from_static("1"));
        }
        status
    }
}

/// Converts a refusal to the API message.
#[must_use]
pub fn refusal_detail(refusal: &Refusal) -> v1::ErrorDetail {
    v1::ErrorDetail {
        code: refusal.code.as_str().to_owned(),
        reason: refusal.reason.clone(),
        field: refusal.field.clone(),
        value: refusal.value.clone(),
        remedy: refusal.remedy.clone(),
    }
}

/// A status with `detail` in its metadata and a readable message.
#[must_use]
pub fn status(code: Code, detail: &v1::ErrorDetail) -> Status {
    let message =
        if detail.remedy.is_empty() { detail.reason.clone() } else { format!("{}; {}", detail.reason, detail.remedy) };
    let mut metadata = MetadataMap::new();
    metadata.insert_bin(ERROR_DETAIL_METADATA, MetadataValue::from_bytes(&detail.encode_to_vec()));
    Status::with_metadata(code, message, metadata)
}

fn grpc_code(code: RefusalCode) -> Code {
    match code {
        RefusalCode::InvalidField => Code::InvalidArgument,
        RefusalCode::NotFound => Code::NotFound,
        RefusalCode::PolicyDenied | RefusalCode::PermissionDenied => Code::PermissionDenied,
        RefusalCode::IdempotencyConflict => Code::AlreadyExists,
        RefusalCode::InvalidToken => Code::Unauthenticated,
        RefusalCode::NoCapacity | RefusalCode::LimitReached => Code::ResourceExhausted,
        RefusalCode::WrongState
        | RefusalCode::NoPolicy
        | RefusalCode::Unservable
        | RefusalCode::StaleGeneration
        | RefusalCode::StaleFencingToken
        | RefusalCode::StaleEpoch => Code::FailedPrecondition,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_travels_whole() {
        let refusal = Refusal::invalid("spec.gpus.count", 0, "is out of range", "ask for 1 to 4096");
        let status = Status::from(RpcError::from(refusal));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "spec.gpus.count \"0\" is out of range; ask for 1 to 4096");
        let bytes = status.metadata().get_bin(ERROR_DETAIL_METADATA).and_then(|value| value.to_bytes().ok());
        let detail = bytes.and_then(|bytes| v1::ErrorDetail::decode(bytes).ok()).unwrap_or_default();
        assert_eq!(
            (detail.code.as_str(), detail.field.as_str(), detail.value.as_str(), detail.remedy.as_str()),
            ("invalid-field", "spec.gpus.count", "0", "ask for 1 to 4096")
        );
    }

    #[test]
    fn a_caller_is_sent_elsewhere_only_where_that_does_no_harm() {
        let elsewhere =
            |reason: Unavailable| Status::from(RpcError::from(reason)).metadata().get(ELSEWHERE_METADATA).is_some();
        assert!(elsewhere(Unavailable::NoLeader { broker: 1 }));
        assert!(elsewhere(Unavailable::Repeatable { reason: "no answer".to_owned() }));
        assert!(!elsewhere(Unavailable::Unknown { reason: "no answer".to_owned() }));
        assert!(!elsewhere(Unavailable::Stopped { broker: 1, reason: "the disk failed".to_owned() }));
    }

    #[test]
    fn every_error_has_a_code_and_a_remedy() {
        for error in [
            RpcError::ResyncRequired { from: 3, oldest: 9 },
            RpcError::WatcherTooSlow { last: 4 },
            RpcError::TooMany { what: "64 calls are under way".to_owned() },
            RpcError::Superseded { cluster: "campus".to_owned() },
            RpcError::Stopping,
            RpcError::Internal { what: "issuing the certificate" },
        ] {
            let detail = error.detail();
            assert!(!detail.code.is_empty() && !detail.reason.is_empty() && !detail.remedy.is_empty(), "{detail:?}");
        }
    }
}
