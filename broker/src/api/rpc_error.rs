//! Errors of calls: a gRPC code, one sentence, and details as `google.rpc.Status`.

use std::time::Duration;

use comity_core::Refusal;
use comity_core::refusal::Code as RefusalCode;
use comity_proto::{ErrorDetails, MissingField, v1};
use comity_runtime::tls::ELSEWHERE_METADATA;
use comity_types::InvalidId;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use crate::api::error_answer::error_answer;
use crate::group::Unavailable;

/// Wait that a refused caller is advised to make: most elections are over by then.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Missing fields that one answer names: more could exceed the headers that a client accepts.
const MAX_MISSING_FIELDS: usize = 32;

/// Why a call was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// Refused by parsing, policy or apply.
    #[error("{0}")]
    Refused(#[from] Refusal),
    /// Required fields are not set.
    #[error("{}", are_missing(.0))]
    Missing(Vec<MissingField>),
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
    /// The broker does not have the events after a revision: it dropped them, or that revision is of another group.
    #[error("no watch can resume after revision {from}: the broker keeps the events after {oldest} up to {newest}")]
    ResyncRequired {
        /// Revision to resume from.
        from: u64,
        /// Oldest revision to resume from.
        oldest: u64,
        /// Newest revision.
        newest: u64,
    },
    /// A watcher did not keep up.
    #[error("the watcher did not keep up and was cut off after revision {last}")]
    WatcherTooSlow {
        /// Last revision sent completely.
        last: u64,
    },
    /// A limit of this broker is reached.
    #[error("{reason}")]
    LimitReached {
        /// The limit, with its number.
        reason: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Another process connected as the same cluster.
    #[error("another agent connected with the certificate of cluster {cluster}")]
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
            Self::Missing(fields) => v1::ErrorDetail {
                field: fields.first().map(|field| field.path.clone()).unwrap_or_default(),
                ..detail(RefusalCode::InvalidField.as_str(), &how_to_set(fields))
            },
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
            Self::LimitReached { remedy, .. } => detail("limit-reached", remedy),
            Self::Superseded { .. } => {
                detail("superseded", "run one agent per cluster; the newest one keeps its stream")
            }
            Self::Stopping => detail("unavailable", "connect to another broker"),
            Self::Internal { .. } => detail("internal", "look at this broker's log, and try another broker"),
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Refused(refusal) => grpc_code(refusal.code),
            Self::Missing(_) => Code::InvalidArgument,
            Self::Unavailable(_) | Self::Stopping => Code::Unavailable,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::ResyncRequired { .. } => Code::FailedPrecondition,
            Self::WatcherTooSlow { .. } | Self::Superseded { .. } => Code::Aborted,
            Self::LimitReached { .. } => Code::ResourceExhausted,
            Self::Internal { .. } => Code::Internal,
        }
    }

    /// The standard details beside `ErrorInfo`: the fields at fault, and when to try again.
    fn standard_details(&self) -> ErrorDetails {
        let mut details = ErrorDetails::new();
        match self {
            Self::Refused(refusal) if refusal.code == RefusalCode::InvalidField => {
                details.add_bad_request_violation(&refusal.field, &refusal.reason);
            }
            Self::Missing(fields) => {
                for field in named(fields) {
                    details.add_bad_request_violation(&field.path, format!("is missing: {}", field.hint));
                }
            }
            Self::ResyncRequired { .. } => {
                details.add_bad_request_violation("from_revision", self.to_string());
            }
            Self::Refused(Refusal { code: RefusalCode::LimitReached, .. })
            | Self::Unavailable(_)
            | Self::Stopping
            | Self::LimitReached { .. } => {
                details.set_retry_info(Some(RETRY_AFTER));
            }
            Self::Refused(_)
            | Self::Unauthenticated { .. }
            | Self::WatcherTooSlow { .. }
            | Self::Superseded { .. }
            | Self::Internal { .. } => {}
        }
        details
    }
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        let mut status = error_answer(error.code(), &error.detail(), error.standard_details());
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

fn named(fields: &[MissingField]) -> &[MissingField] {
    &fields[..fields.len().min(MAX_MISSING_FIELDS)]
}

/// "spec.tenant, spec.origin and spec.delivery are missing".
fn are_missing(fields: &[MissingField]) -> String {
    let mut paths: Vec<&str> = named(fields).iter().map(|field| field.path.as_str()).collect();
    let more = fields.len() - paths.len();
    let more = format!("{more} more");
    if fields.len() > MAX_MISSING_FIELDS {
        paths.push(&more);
    }
    match paths.split_last() {
        None => String::new(),
        Some((last, [])) => format!("{last} is missing"),
        Some((last, others)) => format!("{} and {last} are missing", others.join(", ")),
    }
}

fn how_to_set(fields: &[MissingField]) -> String {
    let set: Vec<String> = named(fields).iter().map(|field| format!("{} ({})", field.path, field.hint)).collect();
    format!("set {}", set.join(", "))
}

