//! Adds error details to failures that tonic itself reports, such as a message that is too large or malformed, and ends
//! calls that take too long.

use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use comity_proto::{ErrorDetails, error_detail, v1};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::api::error_answer::error_answer;

/// Timeout of unary calls, and of the start of streams; proposals time out earlier.
const CALL_TIMEOUT: Duration = Duration::from_secs(150);

/// Adds details to failed calls without them.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExplainFailureLayer;

impl<S> Layer<S> for ExplainFailureLayer {
    type Service = ExplainFailure<S>;
    fn layer(&self, inner: S) -> ExplainFailure<S> {
        ExplainFailure { inner }
    }
}

/// Service of [`ExplainFailureLayer`].
#[derive(Debug, Clone)]
pub struct ExplainFailure<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for ExplainFailure<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = self.inner.call(request);
        Box::pin(async move {
            let Ok(response) = tokio::time::timeout(CALL_TIMEOUT, call).await else {
                let reason = format!("the call took more than {} s", CALL_TIMEOUT.as_secs());
                return Ok(explained(Status::deadline_exceeded(reason)).into_http());
            };
            let response = response?;
            // A refused call has its status in the headers. A stream that fails later adds details by itself.
            Ok(match Status::from_header_map(response.headers()) {
                Some(status) if status.code() != Code::Ok && error_detail(&status).is_none() => {
                    explained(status).into_http()
                }
                _ => response,
            })
        })
    }
}

/// The same status, with details.
#[must_use]
pub fn explained(status: Status) -> Status {
    if error_detail(&status).is_some() {
        return status;
    }
    let detail = |code: &str, field: &str, value: String, remedy: &str| v1::ErrorDetail {
        code: code.to_owned(),
        reason: if status.message().is_empty() { without_message(status.code()) } else { status.message().to_owned() },
        field: field.to_owned(),
        value,
        remedy: remedy.to_owned(),
    };
    let (code, detail) = match status.code() {
        Code::OutOfRange if status.message().contains("message length too large") => (
            Code::ResourceExhausted,
            detail(
                "message-too-large",
                "message",
                sizes(status.message()),
                "send less in one message; the limit is in the reason",
            ),
        ),
        Code::Unimplemented => {
            (Code::Unimplemented, detail("unimplemented", "", String::new(), "look at `comity.v1` by reflection"))
        }
        Code::Internal | Code::InvalidArgument => (
            Code::InvalidArgument,
            detail("malformed-message", "message", String::new(), "send a message of the type that the call takes"),
        ),
        Code::Cancelled | Code::DeadlineExceeded => {
            (status.code(), detail("cancelled", "", String::new(), "allow more time, and repeat the call with its key"))
        }
        other => (other, detail("failed", "", String::new(), "try again")),
    };
    error_answer(code, &detail, ErrorDetails::new())
}

/// A reason for a status of the libraries that has none.
fn without_message(code: Code) -> String {
    match code {
        Code::Unimplemented => "the broker has no such call".to_owned(),
        other => other.description().to_owned(),
    }
}

/// The size of the refused message: the first number in the library's sentence.
fn sizes(message: &str) -> String {
    let digits: String = message.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
    if digits.is_empty() { String::new() } else { format!("{digits} bytes") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_does_not_exist_is_named_so() {
        let ours = explained(Status::unimplemented(""));
        assert!(ours.message().starts_with("the broker has no such call; "), "{}", ours.message());
    }

    #[test]
    fn an_oversized_message_is_explained_with_its_size() {
        let theirs = Status::out_of_range(
            "Error, decoded message length too large: found 5242880 bytes, the limit is: 4194304 bytes",
        );
        let ours = explained(theirs);
        assert_eq!(ours.code(), Code::ResourceExhausted);
        let detail = error_detail(&ours).expect("it has details");
        assert_eq!(
            (detail.code.as_str(), detail.field.as_str(), detail.value.as_str()),
            ("message-too-large", "message", "5242880 bytes")
        );
        assert!(!detail.remedy.is_empty());
        assert_eq!(explained(ours.clone()).message(), ours.message());
    }
}
