//! A limit of the size of a request's body.

use comity_proto::{ErrorDetails, error_status, v1};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use tonic::body::Body;
use tonic::{Code, Status};

/// The same body, which fails once it has more than `limit` bytes.
#[must_use]
pub fn at_most(body: Body, limit: usize) -> Body {
    Body::new(Limited::new(body, limit).map_err(move |error| {
        if error.is::<LengthLimitError>() { too_large(limit) } else { Status::from_error(error) }
    }))
}

fn too_large(limit: usize) -> Status {
    let detail = v1::ErrorDetail {
        code: "message-too-large".to_owned(),
        reason: format!("the body has more than {limit} bytes"),
        field: "message".to_owned(),
        value: String::new(),
        remedy: "send less in one message".to_owned(),
    };
    error_status(Code::ResourceExhausted, &detail, ErrorDetails::new())
}
