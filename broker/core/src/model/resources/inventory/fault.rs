//! What is wrong with a device, and how bad that is.

use serde::{Deserialize, Serialize};

use crate::model::inventory::Device;
use crate::model::refusal::Refusal;

/// Bytes of what is said of a fault.
const MAX_MESSAGE_BYTES: usize = 128;

/// How bad a fault is: what follows for what runs on the device and for what could be placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultClass {
    /// The program that ran there failed: nothing is wrong with the device, and nothing follows.
    Application,
    /// NVLink failed: who asked for devices that it joins is being reclaimed, and gets none of this clique. Others
    /// stay.
    Link,
    /// It is not to be used until it is reset or repaired: nothing new comes, and what is there is being reclaimed with
    /// notice.
    Degraded,
    /// It is gone: what was there has ended already, and no notice would help.
    Lost,
}

impl FaultClass {
    /// How bad an error is that the driver of NVIDIA logs under this number ("NVRM: Xid … : 79"). Numbers that are not
    /// known here count as [`Self::Degraded`], as NVIDIA's device plugin withdraws a device for all but those that it
    /// knows to be harmless. Source: NVIDIA, "XID Errors", docs.nvidia.com/deploy/xid-errors, and the device plugin's
    /// list of application errors, internal/rm/health.go.
    #[must_use]
    pub fn of_xid(xid: u32) -> Self {
        match xid {
            // Bad programs (8, 11, 13, 31, 43, 68, 69, 109), clean-up after one (45), corrected errors that are counted
            // (92).
            8 | 11 | 13 | 31 | 43 | 45 | 68 | 69 | 92 | 109 => Self::Application,
            // Errors of NVLink: of one link (74), and those of the fifth generation by part (144 to 150).
            74 | 144..=150 => Self::Link,
            // Fallen off the bus.
            79 => Self::Lost,
            // Memory: uncorrectable (48), rows remapped or not (63, 64), contained and uncontained (94, 95),
            // unrecovered (140). Firmware: 62, 119, 120. And all others.
            _ => Self::Degraded,
        }
    }

    /// Whether nothing is placed on such a device.
    #[must_use]
    pub fn withdraws(self) -> bool {
        matches!(self, Self::Degraded | Self::Lost)
    }

    /// The word for it in the API.
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

/// What is wrong with a device, as its cluster says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fault {
    /// How bad it is.
    pub class: FaultClass,
    /// For people, as in "XID 79".
    #[serde(default)]
    pub message: String,
}

impl Fault {
    pub(crate) fn check(&self, device: &Device, field: &str) -> Result<(), Refusal> {
        if device.healthy && self.class.withdraws() {
            let reason = format!("says that the device is {}, and it is offered as healthy", self.class.as_str());
            let remedy = "offer it as not healthy, or without that fault";
            return Err(Refusal::invalid(&format!("{field}.fault"), self.class.as_str(), &reason, remedy));
        }
        if self.message.len() > MAX_MESSAGE_BYTES || self.message.chars().any(char::is_control) {
            return Err(Refusal::invalid(
                &format!("{field}.fault.message"),
                self.message.escape_debug(),
                "is no short line",
                format!("use at most {MAX_MESSAGE_BYTES} bytes without control characters"),
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
    fn what_follows_from_a_number_is_by_its_severity() {
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
