//! Device faults and their severity.

use comity_types::is_printable;
use serde::{Deserialize, Serialize};

use crate::model::inventory::Device;
use crate::model::refusal::Refusal;

/// Bytes of a fault's message.
const MAX_FAULT_MESSAGE_BYTES: usize = 128;

/// Severity of a fault. It decides what happens to leases on the device and to new placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// The program failed, not the device: no consequences.
    Application,
    /// NVLink failed: leases that need NVLink are reclaimed, and new ones do not get this clique. Other leases stay.
    Link,
    /// The device needs a reset or repair: nothing new is placed on it, and its leases are reclaimed with notice.
    Degraded,
    /// The device is gone: its work has already stopped, and notice is pointless.
    Lost,
}

impl FaultClass {
    /// Severity of an NVIDIA driver error ("NVRM: Xid … : 79"). Unknown numbers count as [`Self::Degraded`], because
    /// NVIDIA's device plugin withdraws a device for every error that it does not know to be harmless. Source: NVIDIA,
    /// "XID Errors", docs.nvidia.com/deploy/xid-errors, and the device plugin's list of application errors,
    /// internal/rm/health.go.
    #[must_use]
    pub fn of_xid(xid: u32) -> Self {
        match xid {
            // Faulty programs (8, 11, 13, 31, 43, 68, 69, 109), cleanup after one (45), corrected and counted errors
            // (92).
            8 | 11 | 13 | 31 | 43 | 45 | 68 | 69 | 92 | 109 => Self::Application,
            // NVLink errors: of one link (74), and by component in the fifth generation (144 to 150).
            74 | 144..=150 => Self::Link,
            // Fallen off the bus.
            79 => Self::Lost,
            // Memory: uncorrectable (48), row remapping or its failure (63, 64), contained and uncontained (94, 95),
            // unrecovered (140). Firmware: 62, 119, 120. And all others.
            _ => Self::Degraded,
        }
    }

    /// Whether it prevents new placements on the device.
    #[must_use]
    pub fn withdraws(self) -> bool {
        matches!(self, Self::Degraded | Self::Lost)
    }

    /// Its name in the API.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Link => "link",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
        }
    }
}

/// A device fault, as reported by its cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    /// Its severity.
    pub class: FaultClass,
    /// Message for people, as in "XID 79".
    pub message: String,
}

impl Fault {
    pub(crate) fn check(&self, device: &Device, field: &str) -> Result<(), Refusal> {
        if device.healthy && self.class.withdraws() {
            let reason = format!("says that the device is {}, and it is offered as healthy", self.class.as_str());
            let remedy = "offer it as not healthy, or without that fault";
            return Err(Refusal::invalid(&format!("{field}.fault"), self.class.as_str(), &reason, remedy));
        }
        if self.message.len() > MAX_FAULT_MESSAGE_BYTES || !is_printable(&self.message) {
            return Err(Refusal::invalid(
                &format!("{field}.fault.message"),
                &self.message,
                "is no short line",
                format!("use at most {MAX_FAULT_MESSAGE_BYTES} bytes without control and invisible characters"),
            ));
        }
        Ok(())
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.class {
            FaultClass::Application => "a program failed on it",
            FaultClass::Link => "NVLink failed",
            FaultClass::Degraded => "it is not healthy",
            FaultClass::Lost => "it is gone",
        })?;
        if self.message.is_empty() { Ok(()) } else { write!(f, " ({})", self.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::FaultClass::{self, Application, Degraded, Link, Lost};

    #[test]
    fn xid_numbers_have_a_severity() {
        for (class, xids) in [
            (Application, &[13, 31, 43, 45, 109][..]),
            (Link, &[74, 145]),
            (Degraded, &[48, 63, 64, 94, 95, 119, 140, 999]),
            (Lost, &[79]),
        ] {
            for xid in xids {
                assert_eq!(FaultClass::of_xid(*xid), class, "XID {xid}");
            }
        }
        assert!(Degraded.withdraws() && Lost.withdraws() && !Link.withdraws() && !Application.withdraws());
    }
}
