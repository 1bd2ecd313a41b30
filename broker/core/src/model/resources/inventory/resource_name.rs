//! Names of extended resources.

use comity_types::is_dns_subdomain;

/// Longest name of a resource that counts devices.
const MAX_DEVICE_RESOURCE_BYTES: usize = 253;
/// Longest part after the domain.
const MAX_PART_BYTES: usize = 63;

/// Whether `name` is that of an extended resource, "DOMAIN/NAME". Kubernetes' own resources, such as `cpu` and `pods`,
/// have no domain or one of `kubernetes.io`, and quotas count objects by `count/`. No device is counted by those, and a
/// quota on them would hold other things than devices. Source: Kubernetes' `IsExtendedResourceName`.
pub(crate) fn is_extended_resource(name: &str) -> bool {
    let Some((domain, part)) = name.split_once('/') else { return false };
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = part.as_bytes();
    name.len() <= MAX_DEVICE_RESOURCE_BYTES
        && is_dns_subdomain(domain)
        && domain != "count"
        && domain != "kubernetes.io"
        && !domain.ends_with(".kubernetes.io")
        && !domain.starts_with("requests.")
        && part.len() <= MAX_PART_BYTES
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn member_offers_pods_and_cpu_as_devices() {
        for good in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.10gb",
            "gpu.intel.com/i915",
            "amd.com/gpu",
            "gpu.nvidia.com.deviceclass.resource.k8s.io/devices",
        ] {
            assert!(is_extended_resource(good), "{good}");
        }
        for bad in [
            "",
            "pods",
            "cpu",
            "memory",
            "count/secrets",
            "hugepages-2Mi",
            "kubernetes.io/batteries",
            "node.kubernetes.io/x",
            "requests.nvidia.com/gpu",
            "nvidia.com/",
            "/gpu",
            "nvidia.com/gpu/x",
            "Nvidia.com/gpu",
            "nvidia.com/-gpu",
            &format!("nvidia.com/{}", "g".repeat(64)),
        ] {
            assert!(!is_extended_resource(bad), "{bad}");
        }
    }
}
