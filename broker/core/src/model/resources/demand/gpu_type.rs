//! The type of GPUs that a checkpoint fits.

use serde::{Deserialize, Serialize};

/// Devices that are alike to the work on them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct GpuType {
    /// Product name, as offers have it.
    pub product: String,
    /// MIG profile of the shares, if they are MIG instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
}

impl std::fmt::Display for GpuType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.profile {
            Some(profile) => write!(f, "{} ({profile})", self.product),
            None => f.write_str(&self.product),
        }
    }
}
