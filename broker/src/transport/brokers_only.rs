//! Refuses everybody but brokers of the group before a message is read: decoding takes memory and processor time.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use futures::future::Either;
use tonic::server::NamedService;
use tonic::{Extensions, Status};
use tower::Service;

/// A service for callers that `check` admits by what their connection says, and by the path that they call.
#[derive(Clone)]
pub(crate) struct BrokersOnly<S, C> {
    pub(crate) service: S,
    pub(crate) check: C,
}

impl<S, C, B, R> Service<http::Request<B>> for BrokersOnly<S, C>
where
    S: Service<http::Request<B>, Response = http::Response<R>>,
    C: Fn(&Extensions, &str) -> Result<(), Status>,
    R: Default,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match (self.check)(request.extensions(), request.uri().path()) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(refused) => Either::Right(ready(Ok(refused.into_http()))),
        }
    }
}

impl<S: NamedService, C> NamedService for BrokersOnly<S, C> {
    const NAME: &'static str = S::NAME;
}
