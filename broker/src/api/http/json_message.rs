//! Messages in the JSON form of protobuf.

use comity_proto::{ErrorDetails, v1};
use prost_reflect::{DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_path_to_error::{Deserializer, Track};
use tonic::{Code, Status};

use crate::api::error_answer::error_answer;

/// How the library reports an unknown field: the name follows, in quotes.
const UNKNOWN_FIELD: &str = "unrecognized field name '";

/// Parses JSON as a message. Unknown fields are refused.
///
/// # Errors
/// `INVALID_ARGUMENT` that names the field at fault.
pub fn decode(message: MessageDescriptor, json: &[u8]) -> Result<DynamicMessage, Status> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let mut track = Track::new();
    let tracked = Deserializer::new(&mut json, &mut track);
    let decoded = DynamicMessage::deserialize_with_options(message, tracked, &DeserializeOptions::new());
    let decoded = decoded.map_err(|error| malformed(&track.path().to_string(), &error.to_string()))?;
    json.end().map_err(|error| malformed(".", &error.to_string()))?;
    Ok(decoded)
}

/// Encodes a message in its binary form as JSON.
///
/// # Errors
/// `INTERNAL` for bytes that are no such message.
pub fn encode(message: MessageDescriptor, bytes: &[u8]) -> Result<Vec<u8>, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(format!("the answer is no message: {error}"));
    let decoded = DynamicMessage::decode(message, bytes).map_err(|error| failed(&error))?;
    to_json(&decoded).map_err(|error| failed(&error))
}

/// A message as JSON.
///
/// # Errors
/// For a timestamp or duration out of range.
pub fn to_json(message: &DynamicMessage) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(message)
}

/// A refusal of the message. `path`: the place of the error, "." for the whole message.
#[must_use]
pub fn malformed(path: &str, problem: &str) -> Status {
    let path = if path == "." { "" } else { path };
    let unknown = problem.strip_prefix(UNKNOWN_FIELD).and_then(|rest| rest.split('\'').next());
    let (field, reason) = match unknown {
        Some(name) => {
            let field = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            let reason = format!("the message has no field {field:?}");
            (field, reason)
        }
        None if path.is_empty() => (String::new(), format!("the message is malformed: {problem}")),
        None => (path.to_owned(), format!("field {path:?} is malformed: {problem}")),
    };
    let detail = v1::ErrorDetail {
        code: "malformed-message".to_owned(),
        reason,
        field,
        value: String::new(),
        remedy: "see the call's schema in /openapi.json".to_owned(),
    };
    let mut others = ErrorDetails::new();
    if !detail.field.is_empty() {
        others.add_bad_request_violation(&detail.field, &detail.reason);
    }
    error_answer(Code::InvalidArgument, &detail, others)
}

#[cfg(test)]
mod tests {
    use comity_proto::error_detail;
    use prost::Message as _;

    use super::*;
    use crate::api::http::procedures::Procedures;

    fn message(name: &str) -> MessageDescriptor {
        Procedures::all().pool().get_message_by_name(name).expect("a message of the API")
    }

    fn refused(json: &str) -> (String, String) {
        let status = decode(message("comity.v1.SubmitRequestRequest"), json.as_bytes()).expect_err("refused");
        assert_eq!(status.code(), Code::InvalidArgument);
        let detail = error_detail(&status).expect("ours");
        assert_eq!(detail.code, "malformed-message");
        (detail.field, detail.reason)
    }

    #[test]
    fn both_spellings_of_a_field_are_accepted_and_the_answer_uses_the_canonical_one() {
        for json in [r#"{"lease": "lease-1", "durationMs": "60000"}"#, r#"{"lease": "lease-1", "duration_ms": 60000}"#]
        {
            let decoded = decode(message("comity.v1.RenewLeaseRequest"), json.as_bytes()).expect("valid");
            let typed = v1::RenewLeaseRequest::decode(decoded.encode_to_vec().as_slice()).expect("the same message");
            assert_eq!((typed.lease.as_str(), typed.duration_ms), ("lease-1", 60_000));
        }
        let lease = v1::Lease {
            id: "lease-1".to_owned(),
            state: v1::LeaseState::Active.into(),
            fencing_token: u64::MAX,
            ..v1::Lease::default()
        };
        let json = encode(message("comity.v1.Lease"), &lease.encode_to_vec()).expect("valid");
        assert_eq!(
            String::from_utf8(json).expect("text"),
            r#"{"id":"lease-1","state":"LEASE_STATE_ACTIVE","fencingToken":"18446744073709551615"}"#
        );
    }

    #[test]
    fn a_refusal_names_the_field() {
        let (field, reason) = refused(r#"{"spec": {"gpus": {"coun": 2}}}"#);
        assert_eq!(
            (field.as_str(), reason.as_str()),
            ("spec.gpus.coun", "the message has no field \"spec.gpus.coun\"")
        );
        let (field, reason) = refused(r#"{"spec": {"gpus": {"count": "two"}}}"#);
        assert_eq!(field, "spec.gpus.count");
        assert!(reason.starts_with("field \"spec.gpus.count\" is malformed: "), "{reason}");
        assert_eq!(refused(r#"{"dryrun": true}"#).0, "dryrun");
        assert_eq!(refused(r#"{"spec": {"delivery": "BY_MAIL"}}"#).0, "spec.delivery");
        for malformed in ["", "{", "[]", "{} {}"] {
            assert!(!refused(malformed).1.is_empty(), "{malformed}");
        }
    }
}
