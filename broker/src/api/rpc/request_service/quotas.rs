//! What a caller's tenants may use, and what they use.

use std::collections::BTreeMap;

use comity_core::{Refusal, State, explain};
use comity_proto::v1;
use tonic::Request;

use super::RequestHandlers;
use super::tenants::tenants_of;
use crate::api::authorize::Rpc;
use crate::api::convert::answer;
use crate::api::paging::Page;
use crate::api::rpc_error::RpcError;

impl RequestHandlers {
    pub(super) async fn list_quotas(
        &self,
        request: Request<v1::ListQuotasRequest>,
    ) -> Result<v1::ListQuotasResponse, RpcError> {
        let life = self.context.admit_long(Rpc::ListQuotas, &request).await?;
        let message = request.into_inner();
        let page = Page::parse(message.page, "quotas")?;
        let after = page.after(|key| Ok::<_, Refusal>(key.to_owned()))?.unwrap_or_default();
        let (caller, tenant) = (life.caller().clone(), message.tenant);
        let read = move |state: &State| -> Result<_, Refusal> {
            let record = state.policy.as_ref().ok_or_else(Refusal::no_policy)?;
            let tenants = tenants_of(&caller, &record.bundle, &tenant)?;
            // A quota of an institution counts several tenants.
            let mut quotas = BTreeMap::new();
            for (tenant, _) in tenants {
                for quota in explain::tenant_quotas(state, tenant, &caller.name()) {
                    let per = quota.period.map_or_else(String::new, |(per, _)| per.to_string());
                    let key = format!("{} {} {per}", quota.by.name, quota.per_user);
                    quotas.insert(key, answer::quota_to_proto(&quota));
                }
            }
            Ok((quotas, state.revision))
        };
        let listed = self.context.read_long(&life, "listing quotas", read).await?;
        let (quotas, revision) =
            listed.map_err(|refusal| self.context.with_suggestion(life.caller(), refusal.into()))?;
        let (quotas, page) = page.take(quotas.into_iter().filter(|(key, _)| *key > after), revision);
        Ok(v1::ListQuotasResponse { quotas, page: Some(page) })
    }
}
