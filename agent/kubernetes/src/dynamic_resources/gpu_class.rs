//! Kinds of devices whose driver the agent knows.

/// Ending of the name by which quotas count the devices of a DeviceClass. Source: kubernetes/api, core/v1,
/// ResourceClaimsPerClass.
const CLASS_DEVICES: &str = ".deviceclass.resource.k8s.io/devices";
/// NVIDIA's DRA driver.
const NVIDIA_DRIVER: &str = "gpu.nvidia.com";

/// A kind of device: its driver, and the DeviceClass that the driver's installation brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GpuClass {
    /// NVIDIA's whole GPUs.
    NvidiaGpu,
    /// Existing MIG instances of NVIDIA's GPUs.
    NvidiaMig,
}

impl GpuClass {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::NvidiaGpu, Self::NvidiaMig];

    /// Whether any kind belongs to this driver.
    pub fn knows(driver: &str) -> bool {
        Self::ALL.iter().any(|class| class.driver() == driver)
    }

    /// The kind with this value of the attribute `type`.
    pub fn of_type(driver: &str, kind: &str) -> Option<Self> {
        match (driver, kind) {
            (NVIDIA_DRIVER, "gpu") => Some(Self::NvidiaGpu),
            (NVIDIA_DRIVER, "mig") => Some(Self::NvidiaMig),
            _ => None,
        }
    }

    /// The driver.
    pub const fn driver(self) -> &'static str {
        match self {
            Self::NvidiaGpu | Self::NvidiaMig => NVIDIA_DRIVER,
        }
    }

    /// The DeviceClass.
    pub const fn device_class(self) -> &'static str {
        match self {
            Self::NvidiaGpu => "gpu.nvidia.com",
            Self::NvidiaMig => "mig.nvidia.com",
        }
    }

    /// The name by which quotas count claimed devices of this kind; the offer counts them by it, too.
    pub fn quota_name(self) -> String {
        format!("{}{CLASS_DEVICES}", self.device_class())
    }

    /// The kind of a [`quota_name`](Self::quota_name); `None` for resources that a device plugin counts.
    pub fn of_quota_name(resource: &str) -> Option<Self> {
        resource.strip_suffix(CLASS_DEVICES).and_then(Self::of_device_class)
    }

    /// The kind with this DeviceClass.
    pub fn of_device_class(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.device_class() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_name_leads_back_to_its_class() {
        for class in GpuClass::ALL {
            assert_eq!(GpuClass::of_quota_name(&class.quota_name()), Some(class));
            assert!(GpuClass::knows(class.driver()));
        }
        assert_eq!(GpuClass::NvidiaMig.quota_name(), "mig.nvidia.com.deviceclass.resource.k8s.io/devices");
        for other in ["nvidia.com/gpu", "other.deviceclass.resource.k8s.io/devices"] {
            assert_eq!(GpuClass::of_quota_name(other), None, "{other}");
        }
    }
}
