//! Reads the pages of all device readers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::pod_resources::NodeDevices;
use comity_runtime::Clock;
use tokio::sync::watch;

use super::device_page::{DevicePage, MAX_READING_AGE, PAGE_METRICS};
use crate::exporters::{ExporterEndpoint, ExporterReader, Failures};

/// Pause between two rounds: how long a device conflict can exist unseen.
const DEVICE_READ_INTERVAL: Duration = Duration::from_secs(10);
/// Units of devices of a cluster, offered and held: 10,000 nodes with 20 of each.
const MAX_UNITS_OF_CLUSTER: usize = 400_000;

/// One round of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DevicePages {
    /// By name of the node.
    pub(crate) nodes: BTreeMap<String, ReadPage>,
    /// Readers that could not be read.
    pub(crate) failed: usize,
}

/// A node's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReadPage {
    pub(crate) devices: NodeDevices,
    /// In milliseconds since 1970: the page shows nothing older.
    pub(crate) read_at_ms: u64,
}

/// Reads all readers, again and again, with the token in `token_file`. A node whose reader does not answer is unknown
/// until it does.
pub(crate) async fn follow(
    endpoint: ExporterEndpoint,
    token_file: PathBuf,
    pages: watch::Sender<Option<Arc<DevicePages>>>,
    clock: Arc<dyn Clock>,
) {
    let mut reader = ExporterReader::new(endpoint).with_token_file(token_file);
    loop {
        let age_ms = u64::try_from(MAX_READING_AGE.as_millis()).unwrap_or(u64::MAX);
        let mut round = DeviceRound::new(clock.unix_ms().saturating_sub(age_ms));
        let failures = reader.read(&PAGE_METRICS, |address, page| round.take(address, page)).await;
        let failures = round.end(failures);
        pages.send_replace(Some(Arc::new(DevicePages { nodes: round.nodes, failed: failures.len() })));
        reader.log(failures, "the devices that pods hold on this node are not known; their requests alone count");
        clock.sleep(DEVICE_READ_INTERVAL).await;
    }
}

/// The pages of one round, as they come.
struct DeviceRound {
    read_at_ms: u64,
    nodes: BTreeMap<String, ReadPage>,
    /// Readers by the node that they name.
    readers: BTreeMap<String, Vec<SocketAddr>>,
    units: usize,
}

impl DeviceRound {
    fn new(read_at_ms: u64) -> Self {
        Self { read_at_ms, nodes: BTreeMap::new(), readers: BTreeMap::new(), units: 0 }
    }

    /// Takes a page. Of two readers that name one node, neither is believed.
    fn take(&mut self, address: SocketAddr, text: &str) -> Result<(), String> {
        let page = DevicePage::read(text)?;
        let units = self.units + page.units();
        if units > MAX_UNITS_OF_CLUSTER {
            return Err(format!("the readers together have more than {MAX_UNITS_OF_CLUSTER} units of devices"));
        }
        self.units = units;
        let DevicePage { node, devices } = page;
        self.readers.entry(node.clone()).or_default().push(address);
        self.nodes.insert(node, ReadPage { devices, read_at_ms: self.read_at_ms });
        Ok(())
    }

    /// Drops the nodes that two readers name, and adds these readers to the failures.
    fn end(&mut self, mut failures: Failures) -> Failures {
        for (node, readers) in self.readers.iter().filter(|(_, readers)| readers.len() > 1) {
            self.nodes.remove(node);
            for address in readers {
                failures.insert(address.to_string(), format!("another reader names node {node}, too"));
            }
        }
        failures
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_agent_kubernetes::pod_resources::DeviceUnit;

    use super::*;

    fn page(node: &str, units: usize) -> String {
        let unit = |number| DeviceUnit { resource: "nvidia.com/gpu".to_owned(), id: format!("GPU-{number}") };
        let devices = NodeDevices { offered: (0..units).map(unit).collect(), held: BTreeMap::new() };
        DevicePage { node: node.to_owned(), devices }.text().unwrap()
    }

    #[test]
    fn of_two_readers_that_name_one_node_neither_is_believed() {
        let mut round = DeviceRound::new(5);
        let readers = [("10.0.0.1:1", "a"), ("10.0.0.2:1", "b"), ("10.0.0.3:1", "b")];
        for (address, node) in readers {
            round.take(address.parse().unwrap(), &page(node, 1)).unwrap();
        }
        round.take("10.0.0.4:1".parse().unwrap(), "up 1\n").unwrap_err();
        let failures = round.end(Failures::new());
        assert_eq!(round.nodes.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(failures.keys().collect::<Vec<_>>(), ["10.0.0.2:1", "10.0.0.3:1"]);
    }

    #[test]
    fn the_units_of_all_readers_are_bounded() {
        const UNITS: usize = 10_000;
        let (mut round, address) = (DeviceRound::new(5), "10.0.0.1:1".parse().unwrap());
        for number in 0..MAX_UNITS_OF_CLUSTER / UNITS {
            round.take(address, &page(&format!("node-{number}"), UNITS)).unwrap();
        }
        let refused = round.take(address, &page("one-more", 1)).unwrap_err();
        assert!(refused.contains("400000") && !round.nodes.contains_key("one-more"), "{refused}");
    }
}
