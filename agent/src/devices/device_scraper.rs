//! Reads the pages of all device readers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use comity_agent_kubernetes::pod_resources::NodeDevices;
use comity_runtime::Clock;
use tokio::sync::watch;

use super::device_page::DevicePage;
use crate::exporters::{ExporterEndpoint, ExporterReader, Pages};

/// Pause between two rounds: how long a device can be held twice unseen.
const DEVICE_READ_INTERVAL: Duration = Duration::from_secs(10);

/// One round of reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePages {
    /// By name of the node.
    pub(crate) nodes: BTreeMap<String, ReadPage>,
    /// Readers that could not be read.
    pub(crate) failed: usize,
}

/// A node's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadPage {
    pub(crate) devices: NodeDevices,
    /// When the round began, in milliseconds since 1970: the page shows nothing older.
    pub(crate) read_at_ms: u64,
}

/// Reads all readers, again and again. A node whose reader does not answer is unknown until it does.
pub(crate) async fn follow(
    endpoint: ExporterEndpoint,
    pages: watch::Sender<Option<Arc<DevicePages>>>,
    clock: Arc<dyn Clock>,
) {
    let mut reader = ExporterReader::new(endpoint);
    loop {
        let read_at_ms = clock.unix_ms();
        let Pages { texts, mut failures } = reader.read().await;
        let nodes = by_node(texts, read_at_ms, &mut failures);
        pages.send_replace(Some(Arc::new(DevicePages { nodes, failed: failures.len() })));
        reader.log(failures, "the devices that pods hold on this node are not known; their requests alone count");
        clock.sleep(DEVICE_READ_INTERVAL).await;
    }
}

/// Pages by node. Of two readers that name one node, neither is believed.
fn by_node(
    texts: BTreeMap<SocketAddr, String>,
    read_at_ms: u64,
    failures: &mut BTreeMap<String, String>,
) -> BTreeMap<String, ReadPage> {
    let mut found: BTreeMap<String, Vec<FoundPage>> = BTreeMap::new();
    for (address, text) in texts {
        match DevicePage::read(&text) {
            Ok(DevicePage { node, devices }) => found.entry(node).or_default().push(FoundPage { address, devices }),
            Err(error) => drop(failures.insert(address.to_string(), error)),
        }
    }
    let mut pages = BTreeMap::new();
    for (node, mut of_node) in found {
        match of_node.pop() {
            Some(FoundPage { devices, .. }) if of_node.is_empty() => {
                pages.insert(node, ReadPage { devices, read_at_ms });
            }
            last => {
                for FoundPage { address, .. } in of_node.into_iter().chain(last) {
                    failures.insert(address.to_string(), format!("another reader names node {node}, too"));
                }
            }
        }
    }
    pages
}

struct FoundPage {
    address: SocketAddr,
    devices: NodeDevices,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn of_two_readers_that_name_one_node_neither_is_believed() {
        let page = |node: &str| DevicePage { node: node.to_owned(), devices: NodeDevices::default() }.text().unwrap();
        let texts = [("10.0.0.1:1", page("a")), ("10.0.0.2:1", page("b")), ("10.0.0.3:1", page("b"))];
        let texts = texts.into_iter().map(|(address, text)| (address.parse().unwrap(), text));
        let other = ("10.0.0.4:1".parse().unwrap(), "up 1\n".to_owned());
        let mut failures = BTreeMap::new();
        let pages = by_node(texts.chain([other]).collect(), 5, &mut failures);
        assert_eq!(pages.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(failures.keys().collect::<Vec<_>>(), ["10.0.0.2:1", "10.0.0.3:1", "10.0.0.4:1"]);
    }
}
