//! Who calls, and whether the caller's lease has room for another request.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;

use super::Site;
use crate::answers::{Caller, Refusal};
use crate::lease_seats::MAX_REQUESTS;

/// Time limit of reading a request's body and of the answer's head.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Lets only requests with the token of a lease pass, tells whose it is, and takes one of the lease's seats until the
/// answer is sent.
pub(super) async fn authenticate(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = header.and_then(|value| value.strip_prefix("Bearer "));
    let Some((lease, record)) = token.and_then(|token| site.leases.authenticate(token)) else {
        let message = "the token is not that of a lease that runs";
        return Refusal::new(StatusCode::UNAUTHORIZED, message).into_response();
    };
    let Some(seat) = site.seats.request(lease) else {
        let message = format!("{MAX_REQUESTS} requests of {lease} are under way; end a watch or a followed log");
        return Refusal::new(StatusCode::TOO_MANY_REQUESTS, message).into_response();
    };
    request.extensions_mut().insert(Caller { lease, record });
    match tokio::time::timeout(ANSWER_TIMEOUT, next.run(request)).await {
        Ok(response) => response.map(|body| {
            Body::from_stream(body.into_data_stream().map(move |part| {
                let _seat = &seat;
                part
            }))
        }),
        Err(_) => Refusal::new(StatusCode::REQUEST_TIMEOUT, "the request took too long").into_response(),
    }
}
