//! RequestService: submits, follows, explains and cancels requests.

mod quotas;
mod templates;
mod tenants;

use std::ops::Bound;

use comity_core::command::{self, CancelRequest, SubmitRequest};
use comity_types::{ClusterId, LeaseId, RequestId, TenantId};

use comity_core::demand::RequestSpec;
use comity_core::idempotency;
use comity_core::refusal::Code;
use comity_core::request::Request as RequestRecord;
use comity_core::{Command, Idempotency, Refusal, ReplyBody, State, Timestamp, explain};
use comity_policy::Bundle;
use comity_proto::v1;
use comity_proto::v1::request_service_server::RequestService;
use tonic::Request;

use crate::api::authorize::{Rpc, may_decide, may_submit, may_view_tenant};
use crate::api::caller_life::CallerLife;
use crate::api::convert::{answer, lease, request as convert, wiring};
use crate::api::idempotency::of_call;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::api::viewer::Viewer;
use crate::api::visible_names::VisibleNames;
use crate::context::Context;
use crate::group::Consistency;

use self::templates::{Filled, naming_alternatives};

/// Submits, follows and explains requests.
#[derive(Debug, Clone)]
pub struct RequestHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { RequestService for RequestHandlers {
    submit_request: SubmitRequestRequest -> SubmitRequestResponse;
    get_request: GetRequestRequest -> GetRequestResponse;
    list_requests: ListRequestsRequest -> ListRequestsResponse;
    cancel_request: CancelRequestRequest -> CancelRequestResponse;
    explain_request: ExplainRequestRequest -> ExplainRequestResponse;
    quote_request: QuoteRequestRequest -> QuoteRequestResponse;
    list_request_templates: ListRequestTemplatesRequest -> ListRequestTemplatesResponse;
    list_quotas: ListQuotasRequest -> ListQuotasResponse;
} }

impl RequestHandlers {
    async fn submit_request(
        &self,
        request: Request<v1::SubmitRequestRequest>,
    ) -> Result<v1::SubmitRequestResponse, RpcError> {
        let life = self.context.admit_long(Rpc::SubmitRequest, &request).await?;
        let submitted = self.submit(&life, request.into_inner()).await;
        submitted.map_err(|error| self.context.with_suggestion(life.caller(), error))
    }

    async fn submit(
        &self,
        life: &CallerLife,
        mut message: v1::SubmitRequestRequest,
    ) -> Result<v1::SubmitRequestResponse, RpcError> {
        let caller = life.caller();
        let key = std::mem::take(&mut message.idempotency_key);
        let queue_anyway = std::mem::take(&mut message.queue_anyway);
        let idempotency = of_call(&caller.name(), &key, "SubmitRequest", &message)?;
        let dry_run = message.dry_run;
        let permit =
            |bundle: Option<&Bundle>, tenant: &TenantId, origin: &ClusterId| may_submit(caller, bundle, tenant, origin);
        let spec = match self.fill(message.spec, Some(&idempotency).filter(|_| !dry_run), permit).await? {
            Filled::Spec(spec) => spec,
            Filled::Repeated(request) => {
                return Ok(v1::SubmitRequestResponse { request: Some(request), ..Default::default() });
            }
        };
        let spec = RequestSpec { submitted_by: caller.name(), ..convert::spec(spec)? };
        self.context.permit(|bundle| may_submit(caller, bundle, &spec.tenant, &spec.origin)).await?;
        if dry_run {
            return self.check_only(life, spec, queue_anyway).await;
        }
        match self.queue(life, Submission { spec: &spec, idempotency: &idempotency, queue_anyway }).await {
            Ok(submitted) => Ok(submitted),
            Err(error) => Err(self.with_alternatives(life, &spec, error).await),
        }
    }

    /// Checks a request without submitting it.
    async fn check_only(
        &self,
        life: &CallerLife,
        spec: RequestSpec,
        queue_anyway: bool,
    ) -> Result<v1::SubmitRequestResponse, RpcError> {
        let now = self.context.now();
        let read = move |state: &State| {
            let now = now.max(state.log_time);
            let refused = |refusal| naming_alternatives(state, &spec, now, refusal);
            let checked = command::check_submission(state, &spec, now).map_err(refused)?;
            let unservable = explain::unservable(state, &checked, now);
            let unservable = match unservable {
                Some(refusal) if !queue_anyway => return Err(naming_alternatives(state, &checked, now, refusal)),
                other => other,
            };
            let warnings = explain::rule_warnings(state, &checked);
            let quotas = explain::quota_uses(state, &checked, None);
            Ok::<_, Refusal>((checked, unservable, warnings, quotas))
        };
        let (checked, unservable, warnings, quotas) =
            self.context.read_long(life, "checking the request", read).await??;
        let message = match unservable {
            Some(refusal) => format!("the request is valid, but {}; nothing was submitted", refusal.reason),
            None => "the request is good; nothing was submitted".to_owned(),
        };
        let request = v1::Request {
            spec: Some(convert::spec_to_proto(&checked)),
            submitted_by: life.caller().name(),
            message,
            ..v1::Request::default()
        };
        let quotas = quotas.iter().map(answer::quota_to_proto).collect();
        Ok(v1::SubmitRequestResponse { request: Some(request), warnings, quotas })
    }

