//! Why a call to a server failed.

use comity_proto::{error_detail, v1};
use tonic::{Code, Status};

/// Code with which brokers refuse an evicted or replaced cluster, and one of a suspended institution.
const REVOKED: &str = "revoked";

/// What a broker says that no longer lets this cluster take part; `None` for any other failure.
#[must_use]
pub fn revocation(status: &Status) -> Option<v1::ErrorDetail> {
    error_detail(status).filter(|detail| detail.code == REVOKED)
}

/// The message of a status with the causes behind it, and its code: the broker's, as in "revoked", else that of gRPC, as
/// in "permission-denied". One line for logs; gRPC's own text of a status repeats its code as a sentence and quotes its
/// fields.
#[must_use]
pub fn reasons(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        // The status within a status has the same message.
        let cause = error.downcast_ref::<Status>().map_or_else(|| error.to_string(), |it| it.message().to_owned());
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
        source = error.source();
    }
    let code = error_detail(status).map_or_else(|| code_name(status.code()), |detail| detail.code);
    if text.is_empty() { code } else { format!("{text} ({code})") }
}

/// The name of gRPC's code, as in "deadline-exceeded".
#[must_use]
pub fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use comity_proto::{ErrorDetails, error_status};

    use super::*;

    #[test]
    fn a_refusal_is_its_message_and_the_brokers_code() {
        let detail = v1::ErrorDetail {
            code: "revoked".to_owned(),
            reason: "cluster west was evicted by ingrid".to_owned(),
            remedy: "it joins again".to_owned(),
            ..v1::ErrorDetail::default()
        };
        let status = error_status(Code::PermissionDenied, &detail, ErrorDetails::new());
        assert_eq!(reasons(&status), "cluster west was evicted by ingrid; it joins again (revoked)");
    }

    #[test]
    fn a_failed_connection_is_its_causes_without_what_grpc_writes_around_them() {
        let mut inner = Status::unknown("cannot reach any broker");
        inner.set_source(Arc::new(io::Error::other("connection refused")));
        let mut status = Status::unavailable("cannot reach any broker");
        status.set_source(Arc::new(inner));
        assert_eq!(reasons(&status), "cannot reach any broker: connection refused (unavailable)");
        assert_eq!(reasons(&Status::deadline_exceeded("")), "deadline-exceeded");
    }
}
