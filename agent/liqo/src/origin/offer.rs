//! Offers a namespace the virtual nodes of all its leases, on any number of donors.

use std::collections::BTreeSet;

use comity_agent_kubernetes::call::{MANAGED_BY, call, call_opt, creating};
use comity_agent_model::delivery_error::DeliveryError;
use comity_agent_model::lease::target_namespace::TENANT_LABEL;
use kube::ResourceExt as _;
use kube::core::DynamicObject;

use super::lease_removal::wait_gone;
use super::{LiqoOrigin, objects};
use crate::{PEERING_LABEL, REMOTE_CLUSTER_LABEL, dynamic, namespace_offloading};

impl LiqoOrigin {
    /// Offers a namespace of a tenant the donors of all its slices. Idle slices count: they keep the remote namespace.
    pub(super) async fn offer_to_namespace(&self, namespace: &str, tenant: &str) -> Result<(), DeliveryError> {
        self.renew_offer(namespace, Some(tenant), None).await
    }

    /// The same, except for the slice that is being removed; without a tenant, the one of the existing offer.
    async fn renew_offer(
        &self,
        namespace: &str,
        tenant: Option<&str>,
        but_for: Option<&str>,
    ) -> Result<(), DeliveryError> {
        let _held = self.offers.lock().await;
        let donors = self.donors_of(namespace, but_for).await?;
        let offloadings = self.namespaced(namespace, &namespace_offloading());
        let operation = format!("make NamespaceOffloading {namespace}/{}", objects::OFFLOADING);
        let mut wanted = objects::offloading(namespace, tenant.unwrap_or_default(), &donors, self.settings.mapping);
        if let Some(found) = call_opt(&operation, offloadings.get(objects::OFFLOADING)).await? {
            check_ours(&found, namespace)?;
            if found.metadata.deletion_timestamp.is_some() {
                return Err(DeliveryError::temporary(operation, "the old one is still being deleted"));
            }
            if let (None, Some(before)) = (tenant, found.labels().get(TENANT_LABEL)) {
                wanted.labels_mut().insert(TENANT_LABEL.to_owned(), before.clone());
            }
            // The strategy cannot change while pods are offloaded: the old one stays until the last lease ends.
            wanted.data["spec"]["namespaceMappingStrategy"] = found.data["spec"]["namespaceMappingStrategy"].clone();
            return dynamic::apply(&offloadings, &wanted).await.map(drop);
        }
        let parameters = creating();
        // Create, unlike apply, never takes over an object that somebody else made in the meantime.
        call(&operation, offloadings.create(&parameters, &wanted)).await.map(drop)
    }

    /// Removes a slice from its namespace's offer; the last slice removes the offer. True if the donor prevents that,
    /// because it does not answer or no longer lets this cluster delete anything: then the offer is removed only after
    /// the last virtual node of that donor.
    pub(super) async fn withdraw_offer(
        &self,
        slice: &str,
        namespace: &str,
        donor: &str,
    ) -> Result<bool, DeliveryError> {
        let offloadings = self.namespaced(namespace, &namespace_offloading());
        let operation = format!("read NamespaceOffloading of {namespace}");
        let found = call_opt(&operation, offloadings.get(objects::OFFLOADING)).await?;
        if found.is_none_or(|found| check_ours(&found, namespace).is_err()) {
            return Ok(false);
        }
        if !self.donors_of(namespace, Some(slice)).await?.is_empty() {
            return self.renew_offer(namespace, None, Some(slice)).await.map(|()| false);
        }
        let what = "NamespaceOffloading";
        self.begin_delete(&offloadings, objects::OFFLOADING, what).await?;
        if wait_gone(&offloadings, objects::OFFLOADING, what, self.settings.donor_patience).await.is_ok() {
            return Ok(false);
        }
        if self.answers(donor).await? {
            tracing::warn!(donor, namespace, "the donor keeps the namespace; the virtual node is removed before it");
            return Ok(true);
        }
        tracing::warn!(donor, namespace, "the donor does not answer; this cluster cleans up without it");
        self.mark(donor).await.map(|()| true)
    }

    /// The same for the namespace of an idle slice, without waiting.
    pub(super) async fn begin_to_withdraw_offer(&self, namespace: &str) -> Result<(), DeliveryError> {
        let offloadings = self.namespaced(namespace, &namespace_offloading());
        let operation = format!("read NamespaceOffloading of {namespace}");
        let found = call_opt(&operation, offloadings.get(objects::OFFLOADING)).await?;
        if found.is_none_or(|found| check_ours(&found, namespace).is_err()) {
            return Ok(());
        }
        if self.donors_of(namespace, None).await?.is_empty() {
            return self.begin_delete(&offloadings, objects::OFFLOADING, "NamespaceOffloading").await;
        }
        self.renew_offer(namespace, None, None).await
    }

    async fn donors_of(&self, namespace: &str, but_for: Option<&str>) -> Result<BTreeSet<String>, DeliveryError> {
        let slices = self.slices(PEERING_LABEL).await?;
        Ok(slices.iter().filter(|slice| is_for(slice, namespace, but_for)).filter_map(donor).collect())
    }
}

fn is_for(slice: &DynamicObject, namespace: &str, but_for: Option<&str>) -> bool {
    slice.metadata.deletion_timestamp.is_none()
        && slice.metadata.name.as_deref() != but_for
        && slice.annotations().get(objects::TARGET_LABEL).is_some_and(|target| target == namespace)
}

fn donor(slice: &DynamicObject) -> Option<String> {
    slice.labels().get(REMOTE_CLUSTER_LABEL).cloned()
}

fn check_ours(found: &DynamicObject, namespace: &str) -> Result<(), DeliveryError> {
    if found.labels().get(MANAGED_BY.0).is_some_and(|manager| manager == MANAGED_BY.1) {
        return Ok(());
    }
    let message = format!(
        "namespace {namespace} is offloaded manually (NamespaceOffloading {} was not made by Comity); run liqoctl \
         unoffload, or request for another namespace",
        objects::OFFLOADING
    );
    Err(DeliveryError::permanent("namespace-offloaded-by-hand", message))
}