    /// Queues a request.
    async fn queue(
        &self,
        life: &CallerLife,
        submission: Submission<'_>,
    ) -> Result<v1::SubmitRequestResponse, RpcError> {
        let caller = life.caller();
        self.refuse_early(life, submission).await?;
        let warnings = self.warnings(life, submission.spec).await?;
        let command =
            Command::SubmitRequest(SubmitRequest { spec: submission.spec.clone(), submitted_by: caller.name() });
        let idempotency = Some(submission.idempotency.clone());
        let submitted = self
            .context
            .mutate(caller, command, idempotency, |state, reply| match reply {
                ReplyBody::Request(id) => request_message(state, id),
                _ => Err(Refusal::not_found("request", "", "request")),
            })
            .await?;
        tracing::info!(request = submitted.id, caller = caller.name(), "submitted");
        Ok(v1::SubmitRequestResponse { request: Some(submitted), warnings, quotas: Vec::new() })
    }

    async fn get_request(&self, request: Request<v1::GetRequestRequest>) -> Result<v1::GetRequestResponse, RpcError> {
        let caller = self.context.admit(Rpc::GetRequest, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let id = RequestId::parse(&message.request, "request")?;
        let read = |state: &State| {
            let record =
                state.requests.get(&id).filter(|record| viewer.sees_request(&record.spec.tenant, &record.spec.origin));
            let record = record.ok_or_else(|| Refusal::not_found("request", id, "request"))?;
            Ok(v1::GetRequestResponse { request: Some(convert::to_proto(id, record)) })
        };
        self.context.read(message.consistency, read).await
    }

    async fn list_requests(
        &self,
        request: Request<v1::ListRequestsRequest>,
    ) -> Result<v1::ListRequestsResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListRequests, &request).await?;
        let viewer = self.context.viewer(&caller);
        let message = request.into_inner();
        let page = Page::parse(message.page, "requests")?;
        let after = page.after(|key| RequestId::parse(key, "page.token"))?;
        let tenant =
            Some(&message.tenant).filter(|t| !t.is_empty()).map(|t| TenantId::parse(t, "tenant")).transpose()?;
        // Tenants have hundreds of thousands of records, and the caller may see few of them.
        let state = self.context.copy(message.consistency).await?;
        let names = VisibleNames::in_state(&caller, &state);
        tenant.as_ref().map_or(Ok(()), |tenant| names.check_tenant(&state, &viewer, tenant))?;
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let wanted = state.requests.range(range).filter(|(_, record)| {
            viewer.sees_request(&record.spec.tenant, &record.spec.origin)
                && tenant.as_ref().is_none_or(|tenant| *tenant == record.spec.tenant)
                && (message.include_ended || !record.state.is_final())
        });
        let wanted = wanted.map(|(id, record)| (*id, convert::to_proto(*id, record)));
        let (requests, page) = page.take(wanted, state.revision);
        Ok(v1::ListRequestsResponse { requests, page: Some(page) })
    }

    async fn cancel_request(
        &self,
        request: Request<v1::CancelRequestRequest>,
    ) -> Result<v1::CancelRequestResponse, RpcError> {
        let caller = self.context.admit(Rpc::CancelRequest, &request).await?;
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        let idempotency = of_call(&caller.name(), &key, "CancelRequest", &message)?;
        let id = RequestId::parse(&message.request, "request")?;
        let record = self.record(id).await?;
        let viewer = self.context.viewer(&caller);
        let record = record.filter(|record| viewer.sees_request(&record.spec.tenant, &record.spec.origin));
        let record = record.ok_or_else(|| Refusal::not_found("request", id, "request"))?;
        self.context
            .permit(|bundle| {
                may_decide(&caller, bundle, &record.spec.tenant, &record.spec.origin, &record.spec.submitted_by)
                    .map_err(|refusal| refusal.at("request", id))
            })
            .await?;
        let command = Command::CancelRequest(CancelRequest { request: id });
        let cancelled =
            self.context.mutate(&caller, command, Some(idempotency), |state, _| request_message(state, id)).await?;
        Ok(v1::CancelRequestResponse { request: Some(cancelled) })
    }

    async fn explain_request(
        &self,
        request: Request<v1::ExplainRequestRequest>,
    ) -> Result<v1::ExplainRequestResponse, RpcError> {
        let life = self.context.admit_long(Rpc::ExplainRequest, &request).await?;
        let viewer = self.context.viewer(life.caller());
        let message = request.into_inner();
        let id = RequestId::parse(&message.request, "request")?;
        let now = self.context.now();
        let read = move |state: &State| -> Result<_, Refusal> {
            let record =
                state.requests.get(&id).filter(|record| viewer.sees_request(&record.spec.tenant, &record.spec.origin));
            let record = record.ok_or_else(|| Refusal::not_found("request", id, "request"))?;
            let request = Some(convert::to_proto(id, record));
            let Some(waiting) = explain::explain_waiting(state, id) else {
                // Other donors matter only if the scheduler still seeks something for it.
                let sought = explain::explain_pending(state, id);
                let mut summary = format!("{id} does not wait: {}", record.message);
                let held = record.leases().filter_map(|lease| Some((lease, state.leases.get(&lease)?)));
                if let Some((id, lease)) = held.into_iter().find(|(_, lease)| lease.state.is_held()) {
                    summary = format!("{summary}; {id} is {}: {}", lease.state.as_str(), lease.message);
                }
                if let Some(sought) = &sought {
                    summary = format!("{summary}; {}", sought.summary);
                }
                return Ok(v1::ExplainRequestResponse {
                    request,
                    donors: sought.as_ref().map_or_else(Vec::new, answer::verdicts),
                    summary,
                    revision: state.revision,
                    position: None,
                    reclaims: None,
                    alternatives: Vec::new(),
                });
            };
            let alternatives = if message.seek_alternatives {
                let earliest = waiting.position.as_ref().and_then(|position| Some(position.earliest.as_ref()?.0));
                explain::alternatives(state, &record.spec, now.max(state.log_time), earliest)
            } else {
                Vec::new()
            };
            Ok(v1::ExplainRequestResponse {
                request,
                donors: answer::verdicts(&waiting.explanation),
                summary: waiting.explanation.summary,
                revision: state.revision,
                position: waiting.position.as_ref().map(|it| answer::position_to_proto(it, &record.spec)),
                reclaims: waiting
                    .reclaims
                    .as_ref()
                    .map(|it| answer::reclaims_to_proto(it, tenant_if_visible(state, &viewer))),
                alternatives: alternatives.iter().map(answer::alternative_to_proto).collect(),
            })
        };
        Ok(self.context.read_long(&life, "explaining the request", read).await??)
    }

    async fn quote_request(
        &self,
        request: Request<v1::QuoteRequestRequest>,
    ) -> Result<v1::QuoteRequestResponse, RpcError> {
        let life = self.context.admit_long(Rpc::QuoteRequest, &request).await?;
        let quote = self.quote(&life, request.into_inner()).await;
        quote.map_err(|error| self.context.with_suggestion(life.caller(), error))
    }

    async fn quote(
        &self,
        life: &CallerLife,
        message: v1::QuoteRequestRequest,
    ) -> Result<v1::QuoteRequestResponse, RpcError> {
        let caller = life.caller();
        let viewer = self.context.viewer(caller);
        let permit =
            |bundle: Option<&Bundle>, tenant: &TenantId, _: &ClusterId| may_view_tenant(caller, bundle, tenant);
        let Filled::Spec(spec) = self.fill(message.spec, None, permit).await? else {
            return Err(Refusal::not_found("request", "", "request").into());
        };
        let spec = RequestSpec { submitted_by: caller.name(), ..convert::spec(spec)? };
        self.context.permit(|bundle| may_view_tenant(caller, bundle, &spec.tenant)).await?;
        let now = self.context.now();
        let read = move |state: &State| -> Result<_, Refusal> {
            let now = now.max(state.log_time);
            let refused = |refusal| naming_alternatives(state, &spec, now, refusal);
            let spec = command::check_submission(state, &spec, now).map_err(refused)?;
            if let Some(refusal) = explain::unservable(state, &spec, now).filter(|_| !message.queue_anyway) {
                return Err(naming_alternatives(state, &spec, now, refusal));
            }
            let quote = explain::quote(state, &spec);
            let earliest = quote.earliest.as_ref().map(|(earliest, _)| *earliest);
            let alternatives = if quote.placements.is_empty() {
                explain::alternatives(state, &spec, now, earliest)
            } else {
                Vec::new()
            };
            let quotas = explain::quota_uses(state, &spec, Some(&quote));
            let (earliest_ms, earliest_donor) = answer::earliest(quote.earliest.as_ref());
            Ok(v1::QuoteRequestResponse {
                placement: quote.placements.first().map(lease::placement_to_proto),
                more_placements: quote.placements.iter().skip(1).map(lease::placement_to_proto).collect(),
                donors: answer::verdicts(&quote.explanation),
                price_milli_credits: quote.price_milli_credits,
                summary: quote.explanation.summary,
                earliest_ms,
                earliest_donor,
                too_late: answer::too_late(earliest_ms, spec.start_by),
                reclaims: quote
                    .reclaims
                    .as_ref()
                    .map(|it| answer::reclaims_to_proto(it, tenant_if_visible(state, &viewer))),
                enforces: wiring::enforcement_to_proto(quote.enforces),
                quotas: quotas.iter().map(answer::quota_to_proto).collect(),
                alternatives: alternatives.iter().map(answer::alternative_to_proto).collect(),
            })
        };
        Ok(self.context.read_long(life, "quoting the request", read).await??)
    }

    /// Refuses a request for which the queue has no room, which must not cost entries of the log; and, unless it is to
    /// be queued anyway, one that no donor could ever serve. Other refusals are the command's.
    async fn refuse_early(&self, life: &CallerLife, submission: Submission<'_>) -> Result<(), RpcError> {
        let caller = life.caller();
        let now = self.context.now();
        let group = &self.context.group;
        let looks_unservable = self.context.refused_lately.has(caller)
            || match group.peek(|state| submission.refusal(state, now)) {
                // Most requests can be served: only a refusal is worth asking a majority.
                None => return Ok(()),
                Some(refusal) => refusal.code == Code::Unservable,
            };
        let refusal = if looks_unservable {
            // Every donor is looked at, and templates that could start are quoted.
            let (spec, idempotency) = (submission.spec.clone(), submission.idempotency.clone());
            let queue_anyway = submission.queue_anyway;
            let check = move |state: &State| {
                let refusal =
                    Submission { spec: &spec, idempotency: &idempotency, queue_anyway }.refusal(state, now)?;
                Some(naming_alternatives(state, &spec, now.max(state.log_time), refusal))
            };
            self.context.read_long(life, "checking the request", check).await?
        } else {
            group.read(Consistency::Linearizable, |state| submission.refusal(state, now)).await?
        };
        let Some(refusal) = refusal else { return Ok(()) };
        if refusal.code == Code::Unservable {
            self.context.refused_lately.note(caller);
        }
        Err(refusal.into())
    }

    /// What rules of policy warn of. Every donor is looked at, so on a copy of the state.
    async fn warnings(&self, life: &CallerLife, spec: &RequestSpec) -> Result<Vec<String>, RpcError> {
        let may_warn = |state: &State| state.policy.as_ref().is_some_and(|record| record.bundle.has_warnings());
        if !self.context.group.peek(may_warn) {
            return Ok(Vec::new());
        }
        let (spec, now) = (spec.clone(), self.context.now());
        let read = move |state: &State| {
            let checked = command::check_submission(state, &spec, now.max(state.log_time));
            checked.map_or_else(|_| Vec::new(), |checked| explain::rule_warnings(state, &checked))
        };
        self.context.read_long(life, "looking for warnings", read).await
    }

    async fn record(&self, id: RequestId) -> Result<Option<RequestRecord>, RpcError> {
        Ok(self.context.group.read(Consistency::Linearizable, |state| state.requests.get(&id).cloned()).await?)
    }
}

