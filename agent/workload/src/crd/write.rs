//! Writes finalizers, statuses and events.

use comity_agent_kubernetes::api::within_limit;
use comity_agent_kubernetes::object_events::publish_event;
use kube::api::{Patch, PatchParams};
use kube::runtime::events::{Event, EventType};
use kube::{Api, Resource};
use serde_json::json;

use super::controller::{Controller, namespace};
use super::copies::Work;
use super::gpu_request::GpuRequestStatus;
use super::remarks::Remark;
use super::write_error::WriteError;
use super::{FINALIZER, GpuRequest};

impl Controller {
    /// Sets or removes our finalizer; those of others stay.
    pub(super) async fn finalizers(&self, work: &mut Work, names: &[&str]) -> Result<(), WriteError> {
        let (metadata, namespace) = (&work.object.metadata, namespace(&work.object));
        let name = metadata.name.clone().unwrap_or_default();
        let others = metadata.finalizers.iter().flatten().filter(|one| *one != FINALIZER).cloned();
        let all: Vec<String> = others.chain(names.iter().map(|name| (*name).to_owned())).collect();
        // The resource version ensures that no finalizer of others is lost.
        let patch = json!({ "metadata": { "finalizers": all, "resourceVersion": metadata.resource_version } });
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace);
        let written = within_limit(api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch))).await;
        work.written(written.map_err(|error| WriteError::of(&format!("the finalizer of {namespace}/{name}"), &error))?);
        Ok(())
    }

    /// Writes a status that differs, and an event if its state differs.
    pub(super) async fn write_status(&self, work: &mut Work, status: GpuRequestStatus) -> Result<(), WriteError> {
        let old = work.object.status.clone().unwrap_or_default();
        if old == status {
            return Ok(());
        }
        let namespace = namespace(&work.object);
        let name = work.object.metadata.name.clone().unwrap_or_default();
        // The resource version protects an object of the same name that was made since.
        let metadata = json!({ "name": name, "resourceVersion": work.object.metadata.resource_version });
        let apply = json!({
            "apiVersion": GpuRequest::api_version(&()), "kind": GpuRequest::kind(&()),
            "metadata": metadata, "status": status,
        });
        let api = Api::<GpuRequest>::namespaced(self.client.clone(), &namespace);
        let params = PatchParams::apply("comity-agent").force();
        let written = within_limit(api.patch_status(&name, &params, &Patch::Apply(&apply))).await;
        work.written(written.map_err(|error| WriteError::of(&format!("the status of {namespace}/{name}"), &error))?);
        if old.state != status.state {
            let state = status.state.as_deref().unwrap_or("Unknown");
            let is_bad = matches!(state, "Refused" | "Failed");
            work.remarks.push(Remark {
                type_: if is_bad { EventType::Warning } else { EventType::Normal },
                reason: format!("Comity{state}"),
                text: status.message.clone().unwrap_or_else(|| format!("it is {state}")),
            });
        }
        Ok(())
    }

    pub(super) async fn write_event(&self, object: &impl Resource<DynamicType = ()>, remark: Remark) {
        let Remark { type_, reason, text } = remark;
        let event = Event { type_, reason, note: Some(text), action: "Request".to_owned(), secondary: None };
        let on = object.object_ref(&());
        if let Err(error) = within_limit(publish_event(self.client.clone(), &on, event)).await {
            tracing::debug!(%error, "an event cannot be written");
        }
    }
}
