//! Attributes of well-known GPUs, so that scenarios need only name the product.

/// Attributes of a GPU, as selectors see them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenDevice {
    /// `product`.
    pub product: String,
    /// `architecture`.
    pub architecture: String,
    /// `memoryMiB`.
    pub memory_mib: u64,
    /// `computeCapability`.
    pub compute_capability: String,
    /// `driverVersion`.
    pub driver_version: String,
}

/// Product name as GPU Feature Discovery writes it, architecture, memory in MiB, CUDA compute capability.
const PRODUCTS: [(&str, &str, u64, &str); 16] = [
    ("NVIDIA-B200", "Blackwell", 183_359, "10.0"),
    ("NVIDIA-H200", "Hopper", 143_771, "9.0"),
    ("NVIDIA-H100-80GB-HBM3", "Hopper", 81_559, "9.0"),
    ("NVIDIA-H100-PCIe", "Hopper", 81_559, "9.0"),
    ("NVIDIA-A100-SXM4-80GB", "Ampere", 81_920, "8.0"),
    ("NVIDIA-A100-SXM4-40GB", "Ampere", 40_960, "8.0"),
    ("NVIDIA-A40", "Ampere", 46_068, "8.6"),
    ("NVIDIA-A30", "Ampere", 24_576, "8.0"),
    ("NVIDIA-A10", "Ampere", 23_028, "8.6"),
    ("NVIDIA-L40S", "Ada Lovelace", 46_068, "8.9"),
    ("NVIDIA-L4", "Ada Lovelace", 23_034, "8.9"),
    ("NVIDIA-RTX-4000-Ada", "Ada Lovelace", 20_475, "8.9"),
    ("NVIDIA-GeForce-RTX-4090", "Ada Lovelace", 24_564, "8.9"),
    ("NVIDIA-GeForce-RTX-3090", "Ampere", 24_576, "8.6"),
    ("Tesla-V100-SXM2-32GB", "Volta", 32_768, "7.0"),
    ("Tesla-T4", "Turing", 15_360, "7.5"),
];

/// Names of the known products.
pub(super) fn names() -> Vec<&'static str> {
    PRODUCTS.iter().map(|(name, ..)| *name).collect()
}

/// The attributes of a product; `None` for an unknown one.
pub(super) fn device(product: &str) -> Option<GivenDevice> {
    let (name, architecture, memory_mib, capability) = PRODUCTS.iter().find(|(name, ..)| *name == product)?;
    Some(GivenDevice {
        product: (*name).to_owned(),
        architecture: (*architecture).to_owned(),
        memory_mib: *memory_mib,
        compute_capability: (*capability).to_owned(),
        driver_version: DRIVER_VERSION.to_owned(),
    })
}

/// Driver of devices that name none.
pub(super) const DRIVER_VERSION: &str = "550.127.05";