/// A submission to check before it is proposed.
#[derive(Clone, Copy)]
struct Submission<'a> {
    spec: &'a RequestSpec,
    idempotency: &'a Idempotency,
    /// Whether to queue it even if no donor could ever serve it.
    queue_anyway: bool,
}

impl Submission<'_> {
    /// Why the queue has no room for it, or no donor could ever serve it. A request that can be served costs little: the
    /// first donor that could serve it ends the search.
    fn refusal(&self, state: &State, now: Timestamp) -> Option<Refusal> {
        // A repeated call gets its request, whatever has changed since.
        if idempotency::seen(&state.idempotency, self.idempotency).is_some() {
            return None;
        }
        let now = now.max(state.log_time);
        match command::check_submission(state, self.spec, now) {
            Ok(checked) if !self.queue_anyway => explain::unservable(state, &checked, now),
            Err(refusal) if refusal.code == Code::LimitReached => Some(refusal),
            Ok(_) | Err(_) => None,
        }
    }
}

/// Returns the tenant of a lease that `viewer` may see.
fn tenant_if_visible<'s>(state: &'s State, viewer: &Viewer) -> impl Fn(LeaseId) -> Option<&'s TenantId> {
    move |id| {
        let lease = state.leases.get(&id)?;
        viewer.sees_lease(&lease.tenant, &lease.origin, &lease.placement.donor).then_some(&lease.tenant)
    }
}

fn request_message(state: &State, id: RequestId) -> Result<v1::Request, Refusal> {
    let record = state.requests.get(&id).ok_or_else(|| Refusal::not_found("request", id, "request"))?;
    Ok(convert::to_proto(id, record))
}
