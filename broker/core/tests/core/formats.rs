//! What former releases wrote is read: `data/log-1.json` and `data/snapshot-1.json` are one story as it was written
//! then.

use comity_core::demand::Delivery;
use comity_core::{LogEnvelope, State, snapshot};

use super::federation::cluster;

const LOG_1: &[u8] = include_bytes!("../data/log-1.json");
const SNAPSHOT_1: &[u8] = include_bytes!("../data/snapshot-1.json");

#[test]
fn log_and_snapshot_of_format_1_give_the_same_state() {
    let log: Vec<LogEnvelope> = serde_json::from_slice(LOG_1).unwrap();
    assert!(log.iter().all(|entry| entry.format == 1));
    let mut replayed = State::default();
    for entry in &log {
        assert!(replayed.apply(entry).reply.is_ok(), "{entry:?}");
    }
    let read = snapshot::decode(SNAPSHOT_1).unwrap();
    assert_eq!(snapshot::encode(&read).unwrap(), snapshot::encode(&replayed).unwrap());

    assert_eq!((read.leases.len(), read.envelopes.len(), read.queued_len()), (2, 1, 1));
    assert!(read.leases.values().all(|lease| lease.delivery == Delivery::Namespace));
    let offer = read.clusters[&cluster("north")].offer.as_ref().unwrap();
    assert_eq!(Vec::from_iter(&offer.deliveries), [&Delivery::Namespace]);
    let with_keys = read.peerings.values().filter_map(|peering| peering.origin_keys.as_ref());
    assert_eq!(with_keys.map(|keys| keys.network.is_none()).collect::<Vec<_>>(), [true, true]);
}

#[test]
fn what_is_written_says_its_format_and_a_later_one_is_refused() {
    let bytes = snapshot::encode(&State::default()).unwrap();
    assert!(bytes.starts_with(br#"{"format":5,"#));
    let later = String::from_utf8(bytes).unwrap().replacen("5", "6", 1);
    let error = snapshot::decode(later.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("format 6") && error.contains("newer release"), "{error}");
}
