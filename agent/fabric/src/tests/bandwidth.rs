//! The receiving side measures the traffic of tunnels.

use super::*;
use crate::measured::{Meters, ReceivedBytes};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receiver_measures_and_the_sender_does_not() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let (mut at_donor, mut at_origin) = (Meters::default(), Meters::default());
    let mut stream = pair.origin.connect(API_PORT).await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    let receives = tokio::spawn(async move {
        let mut room = vec![0; 64 << 10];
        while let Ok(1..) = accepted.read(&mut room).await {}
    });
    // Sends until the rate is measured, whatever this machine's speed.
    let sends = tokio::spawn(async move {
        let piece = vec![7; 64 << 10];
        while stream.write_all(&piece).await.is_ok() {}
    });
    let start = Instant::now();
    let measured = loop {
        let at = start.elapsed();
        let rates = at_donor.record(at, [ReceivedBytes::of(&pair.donor)]).clone();
        let back = at_origin.record(at, [ReceivedBytes::of(&pair.origin)]);
        assert!(back.is_empty(), "acknowledgements are no transfer: {back:?}");
        if let Some(measured) = rates.get(pair.donor.remote_cluster()) {
            break *measured;
        }
        assert!(at < SOON * 12, "nothing is measured of what flows");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let bytes = pair.donor.status().rx_bytes;
    sends.abort();
    receives.abort();
    // At least the slowest measurable rate, at most all bytes in the shortest window.
    let most = bytes * 8 / 1_000_000;
    assert!((6..=most).contains(&measured), "{measured} Mbit/s of {bytes} bytes");
    assert!(start.elapsed() >= Duration::from_secs(1), "a shorter time tells nothing");
}
