//! Errors of calls as `google.rpc.Status`, which any gRPC client can read.

use std::collections::HashMap;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, ErrorInfo, StatusExt as _};

use crate::v1;

/// Domain of Comity's codes in `google.rpc.ErrorInfo`.
pub const ERROR_DOMAIN: &str = "comity.dev";

const FIELD: &str = "field";
const VALUE: &str = "value";
const REMEDY: &str = "remedy";

/// A status whose message has the reason and the remedy of `detail`, and whose details are its `ErrorInfo` and `others`.
#[must_use]
pub fn error_status(code: Code, detail: &v1::ErrorDetail, mut others: ErrorDetails) -> Status {
    let metadata = [(FIELD, &detail.field), (VALUE, &detail.value), (REMEDY, &detail.remedy)];
    let metadata: HashMap<String, String> = metadata
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| (name.to_owned(), text.clone()))
        .collect();
    let reason = detail.code.to_ascii_uppercase().replace('-', "_");
    others.set_error_info(reason, ERROR_DOMAIN, metadata);
    Status::with_error_details(code, format!("{}{}", detail.reason, remedy_in_message(&detail.remedy)), others)
}

/// The detail with which a broker refused a call, if `status` comes from a broker.
#[must_use]
pub fn error_detail(status: &Status) -> Option<v1::ErrorDetail> {
    let ErrorInfo { reason, domain, mut metadata } = status.get_details_error_info()?;
    if domain != ERROR_DOMAIN {
        return None;
    }
    let mut text = |name: &str| metadata.remove(name).unwrap_or_default();
    let (field, value, remedy) = (text(FIELD), text(VALUE), text(REMEDY));
    let message = status.message();
    Some(v1::ErrorDetail {
        code: reason.to_ascii_lowercase().replace('_', "-"),
        // Only the message has the reason: a second copy could exceed the headers that a client accepts.
        reason: message.strip_suffix(&remedy_in_message(&remedy)).unwrap_or(message).to_owned(),
        field,
        value,
        remedy,
    })
}

fn remedy_in_message(remedy: &str) -> String {
    if remedy.is_empty() { String::new() } else { format!("; {remedy}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail() -> v1::ErrorDetail {
        v1::ErrorDetail {
            code: "invalid-field".to_owned(),
            reason: "spec.gpus.count \"0\" is out of range; really".to_owned(),
            field: "spec.gpus.count".to_owned(),
            value: "0".to_owned(),
            remedy: "ask for 1 to 4096".to_owned(),
        }
    }

    #[test]
    fn a_detail_travels_whole() {
        let bare =
            v1::ErrorDetail { code: "internal".to_owned(), reason: "it failed".to_owned(), ..Default::default() };
        for sent in [detail(), bare] {
            let status = error_status(Code::InvalidArgument, &sent, ErrorDetails::new());
            assert_eq!(error_detail(&status), Some(sent));
        }
    }

    #[test]
    fn any_client_reads_the_standard_details() {
        let status = error_status(Code::InvalidArgument, &detail(), ErrorDetails::new());
        assert_eq!(status.message(), "spec.gpus.count \"0\" is out of range; really; ask for 1 to 4096");
        let info = status.get_details_error_info().expect("it has one");
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("INVALID_FIELD", "comity.dev"));
        assert_eq!(info.metadata["remedy"], "ask for 1 to 4096");
    }

    #[test]
    fn a_status_of_somebody_else_has_no_detail() {
        assert_eq!(error_detail(&Status::unavailable("no route")), None);
        let theirs = ErrorDetails::with_error_info("INVALID_FIELD", "proxy.example", HashMap::<String, String>::new());
        assert_eq!(error_detail(&Status::with_error_details(Code::Internal, "no", theirs)), None);
    }
}
