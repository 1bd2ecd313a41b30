//! [`Requests`] by the broker's own services, as this cluster.

use std::sync::Arc;
use std::time::Duration;

use comity_agent_model::status_reasons::{code_name, reasons};
use comity_proto::v1::lease_service_client::LeaseServiceClient;
use comity_proto::v1::request_service_client::RequestServiceClient;
use comity_proto::{error_detail, v1};
use comity_runtime::telemetry::TraceInjector;
use comity_runtime::{BrokerChannel, ClientTls, KnownBrokers, tls};
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Status};

use super::requests::{RequestError, Requests};

/// Time limit of one call.
const BROKER_CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Requests of one page, and most pages read: together what a broker group keeps.
const PAGE: u32 = 500;
const MAX_PAGES: usize = 100;

/// Explanations at once: half of what a broker computes for one caller.
const MAX_EXPLANATIONS: usize = 4;

type Channel = InterceptedService<BrokerChannel, TraceInjector>;

/// The broker group, over the agent's own channel.
#[derive(Clone)]
pub struct BrokerRequests {
    cluster: String,
    requests: RequestServiceClient<Channel>,
    leases: LeaseServiceClient<Channel>,
    explanations: Arc<Semaphore>,
}

impl BrokerRequests {
    /// Speaks to these brokers with the cluster's certificate. Connects when it is first used.
    #[must_use]
    pub fn new(cluster: &str, brokers: &KnownBrokers, tls: &ClientTls) -> Self {
        let channel = tls::connect(brokers, tls);
        Self {
            cluster: cluster.to_owned(),
            requests: RequestServiceClient::with_interceptor(channel.clone(), TraceInjector),
            leases: LeaseServiceClient::with_interceptor(channel, TraceInjector),
            explanations: Arc::new(Semaphore::new(MAX_EXPLANATIONS)),
        }
    }
}

impl Requests for BrokerRequests {
    fn submit(&self, spec: v1::RequestSpec, key: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        let mut client = self.requests.clone();
        Box::pin(async move {
            // A pod stays pending, whatever the broker says: its events tell why.
            let call =
                v1::SubmitRequestRequest { spec: Some(spec), idempotency_key: key, queue_anyway: true, dry_run: false };
            present(limited(client.submit_request(call)).await.map_err(not_taken)?.request)
        })
    }

    fn cancel(&self, request: String, key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        let mut client = self.requests.clone();
        Box::pin(async move {
            let call = v1::CancelRequestRequest { request, idempotency_key: key };
            gone_is_done(limited(client.cancel_request(call)).await)
        })
    }

    fn release(&self, lease: String, key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        let mut client = self.leases.clone();
        Box::pin(async move {
            let call = v1::ReleaseLeaseRequest { lease, idempotency_key: key };
            gone_is_done(limited(client.release_lease(call)).await)
        })
    }

