//! TCP inside the tunnel, and at both ends of it.

use tokio::net::TcpSocket;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_mebibytes_come_back_unchanged() {
    const TOTAL: usize = 64 << 20;
    let pair = pair().await;
    let _exposure = expose(&pair.donor, API_PORT, echo_server().await.into()).unwrap();
    let forward = forward_local(&pair.origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    let (mut read, mut write) = TcpStream::connect(forward.local_addr()).await.unwrap().into_split();
    let sender = tokio::spawn(async move {
        let (mut sum, mut left, mut word) = (Sha256::new(), TOTAL, 1_u64);
        let mut block = vec![0; 64 * 1024];
        while left > 0 {
            for chunk in block.chunks_exact_mut(8) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                chunk.copy_from_slice(&word.to_le_bytes());
            }
            sum.update(&block);
            write.write_all(&block).await.unwrap();
            left -= block.len();
        }
        write.shutdown().await.unwrap();
        sum.finalize()
    });
    let (mut sum, mut received) = (Sha256::new(), 0);
    let mut block = vec![0; 64 * 1024];
    loop {
        match read.read(&mut block).await.unwrap() {
            0 => break,
            length => {
                sum.update(&block[..length]);
                received += length;
            }
        }
    }
    assert_eq!(received, TOTAL);
    assert_eq!(sum.finalize(), sender.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_connections_at_once_are_kept_apart() {
    let pair = pair().await;
    let _exposure = expose(&pair.donor, API_PORT, echo_server().await.into()).unwrap();
    let forward = forward_local(&pair.origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    let mut clients = JoinSet::new();
    for client in 0..100_u32 {
        let address = forward.local_addr();
        clients.spawn(async move {
            let message = client.to_le_bytes().repeat(5_000);
            assert_eq!(echo_once(address, &message).await.unwrap(), message);
        });
    }
    while let Some(result) = clients.join_next().await {
        result.unwrap();
    }
    // All connections are released once both sides have closed.
    let start = Instant::now();
    while pair.origin.status().connections + pair.donor.status().connections > 0 {
        assert!(start.elapsed() < SOON, "connections are left over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_side_that_has_finished_writing_still_reads() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let server = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap();
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        stream.write_all(&request.repeat(100_000)).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let mut stream = pair.origin.connect(API_PORT).await.unwrap();
    stream.write_all(b"watch").await.unwrap();
    stream.shutdown().await.unwrap();
    assert!(stream.write(b"more").await.is_err());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer, b"watch".repeat(100_000));
    server.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_written_before_a_drop_arrives() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let mut stream = pair.origin.connect(API_PORT).await.unwrap();
    stream.write_all(&[7; 100_000]).await.unwrap();
    drop(stream);
    let mut received = Vec::new();
    listener.accept().await.unwrap().read_to_end(&mut received).await.unwrap();
    assert_eq!(received, [7; 100_000]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aborted_connection_is_no_clean_end() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let mut stream = pair.origin.connect(API_PORT).await.unwrap();
    stream.write_all(b"half").await.unwrap();
    let mut accepted = listener.accept().await.unwrap();
    accepted.read_exact(&mut [0; 4]).await.unwrap();
    stream.abort();
    assert!(accepted.read(&mut [0; 4]).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_nobody_exposes_is_refused_at_once() {
    let pair = pair().await;
    let start = Instant::now();
    let refused = pair.origin.connect(22).await;
    assert!(matches!(refused, Err(FabricError::Refused { port: 22, .. })), "{refused:?}");
    assert!(start.elapsed() < SOON);
    assert_eq!(pair.donor.status().connections, 0);
    assert!(matches!(pair.origin.connect(0).await, Err(FabricError::PortZero { .. })));
    let listener = pair.donor.listen(API_PORT).unwrap();
    assert!(matches!(pair.donor.listen(API_PORT), Err(FabricError::PortInUse { .. })));
    drop(listener);
    assert!(matches!(pair.origin.connect(API_PORT).await, Err(FabricError::Refused { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_bound_are_refused_and_the_others_live() {
    let pair = pair().await;
    let mut listener = pair.donor.listen(API_PORT).unwrap();
    let mut held = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        held.push((pair.origin.connect(API_PORT).await.unwrap(), listener.accept().await.unwrap()));
    }
    let refused = pair.origin.connect(API_PORT).await;
    assert!(matches!(refused, Err(FabricError::TooManyConnections { limit: MAX_CONNECTIONS, .. })), "{refused:?}");
    let (one, other) = held.last_mut().unwrap();
    one.write_all(b"alive").await.unwrap();
    let mut word = [0; 5];
    other.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"alive");
    assert!(pair.origin.status().tx_bytes > 0 && pair.origin.status().rx_bytes > 0);
    held.clear();
    let start = Instant::now();
    while pair.origin.connect(API_PORT).await.is_err() {
        assert!(start.elapsed() < SOON, "room is not given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exposed_target_that_is_down_resets_the_client() {
    let pair = pair().await;
    // Bound, so that no other test gets the port, but not listening.
    let gone = TcpSocket::new_v4().unwrap();
    gone.bind(loopback(0)).unwrap();
    let _exposure = expose(&pair.donor, API_PORT, gone.local_addr().unwrap().into()).unwrap();
    let forward = forward_local(&pair.origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    // The reset may meet the client before it knows that it is connected.
    let answer = tokio::time::timeout(SOON, echo_once(forward.local_addr(), b"hello")).await;
    assert!(answer.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_leads_into_one_tunnel_until_that_is_dropped() {
    let pair = pair().await;
    let forward = forward_local(&pair.origin, loopback(0), API_PORT, nobody(), member()).await.unwrap();
    let address = forward.local_addr();
    let taken = forward_local(&pair.origin, address, API_PORT, nobody(), member()).await;
    assert!(matches!(taken, Err(FabricError::LocalBind { .. })));
    drop(forward);
    let start = Instant::now();
    while TcpStream::connect(address).await.is_ok() {
        assert!(start.elapsed() < SOON, "a dropped forward still listens");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_local_port_of_an_evicted_origin_refuses_connections() {
    let pair = pair().await;
    let echo = echo_server().await;
    let exposure = expose(&pair.donor, API_PORT, echo.into()).unwrap();
    let revoked = watch::Sender::new(false);
    let forward = forward_local(&pair.origin, loopback(0), API_PORT, nobody(), revoked.subscribe()).await.unwrap();
    let address = forward.local_addr();
    // A suspended cluster's leases may run to their end: the donor answers.
    revoked.send_replace(true);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(echo_once(address, b"finish").await.unwrap(), b"finish");

    drop(exposure);
    pair.donor_fabric.remove_peer("pair");
    let refused = async {
        while TcpStream::connect(address).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), refused).await.expect("the port is closed");
    // It opens at the same port once the cluster takes part again.
    revoked.send_replace(false);
    let opened = async {
        while TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), opened).await.expect("the port is open again");
}
