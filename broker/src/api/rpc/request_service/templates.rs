//! Request templates: the list of them, and requests that are made from one.

use std::sync::Arc;

use comity_core::demand::RequestSpec;
use comity_core::refusal::Code;
use comity_core::{Idempotency, Refusal, ReplyBody, State, Timestamp, explain, idempotency};
use comity_policy::{Bundle, nearest};
use comity_proto::v1;
use comity_types::{ClusterId, TenantId};
use tonic::Request;

use super::tenants::tenants_of;
use super::{RequestHandlers, request_message};
use crate::api::authorize::Rpc;
use crate::api::caller::Caller;
use crate::api::caller_life::CallerLife;
use crate::api::convert::{answer, template};
use crate::api::paging::Page;
use crate::api::rpc_error::RpcError;
use crate::group::Consistency;

/// Tenants that the list names with each template.
const MAX_TENANTS_NAMED: usize = 32;
/// Templates that a refusal names if none resembles the unknown one.
const MAX_TEMPLATES_NAMED: usize = 8;

/// A request whose template has been applied.
pub(super) enum Filled {
    /// The request with all its fields.
    Spec(Option<v1::RequestSpec>),
    /// The call repeats one that succeeded: its request, whatever the template says by now.
    Repeated(v1::Request),
}

impl RequestHandlers {
    /// The same error; if policy denies a user's request, the refusal names templates near to it. Agents do not ask from
    /// templates.
    pub(super) async fn with_alternatives(&self, life: &CallerLife, spec: &RequestSpec, error: RpcError) -> RpcError {
        let RpcError::Refused(refusal) = error else { return error };
        let is_offered_some = |state: &State| {
            let bundle = state.policy.as_ref().map(|record| &record.bundle);
            bundle.is_some_and(|bundle| bundle.templates_offered_to(spec.tenant.as_str()).next().is_some())
        };
        let is_of_user = matches!(life.caller(), Caller::User(..));
        if refusal.code != Code::PolicyDenied || !is_of_user || !self.context.group.peek(is_offered_some) {
            return refusal.into();
        }
        let (spec, now, refused) = (spec.clone(), self.context.now(), refusal.clone());
        let read = move |state: &State| naming_alternatives(state, &spec, now.max(state.log_time), refused);
        // Without time for alternatives, the refusal is sent alone.
        self.context.read_long(life, "looking for templates", read).await.unwrap_or(refusal).into()
    }

    /// Fills a request from its template under the bundle in force. `permit` says whether the caller may ask for the
    /// tenant and the origin: others learn nothing about templates. `idempotency`: the key of a submission.
    pub(super) async fn fill(
        &self,
        spec: Option<v1::RequestSpec>,
        idempotency: Option<&Idempotency>,
        permit: impl Fn(Option<&Bundle>, &TenantId, &ClusterId) -> Result<(), Refusal>,
    ) -> Result<Filled, RpcError> {
        let spec = match spec {
            Some(spec) if !spec.template.is_empty() => spec,
            other => return Ok(Filled::Spec(other)),
        };
        let (tenant, origin) =
            (TenantId::parse(&spec.tenant, "spec.tenant")?, ClusterId::parse(&spec.origin, "spec.origin")?);
        self.context.permit(|bundle| permit(bundle, &tenant, &origin)).await?;
        let read = |state: &State| {
            let seen = idempotency.and_then(|key| idempotency::seen(&state.idempotency, key));
            let repeated = seen.map(|reply| match reply? {
                ReplyBody::Request(id) => request_message(state, id),
                _ => Err(Refusal::not_found("request", "", "request")),
            });
            (repeated, state.policy.as_ref().map(|record| Arc::clone(&record.bundle)))
        };
        let (repeated, bundle) = self.context.group.read(Consistency::Linearizable, read).await?;
        if let Some(repeated) = repeated {
            return Ok(Filled::Repeated(repeated?));
        }
        let bundle = bundle.ok_or_else(Refusal::no_policy)?;
        Ok(Filled::Spec(Some(fill_from(&bundle, &tenant, spec)?)))
    }

