//! Taints of devices.

use k8s_openapi::api::resource::v1::DeviceTaint;

/// A taint of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuTaint {
    /// Its key, as in "gpu.nvidia.com/xid".
    pub key: String,
    /// Its value, as in "79".
    pub value: String,
    /// Its effect.
    pub effect: TaintEffect,
}

/// What a taint does to pods that do not tolerate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    /// It only informs.
    Inform,
    /// New pods do not get the device.
    NoSchedule,
    /// Pods that have the device are evicted, too.
    NoExecute,
}

impl From<&DeviceTaint> for GpuTaint {
    fn from(taint: &DeviceTaint) -> Self {
        let effect = match taint.effect.as_str() {
            "NoExecute" => TaintEffect::NoExecute,
            "None" => TaintEffect::Inform,
            // Effects of later versions keep new work away.
            _ => TaintEffect::NoSchedule,
        };
        Self { key: taint.key.clone(), value: taint.value.clone().unwrap_or_default(), effect }
    }
}
