//! PolicyService: checks, plans, applies and shows policy bundles.

use comity_core::command::{ApplyPolicy, RemovePolicySource};
use comity_core::explain::PolicyPlan;
use comity_core::refusal::Code;
use comity_core::{Command, Refusal, ReplyBody, State, explain};
use comity_policy::{Bundle, BundleSource, Problem};
use comity_proto::v1;
use comity_proto::v1::policy_service_server::PolicyService;
use tonic::Request;

use crate::api::authorize::Rpc;
use crate::api::caller_life::CallerLife;
use crate::api::convert::{self, policy, policy_plan, policy_repository};
use crate::api::idempotency;
use crate::api::paging::Page;
use crate::api::rpc::serve;
use crate::api::rpc_error::RpcError;
use crate::context::Context;

/// Checks, plans, applies and shows bundles.
#[derive(Debug, Clone)]
pub struct PolicyHandlers {
    /// Shared context.
    pub context: Context,
}

serve! { PolicyService for PolicyHandlers {
    check_policy: CheckPolicyRequest -> CheckPolicyResponse;
    plan_policy: PlanPolicyRequest -> PlanPolicyResponse;
    apply_policy: ApplyPolicyRequest -> ApplyPolicyResponse;
    set_policy_source: SetPolicySourceRequest -> SetPolicySourceResponse;
    remove_policy_source: RemovePolicySourceRequest -> RemovePolicySourceResponse;
    list_reservations: ListReservationsRequest -> ListReservationsResponse;
    get_policy: GetPolicyRequest -> GetPolicyResponse;
} }

impl PolicyHandlers {
    async fn check_policy(
        &self,
        request: Request<v1::CheckPolicyRequest>,
    ) -> Result<v1::CheckPolicyResponse, RpcError> {
        let life = self.context.admit_long(Rpc::CheckPolicy, &request).await?;
        let source = policy::source(request.into_inner().bundle)?;
        Ok(match self.compile(&life, source).await? {
            Ok(bundle) => v1::CheckPolicyResponse {
                problems: Vec::new(),
                hash: bundle.hash.clone(),
                documents: convert::count(bundle.document_count()),
            },
            Err(problems) => v1::CheckPolicyResponse {
                problems: policy::problems_to_proto(&problems),
                hash: String::new(),
                documents: 0,
            },
        })
    }

    async fn plan_policy(&self, request: Request<v1::PlanPolicyRequest>) -> Result<v1::PlanPolicyResponse, RpcError> {
        let life = self.context.admit_long(Rpc::PlanPolicy, &request).await?;
        let v1::PlanPolicyRequest { bundle, force, expected_hash } = request.into_inner();
        let bundle = match self.compile(&life, policy::source(bundle)?).await? {
            Ok(bundle) => bundle,
            Err(problems) => {
                return Ok(v1::PlanPolicyResponse {
                    problems: policy::problems_to_proto(&problems),
                    ..v1::PlanPolicyResponse::default()
                });
            }
        };
        self.own_trust_domain(&bundle)?;
        let command = ApplyPolicy { source: bundle.source().clone(), force, expected_hash };
        let (in_force_hash, plan) = self.plan(&life, command).await?;
        Ok(v1::PlanPolicyResponse {
            problems: Vec::new(),
            hash: bundle.hash.clone(),
            documents: convert::count(bundle.document_count()),
            in_force_hash,
            replaces: plan.replaces,
            plan: Some(policy_plan::to_proto(plan)),
        })
    }

    async fn apply_policy(
        &self,
        request: Request<v1::ApplyPolicyRequest>,
    ) -> Result<v1::ApplyPolicyResponse, RpcError> {
        let life = self.context.admit_long(Rpc::ApplyPolicy, &request).await?;
        let caller = life.caller();
        let mut message = request.into_inner();
        let key = std::mem::take(&mut message.idempotency_key);
        // A repeated call expects the bundle that its first try put into force.
        let expected_hash = message.expected_hash.take();
        let idempotency = idempotency::of_call(&caller.name(), &key, "ApplyPolicy", &message)?;
        let source = policy::source(message.bundle)?;
        let bundle = match self.compile(&life, source).await? {
            Ok(bundle) => bundle,
            Err(problems) => {
                return Ok(v1::ApplyPolicyResponse {
                    problems: policy::problems_to_proto(&problems),
                    ..v1::ApplyPolicyResponse::default()
                });
            }
        };
        self.own_trust_domain(&bundle)?;
        let source = bundle.source().clone();
        let command = Command::ApplyPolicy(ApplyPolicy { source, force: message.force, expected_hash });
        self.context
            .mutate(caller, command, Some(idempotency), |state, reply| {
                let record = state.policy.as_ref().ok_or_else(none_in_force)?;
                Ok(v1::ApplyPolicyResponse {
                    problems: Vec::new(),
                    hash: record.bundle.hash.clone(),
                    documents: convert::count(record.bundle.document_count()),
                    changed: reply == ReplyBody::Policy { changed: true },
                })
            })
            .await
    }