fn grpc_code(code: RefusalCode) -> Code {
    match code {
        RefusalCode::InvalidField => Code::InvalidArgument,
        RefusalCode::NotFound => Code::NotFound,
        RefusalCode::PolicyDenied | RefusalCode::PermissionDenied | RefusalCode::Revoked => Code::PermissionDenied,
        RefusalCode::IdempotencyConflict => Code::AlreadyExists,
        RefusalCode::PolicyChanged => Code::Aborted,
        RefusalCode::InvalidToken => Code::Unauthenticated,
        RefusalCode::NoCapacity | RefusalCode::LimitReached => Code::ResourceExhausted,
        RefusalCode::WrongState
        | RefusalCode::NoPolicy
        | RefusalCode::UnsignedPolicy
        | RefusalCode::Unservable
        | RefusalCode::StaleGeneration
        | RefusalCode::StaleFencingToken
        | RefusalCode::StaleEpoch => Code::FailedPrecondition,
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::{RequiredFields as _, StatusExt as _, error_detail};

    use super::*;

    #[test]
    fn an_answer_repeats_no_secret_of_a_wrong_field() {
        let key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgq7\n";
        let token = "comity-join-v1.eyJzZWNyZXQiOiJhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5eiJ9";
        for (given, secret) in [(key, "MIGH"), (token, "eyJz")] {
            let invalid = comity_types::LeaseId::parse(given, "lease").expect_err("a secret is no id");
            let status = Status::from(RpcError::from(invalid));
            let detail = error_detail(&status).expect("a detail");
            assert!(detail.reason.contains("[redacted]"), "{detail:?}");
            assert!(detail.reason.ends_with("\" is not a lease id"), "{detail:?}");
            assert_eq!(detail.remedy, "write it as lease-N");
            let violation = &status.get_details_bad_request().expect("a bad request").field_violations[0];
            assert_eq!((&violation.field, &violation.description), (&detail.field, &detail.reason));
            let sent = format!("{detail:?} {} {}", status.message(), String::from_utf8_lossy(status.details()));
            assert!(!sent.contains(secret), "{sent}");
        }
    }

    #[test]
    fn a_refusal_travels_whole() {
        let refusal = Refusal::invalid("spec.gpus.count", 0, "is out of range", "ask for 1 to 4096");
        let status = Status::from(RpcError::from(refusal));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "spec.gpus.count \"0\" is out of range; ask for 1 to 4096");
        let detail = error_detail(&status).unwrap_or_default();
        assert_eq!(
            (detail.code.as_str(), detail.field.as_str(), detail.value.as_str(), detail.remedy.as_str()),
            ("invalid-field", "spec.gpus.count", "0", "ask for 1 to 4096")
        );
        assert_eq!(violations(&status), ["spec.gpus.count"]);
        assert!(status.get_details_retry_info().is_none());
    }

    fn violations(status: &Status) -> Vec<String> {
        let request = status.get_details_bad_request().map(|request| request.field_violations);
        request.unwrap_or_default().into_iter().map(|violation| violation.field).collect()
    }

    #[test]
    fn one_answer_names_all_missing_fields() {
        let message = v1::RequestSpec {
            tenant: "poly-ml".to_owned(),
            delivery: v1::Delivery::Namespace.into(),
            gpus: Some(v1::GpuDemand { class: "midrange".to_owned(), count: 1, ..v1::GpuDemand::default() }),
            ..v1::RequestSpec::default()
        };
        let status = Status::from(RpcError::Missing(message.missing()));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(violations(&status), ["origin", "gpus.share"]);
        let detail = error_detail(&status).expect("it has one");
        assert_eq!((detail.code.as_str(), detail.field.as_str()), ("invalid-field", "origin"));
        assert_eq!(detail.reason, "origin and gpus.share are missing");
        assert_eq!(
            detail.remedy,
            "set origin (Cluster the workload comes from), gpus.share (One of whole, milli, mig_profile and memory_mib)"
        );
        let files = vec![v1::PolicyFile::default(); 512];
        let status = Status::from(RpcError::Missing(v1::PolicyBundle { files, ..Default::default() }.missing()));
        assert_eq!(violations(&status).len(), MAX_MISSING_FIELDS);
        assert!(status.message().contains(" and 480 more are missing"), "{}", status.message());
    }

    #[test]
    fn callers_learn_where_waiting_helps() {
        let waits = |error: RpcError| Status::from(error).get_details_retry_info().is_some();
        assert!(waits(Unavailable::NoLeader { broker: 1 }.into()));
        assert!(waits(RpcError::LimitReached { reason: "64 calls are under way".to_owned(), remedy: "wait" }));
        assert!(waits(Refusal::new(RefusalCode::LimitReached, "too many requests wait", "wait").into()));
        assert!(!waits(Refusal::new(RefusalCode::PolicyDenied, "no agreement", "ask").into()));
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
            RpcError::ResyncRequired { from: 3, oldest: 9, newest: 12 },
            RpcError::WatcherTooSlow { last: 4 },
            RpcError::LimitReached { reason: "64 calls are under way".to_owned(), remedy: "wait" },
            RpcError::Superseded { cluster: "campus".to_owned() },
            RpcError::Stopping,
            RpcError::Internal { what: "issuing the certificate" },
        ] {
            let detail = error.detail();
            assert!(!detail.code.is_empty() && !detail.reason.is_empty() && !detail.remedy.is_empty(), "{detail:?}");
        }
    }
}
