//! Whether a namespace of the origin may have a lease. Both deliveries ask, whatever the broker says: the labels are set
//! by who administers the namespaces.

use std::collections::BTreeMap;

use crate::delivery_error::DeliveryError;

/// Label of a namespace: "true" lets its pods run on other clusters. On a pod, "false" keeps it in this cluster.
pub const OFFLOAD_LABEL: &str = "comity.dev/offload";
/// Label of a namespace with its tenant.
pub const TENANT_LABEL: &str = "comity.dev/tenant";
/// Namespace on the origin for leases whose request names none.
pub const DEFAULT_TARGET_NAMESPACE: &str = "comity-leases";

/// A lease as it concerns a namespace of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceUse<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The lease's tenant.
    pub tenant: &'a str,
    /// The tenant of namespaces without the label; empty: none.
    pub default_tenant: &'a str,
}

impl NamespaceUse<'_> {
    /// Checks that a namespace with these labels belongs to the lease's tenant.
    ///
    /// # Errors
    /// A permanent error with code `foreign-target-namespace`.
    pub fn check_tenant(&self, labels: &BTreeMap<String, String>) -> Result<(), DeliveryError> {
        let Self { namespace, tenant, default_tenant } = *self;
        let owner = labels.get(TENANT_LABEL).map_or(default_tenant, String::as_str);
        if !tenant.is_empty() && owner == tenant {
            return Ok(());
        }
        let found = match (labels.get(TENANT_LABEL), default_tenant) {
            (None, "") => format!("has no label {TENANT_LABEL}"),
            (None, default) => format!("has no label {TENANT_LABEL}, and burst.defaultTenant is {default:?}"),
            (Some(owner), _) => format!("has the label {TENANT_LABEL}={owner}"),
        };
        let message = format!(
            "target_namespace {namespace} {found}, and the lease is for tenant {tenant:?}: request for a namespace of \
             that tenant, or label the namespace {TENANT_LABEL}={tenant} if it is"
        );
        Err(DeliveryError::permanent("foreign-target-namespace", message))
    }

    /// Checks that a namespace with these labels belongs to the lease's tenant, and that its pods may leave the cluster.
    ///
    /// # Errors
    /// A permanent error with code `foreign-target-namespace` or `namespace-not-opted-in`.
    pub fn check_offloading(&self, labels: &BTreeMap<String, String>) -> Result<(), DeliveryError> {
        self.check_tenant(labels)?;
        match labels.get(OFFLOAD_LABEL).map(String::as_str) {
            Some("true") => Ok(()),
            found => {
                let found = found.map_or_else(|| "absent".to_owned(), |found| format!("{found:?}"));
                let message = format!(
                    "the label {OFFLOAD_LABEL} of target_namespace {} is {found}: label it {OFFLOAD_LABEL}=true if its \
                     pods, Services and Secrets may go to other clusters",
                    self.namespace
                );
                Err(DeliveryError::permanent("namespace-not-opted-in", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn code(checked: Result<(), DeliveryError>) -> Option<&'static str> {
        match checked {
            Ok(()) => None,
            Err(DeliveryError::Permanent { code, .. }) => Some(code),
            Err(DeliveryError::Temporary { .. }) => Some("temporary"),
        }
    }

    fn of_vision(default_tenant: &str) -> NamespaceUse<'_> {
        NamespaceUse { namespace: "team-b", tenant: "vision", default_tenant }
    }

    #[test]
    fn submitter_targets_other_tenants_namespace() {
        let speech = labels(&[(TENANT_LABEL, "speech"), (OFFLOAD_LABEL, "true")]);
        let refused = of_vision("").check_offloading(&speech);
        assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("comity.dev/tenant=speech")));
        assert_eq!(code(refused), Some("foreign-target-namespace"));
        assert_eq!(code(of_vision("").check_tenant(&speech)), Some("foreign-target-namespace"), "nor its kubeconfig");
        let own = labels(&[(TENANT_LABEL, "vision"), (OFFLOAD_LABEL, "true")]);
        assert_eq!(code(of_vision("").check_offloading(&own)), None);
        assert_eq!(code(of_vision("").check_tenant(&labels(&[(TENANT_LABEL, "vision")]))), None);
    }

    #[test]
    fn broker_invents_lease_for_foreign_namespace() {
        // The broker says a tenant that fits; nobody opted in.
        for (said, shown) in [(None, "absent"), (Some("false"), "\"false\""), (Some("yes"), "\"yes\"")] {
            let mut own = labels(&[(TENANT_LABEL, "vision")]);
            own.extend(said.map(|said| (OFFLOAD_LABEL.to_owned(), said.to_owned())));
            let refused = of_vision("").check_offloading(&own);
            assert!(refused.as_ref().is_err_and(|error| error.to_string().contains(shown)), "{refused:?}");
            assert_eq!(code(refused), Some("namespace-not-opted-in"));
        }
        // A lease without a tenant fits no namespace, and a namespace without one no lease.
        let nobodys = NamespaceUse { tenant: "", ..of_vision("") };
        assert_eq!(code(nobodys.check_tenant(&labels(&[]))), Some("foreign-target-namespace"));
        assert_eq!(code(of_vision("").check_tenant(&labels(&[]))), Some("foreign-target-namespace"));
    }

    #[test]
    fn a_namespace_without_a_tenant_has_the_default_one() {
        let opted_in = labels(&[(OFFLOAD_LABEL, "true")]);
        assert_eq!(code(of_vision("vision").check_offloading(&opted_in)), None);
        let refused = of_vision("speech").check_offloading(&opted_in);
        assert!(refused.is_err_and(|error| error.to_string().contains("burst.defaultTenant is \"speech\"")));
        let labelled = labels(&[(TENANT_LABEL, "speech")]);
        assert_eq!(code(of_vision("vision").check_tenant(&labelled)), Some("foreign-target-namespace"));
    }
}