    async fn list_reservations(
        &self,
        request: Request<v1::ListReservationsRequest>,
    ) -> Result<v1::ListReservationsResponse, RpcError> {
        self.context.admit(Rpc::ListReservations, &request).await?;
        let v1::ListReservationsRequest { page, consistency } = request.into_inner();
        let page = Page::parse(page, "reservations")?;
        let after = page.after(|key| Ok::<_, Refusal>(key.to_owned()))?.unwrap_or_default();
        let read = |state: &State| Ok((explain::kept_gpus(state), state.revision));
        let (kept, revision) = self.context.read(consistency, read).await?;
        let messages = kept.into_iter().map(policy::reservation_to_proto);
        let keyed = messages.map(|message| (format!("{}/{}", message.name, message.cluster), message));
        let mut rest: Vec<(String, v1::Reservation)> = keyed.filter(|(key, _)| *key > after).collect();
        rest.sort_by(|(one, _), (other, _)| one.cmp(other));
        let (reservations, page) = page.take(rest.into_iter(), revision);
        Ok(v1::ListReservationsResponse { reservations, page: Some(page) })
    }

    async fn get_policy(&self, request: Request<v1::GetPolicyRequest>) -> Result<v1::GetPolicyResponse, RpcError> {
        self.context.admit(Rpc::GetPolicy, &request).await?;
        let read = |state: &State| {
            let record = state.policy.clone().ok_or_else(none_in_force)?;
            let taken_names = state.provenance.taken_names.iter().cloned().collect();
            Ok((record, policy_repository::to_proto(&state.provenance), taken_names))
        };
        let (record, source, taken_names) = self.context.read(request.into_inner().consistency, read).await?;
        Ok(v1::GetPolicyResponse {
            bundle: Some(policy::source_to_proto(&record.source)),
            hash: record.bundle.hash.clone(),
            applied_at_ms: record.applied_at.0,
            applied_by: record.applied_by,
            signed_by: record.signed_by.into_iter().collect(),
            source,
            taken_names,
        })
    }

    async fn set_policy_source(
        &self,
        request: Request<v1::SetPolicySourceRequest>,
    ) -> Result<v1::SetPolicySourceResponse, RpcError> {
        let caller = self.context.admit(Rpc::SetPolicySource, &request).await?;
        let command = Command::SetPolicySource(policy_repository::from_proto(request.into_inner())?);
        let read = |state: &State, _| Ok(policy_repository::to_proto(&state.provenance));
        let source = self.context.mutate(&caller, command, None, read).await?;
        Ok(v1::SetPolicySourceResponse { source })
    }

    async fn remove_policy_source(
        &self,
        request: Request<v1::RemovePolicySourceRequest>,
    ) -> Result<v1::RemovePolicySourceResponse, RpcError> {
        let caller = self.context.admit(Rpc::RemovePolicySource, &request).await?;
        let command = Command::RemovePolicySource(RemovePolicySource {});
        self.context.mutate(&caller, command, None, |_, _| Ok(v1::RemovePolicySourceResponse {})).await
    }

    /// The hash of the bundle in force, empty if there is none, and the plan of another one.
    async fn plan(&self, life: &CallerLife, command: ApplyPolicy) -> Result<(String, PolicyPlan), RpcError> {
        let caller = life.caller();
        let (actor, now) = ((caller.actor(), caller.generation()), self.context.now());
        let compute = move |state: &State| {
            let in_force = state.policy.as_ref().map_or_else(String::new, |record| record.bundle.hash.clone());
            let plan = explain::policy_plan(state, command, actor, now.max(state.log_time)).ok()?;
            Some(plan.map(|plan| (in_force, plan)))
        };
        let what = "planning the bundle";
        // An entry that would break the state's rules has no plan.
        Ok(self.context.read_long(life, what, compute).await?.ok_or(RpcError::Internal { what })??)
    }

    async fn compile(&self, life: &CallerLife, source: BundleSource) -> Result<Result<Bundle, Vec<Problem>>, RpcError> {
        self.context.compute_long(life, "compiling the bundle", move || Bundle::compile(&source)).await
    }

    /// Refuses a bundle of another trust domain: it would leave no user with a role.
    fn own_trust_domain(&self, bundle: &Bundle) -> Result<(), Refusal> {
        let (ours, theirs) = (self.context.ca.trust_domain().as_str(), &bundle.federation.spec.trust_domain);
        if theirs == ours {
            return Ok(());
        }
        Err(Refusal::invalid(
            "Federation.spec.trustDomain",
            theirs,
            "is not the trust domain of this federation's authority",
            format!("write {ours}"),
        ))
    }
}

fn none_in_force() -> Refusal {
    Refusal::new(Code::NoPolicy, "no policy bundle is in force", "apply one with `comity policy apply DIRECTORY`")
}
