//! Keeps `GpuLease`s equal to the broker's leases, and reads answers from their annotations.

use std::collections::{BTreeMap, BTreeSet};

use comity_agent_kubernetes::api::within_limit;
use comity_agent_model::desired::Update;
use comity_types::LeaseState;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::events::EventType;
use kube::{Api, Resource as _};
use serde_json::json;

use super::controller::{Controller, key, namespace};
use super::controller_state::ControllerState;
use super::remarks::Remark;
use super::{GpuLease, lease_mirror};
use crate::reclaim::{self, CHECKPOINTED};

impl Controller {
    pub(super) async fn mirror_leases(&self, own: &mut ControllerState, update: &Update) {
        let Some(state) = update.state.as_deref() else { return };
        let now = self.clock.unix_ms();
        let ControllerState { leases, written_leases: written, failures, .. } = own;
        let found: BTreeMap<String, &GpuLease> =
            leases.facts().filter_map(|object| Some((key(object)?, object))).collect();
        let (mut wanted, mut by_hand) = (Vec::new(), BTreeSet::new());
        for lease in state.leases.iter().filter(|lease| lease.state != Some(LeaseState::Ended)) {
            let id = lease.id.to_string();
            let named = |object: &&GpuLease| object.spec.lease == id;
            let old = written.values().find(named).or_else(|| found.values().copied().find(named)).cloned();
            let Some(object) = lease_mirror::mirror(lease, &self.cluster, old.as_ref(), now) else { continue };
            let Some(name) = key(&object) else { continue };
            let seen = found.get(&name).copied();
            let old = old.filter(|old| key(old) == key(&object));
            wanted.push(name.clone());
            // By its key: somebody who may annotate an object could name another lease in its spec.
            let is_asked = lease.origin.as_str() == self.cluster && reclaim::reclaim_of(lease).is_some();
            let answers = |seen: &GpuLease| {
                lease_mirror::is_answered(seen) && lease_mirror::marks(seen) == lease_mirror::marks(&object)
            };
            if is_asked && seen.is_some_and(answers) {
                by_hand.insert(lease.id);
            }
            match self.write_lease(old.as_ref(), seen, &object).await {
                Ok(()) => {
                    failures.cleared(&id);
                    written.insert(name, object);
                }
                Err(reason) if failures.is_new(&id, &reason) => {
                    tracing::warn!(lease = id, reason, "a GpuLease cannot be written")
                }
                Err(reason) => tracing::debug!(lease = id, reason, "a GpuLease still cannot be written"),
            }
        }
        self.saved.send_if_modified(|known| std::mem::replace(&mut known.by_hand, by_hand.clone()) != by_hand);
        if !update.is_live {
            return;
        }
        for (_, gone) in found.iter().filter(|(key, _)| !wanted.contains(key)) {
            let api = Api::<GpuLease>::namespaced(self.client.clone(), &namespace(*gone));
            let name = gone.metadata.name.clone().unwrap_or_default();
            if let Err(error) = within_limit(api.delete(&name, &DeleteParams::default())).await {
                tracing::debug!(lease = name, %error, "a GpuLease is not removed yet");
            }
        }
    }

    /// Writes what differs from what was written last; `seen` is the object as others left it.
    async fn write_lease(
        &self,
        old: Option<&GpuLease>,
        seen: Option<&GpuLease>,
        object: &GpuLease,
    ) -> Result<(), String> {
        let api = Api::<GpuLease>::namespaced(self.client.clone(), &namespace(object));
        let name = object.metadata.name.clone().unwrap_or_default();
        let apply = PatchParams::apply("comity-agent").force();
        let is_remarked = old.is_none_or(|old| lease_mirror::marks(old) != lease_mirror::marks(object));
        if is_remarked && seen.is_some_and(lease_mirror::is_answered) {
            // It answers an earlier reclaim. Removed before the new deadline is written, so that it never counts as an
            // answer to this one.
            let forget = Patch::Merge(json!({ "metadata": { "annotations": { CHECKPOINTED: null } } }));
            within_limit(api.patch(&name, &PatchParams::default(), &forget))
                .await
                .map_err(|error| error.to_string())?;
        }
        if is_remarked || old.is_none_or(|old| old.spec != object.spec) {
            let metadata = json!({
                "name": name, "labels": object.metadata.labels,
                "annotations": object.metadata.annotations.clone().unwrap_or_default(),
            });
            let head = json!({
                "apiVersion": GpuLease::api_version(&()), "kind": GpuLease::kind(&()),
                "metadata": metadata, "spec": object.spec,
            });
            within_limit(api.patch(&name, &apply, &Patch::Apply(&head))).await.map_err(|error| error.to_string())?;
        }
        if old.is_none_or(|old| old.status != object.status) {
            let status = json!({
                "apiVersion": GpuLease::api_version(&()), "kind": GpuLease::kind(&()),
                "metadata": { "name": name }, "status": object.status,
            });
            within_limit(api.patch_status(&name, &apply, &Patch::Apply(&status)))
                .await
                .map_err(|error| error.to_string())?;
            if let Some(seen) = seen {
                self.write_reclaim_event(seen, old, object).await;
                self.write_idle_event(seen, old, object).await;
            }
        }
        Ok(())
    }

    /// Writes an event on the `GpuLease` when it becomes idle: the owner may still use it.
    async fn write_idle_event(&self, seen: &GpuLease, old: Option<&GpuLease>, object: &GpuLease) {
        let at = |lease: &GpuLease| lease.status.as_ref().and_then(|status| status.idle_release_at.clone());
        let Some(status) = object.status.as_ref().filter(|status| old.and_then(at) != status.idle_release_at) else {
            return;
        };
        if let Some(idle) = status.conditions.iter().find(|condition| condition.type_ == "Idle")
            && status.idle_release_at.is_some()
        {
            let text = idle.message.clone();
            self.write_event(seen, Remark { type_: EventType::Warning, reason: "ComityIdle".to_owned(), text }).await;
        }
    }

    /// Writes an event on the `GpuLease` when a reclaim begins, its deadline changes, or it is withdrawn.
    async fn write_reclaim_event(&self, seen: &GpuLease, old: Option<&GpuLease>, object: &GpuLease) {
        let at = |lease: &GpuLease| lease.status.as_ref().and_then(|status| status.reclaim_at.clone());
        let Some(status) = object.status.as_ref().filter(|status| old.and_then(at) != status.reclaim_at) else {
            return;
        };
        if status.reclaim_at.is_some() {
            let why = status.conditions.iter().find(|condition| condition.type_ == "Reclaiming");
            let why = why.map(|condition| condition.message.clone()).unwrap_or_default();
            let reason = "ComityReclaim".to_owned();
            self.write_event(seen, Remark { type_: EventType::Warning, reason, text: why }).await;
        } else if status.end_reason.is_none() {
            let (reason, text) = ("ComityReclaimWithdrawn".to_owned(), "it is no longer being reclaimed".to_owned());
            self.write_event(seen, Remark { type_: EventType::Normal, reason, text }).await;
        }
    }
}
