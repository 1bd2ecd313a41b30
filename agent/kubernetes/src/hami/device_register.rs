//! The devices that HAMi's device plugin registers for a node.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::{PERCENT_MILLI, WHOLE_DEVICE_MILLI, check_uuid};

/// Largest annotation that is read: 128 devices with their MIG profiles.
const MAX_REGISTER_BYTES: usize = 128 << 10;
/// Devices of one node, as the broker bounds it.
const MAX_REGISTERED_DEVICES: usize = 128;
/// The mode in which HAMi limits containers by a library. Versions before 2.5 know no other.
const LIBRARY_MODE: &str = "hami-core";

/// A device that HAMi shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredDevice {
    /// Its UUID.
    pub uuid: String,
    /// Most containers on it at once: `deviceSplitCount`.
    pub containers: u32,
    /// Device memory in MiB.
    pub memory_mib: u32,
    /// Model, as in "NVIDIA-H100-80GB-HBM3": GPU Feature Discovery's spelling.
    pub product: String,
    /// Whether it is healthy.
    pub healthy: bool,
    /// Number on the node, by which the devices are ordered.
    number: u32,
}

impl RegisteredDevice {
    /// Smallest part in thousandths: an equal part for each container that the device may have, rounded up to a percent.
    #[must_use]
    pub fn step_milli(&self) -> u32 {
        WHOLE_DEVICE_MILLI.div_ceil(self.containers.max(1)).next_multiple_of(PERCENT_MILLI)
    }

    /// Thousandths that a share of this much memory and compute takes: the larger part, and at least its place among
    /// the containers.
    #[must_use]
    pub fn milli_of(&self, memory_mib: u32, cores: u32) -> u32 {
        let memory =
            (u64::from(memory_mib) * u64::from(WHOLE_DEVICE_MILLI)).div_ceil(u64::from(self.memory_mib.max(1)));
        let memory = u32::try_from(memory).unwrap_or(u32::MAX);
        let place = WHOLE_DEVICE_MILLI.div_ceil(self.containers.max(1));
        memory.max(cores.saturating_mul(PERCENT_MILLI)).max(place).min(WHOLE_DEVICE_MILLI)
    }
}

/// A device as HAMi 2.6 and later write it. Fields that are 0 or false are absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenDevice {
    id: String,
    index: u32,
    count: u32,
    devmem: u32,
    devcore: u32,
    #[serde(rename = "type")]
    product: String,
    health: bool,
    mode: String,
}

/// Reads the annotation: a JSON list, or the text of earlier versions. The devices are in the order of their numbers,
/// so that a device's place is the same in every reading.
///
/// # Errors
/// One sentence; no device of such a node can be offered.
pub fn registered_devices(text: &str) -> Result<Vec<RegisteredDevice>, String> {
    if text.len() > MAX_REGISTER_BYTES {
        return Err(format!("it has {} bytes, more than the {MAX_REGISTER_BYTES} that are read", text.len()));
    }
    let written: Vec<WrittenDevice> = if text.trim_start().starts_with('[') {
        serde_json::from_str(text).map_err(|error| format!("it is no list of devices: {error}"))?
    } else {
        text.split(':').filter(|device| !device.trim().is_empty()).map(from_fields).collect::<Result<Vec<_>, _>>()?
    };
    if written.is_empty() || written.len() > MAX_REGISTERED_DEVICES {
        return Err(format!("it lists {} devices; 1 to {MAX_REGISTERED_DEVICES} can be offered", written.len()));
    }
    let mut devices = written.into_iter().map(checked).collect::<Result<Vec<_>, _>>()?;
    devices.sort_by(|a, b| (a.number, &a.uuid).cmp(&(b.number, &b.uuid)));
    let uuids: BTreeSet<&str> = devices.iter().map(|device| device.uuid.as_str()).collect();
    if uuids.len() < devices.len() {
        return Err("it lists a device twice".to_owned());
    }
    Ok(devices)
}

/// One device of the older form: UUID, containers, memory, cores, type, NUMA node, health, and since 2.5 number and mode.
fn from_fields(device: &str) -> Result<WrittenDevice, String> {
    let fields: Vec<&str> = device.split(',').map(str::trim).collect();
    if !matches!(fields.len(), 7 | 9) {
        return Err(format!("{device:?} is no device: it has {} fields, not 7 or 9", fields.len()));
    }
    let number = |at: usize| {
        let field = fields.get(at).copied().unwrap_or("0");
        field.parse::<u32>().map_err(|_| format!("{field:?} of {device:?} is not a number"))
    };
    Ok(WrittenDevice {
        id: fields[0].to_owned(),
        count: number(1)?,
        devmem: number(2)?,
        devcore: number(3)?,
        product: fields[4].to_owned(),
        health: fields[6] == "true",
        index: number(7)?,
        mode: fields.get(8).copied().unwrap_or_default().to_owned(),
    })
}

