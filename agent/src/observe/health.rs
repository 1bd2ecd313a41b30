//! Device faults from an annotation of a health agent: Kubernetes itself only counts the healthy devices.

pub(crate) mod node_xid;

use comity_proto::v1::{Device, DeviceFault, FaultClass};
use comity_types::is_printable;
use serde::Deserialize;

/// Annotation of a node: a list in YAML or JSON, as in `[{"device": 3, "xid": 79}]`.
pub(crate) const FAULTS_ANNOTATION: &str = "comity.dev/unhealthy-devices";
/// Largest annotation that is read: all of 128 devices with a message each.
const MAX_FAULTS_BYTES: usize = 32 << 10;
/// Longest message of one device.
pub(super) const MAX_FAULT_MESSAGE_BYTES: usize = 96;

/// Xids for which NVIDIA's device plugin keeps a device. Source: k8s-device-plugin, internal/rm/health.go.
const HARMLESS_XIDS: [u32; 6] = [13, 31, 43, 45, 68, 109];

/// One device's fault in the annotation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenDeviceFault {
    /// Its number on the node, from 0, as `nvidia-smi` counts.
    device: usize,
    #[serde(default)]
    xid: u32,
    #[serde(default)]
    class: Option<WrittenClass>,
    #[serde(default)]
    message: String,
}

/// A fault: its class, or the Xid that implies it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub(super) struct WrittenFault {
    xid: u32,
    class: Option<WrittenClass>,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WrittenClass {
    Application,
    Link,
    Degraded,
    Lost,
}

impl WrittenFault {
    /// Converts to the offer's form; an error is one sentence.
    pub(super) fn to_proto(&self) -> Result<DeviceFault, String> {
        if self.message.len() > MAX_FAULT_MESSAGE_BYTES || !is_printable(&self.message) {
            return Err(format!(
                "message {:?} is no short line; write at most {MAX_FAULT_MESSAGE_BYTES} bytes without control and \
                 invisible characters",
                self.message
            ));
        }
        let class = match self.class {
            None => FaultClass::Unspecified,
            Some(WrittenClass::Application) => FaultClass::Application,
            Some(WrittenClass::Link) => FaultClass::Link,
            Some(WrittenClass::Degraded) => FaultClass::Degraded,
            Some(WrittenClass::Lost) => FaultClass::Lost,
        };
        Ok(DeviceFault { class: class.into(), xid: self.xid, message: self.message.clone() })
    }
}

/// Sets the faults of the annotation on its devices; on error, one sentence, no device is changed.
///
/// A device's `healthy` stays, because the broker acts on faults. But if the device plugin counts an unhealthy device,
/// it is taken to be one that is named.
pub(crate) fn mark(text: &str, devices: &mut [Device]) -> Result<(), String> {
    if text.len() > MAX_FAULTS_BYTES {
        return Err(format!("it has {} bytes; write at most {MAX_FAULTS_BYTES}", text.len()));
    }
    let written: Vec<WrittenDeviceFault> =
        serde_saphyr::from_str(text).map_err(|error| error.without_snippet().to_string().replace('\n', " "))?;
    let mut faults = Vec::with_capacity(written.len());
    for named in &written {
        if named.device >= devices.len() {
            return Err(format!("device {} is not one of the node's {}; count from 0", named.device, devices.len()));
        }
        if faults.iter().any(|(device, _)| *device == named.device) {
            return Err(format!("device {} is named twice; keep the worse entry", named.device));
        }
        let fault = WrittenFault { xid: named.xid, class: named.class, message: named.message.clone() };
        faults.push((named.device, fault.to_proto()?));
    }
    for (at, fault) in faults {
        let withdraws = withdraws(&fault);
        devices[at].fault = Some(fault);
        let is_counted = |other: &Device| {
            !other.healthy && other.fault.is_none() && other.resource_name == devices[at].resource_name
        };
        let counted = devices.iter().position(is_counted).filter(|_| withdraws && devices[at].healthy);
        if let Some(counted) = counted {
            let local_use_milli = std::mem::take(&mut devices[at].local_use_milli);
            devices[counted].local_use_milli = local_use_milli;
            devices[counted].healthy = true;
            devices[at].healthy = false;
        }
    }
    Ok(())
}

/// Whether the device plugin withdraws a device with this fault.
fn withdraws(fault: &DeviceFault) -> bool {
    match fault.class() {
        FaultClass::Unspecified => !HARMLESS_XIDS.contains(&fault.xid),
        FaultClass::Degraded | FaultClass::Lost => true,
        FaultClass::Application | FaultClass::Link => false,
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// Three healthy ones, the last in local use, and one that the device plugin counts out.
    fn devices() -> Vec<Device> {
        let device = Device { healthy: true, resource_name: "nvidia.com/gpu".to_owned(), ..Device::default() };
        let mut devices = vec![device; 4];
        devices[2].local_use_milli = 1_000;
        devices[3].healthy = false;
        devices
    }

    #[test]
    fn a_device_that_is_named_is_the_one_that_was_counted() {
        let mut marked = devices();
        mark(r#"[{"device": 2, "xid": 79, "message": "fell off"}]"#, &mut marked).unwrap();
        let fault = marked[2].fault.clone().unwrap();
        assert_eq!((fault.class(), fault.xid, fault.message.as_str()), (FaultClass::Unspecified, 79, "fell off"));
        assert_eq!(marked.iter().map(|device| device.healthy).collect::<Vec<_>>(), [true, true, false, true]);
        assert_eq!(marked.iter().map(|device| device.local_use_milli).collect::<Vec<_>>(), [0, 0, 0, 1_000]);

        let mut harmless = devices();
        mark("[{device: 0, xid: 13}]", &mut harmless).unwrap();
        assert!(harmless[0].healthy && !harmless[3].healthy);
        let mut two = devices();
        mark("[{device: 0, class: degraded}, {device: 1, class: link}]", &mut two).unwrap();
        assert_eq!(two.iter().map(|device| device.healthy).collect::<Vec<_>>(), [false, true, true, true]);
        assert!(two[0].fault.is_some() && two[1].fault.is_some() && two[3].fault.is_none());
    }

    #[test]
    fn an_unreadable_annotation_marks_nothing_and_gives_one_sentence() {
        for (text, word) in [
            ("[{device: 4}]", "device 4"),
            ("[{device: 1}, {device: 1}]", "twice"),
            ("[{device: 1, class: sick}]", "sick"),
            ("[{device: 1, message: \"a\\nb\"}]", "no short line"),
            ("{device: 1}", ""),
        ] {
            let mut marked = devices();
            let error = mark(text, &mut marked).unwrap_err();
            assert!(error.contains(word) && !error.contains('\n'), "{error}");
            assert_eq!(marked, devices());
        }
    }
}
