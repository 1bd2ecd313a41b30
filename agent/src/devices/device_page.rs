//! The page of a device reader, in the text format of Prometheus.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use comity_agent_kubernetes::pod_resources::{DeviceUnit, NodeDevices, PodName};

use crate::exporters::metrics_text::{Sample, escaped, samples};

/// 1 for the node that the page is of.
const NODE_METRIC: &str = "comity_node_devices";
/// 1 for each healthy unit.
const OFFERED_METRIC: &str = "comity_node_device_offered";
/// 1 for each unit and the pod that holds it.
const HELD_METRIC: &str = "comity_node_device_held";
/// How old a reading may be that a device reader serves: callers share one reading of the kubelet.
pub(crate) const MAX_READING_AGE: Duration = Duration::from_secs(2);
/// Names of the metrics on a page.
pub(super) const PAGE_METRICS: [&str; 3] = [NODE_METRIC, OFFERED_METRIC, HELD_METRIC];
/// Units on a page: 128 devices with 48 replicas each, offered and held.
const MAX_UNITS: usize = 2 * 128 * 48;

/// The devices of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DevicePage {
    pub(crate) node: String,
    pub(crate) devices: NodeDevices,
}

/// A node has more devices than a page may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has {units} units of devices, and a page has room for {MAX_UNITS}")]
pub(crate) struct PageTooLarge {
    units: usize,
}

impl DevicePage {
    /// Units of devices on the page, offered and held.
    pub(super) fn units(&self) -> usize {
        let NodeDevices { offered, held } = &self.devices;
        offered.len() + held.values().map(BTreeSet::len).sum::<usize>()
    }

    /// The page's text.
    pub(crate) fn text(&self) -> Result<String, PageTooLarge> {
        let NodeDevices { offered, held } = &self.devices;
        let units = self.units();
        if units > MAX_UNITS {
            return Err(PageTooLarge { units });
        }
        let node = escaped(&self.node);
        let mut text =
            format!("# TYPE {NODE_METRIC} gauge\n{NODE_METRIC}{{node=\"{node}\"}} 1\n# TYPE {OFFERED_METRIC} gauge\n");
        // Writing to a string cannot fail.
        for DeviceUnit { resource, id } in offered {
            let (resource, id) = (escaped(resource), escaped(id));
            let _ = writeln!(text, "{OFFERED_METRIC}{{node=\"{node}\",resource=\"{resource}\",device=\"{id}\"}} 1");
        }
        let _ = writeln!(text, "# TYPE {HELD_METRIC} gauge");
        for (PodName { namespace, name }, units) in held {
            let (namespace, name) = (escaped(namespace), escaped(name));
            for DeviceUnit { resource, id } in units {
                let (resource, id) = (escaped(resource), escaped(id));
                let _ = writeln!(
                    text,
                    "{HELD_METRIC}{{node=\"{node}\",resource=\"{resource}\",device=\"{id}\",namespace=\"{namespace}\",\
                     pod=\"{name}\"}} 1"
                );
            }
        }
        Ok(text)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// A text that is not the page of one node, or a larger one than [`text`](Self::text) writes.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let mut page = Self::default();
        let (mut units, mut nodes) = (0_usize, 0_usize);
        for sample in samples(text, &PAGE_METRICS) {
            let node = sample.label("node");
            match sample.name {
                NODE_METRIC => {
                    nodes += 1;
                    node.clone_into(&mut page.node);
                }
                OFFERED_METRIC => drop(page.devices.offered.insert(unit(&sample))),
                _ => drop(page.devices.held.entry(pod(&sample)).or_default().insert(unit(&sample))),
            }
            units += 1;
            if units > MAX_UNITS + 1 {
                return Err(format!("its page has more than {MAX_UNITS} units of devices"));
            }
        }
        if nodes != 1 || page.node.is_empty() {
            return Err(format!("its page is not that of a device reader: {NODE_METRIC} names {nodes} nodes"));
        }
        Ok(page)
    }
}

fn unit(sample: &Sample<'_>) -> DeviceUnit {
    DeviceUnit { resource: sample.label("resource").to_owned(), id: sample.label("device").to_owned() }
}

fn pod(sample: &Sample<'_>) -> PodName {
    PodName { namespace: sample.label("namespace").to_owned(), name: sample.label("pod").to_owned() }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeMap;

    use comity_fuzz::fuzz;

    use super::*;

    fn units(count: usize) -> BTreeSet<DeviceUnit> {
        let unit = |number| DeviceUnit { resource: "nvidia.com/gpu".to_owned(), id: format!("GPU-1::{number}") };
        (0..count).map(unit).collect()
    }

    #[test]
    fn a_page_is_read_as_it_was_written() {
        let pod = PodName { namespace: "comity-lease-7".to_owned(), name: "train".to_owned() };
        let held = BTreeMap::from([(pod, units(2))]);
        for devices in [NodeDevices { offered: units(3), held }, NodeDevices::default()] {
            let page = DevicePage { node: "gpu-1".to_owned(), devices };
            let text = page.text().unwrap();
            assert_eq!(DevicePage::read(&text).unwrap(), page, "{text}");
        }
    }

    #[test]
    fn pages_of_device_readers() {
        let pod = PodName { namespace: "comity-lease-7".to_owned(), name: "a \"b\" \\ \n".to_owned() };
        let devices = NodeDevices { offered: units(2), held: BTreeMap::from([(pod, units(1))]) };
        let page = DevicePage { node: "gpu-1".to_owned(), devices }.text().unwrap();
        fuzz!("device_page", vec![page.into_bytes()], |bytes: &[u8]| {
            let Ok(text) = std::str::from_utf8(bytes) else { return false };
            let Ok(page) = DevicePage::read(text) else { return false };
            // So no name of a pod or device can add a line.
            let again = page.text().map(|text| DevicePage::read(&text));
            assert_eq!(again, Ok(Ok(page)), "a page that was read is written, and reads the same");
            true
        });
    }

    #[test]
    fn pages_are_bounded_and_name_one_node() {
        let page = |count| DevicePage {
            node: "gpu-1".to_owned(),
            devices: NodeDevices { offered: units(count), held: BTreeMap::new() },
        };
        let largest = page(MAX_UNITS).text().unwrap();
        assert_eq!(DevicePage::read(&largest).unwrap(), page(MAX_UNITS));
        assert_eq!(page(MAX_UNITS + 1).text(), Err(PageTooLarge { units: MAX_UNITS + 1 }));
        let more = format!("{largest}{OFFERED_METRIC}{{node=\"gpu-1\",resource=\"r\",device=\"d\"}} 1\n");
        assert!(DevicePage::read(&more).unwrap_err().contains("more than"));
        for other in ["", "up 1\n", &format!("{NODE_METRIC}{{node=\"\"}} 1\n")] {
            assert!(DevicePage::read(other).unwrap_err().contains("not that of a device reader"), "{other}");
        }
    }
}