fn checked(written: WrittenDevice) -> Result<RegisteredDevice, String> {
    let WrittenDevice { id, index, count, devmem, devcore, product, health, mode } = written;
    check_uuid(&id)?;
    if !mode.is_empty() && mode != LIBRARY_MODE {
        return Err(format!("device {id} has the mode {mode:?}; only devices of mode {LIBRARY_MODE} can be offered"));
    }
    if devcore != 100 {
        return Err(format!("device {id} has {devcore} % of its cores; set HAMi's deviceCoreScaling to 1"));
    }
    if count == 0 || devmem == 0 {
        return Err(format!("device {id} has room for {count} containers and {devmem} MiB"));
    }
    Ok(RegisteredDevice {
        uuid: id,
        containers: count,
        memory_mib: devmem,
        product: product_name(&product),
        healthy: health,
        number: index,
    })
}

/// Versions before 2.6 prefix the driver's name with "NVIDIA-", also where it begins with NVIDIA.
fn product_name(product: &str) -> String {
    product.strip_prefix("NVIDIA-").unwrap_or(product).trim().replace(' ', "-")
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// As HAMi 2.10 wrote it over a stand-in for NVML, with another number of containers: 20.
    const WRITTEN: &str = r#"[
        {"id":"GPU-b","index":1,"count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3"},
        {"id":"GPU-a","count":20,"devmem":81559,"devcore":100,"type":"NVIDIA H100 80GB HBM3","health":true}]"#;

    #[test]
    fn devices_are_ordered_by_their_number() {
        let devices = registered_devices(WRITTEN).unwrap();
        let read: Vec<_> = devices.iter().map(|device| (device.uuid.as_str(), device.healthy)).collect();
        assert_eq!(read, [("GPU-a", true), ("GPU-b", false)]);
        assert_eq!((devices[0].product.as_str(), devices[0].memory_mib), ("NVIDIA-H100-80GB-HBM3", 81_559));
        assert_eq!(devices[0].step_milli(), 50);
    }

    #[test]
    fn the_text_of_earlier_versions_is_read() {
        let old =
            "GPU-1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:GPU-0,10,32768,100,NVIDIA-NVIDIA A100,1,false:";
        let devices = registered_devices(old).unwrap();
        assert_eq!((devices[0].uuid.as_str(), devices[0].product.as_str()), ("GPU-0", "NVIDIA-A100"));
        assert_eq!((devices[1].product.as_str(), devices[1].healthy), ("Tesla-V100-PCIE-32GB", true));
        let newer = "GPU-1,10,32768,100,T4,0,true,1,hami-core:GPU-2,10,32768,100,T4,0,true,0,hami-core:";
        assert_eq!(registered_devices(newer).unwrap()[0].uuid, "GPU-2");
    }

    #[test]
    fn what_cannot_be_offered_is_named() {
        let one = |change: &str| {
            let usual = r#"[{"id":"GPU-a","count":10,"devmem":1000,"devcore":100,"health":true}]"#;
            let (from, to) = change.split_once('>').unwrap();
            assert!(usual.contains(from), "{from}");
            registered_devices(&usual.replacen(from, to, 1)).unwrap_err()
        };
        for (change, part) in [
            ("\"devcore\":100>\"devcore\":200", "deviceCoreScaling"),
            ("\"health\":true>\"mode\":\"mig\"", "mode \"mig\""),
            ("\"count\":10>\"count\":0", "room for 0 containers"),
            ("GPU-a>GPU'; DROP", "not the UUID"),
            ("[{>[", "no list of devices"),
        ] {
            assert!(one(change).contains(part), "{change}: {}", one(change));
        }
        assert!(registered_devices("[]").unwrap_err().contains("lists 0 devices"));
        assert!(registered_devices("GPU-a,1,2:").unwrap_err().contains("3 fields"));
        assert!(registered_devices("GPU-a,1,x,100,T4,0,true:").unwrap_err().contains("\"x\""));
        assert!(registered_devices(&"x".repeat(200_000)).unwrap_err().contains("200000 bytes"));
        let twice = r#"{"id":"GPU-a","count":1,"devmem":1,"devcore":100}"#;
        assert!(registered_devices(&format!("[{twice},{twice}]")).unwrap_err().contains("twice"));
    }

    #[test]
    fn a_share_counts_as_its_larger_part() {
        let device = &registered_devices(WRITTEN).unwrap()[0];
        assert_eq!(device.milli_of(20_000, 30), 300);
        assert_eq!(device.milli_of(20_000, 0), 246);
        // One of twenty containers, whatever it takes.
        assert_eq!(device.milli_of(1, 1), 50);
        assert_eq!(device.milli_of(u32::MAX, u32::MAX), 1_000);
    }

    #[test]
    fn a_step_leaves_room_for_as_many_containers_as_parts() {
        let device = registered_devices(WRITTEN).unwrap().remove(0);
        for (containers, step) in [(1, 1_000), (7, 150), (10, 100), (16, 70), (20, 50), (100, 10), (1_000, 10)] {
            let device = RegisteredDevice { containers, ..device.clone() };
            assert_eq!(device.step_milli(), step, "{containers}");
            assert!(1_000 / step <= containers);
        }
    }
}