    pub(super) async fn list_request_templates(
        &self,
        request: Request<v1::ListRequestTemplatesRequest>,
    ) -> Result<v1::ListRequestTemplatesResponse, RpcError> {
        let caller = self.context.admit(Rpc::ListRequestTemplates, &request).await?;
        let message = request.into_inner();
        let page = Page::parse(message.page, "request-templates")?;
        let after = page.after(|key| Ok::<_, Refusal>(key.to_owned()))?.unwrap_or_default();
        let read = |state: &State| Ok((state.policy.as_ref().map(|record| Arc::clone(&record.bundle)), state.revision));
        let (bundle, revision) = self.context.read(message.consistency, read).await?;
        let bundle = bundle.ok_or_else(Refusal::no_policy)?;
        let tenants = tenants_of(&caller, &bundle, &message.tenant)
            .map_err(|refusal| self.context.with_suggestion(&caller, refusal.into()))?;
        let templates = bundle.templates.values().filter(|template| template.name > after);
        let offered = templates.filter_map(|template| {
            let is_offered = |(tenant, institution): &&(&str, &str)| template.spec.is_offered_to(tenant, institution);
            let offered = tenants.iter().filter(is_offered).take(MAX_TENANTS_NAMED);
            let offered: Vec<String> = offered.map(|(tenant, _)| (*tenant).to_owned()).collect();
            (!offered.is_empty()).then_some((template.name.as_str(), (template, offered)))
        });
        let (templates, page) = page.take(offered, revision);
        let templates = templates.into_iter().map(|(template, offered)| template::to_proto(template, offered));
        let templates = templates.collect::<Result<_, Refusal>>()?;
        Ok(v1::ListRequestTemplatesResponse { templates, page: Some(page) })
    }
}

/// Whether other requests may fare better.
fn matters(refusal: &Refusal) -> bool {
    matches!(refusal.code, Code::Unservable | Code::PolicyDenied)
}

/// The same refusal; if another request may fare better, its remedy names templates near to the refused one.
pub(super) fn naming_alternatives(state: &State, spec: &RequestSpec, now: Timestamp, refusal: Refusal) -> Refusal {
    if !matters(&refusal) {
        return refusal;
    }
    match answer::alternatives_text(&explain::alternatives(state, spec, now, None), now) {
        Some(text) => Refusal { remedy: format!("{}; {text}", refusal.remedy), ..refusal },
        None => refusal,
    }
}

/// Fills a request of a tenant from the template that it names.
fn fill_from(bundle: &Bundle, tenant: &TenantId, spec: v1::RequestSpec) -> Result<v1::RequestSpec, Refusal> {
    match bundle.templates_offered_to(tenant.as_str()).find(|template| template.name == spec.template) {
        Some(template) => template::fill(spec, template),
        // Whether others are offered one of this name is none of the caller's business.
        None => Err(not_offered(bundle, tenant, &spec.template)),
    }
}

fn not_offered(bundle: &Bundle, tenant: &TenantId, name: &str) -> Refusal {
    let offered: Vec<&str> =
        bundle.templates_offered_to(tenant.as_str()).map(|template| template.name.as_str()).collect();
    let remedy = match nearest(name, offered.iter().copied()) {
        Some(near) => format!("did you mean {near}? `comity request templates` shows all"),
        None if offered.is_empty() => format!("the policy in force offers none to {tenant}: describe the request"),
        None => {
            let some = offered.iter().take(MAX_TEMPLATES_NAMED).copied().collect::<Vec<_>>().join(", ");
            let more = if offered.len() > MAX_TEMPLATES_NAMED { ", …" } else { "" };
            format!("name one of {some}{more}; `comity request templates` shows what they are")
        }
    };
    let reason = format!("tenant {tenant} is offered no request template \"{}\"", comity_types::shorten(name));
    Refusal::new(Code::NotFound, reason, remedy).at("spec.template", name)
}
