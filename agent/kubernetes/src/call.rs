//! Calls to the Kubernetes API whose errors distinguish temporary from permanent failures.

use std::collections::BTreeMap;
use std::future::Future;

use comity_agent_model::delivery_error::DeliveryError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::{CallError, within_limit};

/// Field manager of the agent's writes.
pub const FIELD_MANAGER: &str = "comity-agent";
/// Label of every object that the agent makes.
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "comity-agent");
/// Objects requested in one page of a list.
const PAGE_SIZE: u32 = 500;
/// Most pages read of one list: two million objects.
const MAX_PAGES: usize = 4_096;

/// Labels of an object that the agent makes: `more`, and [`MANAGED_BY`].
pub fn own_labels<'a>(more: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, String> {
    std::iter::once(MANAGED_BY).chain(more).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Parameters for creating an object as the agent's field manager.
pub fn creating() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

/// Parameters for patching an object as the agent's field manager.
pub fn patching() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Reads a list page by page: see [`page`](Self::page).
#[derive(Debug)]
pub struct Pager {
    next: Option<ListParams>,
    left: usize,
}

impl Pager {
    /// Begins at the first page.
    #[must_use]
    pub fn new(wanted: ListParams) -> Self {
        Self { next: Some(wanted.limit(PAGE_SIZE)), left: MAX_PAGES }
    }

    /// Parameters of the page to read next; `None` after the last one.
    #[must_use]
    pub const fn page(&self) -> Option<&ListParams> {
        self.next.as_ref()
    }

    /// Goes on to the page that the answer names.
    pub fn turn(&mut self, answer: &ListMeta) {
        self.left = self.left.saturating_sub(1);
        let token = answer.continue_.as_deref().filter(|token| !token.is_empty() && self.left > 0);
        self.next = token.and_then(|token| Some(self.next.take()?.continue_token(token)));
    }
}

/// Makes a call within its time limit.
pub async fn call<T>(operation: &str, call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, DeliveryError> {
    within_limit(call).await.map_err(|error| delivery_error(operation, error))
}

/// Makes a call; "not found" is `None`.
pub async fn call_opt<T>(
    operation: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<Option<T>, DeliveryError> {
    match within_limit(call).await {
        Err(CallError::Status(status)) if status.is_not_found() => Ok(None),
        result => result.map(Some).map_err(|error| delivery_error(operation, error)),
    }
}

/// Server-side apply: creates the object, or resets the given fields.
pub async fn apply<K>(api: &Api<K>, object: &K) -> Result<K, DeliveryError>
where
    K: Resource + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    K::DynamicType: Default,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let name = object.meta().name.clone().unwrap_or_default();
    let parameters = PatchParams::apply(FIELD_MANAGER).force();
    call(&format!("apply {kind} {name}"), api.patch(&name, &parameters, &Patch::Apply(object))).await
}

fn delivery_error(operation: &str, error: CallError) -> DeliveryError {
    let CallError::Status(status) = &error else { return DeliveryError::temporary(operation, error) };
    // A namespace being deleted refuses new objects as forbidden.
    let going_away = status.message.contains("being terminated");
    match status.code {
        403 if !going_away => DeliveryError::permanent(
            "kubernetes-forbidden",
            format!(
                "cannot {operation}: {}; apply deploy/agent/rbac.yaml, or give the agent's user these rights",
                status.message
            ),
        ),
        400 | 422 => DeliveryError::permanent("kubernetes-refused", format!("cannot {operation}: {}", status.message)),
        _ => DeliveryError::temporary(operation, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pager_follows_the_tokens_and_ends_without_one() {
        let mut pager = Pager::new(ListParams::default().labels("a=b"));
        let answer = |token: Option<&str>| ListMeta { continue_: token.map(str::to_owned), ..ListMeta::default() };
        assert_eq!(pager.page().and_then(|page| page.continue_token.clone()), None);
        pager.turn(&answer(Some("next")));
        let page = pager.page().cloned().unwrap_or_default();
        assert_eq!((page.continue_token.as_deref(), page.label_selector.as_deref()), (Some("next"), Some("a=b")));
        assert_eq!(page.limit, Some(PAGE_SIZE));
        pager.turn(&answer(Some("")));
        assert!(pager.page().is_none());
        let mut endless = Pager::new(ListParams::default());
        for _ in 0..MAX_PAGES {
            endless.turn(&answer(Some("more")));
        }
        assert!(endless.page().is_none(), "bounded");
    }
}
