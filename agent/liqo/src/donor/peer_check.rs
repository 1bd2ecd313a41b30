//! Checks a consumer's Liqo id. Its certificates carry the id as user name and group, so a consumer with the id of a
//! user or group of this cluster would have the same rights.

use comity_agent_kubernetes::call::{Pager, call};
use comity_agent_model::delivery_error::DeliveryError;
use comity_types::is_dns_label;
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use kube::api::ListParams;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::LiqoDonor;
use super::rights::rights;
use crate::{LiqoPeer, MAX_LIQO_ID};

/// Roles that Liqo itself binds to consumers.
const LIQOS_ROLES: [&str; 3] =
    ["liqo-remote-controlplane", "liqo-virtual-kubelet-remote", "liqo-virtual-kubelet-remote-clusterwide"];

impl LiqoDonor {
    /// Refuses ids that are not DNS labels, that are this cluster's own, or that its RBAC knows.
    pub(super) async fn check_peer(&self, peer: &LiqoPeer) -> Result<(), DeliveryError> {
        let id = peer.liqo_id.as_str();
        if !is_dns_label(id) || id.len() > MAX_LIQO_ID {
            let text = format!(
                "the Liqo id {id:?} of cluster {} is no label of at most {MAX_LIQO_ID} characters; give it another one",
                peer.cluster
            );
            return Err(DeliveryError::permanent("bad-liqo-id", text));
        }
        if id == self.settings.liqo_id {
            let text =
                format!("cluster {} has this cluster's own Liqo id {id:?}; give one of them another id", peer.cluster);
            return Err(DeliveryError::permanent("bad-liqo-id", text));
        }
        let cluster_wide =
            self.bound::<ClusterRoleBinding>(id, |binding| (&binding.role_ref, binding.subjects.as_deref()));
        let in_namespaces = self.bound::<RoleBinding>(id, |binding| (&binding.role_ref, binding.subjects.as_deref()));
        match cluster_wide.await?.or(in_namespaces.await?) {
            None => Ok(()),
            Some(binding) => Err(DeliveryError::permanent(
                "liqo-id-in-rbac",
                format!(
                    "the Liqo id {id:?} of cluster {} is also the name of a user or group that {binding} gives rights \
                     to on this cluster, and Liqo would give it those; remove that binding, or give that cluster \
                     another Liqo id",
                    peer.cluster
                ),
            )),
        }
    }

    /// The first binding that gives rights to a user or group of this name, and is not Liqo's.
    async fn bound<K>(
        &self,
        id: &str,
        parts: impl Fn(&K) -> (&RoleRef, Option<&[Subject]>),
    ) -> Result<Option<String>, DeliveryError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let api = Api::<K>::all(self.client.clone());
        let operation = format!("list {}s", K::kind(&()));
        let mut pager = Pager::new(ListParams::default());
        while let Some(page) = pager.page() {
            let list = rights(call(&operation, api.list(page)).await)?;
            let found = list.items.iter().find(|binding| {
                let (role, subjects) = parts(binding);
                gives_rights(role, subjects.unwrap_or_default(), id)
            });
            if let Some(binding) = found {
                return Ok(Some(format!("{} {}", K::kind(&()), binding.meta().name.as_deref().unwrap_or_default())));
            }
            pager.turn(&list.metadata);
        }
        Ok(None)
    }
}

fn gives_rights(role: &RoleRef, subjects: &[Subject], id: &str) -> bool {
    let liqos = LIQOS_ROLES.contains(&role.name.as_str());
    !liqos && subjects.iter().any(|subject| (subject.kind == "Group" || subject.kind == "User") && subject.name == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_found_and_liqos_own_bindings_are_not_held_against_it() {
        let role = |name: &str| RoleRef { name: name.into(), ..RoleRef::default() };
        let subject = |kind: &str, name: &str| Subject { kind: kind.into(), name: name.into(), ..Subject::default() };
        assert!(gives_rights(&role("admin"), &[subject("User", "a"), subject("Group", "physics")], "physics"));
        assert!(gives_rights(&role("view"), &[subject("User", "physics")], "physics"));
        assert!(!gives_rights(&role("view"), &[subject("ServiceAccount", "physics")], "physics"));
        assert!(!gives_rights(&role("liqo-remote-controlplane"), &[subject("User", "physics")], "physics"));
        assert!(!gives_rights(&role("view"), &[subject("Group", "physics-2")], "physics"));
    }
}