    fn renew(&self, lease: String, key: String) -> BoxFuture<'_, Result<(), RequestError>> {
        let mut client = self.leases.clone();
        Box::pin(async move {
            let call = v1::RenewLeaseRequest { lease, idempotency_key: key, ..v1::RenewLeaseRequest::default() };
            limited(client.renew_lease(call)).await.map(drop)
        })
    }

    fn get(&self, request: String) -> BoxFuture<'_, Result<v1::Request, RequestError>> {
        let mut client = self.requests.clone();
        Box::pin(async move {
            let call = v1::GetRequestRequest { request, consistency: v1::Consistency::Linearizable.into() };
            present(limited(client.get_request(call)).await?.request)
        })
    }

    fn explain(&self, request: String) -> BoxFuture<'_, Result<v1::ExplainRequestResponse, RequestError>> {
        let mut client = self.requests.clone();
        Box::pin(async move {
            // Never closed.
            let _turn = self.explanations.acquire().await;
            let call = v1::ExplainRequestRequest { request, seek_alternatives: false };
            limited(client.explain_request(call)).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<v1::Request>, RequestError>> {
        let mut client = self.requests.clone();
        Box::pin(async move {
            let (mut all, mut token) = (Vec::new(), String::new());
            for _ in 0..MAX_PAGES {
                let call = v1::ListRequestsRequest {
                    page: Some(v1::PageRequest { size: PAGE, token: std::mem::take(&mut token) }),
                    consistency: v1::Consistency::Linearizable.into(),
                    ..v1::ListRequestsRequest::default()
                };
                let answer = limited(client.list_requests(call)).await?;
                let own = |request: &v1::Request| request.spec.as_ref().is_some_and(|spec| spec.origin == self.cluster);
                all.extend(answer.requests.into_iter().filter(own));
                token = answer.page.map(|page| page.next_token).unwrap_or_default();
                if token.is_empty() {
                    return Ok(all);
                }
            }
            Err(RequestError::Unavailable(format!("its list of requests has more than {MAX_PAGES} pages")))
        })
    }
}

async fn limited<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> Result<T, RequestError> {
    match tokio::time::timeout(BROKER_CALL_TIMEOUT, call).await {
        Err(_) => Err(RequestError::Unavailable(format!("no answer within {} s", BROKER_CALL_TIMEOUT.as_secs()))),
        Ok(Err(status)) => Err(error(&status)),
        Ok(Ok(response)) => Ok(response.into_inner()),
    }
}

fn error(status: &Status) -> RequestError {
    match (status.code(), error_detail(status)) {
        (Code::NotFound, _) => RequestError::NotFound(status.message().to_owned()),
        (
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Aborted
            | Code::ResourceExhausted
            | Code::Internal,
            _,
        ) => RequestError::Unavailable(reasons(status)),
        (_, Some(detail)) if detail.remedy.is_empty() => {
            RequestError::Refused { code: detail.code, reason: detail.reason }
        }
        (_, Some(detail)) => {
            RequestError::Refused { code: detail.code, reason: format!("{}; {}", detail.reason, detail.remedy) }
        }
        (code, None) => RequestError::Refused { code: code_name(code), reason: status.message().to_owned() },
    }
}

/// "Not found" for a submission means that something it names, such as a class, does not exist: a refusal.
fn not_taken(error: RequestError) -> RequestError {
    match error {
        RequestError::NotFound(reason) => RequestError::Refused { code: "not-found".to_owned(), reason },
        error => error,
    }
}

fn present<T>(answer: Option<T>) -> Result<T, RequestError> {
    answer.ok_or_else(|| RequestError::Unavailable("its answer is empty".to_owned()))
}

/// To end a request or lease that does not exist, or has ended, is a success.
fn gone_is_done<T>(answer: Result<T, RequestError>) -> Result<(), RequestError> {
    match answer {
        Ok(_) | Err(RequestError::NotFound(_)) => Ok(()),
        Err(RequestError::Refused { code, .. }) if code == "wrong-state" => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use comity_proto::{ErrorDetails, error_status};

    use super::*;

    #[test]
    fn errors_keep_reason_and_remedy_and_say_whether_to_try_again() {
        let detail = v1::ErrorDetail {
            code: "policy-denied".to_owned(),
            reason: "quota is used up".to_owned(),
            remedy: "wait".to_owned(),
            ..v1::ErrorDetail::default()
        };
        let status = error_status(Code::FailedPrecondition, &detail, ErrorDetails::new());
        let refused =
            RequestError::Refused { code: "policy-denied".to_owned(), reason: "quota is used up; wait".to_owned() };
        assert_eq!(error(&status), refused);
        assert!(matches!(error(&Status::unavailable("no leader")), RequestError::Unavailable(_)));
        assert_eq!(gone_is_done::<()>(Err(error(&Status::not_found("lease-1")))), Ok(()));
        assert_eq!(gone_is_done::<()>(Err(refused.clone())), Err(refused));
        let no_class = "no class \"huge\"; list the classes that exist";
        let refused = RequestError::Refused { code: "not-found".to_owned(), reason: no_class.to_owned() };
        assert_eq!(not_taken(error(&Status::not_found(no_class))), refused);
    }
}
