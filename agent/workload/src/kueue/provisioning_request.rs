//! ProvisioningRequests of `autoscaling.x-k8s.io/v1`: what is read and written of them.
#![expect(unreachable_pub, reason = "the derive makes public types")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use crate::burst::LEASE;
use crate::crd::Condition;

/// Conditions that end a ProvisioningRequest.
const FINAL: [&str; 3] = ["Failed", "CapacityRevoked", "BookingExpired"];

/// Pods that need capacity before they are created.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "autoscaling.x-k8s.io",
    version = "v1",
    kind = "ProvisioningRequest",
    namespaced,
    status = "ProvisioningRequestStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningRequestSpec {
    /// Who serves it.
    pub provisioning_class_name: String,
    /// Options for who serves it.
    pub parameters: BTreeMap<String, String>,
    /// The pods.
    pub pod_sets: Vec<PodSet>,
}

/// Equal pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSet {
    /// Their PodTemplate.
    pub pod_template_ref: TemplateReference,
    /// How many.
    pub count: i32,
}

/// A PodTemplate of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TemplateReference {
    /// Its name.
    pub name: String,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProvisioningRequestStatus {
    /// Accepted, Provisioned, Failed, CapacityRevoked and those of others.
    pub conditions: Vec<Condition>,
    /// Facts that Kueue writes into the pods' node selectors. It reads them when `Provisioned` becomes true.
    pub provisioning_class_details: BTreeMap<String, String>,
}

impl ProvisioningRequest {
    fn holds(&self, type_: &str) -> bool {
        let conditions = self.status.iter().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// Whether Kueue has heard the end of it: nothing is written about it any more.
    pub(super) fn is_final(&self) -> bool {
        FINAL.iter().any(|type_| self.holds(type_))
    }

    /// The lease that its pods were sent to.
    pub(super) fn provisioned_lease(&self) -> Option<&str> {
        let status = self.status.as_ref().filter(|_| self.holds("Provisioned"))?;
        status.provisioning_class_details.get(LEASE).map(String::as_str)
    }

    /// The Workload that it is for.
    pub(super) fn workload(&self) -> Option<&OwnerReference> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.into_iter().find(|owner| owner.kind == "Workload" && owner.api_version.starts_with("kueue.x-k8s.io/"))
    }
}
